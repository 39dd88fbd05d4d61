from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from lance_stream.shards.paths import (
    index_name,
    is_shard_name,
    new_temporary_name,
    shard_name,
    sweep_temporary_files,
)

FINGERPRINT = "0123456789abcdef0123456789abcdef"


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    path = tmp_path / "directory"
    path.mkdir()
    return path


def test_golden_names() -> None:
    # Who depends on these: the caches that users have on disk.
    assert shard_name(FINGERPRINT, 42) == "0123456789abcdef0123.00000042.arrow"
    assert shard_name(FINGERPRINT, 123_456_789) == "0123456789abcdef0123.123456789.arrow"
    assert shard_name(FINGERPRINT, 42, "mds") == "0123456789abcdef0123.00000042.mds"
    assert index_name(FINGERPRINT) == "0123456789abcdef0123.index.arrow"
    assert new_temporary_name("x.arrow", 17, 1234) == ".tmp-17-1234-x.arrow"
    assert new_temporary_name("x", 17, 1234, "0123456789ab") == ".tmp-17-1234-n0123456789ab-x"


@pytest.mark.parametrize("cache_format", ["arrow", "mds"])
@pytest.mark.parametrize("shard", [0, 1, 99_999_999, 100_000_000])
def test_a_shard_name_is_one(shard: int, cache_format: str) -> None:
    assert is_shard_name(shard_name(FINGERPRINT, shard, cache_format))


@pytest.mark.parametrize(
    "name",
    [
        "",
        index_name(FINGERPRINT),
        new_temporary_name(shard_name(FINGERPRINT, 1), 1, 2),
        shard_name(FINGERPRINT, 1) + ".unsettled",
        shard_name(FINGERPRINT, 1) + "\n",
        shard_name(FINGERPRINT, 1).upper(),
        "0123456789abcdef0123.0000042.arrow",
        "0123456789abcdef012.00000042.arrow",
        "0123456789abcdef0123.00000042.zip",
        "0123456789abcdef0123.00000042.arrow.mds",
        "0123456789abcdef0123.٠٠٠٠٠٠٤٢.arrow",
        "shard.00000.mds",
        "index.json",
        ".lance_stream.lock",
    ],
)
def test_other_names_are_not(name: str) -> None:
    assert not is_shard_name(name)


def test_names_of_different_shards_differ() -> None:
    names = {
        shard_name(fingerprint, shard, cache_format)
        for fingerprint in (FINGERPRINT, "f" * 32)
        for shard in (0, 1, 10)
        for cache_format in ("arrow", "mds")
    }
    assert len(names) == 12


def test_only_what_dead_writers_left_is_swept(directory: Path) -> None:
    shard = shard_name(FINGERPRINT, 3)
    alive = new_temporary_name(shard, 10, 100)
    dead = new_temporary_name(shard, 11, 100)
    reused = new_temporary_name(shard, 10, 99)
    kept = {alive, shard, index_name(FINGERPRINT), ".tmp-", ".tmp-x-1-y", "tmp-1-1-a", ".ledger"}
    for name in kept | {dead, reused}:
        (directory / name).touch()
    asked = []

    def is_alive(pid: int, started: int) -> bool:
        asked.append((pid, started))
        return (pid, started) == (10, 100)

    assert set(sweep_temporary_files(str(directory), is_alive)) == {dead, reused}
    assert {path.name for path in directory.iterdir()} == kept
    assert sorted(asked) == [(10, 99), (10, 100), (11, 100)]


def test_what_another_node_writes_is_not_swept_while_it_is_young(directory: Path) -> None:
    here, there = "0" * 12, "f" * 12
    ours, young, old = (
        directory / new_temporary_name(name, 11, 100, node)
        for name, node in (("a", here), ("b", there), ("c", there))
    )
    for path in (ours, young, old):
        path.touch()
    two_days_ago = time.time() - 2 * 86400
    os.utime(old, (two_days_ago, two_days_ago))

    swept = set(sweep_temporary_files(str(directory), lambda _pid, _started: False, here))
    assert swept == {ours.name, old.name}
    assert list(directory.iterdir()) == [young]


def test_a_leftover_that_somebody_else_removes_is_no_error(directory: Path) -> None:
    path = directory / new_temporary_name("x", 1, 1)
    path.touch()

    def is_alive(pid: int, started: int) -> bool:
        path.unlink()
        return False

    assert list(sweep_temporary_files(str(directory), is_alive)) == []


def test_an_empty_directory_has_nothing_to_sweep(directory: Path) -> None:
    assert list(sweep_temporary_files(str(directory), lambda *_: False)) == []
