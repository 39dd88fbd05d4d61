"""One function per record batch that makes the sample of a row, generated from its columns.

The common columns (numbers, text, bytes, fixed-size vectors, without nulls) become expressions in
one dict display, which costs half of what a decoder call per column does; every other column is
the call of its decoder in ``values``. The source holds nothing of the data but column names, as
their ``repr``.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any

import numpy as np
import pyarrow as pa
from pyarrow import types as pat

from lance_stream.shards.values import (
    column_buffers,
    column_decoders,
    is_number,
    number_array,
)

__all__ = ["sample_decoder"]


def sample_decoder(batch: pa.RecordBatch, *, zero_copy: bool) -> Callable[[int], dict[str, Any]]:
    """Make the function that gives the sample of a row.

    Args:
        batch: Rows whose buffers stay valid as long as the function, or a view it gave, lives.
        zero_copy: Arrays are read-only views of the batch, instead of owned and writable.

    Returns:
        ``row -> {column name: value}`` in column order; rows from 0 to the batch's length.
    """
    items, names, values = [], [], []
    decoders = column_decoders(batch, zero_copy=zero_copy)
    for number, (column, (name, decode)) in enumerate(zip(batch.columns, decoders, strict=True)):
        expression, bound = _inline(column, number, zero_copy=zero_copy)
        if not expression:
            expression, bound = f"f{number}(r)", {f"f{number}": decode}
        items.append(f"{name!r}: {expression}")
        names += bound.keys()
        values += bound.values()
    source = f"def make({', '.join(names)}):\n    return lambda r: {{{', '.join(items)}}}"
    return _compiled(source)(*values)


def _inline(column: pa.Array, number: int, *, zero_copy: bool) -> tuple[str, dict[str, Any]]:
    """Expression of a common column and the values it needs; empty for every other column."""
    kind = column.type
    if column.null_count or not len(column):
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
