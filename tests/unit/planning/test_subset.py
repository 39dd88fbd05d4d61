from __future__ import annotations

import itertools
import math
import uuid
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lance_stream.planning.subset import in_subset, is_hashable, places

NULL_PLACE = 0.8191725133961644

# The same whole numbers in every type that stores whole numbers.
WHOLE = [
    *(pa.int8(), pa.int16(), pa.int32(), pa.int64()),
    *(pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64()),
    *(pa.date32(), pa.time32("s"), pa.time32("ms"), pa.time64("us"), pa.time64("ns")),
    *(
        pa.timestamp("s"),
        pa.timestamp("us", "Europe/Berlin"),
        pa.timestamp("ns"),
        pa.duration("ms"),
    ),
]
TEXTS = [
    *(pa.string(), pa.large_string(), pa.string_view()),
    *(pa.binary(), pa.large_binary(), pa.binary_view(), pa.binary(3)),
    pa.dictionary(pa.int8(), pa.string()),
]


def stored(values: list[int | None], kind: pa.DataType) -> pa.Array:
    """An array whose values are stored as these numbers."""
    plain = pa.array(values, pa.int64())
    return plain.cast(pa.int32()).view(kind) if kind.bit_width == 32 else plain.view(kind)


def whole(values: list[int | None], kind: pa.DataType) -> pa.Array:
    integer = pa.types.is_integer(kind)
    return pa.array(values, kind) if integer else stored(values, kind)


# --- golden ---


@pytest.mark.parametrize("kind", WHOLE, ids=str)
def test_golden_places_of_numbers(kind: pa.DataType) -> None:
    # Who depends on these numbers: every split into training and validation rows that was ever
    # made with subset=. Where one changes, models are evaluated on rows they were trained on.
    found = places(whole([0, 1, 2, 100, None], kind))
    assert found.dtype == np.float64
    assert found.tolist() == [
        0.8833108082136426, 0.5665615751722809, 0.5911897341980794, 0.13729259859359266,
        NULL_PLACE,
    ]  # fmt: skip


@pytest.mark.parametrize("kind", TEXTS, ids=str)
def test_golden_places_of_text(kind: pa.DataType) -> None:
    # Who depends on them: as above.
    assert places(pa.array(["abc", "row", None], pa.string()).cast(kind)).tolist() == [
        0.47142598511089495, 0.8517849730276696, NULL_PLACE,
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("column", "expected"),
    [
        (
            pa.array([-1, -(2**63), 2**63 - 1]),
            [0.8939429202831845, 0.2817192454992108, 0.16564699010451844],
        ),
        (pa.array([2**64 - 1, 2**63], pa.uint64()), [0.8939429202831845, 0.2817192454992108]),
        (pa.array([True, False, None]), [0.5665615751722809, 0.8833108082136426, NULL_PLACE]),
        (
            pa.array([0.0, 0.1, 1.5, math.inf, math.nan, None]),
            [
                0.8833108082136426,
                0.9692977027004345,
                0.8392744991175021,
                0.1430408993646547,
                0.7779761460097551,
                NULL_PLACE,
            ],
        ),
        (
            pa.array(["", "ü", "x" * 1000]),
            [0.1758804333447428, 0.36584645673872485, 0.7525105168080469],
        ),
        (pa.array([86_400_000], pa.int64()).view(pa.date64()), [0.6290979678602611]),
        (pa.array([uuid.UUID(int=1).bytes, None], pa.uuid()), [0.25516137840701547, NULL_PLACE]),
    ],
    ids=str,
)
def test_golden_places_of_other_values(column: pa.Array, expected: list[float]) -> None:
    # Who depends on them: as above.
    assert places(column).tolist() == expected


# --- equal values ---


@pytest.mark.parametrize("kind", [pa.float16(), pa.float32(), pa.float64()], ids=str)
def test_floats_of_any_width(kind: pa.DataType) -> None:
    values = [0.0, 1.5, -2.0, math.inf, -math.inf, math.nan, None]
    plain = pa.array([None if v is None else np.float16(v) for v in values], pa.float16())
    assert places(plain.cast(kind)).tolist() == places(pa.array(values, pa.float64())).tolist()


def test_zeros_are_equal_and_so_is_what_is_not_a_number() -> None:
    other_nan = np.array([0x7FF8000000000001, 0xFFF8000000000000], np.uint64).view(np.float64)
    first, second, *nans = places(pa.array([0.0, -0.0, math.nan, *other_nan])).tolist()
    assert first == second
    assert len(set(nans)) == 1


@given(
    st.lists(st.none() | st.integers(-(2**63), 2**63 - 1), max_size=40),
    st.integers(0, 10),
)
def test_a_place_depends_on_the_value_alone(values: list[int | None], cut: int) -> None:
    column = pa.array(values, pa.int64())
    together = places(column).tolist()
    assert places(column[:cut]).tolist() + places(column[cut:]).tolist() == together
    assert (
        places(column.take(pa.array(range(len(values) - 1, -1, -1), pa.int64()))).tolist()
        == (together[::-1])
    )
    assert all(0 <= at < 1 for at in together)


@given(st.lists(st.none() | st.text(max_size=8), max_size=20), st.integers(0, 5))
def test_text_in_slices_and_dictionaries(values: list[str | None], cut: int) -> None:
    column = pa.array(values, pa.string())
    together = places(column).tolist()
    assert places(column[cut:]).tolist() == together[cut:]
    assert places(column.dictionary_encode()).tolist() == together


def test_what_is_left_behind_a_null_does_not_matter() -> None:
    data = pa.py_buffer(np.array([5, 7], np.int64))
    column = pa.Array.from_buffers(pa.int64(), 2, [pa.py_buffer(b"\x01"), data])
    assert column.to_pylist() == [5, None]
    assert places(column).tolist()[1] == NULL_PLACE


def test_an_address_has_the_place_of_its_number() -> None:
    addresses = pa.array(np.array([7, (3 << 32) + 5], np.uint64))
    assert places(addresses).tolist() == places(pa.array([7, (3 << 32) + 5])).tolist()


# --- types ---


@pytest.mark.parametrize(
    "kind", [*WHOLE, *TEXTS, pa.float16(), pa.bool_(), pa.uuid(), pa.decimal128(9, 2)], ids=str
)
def test_types_that_have_a_place(kind: pa.DataType) -> None:
    assert is_hashable(kind)
    assert places(pa.nulls(2, kind)).tolist() == [NULL_PLACE, NULL_PLACE]
    assert places(pa.nulls(0, kind)).tolist() == []


@pytest.mark.parametrize(
    "kind",
    [
        pa.null(),
        pa.list_(pa.int64()),
        pa.list_(pa.float32(), 4),
        pa.struct([("a", pa.int64())]),
        pa.map_(pa.string(), pa.int64()),
        pa.month_day_nano_interval(),
        pa.dictionary(pa.int8(), pa.list_(pa.int8())),
        pa.fixed_shape_tensor(pa.int8(), [2]),
    ],
    ids=str,
)
def test_types_that_have_none(kind: pa.DataType) -> None:
    assert not is_hashable(kind)


def test_equal_decimals_have_equal_places() -> None:
    """In whatever scale and width they are stored."""
    values = [Decimal("1.5"), Decimal("-20"), Decimal(0), None, Decimal("0.25")]
    kinds = (pa.decimal128(10, 2), pa.decimal128(30, 9), pa.decimal256(50, 4))
    found = [places(pa.array(values, kind)).tolist() for kind in kinds]
    assert found[0] == found[1] == found[2]
    assert len(set(found[0])) == 5


# --- subsets ---


@given(
    bounds=st.lists(st.floats(0, 1, exclude_min=True, exclude_max=True), max_size=6, unique=True),
    values=st.lists(st.integers(), min_size=1, max_size=5),
)
def test_subsets_that_meet_are_disjoint_and_complete(
    bounds: list[float], values: list[int]
) -> None:
    at = np.concatenate(
        [
            places(pa.array([value % 2**63 for value in values])),
            # On the bounds themselves, and as near to them as a double can be.
            [bound for bound in bounds if bound < 1],
            [np.nextafter(bound, 0) for bound in bounds],
            [0.0, 1 - 2**-53],
        ]
    )
    edges = [0.0, *sorted(bounds), 1.0]
    taken = sum(in_subset(at, (low, high)).astype(int) for low, high in itertools.pairwise(edges))
    assert np.all(taken == 1)


@pytest.mark.parametrize(
    ("low", "high", "at", "inside"),
    [
        (0.0, 0.3, 0.3, False),
        (0.3, 1.0, 0.3, True),
        # 0.1 + 0.2 is a little more than 0.3: bounds are compared as they are.
        (0.0, 0.1 + 0.2, 0.3, True),
        (0.1 + 0.2, 1.0, 0.3, False),
        (0.0, 1.0, 0.0, True),
        (0.0, 1.0, 1 - 2**-53, True),
        (0.0, 5e-324, 0.0, True),
    ],
)
def test_bounds(low: float, high: float, at: float, inside: bool) -> None:
    assert in_subset(np.array([at]), (low, high)).tolist() == [inside]


@pytest.mark.parametrize(
    "column",
    [
        pa.array(range(100_000)),
        pa.array([i * 4096 for i in range(100_000)]),
        pa.array([i / 7 for i in range(100_000)]),
        pa.array([f"row {i}" for i in range(100_000)]),
        # Addresses of a table of many fragments.
        pa.array([(i % 100 << 32) + i // 100 for i in range(100_000)], pa.uint64()),
    ],
    ids=["numbers", "steps", "floats", "text", "addresses"],
)
def test_a_share_of_the_places_is_that_share_of_the_values(column: pa.Array) -> None:
    at = places(column)
    tenths = np.histogram(at, bins=10, range=(0, 1))[0]
    # Deviation of a tenth: about 95.
    assert np.abs(tenths - 10_000).max() < 4 * 95


def test_rows_of_equal_keys_stay_together() -> None:
    keys: list[Any] = [i // 10 for i in range(1000)]
    taken = in_subset(places(pa.array(keys)), (0.2, 0.7))
    for key in range(100):
        assert len(set(taken[10 * key : 10 * key + 10].tolist())) == 1
