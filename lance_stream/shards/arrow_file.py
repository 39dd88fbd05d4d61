"""Arrow IPC shard files: written complete and checksummed, verified when opened.

A shard is an ordinary Arrow IPC *file* (any Arrow reader opens it) whose footer metadata says
what it is, ``lance_stream.shard: {"fingerprint": ..., "shard": 42, "rows": 1000}``, beside the
checksum of the whole file (``planning.checksum``).

The stream format is not used: cut at a message border it reads back short without an error.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from lance_stream.errors import ShardCorruptError
from lance_stream.planning import checksum
from lance_stream.shards.mapping import map_readonly

__all__ = ["ShardHeader", "ShardFile", "write_shard"]

_HEADER = b"lance_stream.shard"
_MAX_BATCHES = 16
_COMBINE_BELOW_BYTES = 64 << 20


@dataclass(frozen=True, slots=True)
class ShardHeader:
    """What a shard file is, as written inside it."""

    fingerprint: str
    shard: int
    num_rows: int

    def to_bytes(self) -> bytes:
        """Encode as JSON."""
        value = {"fingerprint": self.fingerprint, "shard": self.shard, "rows": self.num_rows}
        return json.dumps(value).encode()


def write_shard(path: str, table: pa.Table, header: ShardHeader) -> int:
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
    batches = table.to_batches()
    if len(batches) > _MAX_BATCHES or table.nbytes < _COMBINE_BELOW_BYTES:
        batches = table.combine_chunks().to_batches()
    metadata = {_HEADER: header.to_bytes(), **checksum.placeholder(header.to_bytes())}
    schema = table.schema.remove_metadata()
    with (
        pa.OSFile(path, mode="wb") as sink,
        pa.ipc.new_file(sink, schema, metadata=metadata) as writer,
    ):
        for batch in batches:
            writer.write_batch(batch)
    with open(path, "r+b") as file:
        num_bytes = os.fstat(file.fileno()).st_size
        content = memoryview(map_readonly(file.fileno(), num_bytes))
        at = checksum.locate(content, header.to_bytes())
        # Not through a mapping: where the disk is full that would be a SIGBUS, not an error.
        os.pwrite(file.fileno(), checksum.compute(content, at), at)
    return num_bytes


class ShardFile:
    """A published shard file, mapped into memory.

    Attributes:
        batches: Its record batches; their buffers point into the mapping.
        num_bytes: Size of the file.
        inode: Device, inode and modification time: names this very file.
    """

    __slots__ = ("batches", "inode", "num_bytes")

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
        with open(path, "rb") as file:
            status = os.fstat(file.fileno())
            self.num_bytes = status.st_size
            self.inode = (status.st_dev, status.st_ino, status.st_mtime_ns, status.st_size)
            if not status.st_size:
                msg = f"{path} is empty"
                raise ShardCorruptError(msg)
            mapped = map_readonly(file.fileno(), status.st_size)
        name = expected.to_bytes()
        if verified != self.inode and not checksum.is_intact(memoryview(mapped), name):
            msg = f"{path}: the checksum does not match the content, or it is another shard's"
            raise ShardCorruptError(msg)
        try:
            reader = pa.ipc.open_file(mapped)
            header = reader.metadata.get(_HEADER, b"") if reader.metadata else b""
            found_schema = reader.schema
            batches = [reader.get_batch(i) for i in range(reader.num_record_batches)]
        except (pa.ArrowException, OSError, ValueError) as error:
            msg = f"{path}: not an Arrow file: {error}"
            raise ShardCorruptError(msg) from error
        num_rows = sum(batch.num_rows for batch in batches)
        _expect(path, "header", json.loads(expected.to_bytes()), _json(header))
        _expect(path, "rows", expected.num_rows, num_rows)
        _expect(path, "schema", schema.remove_metadata(), found_schema.remove_metadata())
        self.batches = batches


def _json(data: bytes) -> Any:
    try:
        return json.loads(data)
    except ValueError:
        return None


def _expect(path: str, what: str, expected: object, found: object) -> None:
    if expected != found:
        msg = f"{path}: {what} should be {expected} but is {found}"
        raise ShardCorruptError(msg)
