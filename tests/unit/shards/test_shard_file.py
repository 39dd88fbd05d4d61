from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from lance_stream.errors import ShardCorruptError
from lance_stream.shards.arrow_file import ArrowShard
from lance_stream.shards.header import ShardHeader, sign
from lance_stream.shards.mds_file import MdsShard
from lance_stream.shards.shard_file import (
    FORMATS,
    is_intact,
    open_shard,
    overhead_row_bytes,
    write_shard,
)

TABLE = pa.table({"b": ["x", "", "ünï"], "a": [1, 2, 3]})
HEADER = ShardHeader("f" * 32, 7, 3)
each_format = pytest.mark.parametrize("cache_format", FORMATS)


def test_the_formats_are_these() -> None:
    assert FORMATS == ("arrow", "mds")


@each_format
def test_a_file_is_opened_as_what_it_was_written(tmp_path: Path, cache_format: str) -> None:
    path = str(tmp_path / "shard")
    num_bytes = write_shard(cache_format, path, TABLE, HEADER)
    shard = open_shard(cache_format, path, HEADER, TABLE.schema, verified=None)
    assert isinstance(shard, MdsShard if cache_format == "mds" else ArrowShard)
    assert shard.num_bytes == num_bytes
    sample = shard.samples(zero_copy=False)
    # Columns come in the schema's order, which MDS does not keep.
    assert [list(sample(row).items()) for row in range(3)] == [
        [("b", "x"), ("a", 1)],
        [("b", ""), ("a", 2)],
        [("b", "ünï"), ("a", 3)],
    ]
    again = open_shard(cache_format, path, HEADER, TABLE.schema, verified=shard.inode)
    assert again.inode == shard.inode


@each_format
def test_what_is_intact_has_the_rows_and_columns_that_were_planned(
    tmp_path: Path, cache_format: str
) -> None:
    # All of them are signed as that shard, which anybody can do.
    def written(name: str, table: pa.Table) -> memoryview:
        path = tmp_path / name
        write_shard(cache_format, str(path), table, HEADER)
        return memoryview(path.read_bytes())

    def intact(content: memoryview) -> bool:
        return is_intact(cache_format, content, HEADER, TABLE.schema)

    assert intact(written("good", TABLE))
    assert not intact(memoryview(b""))
    if cache_format == "arrow":
        assert not intact(written("rows", TABLE.slice(0, 2)))
    assert not intact(written("columns", TABLE.select(["a"])))
    other = TABLE.set_column(1, "a", pa.array([1.0, 2.0, 3.0]))
    assert not intact(written("types", other))


def test_an_arrow_file_with_wrong_offsets_is_not_intact(tmp_path: Path) -> None:
    offsets = pa.array([0, 1, 900_000, 4], pa.int32()).buffers()[1]
    text = pa.StringArray.from_buffers(3, offsets, pa.py_buffer(b"x\xc3\xbcy"))
    table = pa.table({"b": text, "a": [1, 2, 3]})
    write_shard("arrow", str(tmp_path / "s"), table, HEADER)
    content = memoryview((tmp_path / "s").read_bytes())
    assert not is_intact("arrow", content, HEADER, table.schema)


def test_values_that_a_table_may_hold_are_intact(tmp_path: Path) -> None:
    """Though Arrow calls them invalid."""
    odd = [
        pa.array([1, 2, 3], pa.int64()).view(pa.date64()),
        pa.array([-1, 0, 1 << 20], pa.int32()).view(pa.time32("s")),
    ]
    table = pa.table({"d": odd[0], "s": pa.StructArray.from_arrays(odd, ["d", "t"])})
    write_shard("arrow", str(tmp_path / "s"), table, HEADER)
    content = memoryview((tmp_path / "s").read_bytes())
    assert is_intact("arrow", content, HEADER, table.schema)


def test_a_small_file_that_unpacks_to_much_is_not_unpacked(tmp_path: Path) -> None:
    table = pa.table({"b": ["\0" * (1 << 26), "", ""], "a": [1, 2, 3]}).combine_chunks()
    # What write_shard writes, but compressed.
    options = pa.ipc.IpcWriteOptions(compression="zstd")
    path, check = tmp_path / "bomb", HEADER.checksum.placeholder()
    metadata = {b"lance_stream.shard": HEADER.to_bytes(), b"lance_stream.check": check}
    with pa.ipc.new_file(path, TABLE.schema, options=options, metadata=metadata) as writer:
        writer.write_table(table)
    sign(str(path), HEADER)
    content = memoryview(path.read_bytes())
    assert len(content) < 100_000
    pool = pa.default_memory_pool()
    del table
    before = pool.total_bytes_allocated()
    assert not is_intact("arrow", content, HEADER, TABLE.schema)
    assert pool.total_bytes_allocated() - before < 1 << 20


def test_an_mds_file_of_fewer_rows_is_not_intact(tmp_path: Path) -> None:
    path, fewer = tmp_path / "rows", ShardHeader(HEADER.fingerprint, HEADER.shard, 2)
    write_shard("mds", str(path), TABLE.slice(0, 2), fewer)
    assert is_intact("mds", memoryview(path.read_bytes()), fewer, TABLE.schema)
    assert not is_intact("mds", memoryview(path.read_bytes()), HEADER, TABLE.schema)


@each_format
def test_what_says_of_itself_only_brackets_is_not_intact(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cache_format: str
) -> None:
    """More than JSON can be nested: signed as right, which anybody can do."""
    path, brackets = str(tmp_path / "deep"), "[" * 200_000
    whole = json.dumps

    def dumps(value: Any, **options: Any) -> str:
        return whole(value, **options).replace('"brackets"', brackets)

    checksum = HEADER.checksum
    with monkeypatch.context() as patch:
        patch.setattr(json, "dumps", dumps)
        patch.setattr(ShardHeader, "as_json", lambda _: "brackets")
        patch.setattr(ShardHeader, "checksum", checksum)
        write_shard(cache_format, path, TABLE, HEADER)
    content = Path(path).read_bytes()
    assert content.count(brackets.encode()) == 1
    assert not is_intact(cache_format, memoryview(content), HEADER, TABLE.schema)
    with pytest.raises(ShardCorruptError, match=r"header|configuration"):
        open_shard(cache_format, path, HEADER, TABLE.schema, verified=None)


@each_format
def test_a_file_of_the_other_format_is_corrupt(tmp_path: Path, cache_format: str) -> None:
    (other,) = set(FORMATS) - {cache_format}
    path = str(tmp_path / "shard")
    write_shard(other, path, TABLE, HEADER)
    with pytest.raises(ShardCorruptError, match=path):
        open_shard(cache_format, path, HEADER, TABLE.schema, verified=None)


@each_format
def test_a_missing_file_is_a_file_not_found_error(tmp_path: Path, cache_format: str) -> None:
    with pytest.raises(FileNotFoundError, match="none"):
        open_shard(cache_format, str(tmp_path / "none"), HEADER, TABLE.schema, verified=None)


@each_format
def test_a_row_takes_no_more_than_was_estimated(tmp_path: Path, cache_format: str) -> None:
    table = pa.table(
        {
            "flag": [True, False] * 500,
            "text": ["", "x" * 50] * 500,
            "price": pa.array([1, 2] * 500).cast(pa.decimal128(25, 2)),
            "ragged": [[], [1.5] * 20] * 500,
        }
    )
    num_bytes = write_shard(cache_format, str(tmp_path / "s"), table, ShardHeader("f", 0, 1000))
    more = overhead_row_bytes(cache_format, table.schema) * 1000
    assert num_bytes <= table.nbytes + more + 4096
    assert (more > 0) is (cache_format == "mds")
