"""A column with what its rows become written out, and the ways that rows come to a decoder."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

import pyarrow as pa

from lance_stream.shards.arrow_file import ArrowShard, write_arrow_shard
from lance_stream.shards.header import ShardHeader

__all__ = ["WAYS", "Case", "full", "raw_array", "table_of", "through_file"]

_NAMES = count()


@dataclass(frozen=True)
class Case:
    """A column and what its rows become, written out.

    Attributes:
        name: For the test's id.
        column: The rows.
        expected: The value of each.
        kind: Name of the Python type, as the stream's schema tells it.
        field: The column's field, where it is more than the type.
    """

    name: str
    column: pa.Array
    expected: list[Any]
    kind: str
    field: pa.Field | None = None

    def schema(self) -> pa.Schema:
        """Of a table with only this column, ``c``."""
        return pa.schema([self.field or pa.field("c", self.column.type)])


def full(case: Case) -> Case:
    """The rows of a case that are not null, nor a list with a null in it."""
    rows = [i for i, value in enumerate(case.expected) if not _has_none(value)]
    parts = [case.column.slice(i, 1) for i in rows]
    column = pa.concat_arrays(parts) if parts else case.column.slice(0, 0)
    expected = [case.expected[i] for i in rows]
    return Case(f"{case.name} full", column, expected, case.kind, case.field)


def _has_none(value: Any) -> bool:
    return value is None or (isinstance(value, list) and any(map(_has_none, value)))


def raw_array(kind: pa.DataType, values: list[int | None]) -> pa.Array:
    """A temporal column by the numbers that Arrow holds."""
    width = pa.int32() if kind.bit_width == 32 else pa.int64()
    return pa.array(values, width).view(kind)


def table_of(column: pa.Array | pa.ChunkedArray, field: pa.Field | None = None) -> pa.Table:
    """A table with only this column, ``c``."""
    return pa.table([column], schema=pa.schema([field or pa.field("c", column.type)]))


def through_file(table: pa.Table, directory: Path) -> list[pa.RecordBatch]:
    """The rows as an Arrow shard file of them gives them: mapped."""
    path = str(directory / f"{next(_NAMES)}.arrow")
    header = ShardHeader("f" * 32, 0, table.num_rows)
    write_arrow_shard(path, table, header)
    return list(ArrowShard(path, header, table.schema).batches)


def _padded(column: pa.Array, before: int, after: int) -> pa.Array:
    """The column as the middle of a longer one, of its own values in other places, and nulls."""
    turned = [column.slice(1), pa.nulls(1, column.type), column.slice(0, 1)]
    pad = pa.concat_arrays(turned * (1 + max(before, after)))
    parts = [pad.slice(0, before), column, pad.slice(1, after)]
    return pa.concat_arrays(parts).slice(before, len(column))


def _chunks(column: pa.Array) -> pa.ChunkedArray:
    middle = len(column) // 2
    return pa.chunked_array(
        [
            column.slice(0, 0),
            column.slice(0, middle),
            _padded(column.slice(middle), 3, 1),
            column.slice(0, 0),
        ],
        column.type,
    )


def _table_slice(case: Case) -> pa.Table:
    twice = pa.concat_arrays([case.column, case.column])
    return table_of(twice, case.field).slice(len(case.column), len(case.column))


# The record batches of a case, by the way that they come.
WAYS: dict[str, Callable[[Case, Path], list[pa.RecordBatch]]] = {
    "batch": lambda case, _: table_of(case.column, case.field).to_batches(),
    "slice": lambda case, _: table_of(_padded(case.column, 11, 5), case.field).to_batches(),
    "file": lambda case, path: through_file(table_of(case.column, case.field), path),
    "file_of_slice": lambda case, path: through_file(
        table_of(_padded(case.column, 11, 5), case.field), path
    ),
    "file_of_table_slice": lambda case, path: through_file(_table_slice(case), path),
    "file_of_chunks": lambda case, path: through_file(
        table_of(_chunks(case.column), case.field), path
    ),
}
