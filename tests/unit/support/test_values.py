from __future__ import annotations

import datetime as dt
import uuid
from decimal import Decimal
from itertools import permutations
from typing import Any
from zoneinfo import ZoneInfo

import numpy as np
import pyarrow as pa
import pytest
import torch

from tests.support.values import (
    arrow_array,
    assert_same,
    bfloat16_field,
    expected_rows,
    is_bfloat16,
)

BERLIN = ZoneInfo("Europe/Berlin")
# No two of these are the same.
DIFFERENT: list[Any] = [
    None,
    True,
    1,
    1.0,
    0.0,
    -0.0,
    "1",
    b"1",
    [1],
    [1.0],
    [True],
    (1,),
    [],
    {},
    {"a": 1},
    {"a": 1.0},
    {"b": 1},
    {"a": 1, "b": 2},
    {"b": 2, "a": 1},
    np.array([1]),
    np.array([1], np.int32),
    np.array([[1]]),
    np.array([1.0]),
    np.array([], np.int64),
    np.array([], np.float32),
    np.int64(1),
    Decimal(1),
    Decimal("1.0"),
    dt.date(2024, 1, 1),
    dt.datetime(2024, 1, 1),  # noqa: DTZ001
    dt.datetime(2024, 1, 1, tzinfo=dt.timezone.utc),
    dt.datetime(2024, 10, 27, 2, tzinfo=BERLIN),
    dt.datetime(2024, 10, 27, 2, tzinfo=BERLIN, fold=1),
    torch.tensor(1.0, dtype=torch.bfloat16),
    torch.tensor(1.0),
    torch.tensor([1.0], dtype=torch.bfloat16),
    uuid.UUID(int=1),
]


def test_every_value_is_only_itself() -> None:
    for value in DIFFERENT:
        assert_same(value, value)
    assert_same(float("nan"), float("nan"))
    for one, other in permutations(DIFFERENT, 2):
        with pytest.raises(AssertionError):
            assert_same(one, other)
        with pytest.raises(AssertionError):
            assert_same([one], [other])
        with pytest.raises(AssertionError):
            assert_same({"x": one}, {"x": other})


@pytest.mark.parametrize(
    ("kind", "stored", "expected"),
    [
        (pa.float16(), 1.5, 1.5),
        (pa.timestamp("ns"), 1_001, 1_001),
        (pa.timestamp("ns"), 1_000, dt.datetime(1970, 1, 1, 0, 0, 0, 1)),  # noqa: DTZ001
        (pa.timestamp("s"), 2**62, 2**62),
        (pa.duration("s"), 2**62, 2**62),
        (pa.time64("ns"), 1_001, 1_001),
        (pa.date32(), 2**31 - 1, 2**31 - 1),
        (pa.list_(pa.int8()), [1, 2], np.array([1, 2], np.int8)),
        (pa.list_(pa.int8()), [1, None], [1, None]),
        (pa.list_(pa.list_(pa.int8(), 2)), [], np.empty((0, 2), np.int8)),
        (pa.list_(pa.list_(pa.int8())), [[1], None], [np.array([1], np.int8), None]),
        (pa.list_(pa.bool8()), [1, 0], np.array([True, False])),
        (pa.list_(pa.dictionary(pa.int8(), pa.int64())), [7], np.array([7])),
        (pa.map_(pa.string(), pa.int8()), [("a", 1), ("b", None)], {"a": 1, "b": None}),
        (pa.map_(pa.string(), pa.int8()), [("a", 1), ("a", 2)], [("a", 1), ("a", 2)]),
        (pa.struct([("v", pa.list_(pa.int8()))]), {"v": [1]}, {"v": np.array([1], np.int8)}),
        (pa.uuid(), bytes(16), uuid.UUID(int=0)),
        (
            pa.fixed_shape_tensor(pa.int8(), [1, 2], permutation=[1, 0]),
            [1, 2],
            np.array([[1], [2]], np.int8),
        ),
        (bfloat16_field("c").type, b"\x80\x3f", b"\x80\x3f"),
    ],
    ids=str,
)
def test_expected_values(kind: pa.DataType, stored: Any, expected: Any) -> None:
    field = pa.field("c", kind)
    table = pa.table([arrow_array([stored, None], field)], schema=pa.schema([field]))
    first, second = expected_rows(table)
    assert_same(first, {"c": expected})
    assert second == {"c": None}


def test_bfloat16_by_its_mark() -> None:
    field = bfloat16_field("c")
    assert is_bfloat16(field)
    assert not is_bfloat16(pa.field("c", field.type))
    nested = pa.field("n", pa.list_(bfloat16_field("item")))
    table = pa.table(
        [arrow_array([b"\x80\x3f"], field), arrow_array([[b"\x00\x40", None]], nested)],
        schema=pa.schema([field, nested]),
    )
    one, two = (torch.tensor(v, dtype=torch.bfloat16) for v in (1.0, 2.0))
    assert_same(expected_rows(table), [{"c": one, "n": [two, None]}])
