"""What MDS cannot hold, found when a stream is built and not hours later. Pure.

MDS has no nulls. Whether a column that may hold some does is not known without reading it.
"""

from __future__ import annotations

import pyarrow as pa

from lance_stream.errors import PlanError, UnsupportedTypeError
from lance_stream.planning.sizing import RowSize
from lance_stream.planning.types import is_list
from lance_stream.shards.mds_format import mds_encodings, mds_overhead_bytes

__all__ = ["check_mds_nulls", "check_mds_sizes"]

# Offsets are 32-bit.
_MAX_FILE_BYTES = (1 << 32) - 1


def check_mds_sizes(schema: pa.Schema, size: RowSize, shard_rows: int, where: str) -> None:
    """Refuse columns that MDS has no encoding for, and shards that it has no offsets for.

    Args:
        schema: Of a shard.
        size: Sampled size of a row.
        shard_rows: Rows of the largest shard.
        where: Table and version, for the error.

    Raises:
        UnsupportedTypeError: Names every such column, and its type.
        PlanError: A shard would be too large.
    """
    mds_encodings(schema)
    shard_bytes = size.shard_bytes(shard_rows) + shard_rows * mds_overhead_bytes(schema)
    if shard_bytes > _MAX_FILE_BYTES:
        fit = max(1, int(_MAX_FILE_BYTES / shard_bytes * shard_rows))
        msg = (
            f"{where}: {shard_rows} rows per shard would take about {shard_bytes} bytes, and an "
            f"MDS file holds at most {_MAX_FILE_BYTES}: choose shard_rows={fit} or less"
        )
        raise PlanError(msg)


def check_mds_nulls(batch: pa.RecordBatch, where: str) -> None:
    """Refuse columns that hold a null, also inside their lists.

    Args:
        batch: Rows of the columns that may.
        where: Table and version, for the error.

    Raises:
        UnsupportedTypeError: Names the columns.
    """
    found = [
        f"{field.name!r} ({field.type})"
        for field, column in zip(batch.schema, batch.columns, strict=True)
        if _has_null(column)
    ]
    if found:
        msg = (
            f"{where}: MDS cannot hold nulls, and there are some in {', '.join(found)}: use "
            'cache_format="arrow", or replace them with columns={name: "coalesce(name, ...)"}'
        )
        raise UnsupportedTypeError(msg)


def _has_null(array: pa.Array) -> bool:
    if array.null_count:
        return True
    if isinstance(array, pa.ExtensionArray):
        return _has_null(array.storage)
    return is_list(array.type) and _has_null(array.flatten())
