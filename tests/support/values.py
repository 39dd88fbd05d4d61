"""What a sample must hold for a value of a table, by pyarrow's own conversions; and comparing.

Shares no code with ``lance_stream``: the README's table of types, written a second time.
"""

from __future__ import annotations

import datetime as dt
import math
import struct
import uuid
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
from pyarrow import types as pat

__all__ = [
    "arrow_array",
    "assert_same",
    "bfloat16_field",
    "expected_rows",
    "expected_value",
    "is_bfloat16",
]

_DAY = {"s": 86_400, "ms": 86_400_000, "us": 86_400_000_000, "ns": 86_400_000_000_000}


def assert_same(found: Any, expected: Any) -> None:
    """The same value of the same type: bits of floats, dtype and shape, wall time and offset.

    Raises:
        AssertionError: It is not; shows both.
    """
    assert type(found) is type(expected), f"{found!r} is not {expected!r}"
    if isinstance(expected, float):
        if math.isnan(expected):
            assert math.isnan(found)
        else:
            assert struct.pack("d", found) == struct.pack("d", expected)
    elif isinstance(expected, np.ndarray):
        assert found.dtype == expected.dtype
        assert found.shape == expected.shape
        assert found.tobytes() == expected.tobytes(), f"{found!r} is not {expected!r}"
    elif isinstance(expected, list | tuple):
        assert len(found) == len(expected), f"{found!r} is not {expected!r}"
        for one, other in zip(found, expected, strict=True):
            assert_same(one, other)
    elif isinstance(expected, dict):
        # In order, of the same types: 1 == True == 1.0.
        assert_same(list(found), list(expected))
        assert_same(list(found.values()), list(expected.values()))
    elif isinstance(expected, dt.datetime):
        # Not ==, which is always False between zones for a wall time that occurs twice.
        assert found.replace(tzinfo=None, fold=0) == expected.replace(tzinfo=None, fold=0)
        assert (found.tzinfo is None) is (expected.tzinfo is None)
        assert found.utcoffset() == expected.utcoffset()
    elif isinstance(expected, Decimal):
        assert found.as_tuple() == expected.as_tuple()
    elif type(expected).__module__ == "torch":
        assert (found.dtype, found.shape) == (expected.dtype, expected.shape)
        assert found.untyped_storage().tolist() == expected.untyped_storage().tolist()
    else:
        assert found == expected


def bfloat16_field(name: str, *, nullable: bool = True) -> pa.Field:
    """A column of bfloat16 numbers as Lance has it, without importing Lance."""
    metadata = {"ARROW:extension:name": "lance.bfloat16", "ARROW:extension:metadata": ""}
    return pa.field(name, pa.binary(2), nullable, metadata)


def is_bfloat16(field: pa.Field) -> bool:
    """Whether a field holds bfloat16 numbers, by the mark of Lance or that of a shard."""
    metadata = field.metadata or {}
    return (
        metadata.get(b"ARROW:extension:name") == b"lance.bfloat16"
        or metadata.get(b"lance_stream:type") == b"bfloat16"
    )


def expected_rows(table: pa.Table) -> list[dict[str, Any]]:
    """The samples of a table's rows."""
    columns = {
        field.name: [expected_value(scalar, field) for scalar in column]
        for field, column in zip(table.schema, table.columns, strict=True)
    }
    return [{name: column[row] for name, column in columns.items()} for row in range(len(table))]


def expected_value(scalar: Any, field: pa.Field) -> Any:
    """What a value of a table is in a sample."""
    if not scalar.is_valid:
        return None
    # Of the field: arrays lose the metadata of fields inside of their type.
    kind = field.type
    if is_bfloat16(field):
        import torch

        return torch.frombuffer(bytearray(scalar.as_py()), dtype=torch.bfloat16)[0].clone()
    if isinstance(kind, pa.BaseExtensionType):
        return _extension(scalar, kind)
    if pat.is_dictionary(kind):
        return expected_value(scalar.value, pa.field("", kind.value_type))
    if pat.is_struct(kind):
        return {child.name: expected_value(scalar[i], child) for i, child in enumerate(kind)}
    if pat.is_map(kind):
        pairs = [
            (expected_value(entry[0], kind.key_field), expected_value(entry[1], kind.item_field))
            for entry in scalar.values
        ]
        keys = [key for key, _ in pairs]
        return dict(pairs) if len(set(keys)) == len(keys) else pairs
    if pat.is_list(kind) or pat.is_large_list(kind) or pat.is_fixed_size_list(kind):
        return _list(scalar, kind)
    if pat.is_temporal(kind):
        return _temporal(scalar, kind)
    return float(scalar.as_py()) if pat.is_floating(kind) else scalar.as_py()


def _extension(scalar: Any, kind: pa.BaseExtensionType) -> Any:
    if isinstance(kind, pa.FixedShapeTensorType):
        # FixedShapeTensorScalar.to_numpy of pyarrow 26 is wrong for some permutations.
        stored = np.array(scalar.value.as_py(), kind.value_type.to_pandas_dtype())
        array = stored.reshape(kind.shape)
        return array if kind.permutation is None else array.transpose(kind.permutation)
    if isinstance(kind, pa.UuidType):
        return uuid.UUID(bytes=scalar.value.as_py())
    if isinstance(kind, pa.JsonType):
        return scalar.value.as_py()
    if isinstance(kind, pa.Bool8Type):
        return bool(scalar.value.as_py())
    raise AssertionError(f"no rule for {kind}")


def _list(scalar: Any, kind: pa.DataType) -> Any:
    inner, leaf = [], kind.value_type
    while not isinstance(leaf, pa.BaseExtensionType) and pat.is_fixed_size_list(leaf):
        inner.append(leaf.list_size)
        leaf = leaf.value_type
    # No more than other ways to store numbers and bools.
    if isinstance(leaf, pa.Bool8Type):
        leaf = pa.bool_()
    elif pat.is_dictionary(leaf):
        leaf = leaf.value_type
    number = pat.is_integer(leaf) or pat.is_floating(leaf) or pat.is_boolean(leaf)
    if isinstance(leaf, pa.BaseExtensionType) or not number:
        return [expected_value(item, kind.value_field) for item in scalar.values]
    value = scalar.as_py()
    if _has_none(value):
        return _bools(value) if leaf == pa.bool_() else value
    return np.array(value, leaf.to_pandas_dtype()).reshape(len(value), *inner)


def _bools(value: Any) -> Any:
    if value is None:
        return None
    return list(map(_bools, value)) if isinstance(value, list) else bool(value)


def _has_none(value: Any) -> bool:
    return value is None or (isinstance(value, list) and any(map(_has_none, value)))


def _temporal(scalar: Any, kind: pa.DataType) -> Any:
    raw = scalar.value
    if pat.is_date64(kind) and raw % 86_400_000:
        return raw
    if not pat.is_date(kind) and kind.unit == "ns" and raw % 1_000:
        return raw
    if pat.is_time(kind) and not 0 <= raw < _DAY[kind.unit]:
        return raw
    try:
        return scalar.as_py()
    except (ValueError, OverflowError):
        return raw


def arrow_array(values: list[Any], field: pa.Field) -> pa.Array:
    """An array of a field's type, of values for ``pa.array`` in its storage type.

    pyarrow makes none whose extension types are nested, nor tensors with a permutation.
    """
    stored = _stored(field)
    array = pa.array(values, stored.type)
    return array if stored.type == field.type else array.cast(field.type)


def _stored(field: pa.Field) -> pa.Field:
    """The field with the storage of its extension types in their place."""
    kind = field.type
    if isinstance(kind, pa.BaseExtensionType):
        return field.with_type(kind.storage_type)
    if pat.is_struct(kind):
        return field.with_type(pa.struct([_stored(child) for child in kind]))
    if pat.is_map(kind):
        return field.with_type(pa.map_(_stored(kind.key_field), _stored(kind.item_field)))
    if pat.is_fixed_size_list(kind):
        return field.with_type(pa.list_(_stored(kind.value_field), kind.list_size))
    if pat.is_large_list(kind):
        return field.with_type(pa.large_list(_stored(kind.value_field)))
    if pat.is_list(kind):
        return field.with_type(pa.list_(_stored(kind.value_field)))
    return field
