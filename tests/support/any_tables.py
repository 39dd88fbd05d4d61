"""Strategies for tables of any type that samples can hold: nulls, nesting, chunks, slices.

Which type is drawn decides what may be asked of the table:

- ``any_tables()``: whatever a sample can hold;
- ``lance_tables(version)``: what a Lance table of a data storage version can hold of it;
- ``mds_tables()``: what MDS can hold, mostly.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from hypothesis import reject
from hypothesis import strategies as st
from pyarrow import types as pat

from tests.support.values import arrow_array, bfloat16_field, is_bfloat16

__all__ = ["any_tables", "lance_tables", "mds_can_hold", "mds_tables"]

Values = st.SearchStrategy[Any]
# Types inside of types.
_DEPTH = 2


@dataclass(frozen=True)
class Column:
    """A field, and values for ``pa.array`` in the field's storage type."""

    field: pa.Field
    values: Values


def _floats16() -> Values:
    # Of floats(width=16) most would be rejected. All that are finite:
    return st.integers(0, 0x7BFF).map(lambda bits: float(np.uint16(bits).view(np.float16)))


_NUMBERS: dict[pa.DataType, Values] = {
    **{
        kind: st.integers(low, high)
        for kind, low, high in (
            (pa.int8(), -(2**7), 2**7 - 1),
            (pa.int16(), -(2**15), 2**15 - 1),
            (pa.int32(), -(2**31), 2**31 - 1),
            (pa.int64(), -(2**63), 2**63 - 1),
            (pa.uint8(), 0, 2**8 - 1),
            (pa.uint16(), 0, 2**16 - 1),
            (pa.uint32(), 0, 2**32 - 1),
            (pa.uint64(), 0, 2**64 - 1),
        )
    },
    pa.float16(): _floats16(),
    pa.float32(): st.floats(width=32, allow_nan=False),
    pa.float64(): st.floats(allow_nan=False),
    pa.bool_(): st.booleans(),
}
_TEXTS: dict[pa.DataType, Values] = {
    **{kind: st.text(max_size=20) for kind in (pa.string(), pa.large_string(), pa.string_view())},
    **{
        kind: st.binary(max_size=20) for kind in (pa.binary(), pa.large_binary(), pa.binary_view())
    },
    pa.binary(5): st.binary(min_size=5, max_size=5),
}
# Whatever the raw number is, also beyond what Python's types hold. -2**63 is NaT for numpy.
_INT64 = st.integers(-(2**63) + 1, 2**63 - 1)
_RECENT_US = st.integers(-(10**16), 10**16)
_TEMPORAL: dict[pa.DataType, Values] = {
    pa.date32(): st.dates() | st.integers(-(2**31), 2**31 - 1),
    pa.date64(): st.dates(),
    pa.time32("s"): st.integers(0, 86_399),
    pa.time32("ms"): st.integers(0, 86_399_999),
    pa.time64("us"): st.times(),
    pa.time64("ns"): st.integers(0, 86_399_999_999_999),
    pa.timestamp("s"): st.integers(-(10**10), 10**11) | _INT64,
    pa.timestamp("us"): _RECENT_US | _INT64,
    pa.timestamp("ns"): _INT64 | st.integers(-(10**15), 10**15).map(lambda us: us * 1000),
    pa.timestamp("us", "UTC"): _RECENT_US,
    pa.timestamp("ms", "Asia/Kathmandu"): st.integers(-(10**13), 10**13),
    pa.duration("s"): _INT64,
    pa.duration("us"): _INT64,
    pa.duration("ns"): _INT64,
}
_OTHER: dict[pa.DataType, Values] = {
    pa.decimal128(20, 4): st.decimals(-(10**15), 10**15, places=4),
    pa.decimal256(50, 2): st.decimals(-(10**40), 10**40, places=2),
    pa.null(): st.none(),
}
_SCALARS = {**_NUMBERS, **_TEXTS, **_TEMPORAL, **_OTHER}
_EXTENSIONS: list[tuple[pa.DataType, Values]] = [
    (pa.uuid(), st.binary(min_size=16, max_size=16)),
    (pa.json_(), st.sampled_from(["{}", "[]", '{"a":1}', '"text"', "null", "1.5"])),
    (pa.bool8(), st.integers(0, 1)),
]


@dataclass(frozen=True)
class _Limits:
    """What tables may have.

    Attributes:
        scalar: Whether a type may be a column.
        inside: Whether such a type may be a value inside of another.
        kinds: Names of the other sorts of columns.
        min_size: Of fixed-size lists.
        fixed_lists: Whether fixed-size lists may be of anything, or only of numbers.
        struct_nulls: Whether structs may be null.
    """

    scalar: Callable[[pa.DataType], bool] = lambda _: True
    inside: Callable[[pa.DataType], bool] = lambda _: True
    kinds: tuple[str, ...] = ("dictionary", "extension", "tensor", "bfloat16", "struct", "map")
    min_size: int = 0
    fixed_lists: bool = True
    struct_nulls: bool = True


@st.composite
def _columns(
    draw: st.DrawFn, name: str, limits: _Limits, *, depth: int, nulls: bool = True
) -> Column:
    kinds = ["scalar", "scalar", "numbers", "vector", "matrix"]
    if depth:
        kinds += [*limits.kinds, "list"]
    return draw(_SORTS[draw(st.sampled_from(kinds))](name, limits, depth, nulls))


@st.composite
def _nullable(draw: st.DrawFn, values: Values, nulls: bool) -> Values:
    """With None among the values, or not."""
    return st.none() | values if nulls and draw(st.booleans()) else values


@st.composite
def _scalar(draw: st.DrawFn, name: str, limits: _Limits, depth: int, nulls: bool) -> Column:
    allowed = limits.scalar if depth == _DEPTH else limits.inside
    kind = draw(st.sampled_from([k for k in _SCALARS if allowed(k)]))
    nulls = nulls or kind == pa.null()
    return Column(pa.field(name, kind), draw(_nullable(_SCALARS[kind], nulls)))


@st.composite
def _numbers(draw: st.DrawFn, name: str, limits: _Limits, depth: int, nulls: bool) -> Column:
    """Lists of numbers."""
    kind = draw(st.sampled_from(list(_NUMBERS)))
    values = draw(_nullable(_NUMBERS[kind], nulls))
    made = draw(st.sampled_from([pa.list_, pa.large_list]))(kind)
    return Column(pa.field(name, made), draw(_nullable(st.lists(values, max_size=5), nulls)))


@st.composite
def _vector(draw: st.DrawFn, name: str, limits: _Limits, depth: int, nulls: bool) -> Column:
    """Fixed-size lists of numbers."""
    kind = draw(st.sampled_from(list(_NUMBERS)))
    values = draw(_nullable(_NUMBERS[kind], nulls))
    size = draw(st.integers(limits.min_size, 4))
    rows = st.lists(values, min_size=size, max_size=size)
    return Column(pa.field(name, pa.list_(kind, size)), draw(_nullable(rows, nulls)))


@st.composite
def _matrix(draw: st.DrawFn, name: str, limits: _Limits, depth: int, nulls: bool) -> Column:
    """Lists of fixed-size lists of numbers."""
    inner = draw(_vector(name, _Limits(min_size=1), depth, nulls))
    shape = draw(st.sampled_from(["list", "large_list", "fixed"]))
    if shape == "fixed":
        size = draw(st.integers(max(1, limits.min_size), 3))
        made = pa.list_(inner.field.type, size)
        values = st.lists(inner.values, min_size=size, max_size=size)
    else:
        made = (pa.list_ if shape == "list" else pa.large_list)(inner.field.type)
        values = st.lists(inner.values, max_size=3)
    return Column(pa.field(name, made), draw(_nullable(values, nulls)))


@st.composite
def _dictionary(draw: st.DrawFn, name: str, limits: _Limits, depth: int, nulls: bool) -> Column:
    kind = draw(st.sampled_from([pa.string(), pa.large_string(), pa.int64()]))
    index = draw(st.sampled_from([pa.int8(), pa.int32()]))
    values = st.sampled_from([7, -3, 2**40] if kind == pa.int64() else ["a", "", "long " * 5])
    return Column(pa.field(name, pa.dictionary(index, kind)), draw(_nullable(values, nulls)))


@st.composite
def _extension(draw: st.DrawFn, name: str, limits: _Limits, depth: int, nulls: bool) -> Column:
    kind, values = draw(st.sampled_from(_EXTENSIONS))
    return Column(pa.field(name, kind), draw(_nullable(values, nulls)))


@st.composite
def _tensor(draw: st.DrawFn, name: str, limits: _Limits, depth: int, nulls: bool) -> Column:
    leaf = draw(st.sampled_from([k for k in _NUMBERS if k != pa.bool_()]))
    shape = draw(st.lists(st.integers(1, 3), min_size=1, max_size=3))
    axes = draw(st.none() | st.permutations(range(len(shape))))
    kind = pa.fixed_shape_tensor(leaf, shape, permutation=axes)
    size = int(np.prod(shape))
    rows = st.lists(_NUMBERS[leaf], min_size=size, max_size=size)
    return Column(pa.field(name, kind), draw(_nullable(rows, nulls)))


@st.composite
def _bfloat16(draw: st.DrawFn, name: str, limits: _Limits, depth: int, nulls: bool) -> Column:
    rows = st.binary(min_size=2, max_size=2)
    return Column(bfloat16_field(name), draw(_nullable(rows, nulls)))


@st.composite
def _struct(draw: st.DrawFn, name: str, limits: _Limits, depth: int, nulls: bool) -> Column:
    children = [
        draw(_columns(f"{name}{i}", limits, depth=depth - 1))
        for i in range(draw(st.integers(1, 3)))
    ]
    kind = pa.struct([child.field for child in children])
    values = st.fixed_dictionaries({child.field.name: child.values for child in children})
    return Column(pa.field(name, kind), draw(_nullable(values, nulls and limits.struct_nulls)))


@st.composite
def _map(draw: st.DrawFn, name: str, limits: _Limits, depth: int, nulls: bool) -> Column:
    key = draw(st.sampled_from([pa.string(), pa.int32(), pa.binary(), pa.date32()]))
    item = draw(_columns("value", limits, depth=depth - 1))
    # Few keys, so that some come twice.
    keys = st.integers(0, 3).map(
        {
            pa.string(): lambda n: "k" * n,
            pa.int32(): lambda n: n,
            pa.binary(): lambda n: b"k" * n,
            pa.date32(): lambda n: n,
        }[key]
    )
    kind = pa.map_(pa.field("key", key, nullable=False), item.field)
    values = st.lists(st.tuples(keys, item.values), max_size=3)
    return Column(pa.field(name, kind), draw(_nullable(values, nulls)))


@st.composite
def _list(draw: st.DrawFn, name: str, limits: _Limits, depth: int, nulls: bool) -> Column:
    """Lists of anything."""
    item = draw(_columns("item", limits, depth=depth - 1))
    shapes = ["list", "large_list", "fixed"]
    shape = draw(st.sampled_from(shapes if limits.fixed_lists else shapes[:2]))
    if shape == "fixed":
        size = draw(st.integers(limits.min_size, 3))
        made = pa.list_(item.field, size)
        values = st.lists(item.values, min_size=size, max_size=size)
    else:
        made = (pa.list_ if shape == "list" else pa.large_list)(item.field)
        values = st.lists(item.values, max_size=3)
    return Column(pa.field(name, made), draw(_nullable(values, nulls)))


_SORTS: dict[str, Callable[..., st.SearchStrategy[Column]]] = {
    "scalar": _scalar,
    "numbers": _numbers,
    "vector": _vector,
    "matrix": _matrix,
    "dictionary": _dictionary,
    "extension": _extension,
    "tensor": _tensor,
    "bfloat16": _bfloat16,
    "struct": _struct,
    "map": _map,
    "list": _list,
}


@st.composite
def _tables(
    draw: st.DrawFn,
    limits: _Limits,
    *,
    depth: int,
    max_columns: int,
    max_rows: int,
    nulls: bool = True,
    min_rows: int = 0,
) -> pa.Table:
    """A table of any chunks, each of them a slice of a longer one."""
    columns = [
        draw(_columns(f"c{i}", limits, depth=depth, nulls=nulls))
        for i in range(draw(st.integers(1, max_columns)))
    ]
    schema = pa.schema([column.field for column in columns])
    chunks = []
    for _ in range(draw(st.integers(1, 3))):
        # Few examples have many rows otherwise.
        rows = draw(st.sampled_from([min_rows, 1, 3, max_rows // 2, max_rows]))
        arrays = [
            arrow_array(draw(st.lists(column.values, min_size=rows, max_size=rows)), column.field)
            for column in columns
        ]
        chunk = pa.Table.from_arrays(arrays, schema=schema)
        try:
            # Under a null struct, pyarrow makes dictionary indices that point nowhere.
            chunk.validate(full=True)
        except pa.ArrowInvalid:
            reject()
        start = draw(st.integers(0, (rows - min_rows) // 2))
        stop = rows - draw(st.integers(0, (rows - start - min_rows) // 2))
        chunks.append(chunk.slice(start, stop - start))
    return pa.concat_tables(chunks)


def any_tables() -> st.SearchStrategy[pa.Table]:
    """Tables of whatever a sample can hold."""
    return _tables(_Limits(), depth=_DEPTH, max_columns=4, max_rows=12)


def lance_tables(version: str) -> st.SearchStrategy[pa.Table]:
    """Tables of at least one row that Lance can store in a data storage version.

    What pylance 14 refuses to write, or panics of, is not drawn.
    """
    limits = _Limits(
        scalar=lambda kind: kind != pa.null() or version != "2.0",
        inside=lambda kind: (
            version != "2.0" or kind not in (pa.null(), pa.string_view(), pa.binary_view())
        ),
        kinds=("dictionary", "extension", "tensor", "bfloat16", "struct", "map")
        if version == "2.2"
        else ("dictionary", "extension", "tensor", "bfloat16", "struct"),
        min_size=1,
        fixed_lists=False,
        struct_nulls=version != "2.0",
    )
    return _tables(limits, depth=_DEPTH, max_columns=3, max_rows=20, min_rows=1)


def mds_tables() -> st.SearchStrategy[pa.Table]:
    """Tables of at least one row without nulls, of types that MDS can mostly hold."""
    limits = _Limits(
        scalar=lambda kind: kind in _NUMBERS or kind in _TEXTS or pat.is_decimal(kind),
        kinds=("dictionary", "tensor"),
        min_size=1,
        fixed_lists=False,
    )
    return _tables(limits, depth=_DEPTH, max_columns=4, max_rows=20, min_rows=1, nulls=False)


def mds_can_hold(table: pa.Table) -> bool:
    """Whether MDS can hold all columns of a table: the rules of the README."""
    return all(
        _mds_kind(field) and not _any_null(column)
        for field, column in zip(table.schema, table.columns, strict=True)
    )


def _mds_kind(field: pa.Field) -> bool:
    kind = field.type
    if is_bfloat16(field):
        return False
    if isinstance(kind, pa.FixedShapeTensorType):
        return True
    if isinstance(kind, pa.JsonType | pa.Bool8Type):
        return True
    if isinstance(kind, pa.BaseExtensionType):
        return False
    if pat.is_dictionary(kind):
        return True
    if pat.is_list(kind) or pat.is_large_list(kind) or pat.is_fixed_size_list(kind):
        leaf = kind.value_type
        while not isinstance(leaf, pa.BaseExtensionType) and pat.is_fixed_size_list(leaf):
            leaf = leaf.value_type
        return leaf in _NUMBERS and leaf != pa.bool_()
    return kind in _NUMBERS or kind in _TEXTS or pat.is_decimal(kind)


def _any_null(column: pa.ChunkedArray) -> bool:
    def inside(value: Any) -> bool:
        return value is None or (isinstance(value, list) and any(map(inside, value)))

    return any(inside(scalar.as_py()) for scalar in column)
