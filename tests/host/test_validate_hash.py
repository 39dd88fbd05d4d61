"""Cached files carry a checksum, of the hash that was asked for: damage is found and mended."""

from __future__ import annotations

import logging
import re
from pathlib import Path
from typing import Any

import pytest
from streaming import StreamingDataset
from streaming.base.hashing import get_hash

from lance_stream import LanceStream, stats
from lance_stream.errors import PlanError
from tests.support.forked import run_forked
from tests.support.streams import batches, cached_files, dataset, ids

HASHES = ["sha1", "md5", "xxh64", "xxh3_64"]
FORMATS = ["arrow", "mds"]


def _fill(uri: str, local: Path, **stream: Any) -> list[str]:
    """An epoch; names of the files."""

    def run() -> list[str]:
        data = dataset(uri, shard_rows=25, local=str(local), **stream)
        assert ids(batches(data, 0)) == list(range(100))
        return sorted(cached_files(data))

    return run_forked(run)


def _check(path: Path) -> re.Match[bytes]:
    """The checksum in a file."""
    (match,) = re.finditer(rb"(\w+):([0-9a-f]{24}):([0-9a-f]+)", path.read_bytes())
    return match


@pytest.mark.parametrize("cache_format", FORMATS)
@pytest.mark.parametrize("algorithm", [*HASHES, None])
def test_a_file_carries_the_hash_of_its_content(
    table_100: str, tmp_path: Path, algorithm: str | None, cache_format: str
) -> None:
    """That the host's own function gives, with zeros for the digits themselves."""
    names = _fill(table_100, tmp_path, validate_hash=algorithm, cache_format=cache_format)
    assert len(names) == 4
    for name in names:
        match = _check(tmp_path / name)
        found, digits = match[1].decode(), match[3].decode()
        assert found == (algorithm or "xxh3_128")
        content = (
            match.string[: match.start(3)] + b"0" * len(digits) + match.string[match.end(3) :]
        )
        assert get_hash(found, content) == digits


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("algorithm", ["sha1", None])
@pytest.mark.parametrize("cache_format", FORMATS)
def test_a_flipped_byte_is_found_and_the_shard_fetched_again(
    table_100: str, tmp_path: Path, algorithm: str | None, cache_format: str, workers: int
) -> None:
    """In the rows, where nothing else would tell; then every row and every file is exact."""
    stream = {"validate_hash": algorithm, "cache_format": cache_format}
    names = _fill(table_100, tmp_path, **stream)
    whole = [(tmp_path / name).read_bytes() for name in names]
    for name, content in zip(names[1:], whole[1:], strict=True):
        at = content.index(b"row ")
        (tmp_path / name).write_bytes(content[:at] + b"r0w " + content[at + 4 :])

    def run() -> list[Any]:
        records: list[str] = []
        handler = logging.Handler()
        handler.emit = lambda record: records.append(record.getMessage())  # type: ignore[method-assign]
        logging.getLogger("lance_stream").addHandler(handler)
        data = dataset(table_100, shard_rows=25, local=str(tmp_path), **stream)
        return [sorted(ids(batches(data, workers))), records]

    rows, records = run_forked(run)
    assert rows == list(range(100))
    assert [(tmp_path / name).read_bytes() for name in names] == whole
    if not workers:
        said = [text for text in records if "fetching it again" in text]
        assert len(said) == 3
        assert all(f"{algorithm or 'xxh3_128'} checksum does not match" in text for text in said)


def test_each_hash_has_its_own_files(table_100: str, tmp_path: Path) -> None:
    """None is ever read as another's."""
    names = [_fill(table_100, tmp_path, validate_hash=name) for name in ("sha1", "md5", None, "")]
    assert [len(found) for found in names] == [4, 8, 12, 12]


def test_the_default_of_the_dataset(table_100: str, tmp_path: Path) -> None:
    """``StreamingDataset(validate_hash=...)`` is for the streams that have none."""

    def run() -> list[list[str]]:
        streams = [
            LanceStream(table_100, shard_rows=50, local=str(tmp_path / "default")),
            LanceStream(
                table_100, shard_rows=50, local=str(tmp_path / "own"), validate_hash="xxh64"
            ),
        ]
        data = StreamingDataset(streams=streams, batch_size=4, validate_hash="sha1")
        assert len(ids(batches(data, 0))) == 200
        return [
            sorted(
                {_check(path)[1].decode() for path in (tmp_path / folder).glob("*.[0-9]*.arrow")}
            )
            for folder in ("default", "own")
        ]

    assert run_forked(run) == [["sha1"], ["xxh64"]]


@pytest.mark.parametrize("name", ["nope", "SHA1", "shake_128", "sha-1"])
def test_other_names_are_refused(table_100: str, name: str) -> None:
    """By the stream, or by the dataset where its default is the wrong one."""
    with pytest.raises(PlanError, match=f"validate_hash='{name}' is not a hash"):
        LanceStream(table_100, validate_hash=name)
    with pytest.raises(PlanError, match=f"validate_hash='{name}' is not a hash"):
        StreamingDataset(streams=[LanceStream(table_100)], batch_size=4, validate_hash=name)


def test_what_was_dropped_is_counted(table_100: str, tmp_path: Path) -> None:
    """As a retry: the shard could be had."""
    names = _fill(table_100, tmp_path)
    for name in names[:3]:
        path = tmp_path / name
        path.write_bytes(path.read_bytes().replace(b"row ", b"r0w ", 1))

    def run() -> list[int]:
        data = dataset(table_100, shard_rows=25, local=str(tmp_path))
        assert ids(batches(data, 0)) == list(range(100))
        found = stats(data)
        return [found.retries, found.failures, found.from_lance]

    assert run_forked(run) == [3, 0, 3]
