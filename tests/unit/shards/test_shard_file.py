from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from lance_stream.errors import ShardCorruptError
from lance_stream.shards.arrow_file import ArrowShard
from lance_stream.shards.header import ShardHeader
from lance_stream.shards.mds_file import MdsShard
from lance_stream.shards.shard_file import (
    FORMATS,
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
