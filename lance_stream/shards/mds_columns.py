"""How each column lies in the samples of an MDS shard, as mosaicml-streaming 0.13 has it. Pure.

A column is written in an *encoding*, whose name the stock reader knows. Some encodings take the
same bytes in every row; for the others the sample has the size in front.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import pyarrow as pa
from pyarrow import types as pat

from lance_stream.errors import UnsupportedTypeError
from lance_stream.planning.types import is_bfloat16, type_name

__all__ = [
    "MAX_DIMENSION_BYTES",
    "MdsColumn",
    "mds_columns",
    "mds_encodings",
    "mds_overhead_bytes",
    "mds_unsupported",
]

# A dynamic shape is written in the smallest unsigned integer that holds its largest dimension.
MAX_DIMENSION_BYTES = 8
# The bytes of the size or of the offset of a value, and of the text "false".
_SIZE_BYTES = 4
_FALSE_BYTES = 5
# Sign, point, "0.00000", or an exponent.
_DECIMAL_EXTRA_BYTES = 16

_NAMES: dict[pa.DataType, str] = {
    pa.int8(): "int8",
    pa.int16(): "int16",
    pa.int32(): "int32",
    pa.int64(): "int64",
    pa.uint8(): "uint8",
    pa.uint16(): "uint16",
    pa.uint32(): "uint32",
    pa.uint64(): "uint64",
    pa.float16(): "float16",
    pa.float32(): "float32",
    pa.float64(): "float64",
}


@dataclass(frozen=True, slots=True)
class MdsColumn:
    """One column of an MDS shard.

    Attributes:
        name: Its name.
        kind: What the values are.
        encoding: Name of the encoding, for the stock reader.
        size: Bytes of every value; None where a size stands in front of each.
        dtype: Of a number, or of the elements of an array; else None.
        shape: Of every array; of a ragged one all dimensions but the first, which varies.
        axes: Stored axes in the order in which samples have them, if that is another.
    """

    name: str
    kind: Literal["number", "bool", "text", "bytes", "decimal", "array", "ragged"]
    encoding: str
    size: int | None = None
    dtype: np.dtype[Any] | None = None
    shape: tuple[int, ...] = ()
    axes: tuple[int, ...] | None = None


def mds_columns(schema: pa.Schema) -> list[MdsColumn]:
    """The columns in the order in which MDS has them: by name.

    Raises:
        UnsupportedTypeError: Names every column that MDS cannot hold, its type, what to do.
    """
    bad = mds_unsupported(schema)
    if bad:
        msg = (
            f"columns of a type that MDS cannot hold: {', '.join(bad)}. Cast them with "
            "columns={name: SQL expression}, choose the other columns with columns=[...], or use "
            'cache_format="arrow"'
        )
        raise UnsupportedTypeError(msg)
    found = (_column(field) for field in schema)
    return sorted((column for column in found if column), key=lambda column: column.name)


def mds_encodings(schema: pa.Schema) -> dict[str, str]:
    """The MDS encoding of each column, in the schema's order.

    Raises:
        UnsupportedTypeError: Names every column that MDS cannot hold, its type, what to do.
    """
    encodings = {column.name: column.encoding for column in mds_columns(schema)}
    return {name: encodings[name] for name in schema.names}


def mds_unsupported(schema: pa.Schema) -> list[str]:
    """The columns that MDS cannot hold, as ``'name' (type)``; empty if it can hold all."""
    return [f"{field.name!r} ({type_name(field)})" for field in schema if not _column(field)]


def mds_overhead_bytes(schema: pa.Schema) -> int:
    """Bytes that a row takes at most in MDS beyond what it takes in Arrow memory.

    Raises:
        UnsupportedTypeError: MDS cannot hold a column.
    """
    return _SIZE_BYTES + sum(
        _overhead_bytes(column, schema.field(column.name).type) for column in mds_columns(schema)
    )


def _overhead_bytes(column: MdsColumn, kind: pa.DataType) -> int:
    if column.size is not None:
        return 0
    more = _SIZE_BYTES
    if column.kind == "bool":
        more += _FALSE_BYTES
    elif column.kind == "decimal":
        more += kind.precision + _DECIMAL_EXTRA_BYTES
    elif column.kind == "ragged":
        more += 1 + MAX_DIMENSION_BYTES * (1 + len(column.shape))
    return more


def _column(field: pa.Field) -> MdsColumn | None:
    """How the field lies in a sample; None if MDS cannot hold it."""
    name, kind = field.name, field.type
    if is_bfloat16(field):
        return None
    if isinstance(kind, pa.FixedShapeTensorType):
        return _tensor(name, kind)
    if isinstance(kind, pa.BaseExtensionType):
        return None
    if kind in _NAMES:
        dtype = np.dtype(_NAMES[kind])
        return MdsColumn(name, "number", _NAMES[kind], dtype.itemsize, dtype)
    if pat.is_boolean(kind):
        return MdsColumn(name, "bool", "json")
    if pat.is_string(kind) or pat.is_large_string(kind):
        return MdsColumn(name, "text", "str")
    if pat.is_binary(kind) or pat.is_large_binary(kind):
        return MdsColumn(name, "bytes", "bytes")
    if pat.is_fixed_size_binary(kind):
        return MdsColumn(name, "bytes", "bytes")
    if pat.is_decimal128(kind) or pat.is_decimal256(kind):
        return MdsColumn(name, "decimal", "str_decimal")
    if pat.is_fixed_size_list(kind):
        return _array(name, *_dimensions(kind))
    if pat.is_list(kind) or pat.is_large_list(kind):
        inner, leaf = _dimensions(kind.value_type)
        if leaf not in _NAMES or 0 in inner:
            return None
        encoding = f"ndarray:{_NAMES[leaf]}"
        return MdsColumn(name, "ragged", encoding, None, np.dtype(_NAMES[leaf]), inner)
    return None


def _dimensions(kind: pa.DataType) -> tuple[tuple[int, ...], pa.DataType]:
    """Sizes of nested fixed-size lists, and what the innermost one holds."""
    sizes = []
    # An extension type may say that it is a list, but its values are something else.
    while pat.is_fixed_size_list(kind) and not isinstance(kind, pa.BaseExtensionType):
        sizes.append(kind.list_size)
        kind = kind.value_type
    return tuple(sizes), kind


def _array(
    name: str, shape: tuple[int, ...], leaf: pa.DataType, axes: tuple[int, ...] | None = None
) -> MdsColumn | None:
    if leaf not in _NAMES or 0 in shape or not shape:
        return None
    encoding = f"ndarray:{_NAMES[leaf]}:{','.join(map(str, shape))}"
    dtype = np.dtype(_NAMES[leaf])
    return MdsColumn(
        name, "array", encoding, math.prod(shape) * dtype.itemsize, dtype, shape, axes
    )


def _tensor(name: str, kind: pa.FixedShapeTensorType) -> MdsColumn | None:
    """A tensor with the axes in the order that its type says.

    By the words of the format: axis ``i`` of the value is axis ``permutation[i]`` of what is
    stored. pyarrow's own ``FixedShapeTensorScalar.to_numpy`` (26) gives overlapping strides for
    permutations that move the first axis, and so not the stored values.
    """
    stored = tuple(kind.shape)
    axes = tuple(kind.permutation or range(len(stored)))
    shape = tuple(stored[axis] for axis in axes)
    return _array(name, shape, kind.value_type, None if axes == tuple(sorted(axes)) else axes)
