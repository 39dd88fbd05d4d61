"""Shard files of either format."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import pyarrow as pa

from lance_stream.shards.arrow_file import ArrowShard, is_intact_arrow, write_arrow_shard
from lance_stream.shards.header import ShardHeader
from lance_stream.shards.mds_file import MdsShard, is_intact_mds, write_mds_shard
from lance_stream.shards.mds_format import mds_overhead_bytes

__all__ = ["FORMATS", "OpenShard", "is_intact", "open_shard", "overhead_row_bytes", "write_shard"]

FORMATS = ("arrow", "mds")


class OpenShard(Protocol):
    """A published shard file, mapped into memory."""

    num_bytes: int
    inode: tuple[int, ...]

    def samples(self, *, zero_copy: bool) -> Callable[[int], dict[str, Any]]:
        """What gives the sample of a row."""
        ...


def write_shard(cache_format: str, path: str, table: pa.Table, header: ShardHeader) -> int:
    """Write a shard file, not yet published; returns its bytes. See the format's module."""
    write = write_mds_shard if cache_format == "mds" else write_arrow_shard
    return write(path, table, header)


def open_shard(
    cache_format: str, path: str, expected: ShardHeader, schema: pa.Schema, *, verified: object
) -> OpenShard:
    """Map a shard file and check it against the plan. See the format's module."""
    kind = MdsShard if cache_format == "mds" else ArrowShard
    return kind(path, expected, schema, verified=verified)


def is_intact(
    cache_format: str, content: memoryview, header: ShardHeader, schema: pa.Schema
) -> bool:
    """Whether the bytes of a file are those of the shard that a header names.

    Its rows and columns are looked at too: the checksum is one that anybody can make.
    """
    check = is_intact_mds if cache_format == "mds" else is_intact_arrow
    return check(content, header, schema)


def overhead_row_bytes(cache_format: str, schema: pa.Schema) -> int:
    """Bytes that a row may take in a file beyond those that it takes in Arrow memory."""
    return mds_overhead_bytes(schema) if cache_format == "mds" else 0
