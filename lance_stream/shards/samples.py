"""One function per record batch that makes the sample of a row, generated from its columns.

The common columns (numbers, text, bytes, fixed-size vectors, without nulls) become expressions in
one dict display, which costs half of what a decoder call per column does; every other column is
the call of a decoder, chosen once per batch. Structs are made in the same way from their fields.
The source holds nothing of the data but column names, as their ``repr``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import pyarrow as pa
from pyarrow import types as pat

from lance_stream.planning.types import is_array_list, is_bfloat16, is_list
from lance_stream.shards.arrays import array_decoder, regular_array, tensor_decoder
from lance_stream.shards.values import (
    Decoder,
    bfloat16_decoder,
    column_buffers,
    flat_decoder,
    is_number,
    nullable,
    number_array,
    value_offsets,
)

__all__ = ["ColumnValues", "column_values", "sample_decoder"]


def sample_decoder(batch: pa.RecordBatch, *, zero_copy: bool) -> Callable[[int], dict[str, Any]]:
    """Make the function that gives the sample of a row.

    Args:
        batch: Rows in the types of a shard (see ``types.sample_schema``), whose buffers stay
            valid as long as the function, or a view it gave, lives.
        zero_copy: Arrays are read-only views of the batch, instead of owned and writable.

    Returns:
        ``row -> {column name: value}`` in column order; rows from 0 to the batch's length.
    """
    return _dicts(batch.schema, batch.columns, zero_copy=zero_copy)


@dataclass(frozen=True, slots=True)
class ColumnValues:
    """One column of a batch, for reading many rows at a time.

    Attributes:
        array: ``(values, valid)``: the rows on the first axis, as a read-only view where that is
            possible, and which rows are not null (None: all); None if values are no regular array.
        decode: Row to value, as in a sample; arrays are owned.
    """

    array: tuple[np.ndarray[Any, Any], np.ndarray[Any, Any] | None] | None
    decode: Decoder


def column_values(batch: pa.RecordBatch) -> list[ColumnValues]:
    """The columns of a batch, in order."""
    return [
        ColumnValues(regular_array(field, column), _decoder(field, column, zero_copy=False))
        for field, column in zip(batch.schema, batch.columns, strict=True)
    ]


def _dicts(
    fields: Iterable[pa.Field], columns: Sequence[pa.Array], *, zero_copy: bool
) -> Callable[[int], dict[str, Any]]:
    items, names, values = [], [], []
    for number, (field, column) in enumerate(zip(fields, columns, strict=True)):
        expression, bound = _inline(field, column, number, zero_copy=zero_copy)
        if not expression:
            decode = _decoder(field, column, zero_copy=zero_copy)
            expression, bound = f"f{number}(r)", {f"f{number}": decode}
        items.append(f"{field.name!r}: {expression}")
        names += bound.keys()
        values += bound.values()
    source = f"def make({', '.join(names)}):\n    return lambda r: {{{', '.join(items)}}}"
    return _compiled(source)(*values)


def _decoder(field: pa.Field, column: pa.Array, *, zero_copy: bool) -> Decoder:
    """Decode any column of a shard."""
    kind = field.type
    if is_bfloat16(field):
        decode = bfloat16_decoder(column)
    elif isinstance(kind, pa.FixedShapeTensorType):
        decode = tensor_decoder(column, zero_copy=zero_copy)
    elif is_array_list(field):
        decode = array_decoder(column, zero_copy=zero_copy)
    elif is_list(kind):
        decode = _lists(kind, column, zero_copy=zero_copy)
    elif pat.is_map(kind):
        decode = _maps(kind, column, zero_copy=zero_copy)
    elif pat.is_struct(kind):
        children = [column.field(i) for i in range(kind.num_fields)]
        decode = _dicts(kind, children, zero_copy=zero_copy)
    else:
        decode = flat_decoder(column)
    return nullable(column, decode)


def _lists(kind: Any, column: pa.Array, *, zero_copy: bool) -> Decoder:
    """Decode lists of anything that is no regular array; the field's type has marks inside."""
    # As stored: the parent's offsets, and the fixed size, count from the child's start.
    item = _decoder(kind.value_field, column.values, zero_copy=zero_copy)
    if pat.is_fixed_size_list(kind):
        size, start = kind.list_size, column.offset
        return lambda row: [
            item(at) for at in range((start + row) * size, (start + row + 1) * size)
        ]
    offsets = value_offsets(column)
    return lambda row: [item(at) for at in range(offsets[row], offsets[row + 1])]


def _maps(kind: pa.MapType, column: pa.Array, *, zero_copy: bool) -> Decoder:
    """Decode maps as dicts; one in which a key comes twice is its list of pairs."""
    offsets = value_offsets(column)
    key = _decoder(kind.key_field, column.keys, zero_copy=zero_copy)
    item = _decoder(kind.item_field, column.items, zero_copy=zero_copy)

    def get(row: int) -> dict[Any, Any] | list[tuple[Any, Any]]:
        entries = range(offsets[row], offsets[row + 1])
        value = {key(at): item(at) for at in entries}
        # A dict would silently drop an entry.
        return value if len(value) == len(entries) else [(key(at), item(at)) for at in entries]

    return get


def _inline(
    field: pa.Field, column: pa.Array, number: int, *, zero_copy: bool
) -> tuple[str, dict[str, Any]]:
    """Expression of a common column and the values it needs; empty for every other column."""
    kind = column.type
    if column.null_count or not len(column) or is_bfloat16(field):
        return "", {}
    if is_number(kind):
        (numbers,) = column_buffers(column)
        return f"n{number}[r]", {f"n{number}": numbers}
    text = pat.is_string(kind) or pat.is_large_string(kind)
    if text or pat.is_binary(kind) or pat.is_large_binary(kind):
        offsets, data = column_buffers(column)
        part = f"d{number}[o{number}[r]:o{number}[r + 1]]"
        expression = f"str({part}, 'utf-8')" if text else f"{part}.tobytes()"
        return expression, {f"o{number}": offsets, f"d{number}": data}
    if pat.is_fixed_size_list(kind) and is_number(kind.value_type):
        if column.values.null_count or not kind.list_size:
            return "", {}
        matrix = _matrix(column)
        copy = "" if zero_copy else ".copy()"
        return f"m{number}[r]{copy}", {f"m{number}": matrix}
    return "", {}


def _matrix(column: pa.Array) -> np.ndarray[Any, Any]:
    """A fixed-size list column without nulls as a (rows, list size) view."""
    size, values = column.type.list_size, column.values
    flat = number_array(values)
    start = column.offset * size
    return flat[start : start + len(column) * size].reshape(-1, size)


@lru_cache(maxsize=256)
def _compiled(source: str) -> Callable[..., Callable[[int], dict[str, Any]]]:
    """Compile the source once for all shards of a stream."""
    namespace: dict[str, Any] = {}
    exec(source, namespace)  # noqa: S102
    return namespace["make"]
