from __future__ import annotations

import decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyarrow import types as pat

from lance_stream.planning.row_bytes import ExactCut, row_bytes


def slowly(value: Any, kind: pa.DataType) -> float:
    """Bytes of one value's own data, without validity: offsets and values."""
    if pat.is_null(kind):
        return 0.0
    if pat.is_struct(kind):
        return sum(slowly((value or {}).get(field.name), field.type) for field in kind)
    if pat.is_fixed_size_list(kind):
        items = value if value is not None else [None] * kind.list_size
        return sum(slowly(item, kind.value_type) for item in items)
    if pat.is_map(kind):
        return 4 + sum(
            slowly(k, kind.key_type) + slowly(v, kind.item_type) for k, v in value or ()
        )
    if pat.is_list(kind) or pat.is_large_list(kind):
        wide = 8 if pat.is_large_list(kind) else 4
        return wide + sum(slowly(item, kind.value_type) for item in value or ())
    if pat.is_large_string(kind) or pat.is_large_binary(kind):
        return 8 + len(_bytes(value))
    if pat.is_string(kind) or pat.is_binary(kind):
        return 4 + len(_bytes(value))
    return kind.bit_width / 8


def _bytes(value: Any) -> bytes:
    return b"" if value is None else value.encode() if isinstance(value, str) else value


COLUMNS: list[tuple[list[Any], pa.DataType]] = [
    ([1, 2, 3, 4], pa.int64()),
    ([True, False, True, True], pa.bool_()),
    ([None] * 4, pa.null()),
    ([1.5, 2.5, 3.5, 4.5], pa.float32()),
    (["", "a", "ü" * 9, "xyz"], pa.string()),
    (["", "a", "ü" * 9, "xyz"], pa.large_string()),
    ([b"", b"a", b"b" * 1000, b"xyz"], pa.binary()),
    ([b"", b"a", b"b" * 1000, b"xyz"], pa.large_binary()),
    ([b"abc", b"def", b"ghi", b"jkl"], pa.binary(3)),
    ([decimal.Decimal(i) for i in range(4)], pa.decimal128(10, 2)),
    ([[], [1], [2, 3], [4, 5, 6]], pa.list_(pa.int16())),
    ([[], [1], [2, 3], [4, 5, 6]], pa.large_list(pa.int16())),
    ([[1, 2], [3, 4], [5, 6], [7, 8]], pa.list_(pa.float64(), 2)),
    ([[], [], [], []], pa.list_(pa.int8(), 0)),
    ([["a"], [], ["bc", "def"], [""]], pa.list_(pa.string())),
    ([[[1], []], [], [[2, 3]], [[4], [5], [6]]], pa.list_(pa.list_(pa.int32()))),
    ([[[1], [2, 3]]] * 4, pa.list_(pa.list_(pa.int32()), 2)),
    (
        [{"a": i, "b": "x" * i} for i in range(4)],
        pa.struct([("a", pa.int64()), ("b", pa.string())]),
    ),
    (
        [[("k", 1)], [], [("a", 2), ("bc", 3)], [("", 0)]],
        pa.map_(pa.string(), pa.int64()),
    ),
    (
        [{"l": [{"s": "x" * i}] * i} for i in range(4)],
        pa.struct([("l", pa.list_(pa.struct([("s", pa.string())])))]),
    ),
]


@pytest.mark.parametrize(("values", "kind"), COLUMNS, ids=lambda x: str(x)[:40])
def test_bytes_of_each_type(values: list[Any], kind: pa.DataType) -> None:
    column = pa.array(values, kind)
    expected = [slowly(value, kind) for value in values]
    assert row_bytes([column]).tolist() == expected
    # A slice, at the start of which offsets are not zero.
    for start in range(4):
        assert row_bytes([column[start:]]).tolist() == expected[start:]
        assert row_bytes([column[:start]]).tolist() == expected[:start]
    # Twice as much in two columns.
    assert row_bytes([column, column]).tolist() == [2 * size for size in expected]


@pytest.mark.parametrize(("values", "kind"), COLUMNS, ids=lambda x: str(x)[:40])
def test_a_column_with_nulls_has_a_bit_of_validity_for_each_row(
    values: list[Any], kind: pa.DataType
) -> None:
    values = [*values[:2], None, *values[2:]]
    column = pa.array(values, kind)
    if pat.is_null(kind):
        assert row_bytes([column]).tolist() == [0.0] * 5
        return
    # What a null in a struct or a fixed list covers counts too, also the validity there.
    found = row_bytes([column])
    plain = np.array([slowly(value, kind) for value in values])
    assert np.all(found >= plain + 0.125)
    assert np.all(found <= plain + 0.125 * 4)


def test_an_extension_type_counts_as_what_it_stores() -> None:
    tensors = pa.ExtensionArray.from_storage(
        pa.fixed_shape_tensor(pa.float32(), [2, 3]),
        pa.array([[1.0] * 6, [2.0] * 6], pa.list_(pa.float32(), 6)),
    )
    assert row_bytes([tensors]).tolist() == [24.0, 24.0]
    assert row_bytes([tensors[1:]]).tolist() == [24.0]


def test_rows_without_columns_or_rows() -> None:
    assert row_bytes([pa.array([], pa.string())]).tolist() == []
    assert row_bytes([pa.array([], pa.list_(pa.string(), 3))]).tolist() == []


# --- cutting ---


def greedy(sizes: list[float], limit: int) -> list[int]:
    """Take rows as long as they fit."""
    stops, held, rows = [], 0.0, 0
    for at, size in enumerate(sizes):
        if rows and held + size > limit:
            stops.append(at)
            held, rows = 0.0, 0
        held += size
        rows += 1
    return [*stops, len(sizes)]


def cut(sizes: list[float], limit: int, parts: list[int]) -> list[int]:
    """Cut rows that come in parts of such lengths, the rest at once."""
    exact, at = ExactCut(limit), 0
    for part in [*parts, len(sizes)]:
        exact.add(np.array(sizes[at : at + part]))
        at += part
    assert exact.num_rows == len(sizes)
    stops = exact.stops()
    assert stops.dtype == np.int64
    return stops.tolist()


SIZES = st.lists(
    st.integers(0, 4000).map(lambda eighths: eighths / 8) | st.just(0.0), min_size=1, max_size=80
)


@given(sizes=SIZES, limit=st.integers(1, 1500), parts=st.lists(st.integers(0, 12), max_size=12))
def test_shards_are_full_and_not_too_full(
    sizes: list[float], limit: int, parts: list[int]
) -> None:
    stops = cut(sizes, limit, parts)
    # In whatever parts the rows come, the cut is that of one row after the other.
    assert stops == greedy(sizes, limit)
    starts = [0, *stops[:-1]]
    for start, stop in zip(starts, stops, strict=True):
        assert stop > start
        assert sum(sizes[start:stop]) <= limit or stop == start + 1
        if stop < len(sizes):
            assert sum(sizes[start : stop + 1]) > limit


@pytest.mark.parametrize(
    ("sizes", "limit", "stops"),
    [
        ([1.0], 1, [1]),
        ([5.0], 1, [1]),
        ([1.0, 1.0], 1, [1, 2]),
        ([1.0, 1.0], 2, [2]),
        ([3.0, 1.0, 1.0, 3.0], 2, [1, 3, 4]),
        ([0.0, 0.0, 0.0], 1, [3]),
        ([2.0, 0.0, 0.0, 2.0], 2, [3, 4]),
        ([0.125] * 17, 2, [16, 17]),
    ],
)
def test_cuts(sizes: list[float], limit: int, stops: list[int]) -> None:
    assert cut(sizes, limit, []) == stops
    assert cut(sizes, limit, [1] * len(sizes)) == stops


def test_a_million_rows_are_cut_at_once() -> None:
    sizes = np.random.default_rng(0).integers(1, 3000, 1_000_000).astype(np.float64)
    exact = ExactCut(1 << 20)
    for start in range(0, len(sizes), 10_000):
        exact.add(sizes[start : start + 10_000])
    stops = exact.stops()
    total = np.concatenate([[0.0], np.cumsum(sizes)])
    shards = np.diff(total[np.concatenate([[0], stops])])
    assert shards.max() <= 1 << 20
    assert shards[:-1].min() > (1 << 20) - 3000


@given(
    sizes=st.lists(st.integers(0, 50), min_size=1, max_size=60),
    limit=st.integers(1, 120),
    parts=st.integers(1, 7),
)
def test_the_bytes_of_each_shard_are_known(sizes: list[int], limit: int, parts: int) -> None:
    cut = ExactCut(limit)
    for start in range(0, len(sizes), parts):
        cut.add(np.array(sizes[start : start + parts], np.float64))
    stops = cut.stops().tolist()
    expected = [sum(sizes[a:b]) for a, b in zip([0, *stops[:-1]], stops, strict=True)]
    assert cut.shard_bytes().tolist() == expected
    assert sum(expected) == sum(sizes)
