"""Failures reach the training loop, in the epoch they happen, and are forgotten when over."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

from lance_stream.errors import (
    CacheInUseError,
    DatasetNotFoundError,
    EmptyStreamError,
    PlanError,
    ShardUnavailableError,
    UnsupportedTypeError,
    VersionNotFoundError,
)
from tests.support.forked import fork, run_forked
from tests.support.scripts import run_script
from tests.support.streams import batches, cached_files, dataset, ids
from tests.support.tables import write_table


def _epoch_or_error(data: Any, workers: int) -> list[Any]:
    seen = []
    try:
        for batch in batches(data, workers):
            seen += [row["i"] for row in batch]
    except ShardUnavailableError as error:
        return ["error", len(seen), str(error)]
    return ["ended", len(seen), ""]


@pytest.mark.parametrize("workers", [0, 1, 2])
def test_a_shard_that_cannot_be_had(tmp_path: Path, workers: int) -> None:
    """The real error, in the first epoch, names shard, rows, table and version; then exact."""
    uri, local = str(tmp_path / "t.lance"), str(tmp_path / "cache")
    write_table(uri, 100, 25)
    # The data file of rows 50 to 74 goes away: as when the version is cleaned up.
    files = sorted(Path(uri, "data").iterdir(), key=lambda path: path.stat().st_mtime_ns)
    lost = _file_of_fragment(uri, 2)
    assert lost in files
    hidden = tmp_path / "hidden"

    def run() -> list[Any]:
        data = dataset(uri, shard_rows=25, local=local)
        shutil.move(lost, hidden)
        return _epoch_or_error(data, workers)

    kind, seen, message = run_forked(run)
    assert kind == "error"
    assert seen <= 75
    assert "shard 2 (rows [50, 75))" in message
    assert f"{uri} version 1" in message
    assert "cleaned up" in message
    shutil.move(hidden, lost)
    again = run_forked(lambda: ids(batches(dataset(uri, shard_rows=25, local=local), workers)))
    assert sorted(again) == list(range(100))


@pytest.mark.parametrize("limit", [None, "1mb"])
def test_what_was_planted_in_the_cache_is_replaced(tmp_path: Path, limit: str | None) -> None:
    """A pipe, which would be waited for, and links, which may lead anywhere."""
    uri, local = str(tmp_path / "t.lance"), tmp_path / "cache"
    write_table(uri, 100, 25)

    def run() -> list[int]:
        data = dataset(uri, shard_rows=10, local=str(local), host={"cache_limit": limit})
        return ids(batches(data, 0))

    assert sorted(run_forked(run)) == list(range(100))
    files = sorted(local.glob("*.arrow"))
    pipe, dangling, linked, *_ = [path for path in files if "index" not in path.name]
    os.rename(linked, tmp_path / "away")
    linked.symlink_to(tmp_path / "away")
    for path in (pipe, dangling, *local.glob("*.index.arrow")):
        path.unlink()
        if path is not dangling:
            os.mkfifo(path)
    dangling.symlink_to("/nonexistent/x")
    assert sorted(run_forked(run)) == list(range(100))
    assert all(path.is_file() and not path.is_symlink() for path in local.glob("*.arrow"))


def _file_of_fragment(uri: str, number: int) -> Path:
    script = """
import sys, json, lance
fragment = lance.dataset(sys.argv[1]).get_fragments()[int(sys.argv[2])]
print(json.dumps(fragment.metadata.files[0].path))
"""
    return Path(uri, "data", run_script(script, uri, str(number)).check().json())


def test_a_fault_that_passed_is_forgotten(tmp_path: Path) -> None:
    """In the same dataset: an epoch that failed, then whole ones."""
    uri = str(tmp_path / "t.lance")
    write_table(uri, 100, 25)
    lost, hidden = _file_of_fragment(uri, 3), tmp_path / "hidden"

    def run() -> list[Any]:
        data = dataset(uri, shard_rows=10)
        shutil.move(lost, hidden)
        first = _epoch_or_error(data, 2)
        shutil.move(hidden, lost)
        return [first, [sorted(ids(batches(data, 2))) == list(range(100)) for _ in range(2)]]

    first, later = run_forked(run)
    assert first[0] == "error"
    assert later == [True, True]


def test_errors_of_the_table_come_when_the_dataset_is_built(tmp_path: Path) -> None:
    """Missing table or version, no rows, unsupported types: in the main process, by name."""
    uri = str(tmp_path / "t.lance")
    write_table(uri, 10, 10)
    empty, odd = str(tmp_path / "empty.lance"), str(tmp_path / "odd.lance")
    script = """
import sys, lance, pyarrow as pa
table = pa.table({"i": pa.array([], pa.int64())})
lance.write_dataset(table, sys.argv[1])
opaque = pa.opaque(pa.binary(), "kind", "vendor")
lance.write_dataset(
    pa.table({
        "i": [1],
        "point": pa.array([[({"x": 1}, 1)]], pa.map_(pa.struct([("x", pa.int64())]), pa.int64())),
        "words": pa.ExtensionArray.from_storage(opaque, pa.array([b"a"])),
    }),
    sys.argv[2],
    data_storage_version="2.2",
)
lance.write_dataset(pa.table({"i": [1, 2]}), sys.argv[1] + "2").delete("true")
"""
    run_script(script, empty, odd).check()
    with pytest.raises(DatasetNotFoundError, match=f"{tmp_path}/nope.lance.*no Lance table there"):
        dataset(str(tmp_path / "nope.lance"))
    with pytest.raises(VersionNotFoundError, match=f"{uri} version 99.*no such version"):
        dataset(uri, version=99)
    with pytest.raises(VersionNotFoundError, match=f"{uri} version 'v1'.*no such version or tag"):
        dataset(uri, version="v1")
    with pytest.raises(EmptyStreamError, match=f"{empty} version 1 has no rows"):
        dataset(empty)
    with pytest.raises(EmptyStreamError, match="version 2 has no rows"):
        dataset(empty + "2")
    words = r"'point' \(map<struct<x: int64>, int64>\), 'words' \(extension<arrow.opaque"
    with pytest.raises(UnsupportedTypeError, match=words):
        dataset(odd)
    assert [row["i"] for row in dataset(odd, columns=["i"])] == [1]


def test_a_table_made_again_while_training(tmp_path: Path) -> None:
    """Version 1 of the new table is not version 1 of the old one: refused, never mixed."""
    uri, local = str(tmp_path / "t.lance"), str(tmp_path / "cache")
    write_table(uri, 100, 25)

    def run() -> list[Any]:
        data = dataset(uri, shard_rows=25, local=local)
        shutil.rmtree(uri)
        write_table(uri, 100, 25, first_row=1000)
        return _epoch_or_error(data, 0)

    kind, _, message = run_forked(run)
    assert kind == "error"
    assert "shard 0" in message
    # And a new dataset gives the new rows, although number and count are the same.
    rows = run_forked(lambda: [r["i"] for r in dataset(uri, shard_rows=25, local=local)])
    assert rows == list(range(1000, 1100))


def test_a_full_disk(tmp_path: Path) -> None:
    """The error names path, free space and shard, and no part of a file is left."""
    uri, local = str(tmp_path / "t.lance"), tmp_path / "small"
    script = """
import sys, os, lance, pyarrow as pa
table = pa.table({"i": list(range(100)), "b": [os.urandom(30_000) for _ in range(100)]})
lance.write_dataset(table, sys.argv[1])
"""
    run_script(script, uri).check()
    local.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", local], check=True)
    try:

        def without_limit() -> list[Any]:
            return _epoch_or_error(dataset(uri, shard_rows=10, local=str(local)), 0)

        kind, seen, message = run_forked(without_limit)
        assert (kind, seen) != ("ended", 100)
        assert f"{local} has" in message
        assert "bytes free" in message
        assert "set cache_limit" in message
        assert not [name for name in os.listdir(local) if name.startswith(".tmp")]

        def with_limit() -> list[Any]:
            host = {"cache_limit": "1400kb", "shuffle": True}
            data = dataset(uri, shard_rows=10, local=str(local), host=host)
            return _epoch_or_error(data, 0)

        kind, seen, message = run_forked(with_limit)
        assert (kind, seen) == ("ended", 100), message
    finally:
        subprocess.run(["umount", local], check=True)


def test_a_directory_in_use(table_100: str, tmp_path: Path) -> None:
    """A second job on the same directory is refused with the pid of the first, until it ends."""
    local = str(tmp_path / "cache")
    marker = tmp_path / "built"

    def hold() -> None:
        data = dataset(table_100, local=local)
        marker.touch()
        time.sleep(60)
        del data

    first = fork(hold)
    while not marker.exists():
        assert first.poll() is None, first.output()
        time.sleep(0.02)
    with pytest.raises(CacheInUseError, match=f"in use by process {first.pid}"):
        dataset(table_100, local=local)
    first.kill()
    assert run_forked(lambda: ids(batches(dataset(table_100, local=local), 0))) == list(range(100))


def test_damaged_files_are_fetched_again(table_100: str, tmp_path: Path) -> None:
    """Truncated, foreign, flipped or empty files and leftovers: dropped, and every row exact."""
    local = tmp_path / "cache"

    def fill() -> list[str]:
        data = dataset(table_100, shard_rows=10, local=str(local))
        ids(batches(data, 0))
        return sorted(cached_files(data))

    names = run_forked(fill)
    assert len(names) == 10
    whole = [(local / name).read_bytes() for name in names]
    (local / names[0]).write_bytes(b"")
    (local / names[1]).write_bytes(whole[1][:1])
    (local / names[2]).write_bytes(whole[2][: len(whole[2]) // 2])
    (local / names[3]).write_bytes(whole[3][:-8])
    flipped = bytearray(whole[4])
    flipped[len(flipped) // 2] ^= 1
    (local / names[4]).write_bytes(flipped)
    (local / names[5]).write_bytes(whole[6])
    leftover = local / ".tmp-999999-1-x.arrow"
    leftover.write_bytes(b"half")
    assert run_forked(lambda: ids(batches(dataset(table_100, shard_rows=10, local=str(local)), 0)))
    rows = run_forked(lambda: ids(batches(dataset(table_100, shard_rows=10, local=str(local)), 2)))
    assert sorted(rows) == list(range(100))
    assert not leftover.exists()
    assert [(local / name).read_bytes() == data for name, data in zip(names, whole, strict=True)]


def test_one_directory_never_serves_other_data(tmp_path: Path) -> None:
    """One cache directory for versions, columns, sizes and a table made again: own data each."""
    uri, local = str(tmp_path / "t.lance"), str(tmp_path / "cache")
    write_table(uri, 100, 25)

    def values(**stream: Any) -> list[Any]:
        data = dataset(uri, local=local, **stream)
        return [[row["i"], list(row)] for row in data]

    def expect(first: int, columns: list[str]) -> list[Any]:
        return [[i, columns] for i in range(first, first + 100)]

    everything = ["i", "s", "v"]
    assert run_forked(lambda: values(shard_rows=10)) == expect(0, everything)
    write_table(uri, 100, 25, first_row=1000, mode="overwrite")
    assert run_forked(lambda: values(shard_rows=10)) == expect(1000, everything)
    assert run_forked(lambda: values(shard_rows=10, version=1)) == expect(0, everything)
    assert run_forked(lambda: values(shard_rows=10, version=1, columns=["i"])) == expect(0, ["i"])
    assert run_forked(lambda: values(shard_rows=20, version=1)) == expect(0, everything)
    shutil.rmtree(uri)
    write_table(uri, 100, 25, first_row=5000)
    assert run_forked(lambda: values(shard_rows=10, version=1)) == expect(5000, everything)


def test_nothing_secret_is_written_or_shown(table_100: str, tmp_path: Path) -> None:
    """Values of storage options are in no repr, file or command line."""
    secret = "sEcr3tsEcr3tsEcr3t"

    def run() -> list[str]:
        options = {"secret_access_key": secret, "session_token": secret + "2"}
        data = dataset(table_100, local=str(tmp_path / "c"), storage_options=options)
        ids(batches(data, 0))
        stream = data.streams[0]
        found = [repr(stream), repr(data.shards[0]), json.dumps(stream.index.describe())]
        runtime = Path(os.environ["LANCE_STREAM_RUNTIME_DIR"])
        for root in (tmp_path / "c", runtime):
            found += [p.read_bytes().decode("latin1") for p in root.rglob("*") if p.is_file()]
        for pid in filter(str.isdigit, os.listdir("/proc")):
            try:
                found.append(Path("/proc", pid, "cmdline").read_text())
            except OSError:
                continue
        return [text for text in found if secret in text]

    assert run_forked(run) == []


def test_two_datasets_of_one_process_on_one_directory(table_5000: str, tmp_path: Path) -> None:
    """Each evicts what the other fetched, and both are exact."""

    def run() -> list[list[int]]:
        host = {"cache_limit": "400kb"}
        both = [
            dataset(table_5000, shard_rows=100, local=str(tmp_path / "cache"), host=host)
            for _ in range(2)
        ]
        seen: list[list[int]] = [[], []]
        for rows in zip(*both, strict=True):
            for ours, row in zip(seen, rows, strict=True):
                ours.append(row["i"])
        return seen

    assert run_forked(run, timeout_s=110) == [list(range(5000))] * 2


def test_a_stream_may_be_used_again(table_100: str) -> None:
    """The same stream in a second dataset: weights that the host derived are not given ones."""

    def run() -> list[int]:
        from streaming import StreamingDataset

        from lance_stream import LanceStream

        stream = LanceStream(table_100, shard_rows=10)
        lengths = []
        for _ in range(2):
            data = StreamingDataset(streams=[stream], batch_size=4)
            lengths.append(len(list(data)))
        return lengths

    assert run_forked(run) == [100, 100]


def test_a_cache_directory_that_is_removed_says_so(table_100: str, tmp_path: Path) -> None:
    """One error that names the directory and what to do, not one about the table's version."""

    def run() -> list[Any]:
        data = dataset(table_100, shard_rows=10, local=str(tmp_path / "cache"))
        shutil.rmtree(tmp_path / "cache")
        return _epoch_or_error(data, 2)

    kind, seen, message = run_forked(run)
    assert (kind, seen) == ("error", 0)
    assert str(tmp_path / "cache") in message
    assert "build" in message
    assert "version=" not in message


def test_row_ids_hide_no_column(table_100: str) -> None:
    """A column under the name that with_row_id adds is refused."""
    with pytest.raises(PlanError, match="'_rowid' is Lance's own name"):
        dataset(table_100, columns={"_rowid": "i + 1"}, with_row_id=True)


@pytest.mark.parametrize("workers", [0, 2])
def test_a_stream_whose_index_is_gone_fails_alone(
    table_100: str, tmp_path: Path, workers: int
) -> None:
    """A fresh download process cannot serve it, says so, and serves the other."""

    def run() -> list[Any]:
        one, other = (
            dataset(table_100, shard_rows=10, local=str(tmp_path / name)) for name in "ab"
        )
        assert sorted(ids(batches(other, workers))) == list(range(100))
        for path in [*tmp_path.glob("a/*.arrow"), *tmp_path.glob("b/*.00000003.arrow")]:
            path.unlink()
        os.kill(one.streams[0].download_process_pid, signal.SIGKILL)
        with pytest.raises(ShardUnavailableError, match="cannot serve the stream") as caught:
            list(batches(one, workers))
        return [str(caught.value), sorted(ids(batches(other, workers)))]

    said, rows = run_forked(run)
    assert f"{table_100} version 1" in said
    assert "index.arrow" in said
    assert "build the dataset again" in said
    assert rows == list(range(100))
