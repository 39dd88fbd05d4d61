"""Arrow IPC shard files: written complete and checksummed, verified when opened.

A shard is an ordinary Arrow IPC *file* (any Arrow reader opens it) whose footer metadata says
what it is, ``lance_stream.shard: {"fingerprint": ..., "shard": 42, "rows": 1000}``, beside the
checksum of the whole file (``planning.checksum``).

The stream format is not used: cut at a message border it reads back short without an error.
"""

from __future__ import annotations

import bisect
import itertools
import json
from collections.abc import Callable
from typing import Any

import pyarrow as pa

from lance_stream.errors import ShardCorruptError
from lance_stream.planning.checksum import footer
from lance_stream.shards.arrow_blocks import has_compressed_batches
from lance_stream.shards.header import MappedFile, ShardHeader, expect, sign
from lance_stream.shards.samples import sample_decoder

__all__ = ["ArrowShard", "is_intact_arrow", "write_arrow_shard"]

_HEADER = b"lance_stream.shard"
_CHECK = b"lance_stream.check"
_MAX_BATCHES = 16
_COMBINE_BELOW_BYTES = 64 << 20
# Below what the 32-bit offsets of a column stand.
_MAX_BATCH_BYTES = 1 << 30


def write_arrow_shard(path: str, table: pa.Table, header: ShardHeader) -> int:
    """Write a shard file, not yet published: complete and checksummed when this returns.

    The rows are one record batch, or a few if they are many bytes: joining them takes as much
    memory again.

    Args:
        path: File to create; must not exist.
        table: The rows.
        header: What the file is.

    Returns:
        Bytes of the file.

    Raises:
        OSError: The file cannot be written (a full disk, for one). What was written is left for
            the caller to remove.
    """
    batches = _joined(table)
    metadata = {_HEADER: header.to_bytes(), _CHECK: header.checksum.placeholder()}
    schema = table.schema.remove_metadata()
    with (
        pa.OSFile(path, mode="wb") as sink,
        pa.ipc.new_file(sink, schema, metadata=metadata) as writer,
    ):
        for batch in batches:
            writer.write_batch(batch)
    return sign(path, header)


def _joined(table: pa.Table) -> list[pa.RecordBatch]:
    """The rows in one record batch, or in a few if they are many bytes."""
    batches = table.to_batches()
    if len(batches) <= _MAX_BATCHES and table.nbytes >= _COMBINE_BELOW_BYTES:
        return batches
    limit = min(_MAX_BATCH_BYTES, max(_COMBINE_BELOW_BYTES, table.nbytes // _MAX_BATCHES))
    groups: list[list[pa.RecordBatch]] = [[]]
    num_bytes = 0
    for batch in batches:
        if groups[-1] and num_bytes + batch.nbytes > limit:
            groups.append([])
            num_bytes = 0
        groups[-1].append(batch)
        num_bytes += batch.nbytes
    return [
        joined
        for group in groups
        for joined in pa.Table.from_batches(group, table.schema).combine_chunks().to_batches()
    ]


class ArrowShard:
    """A published shard file, mapped into memory.

    Attributes:
        batches: Its record batches; their buffers point into the mapping.
        num_bytes: Size of the file.
        inode: Device, inode and modification time: names this very file.
    """

    __slots__ = ("__weakref__", "batches", "inode", "num_bytes")

    def __init__(
        self, path: str, expected: ShardHeader, schema: pa.Schema, *, verified: object = None
    ) -> None:
        """Map the file and check it against the plan.

        Args:
            path: The file.
            expected: What the plan says of it.
            schema: Columns and types that its rows must have.
            verified: The ``inode`` of an earlier opening that was checked: the same file is not
                hashed again.

        Raises:
            FileNotFoundError: There is no such file.
            ShardCorruptError: It is not what was published for that place in the plan.
        """
        mapped = MappedFile(path)
        self.num_bytes, self.inode = mapped.num_bytes, mapped.inode
        if verified != self.inode:
            mapped.require_intact(path, expected, *footer(mapped.content))
        self.batches = _batches(path, mapped.content, expected, schema)

    def samples(self, *, zero_copy: bool) -> Callable[[int], dict[str, Any]]:
        """What gives the sample of a row."""
        parts = [sample_decoder(batch, zero_copy=zero_copy) for batch in self.batches]
        if len(parts) == 1:
            return parts[0]
        stops = list(itertools.accumulate(batch.num_rows for batch in self.batches))

        def sample(row: int) -> dict[str, Any]:
            part = bisect.bisect_right(stops, row)
            return parts[part](row - (stops[part - 1] if part else 0))

        return sample


def is_intact_arrow(content: memoryview, header: ShardHeader, schema: pa.Schema) -> bool:
    """Whether the bytes of a file are those of the shard that a header names."""
    if not header.checksum.is_intact(content, *footer(content)):
        return False
    # We write none that are compressed, and a few bytes of them may be gigabytes of memory.
    if has_compressed_batches(content):
        return False
    try:
        for batch in _batches("a shared cache", content, header, schema):
            for column in batch.columns:
                # Offsets that lead elsewhere would give other values, or none.
                column.validate(full=_has_only_valid_values(column.type))
    except (ShardCorruptError, pa.ArrowException):
        return False
    return True


def _has_only_valid_values(kind: pa.DataType) -> bool:
    """Whether Arrow writes no values of a type that it calls invalid.

    A table may hold a ``date64`` within a day, say, or a time that no clock shows.
    """
    if pa.types.is_date64(kind) or pa.types.is_time(kind) or pa.types.is_decimal(kind):
        return False
    if isinstance(kind, pa.BaseExtensionType):
        return _has_only_valid_values(kind.storage_type)
    if pa.types.is_dictionary(kind):
        return _has_only_valid_values(kind.value_type)
    return all(_has_only_valid_values(kind.field(i).type) for i in range(kind.num_fields))


def _batches(
    path: str, content: memoryview, expected: ShardHeader, schema: pa.Schema
) -> list[pa.RecordBatch]:
    """The rows of a file; ShardCorruptError if they are not those that were planned."""
    try:
        reader = pa.ipc.open_file(pa.py_buffer(content))
        header = reader.metadata.get(_HEADER, b"") if reader.metadata else b""
        # Before any batch, which may be of another size altogether.
        expect(path, "header", expected.as_json(), _json(header))
        expect(path, "schema", schema.remove_metadata(), reader.schema.remove_metadata())
        batches: list[pa.RecordBatch] = []
        num_rows = 0
        for number in range(reader.num_record_batches):
            batches.append(reader.get_batch(number))
            num_rows += batches[-1].num_rows
            if num_rows > expected.num_rows:
                break
    except (pa.ArrowException, OSError, ValueError) as error:
        msg = f"{path}: not an Arrow file: {error}"
        raise ShardCorruptError(msg) from error
    expect(path, "rows", expected.num_rows, num_rows)
    return batches


def _json(data: bytes) -> Any:
    try:
        return json.loads(data)
    except (ValueError, RecursionError):
        # Brackets in brackets: whatever it is, it is none of ours.
        return None
