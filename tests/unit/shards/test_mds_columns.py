from __future__ import annotations

import re
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from lance_stream.errors import UnsupportedTypeError
from lance_stream.shards.mds_columns import (
    mds_columns,
    mds_encodings,
    mds_overhead_bytes,
    mds_unsupported,
)
from lance_stream.shards.mds_format import write_mds

NUMBERS = [
    *(f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)),
    *(f"float{bits}" for bits in (16, 32, 64)),
]
TENSOR = pa.fixed_shape_tensor(pa.float32(), [2, 3, 4])
TURNED = pa.fixed_shape_tensor(pa.int16(), [2, 3, 4], permutation=[2, 0, 1])

HELD: list[tuple[pa.DataType, str]] = [
    *((getattr(pa, name)(), name) for name in NUMBERS),
    (pa.bool_(), "json"),
    (pa.string(), "str"),
    (pa.large_string(), "str"),
    (pa.binary(), "bytes"),
    (pa.large_binary(), "bytes"),
    (pa.binary(16), "bytes"),
    (pa.decimal128(10, 2), "str_decimal"),
    (pa.decimal256(70, 30), "str_decimal"),
    *((pa.list_(getattr(pa, name)(), 3), f"ndarray:{name}:3") for name in NUMBERS),
    (pa.list_(pa.list_(pa.uint8(), 3), 2), "ndarray:uint8:2,3"),
    (pa.list_(pa.list_(pa.list_(pa.int8(), 1), 3), 2), "ndarray:int8:2,3,1"),
    (TENSOR, "ndarray:float32:2,3,4"),
    (TURNED, "ndarray:int16:4,2,3"),
    *((pa.list_(getattr(pa, name)()), f"ndarray:{name}") for name in NUMBERS),
    (pa.large_list(pa.float64()), "ndarray:float64"),
    (pa.list_(pa.list_(pa.float32(), 4)), "ndarray:float32"),
    (pa.large_list(pa.list_(pa.list_(pa.float32(), 4), 2)), "ndarray:float32"),
]
REFUSED = [
    pa.null(),
    pa.date32(),
    pa.date64(),
    pa.time32("s"),
    pa.time64("ns"),
    pa.timestamp("us"),
    pa.timestamp("us", "UTC"),
    pa.duration("ms"),
    pa.month_day_nano_interval(),
    pa.struct([("a", pa.int64())]),
    pa.map_(pa.string(), pa.int64()),
    pa.dictionary(pa.int32(), pa.string()),
    pa.string_view(),
    pa.binary_view(),
    pa.list_(pa.bool_()),
    pa.list_(pa.bool_(), 2),
    pa.list_(pa.list_(pa.bool_(), 2)),
    pa.list_(pa.string()),
    pa.list_(pa.list_(pa.int64())),
    pa.list_(pa.list_(pa.int64()), 2),
    pa.list_(pa.date32()),
    pa.list_(pa.float32(), 0),
    pa.list_(pa.list_(pa.float32(), 0)),
    pa.list_(pa.list_(pa.float32(), 0), 2),
    pa.list_view(pa.int64()),
    pa.list_(TENSOR),
    pa.list_(TENSOR, 2),
    pa.fixed_shape_tensor(pa.float32(), []),
    pa.fixed_shape_tensor(pa.float32(), [2, 0]),
    pa.uuid(),
    pa.json_(),
    pa.bool8(),
    pa.opaque(pa.int64(), "a", "b"),
]


@pytest.mark.parametrize(("kind", "encoding"), HELD, ids=str)
def test_the_encoding_of_a_type(kind: pa.DataType, encoding: str) -> None:
    assert mds_encodings(pa.schema([("x", kind)])) == {"x": encoding}
    assert mds_unsupported(pa.schema([("x", kind)])) == []


def test_the_host_knows_every_encoding_and_its_size() -> None:
    from streaming.base.format.mds.encodings import get_mds_encoded_size, is_mds_encoding

    for kind, encoding in HELD:
        assert is_mds_encoding(encoding)
        (column,) = mds_columns(pa.schema([("x", kind)]))
        assert column.size == get_mds_encoded_size(encoding)


@pytest.mark.parametrize("kind", REFUSED, ids=str)
def test_a_type_that_mds_cannot_hold(kind: pa.DataType) -> None:
    schema = pa.schema([("fine", pa.int64()), ("x", kind)])
    assert mds_unsupported(schema) == [f"'x' ({kind})"]
    with pytest.raises(UnsupportedTypeError, match=re.escape(f"cannot hold: 'x' ({kind}). Cast")):
        mds_encodings(schema)


def test_every_column_that_mds_cannot_hold_is_named_with_what_to_do() -> None:
    marked = pa.field("b", pa.binary(2), metadata={b"lance_stream:type": b"bfloat16"})
    schema = pa.schema([("a", pa.date32()), marked, ("c", pa.int8()), ("d", pa.null())])
    message = (
        r"'a' \(date32\[day\]\), 'b' \(bfloat16\), 'd' \(null\)\. "
        r'Cast .*columns=\{name: SQL expression\}.*cache_format="arrow"'
    )
    with pytest.raises(UnsupportedTypeError, match=message):
        mds_encodings(schema)


def test_encodings_are_in_the_order_of_the_schema_and_columns_in_that_of_names() -> None:
    schema = pa.schema([("b", pa.int8()), ("a", pa.string()), ("B", pa.bool_())])
    assert list(mds_encodings(schema)) == ["b", "a", "B"]
    assert [column.name for column in mds_columns(schema)] == ["B", "a", "b"]


def test_a_permutation_in_order_is_none() -> None:
    kind = pa.fixed_shape_tensor(pa.int8(), [2, 3], permutation=[0, 1])
    (column,) = mds_columns(pa.schema([("x", kind)]))
    assert column.axes is None
    (column,) = mds_columns(pa.schema([("x", TURNED)]))
    assert (column.shape, column.axes) == ((4, 2, 3), (2, 0, 1))


LONGEST: list[tuple[pa.DataType, Any]] = [
    (pa.bool_(), False),
    (pa.string(), "x" * 300),
    (pa.large_binary(), b""),
    (pa.binary(3), b"abc"),
    (pa.decimal128(38, 38), Decimal("-0." + "9" * 38)),
    (pa.decimal128(38, 20), Decimal("-1e-20")),
    (pa.decimal128(20, -18), Decimal("-" + "9" * 20 + "e18")),
    (pa.decimal256(76, 6), Decimal("-" + "9" * 70 + ".999999")),
    (pa.list_(pa.int8()), []),
    (pa.list_(pa.int8()), np.zeros(70_000, np.int8)),
    (pa.large_list(pa.list_(pa.list_(pa.int8(), 300), 2)), [[[0] * 300] * 2]),
    (pa.list_(pa.float32(), 4), [0.0] * 4),
    (pa.int64(), 1),
]


@pytest.mark.parametrize(("kind", "value"), LONGEST, ids=lambda value: str(value)[:40])
def test_the_overhead_is_an_upper_bound(kind: pa.DataType, value: Any, tmp_path: Path) -> None:
    one = pa.table({"x": pa.array([value], kind)})
    many = pa.table({"x": pa.array([value] * 101, kind)})
    sizes = [write_mds(tmp_path / "shard", table) for table in (one, many)]
    content = many.nbytes - one.nbytes
    assert sizes[1] - sizes[0] <= content + 100 * mds_overhead_bytes(one.schema)


def test_the_overhead_of_numbers_and_arrays_is_that_of_the_offset() -> None:
    schema = pa.schema([("a", pa.int64()), ("b", pa.list_(pa.float32(), 8)), ("c", TURNED)])
    assert mds_overhead_bytes(schema) == 4
    assert mds_overhead_bytes(schema.append(pa.field("d", pa.string()))) == 8
