"""MDS shard files: what the stock ``MDSReader`` reads, checksummed and verified like Arrow ones.

The configuration that every MDS file carries as JSON has one key more, ``lance_stream``, which
says what the file is and holds the checksum of the whole file (``planning.checksum``). The stock
reader skips the configuration.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa

from lance_stream.errors import ShardCorruptError
from lance_stream.shards.header import MappedFile, ShardHeader, expect, sign
from lance_stream.shards.mds_columns import mds_columns
from lance_stream.shards.mds_format import mds_samples, write_mds

__all__ = ["MdsShard", "is_intact_mds", "write_mds_shard"]

_KEY = "lance_stream"
_MAX_CONFIG_BYTES = 16 << 20


def write_mds_shard(path: str, table: pa.Table, header: ShardHeader) -> int:
    """Write a shard file, not yet published: complete and checksummed when this returns.

    Args:
        path: File to create; must not exist.
        table: The rows, without nulls.
        header: What the file is.

    Returns:
        Bytes of the file.

    Raises:
        OSError: The file cannot be written. What was written is left for the caller to remove.
        ValueError: MDS cannot hold the rows: nulls, or more than 4 GiB.
    """
    ours = {"shard": header.as_json(), "check": header.checksum.placeholder().decode()}
    write_mds(path, table, config={_KEY: ours})
    with open(path, "rb") as file:
        head = file.read(4 * (table.num_rows + 2))
    return sign(path, header, _config_bounds(memoryview(head), table.num_rows))


class MdsShard:
    """A published MDS shard file, mapped into memory.

    Attributes:
        num_bytes: Size of the file.
        inode: Device, inode and modification time: names this very file.
    """

    __slots__ = ("_content", "_schema", "inode", "num_bytes")

    def __init__(
        self, path: str, expected: ShardHeader, schema: pa.Schema, *, verified: object = None
    ) -> None:
        """Map the file and check it against the plan.

        Args:
            path: The file.
            expected: What the plan says of it.
            schema: Columns and types that its rows must have.
            verified: The ``inode`` of an earlier opening that was checked.

        Raises:
            FileNotFoundError: There is no such file.
            ShardCorruptError: It is not what was published for that place in the plan.
        """
        mapped = MappedFile(path)
        self.num_bytes, self.inode = mapped.num_bytes, mapped.inode
        self._content, self._schema = mapped.content, schema
        start, stop = _config_bounds(mapped.content, expected.num_rows)
        if not start < stop <= min(mapped.num_bytes, start + _MAX_CONFIG_BYTES):
            msg = f"{path}: not an MDS file of {expected.num_rows} rows"
            raise ShardCorruptError(msg)
        if verified != self.inode:
            mapped.require_intact(path, expected, start, stop)
        try:
            found = json.loads(bytes(mapped.content[start:stop]))[_KEY]["shard"]
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            msg = f"{path}: its configuration is not one of lance_stream: {error!r}"
            raise ShardCorruptError(msg) from error
        expect(path, "header", expected.as_json(), found)

    def samples(self, *, zero_copy: bool) -> Callable[[int], dict[str, Any]]:
        """What gives the sample of a row."""
        return mds_samples(self._content, self._schema, zero_copy=zero_copy)


def is_intact_mds(content: memoryview, header: ShardHeader, schema: pa.Schema) -> bool:
    """Whether the bytes of a file are those of the shard that a header names."""
    start, stop = _config_bounds(content, header.num_rows)
    if not start < stop <= min(len(content), start + _MAX_CONFIG_BYTES):
        return False
    if not header.checksum.is_intact(content, start, stop):
        return False
    try:
        config = json.loads(bytes(content[start:stop]))
        found = [
            int(np.frombuffer(content[:4], np.uint32)[0]),
            config[_KEY]["shard"],
            list(zip(config["column_names"], config["column_encodings"], strict=True)),
        ]
    except (ValueError, KeyError, TypeError, RecursionError):
        return False
    columns = [(column.name, column.encoding) for column in mds_columns(schema)]
    return found == [header.num_rows, header.as_json(), columns]


def _config_bounds(content: memoryview, num_rows: int) -> tuple[int, int]:
    """Offsets of the configuration: after the number of samples and their offsets."""
    start = 4 * (num_rows + 2)
    if len(content) < start:
        return start, -1
    return start, int(np.frombuffer(content[4:8], np.uint32)[0])
