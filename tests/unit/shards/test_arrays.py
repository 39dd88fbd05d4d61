from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from lance_stream.shards.arrays import array_decoder, tensor_decoder
from lance_stream.shards.values import nullable
from tests.support.columns import WAYS, Case, full, table_of, through_file
from tests.support.values import assert_same


def decode(batches: list[pa.RecordBatch], *, zero_copy: bool = False) -> list[Any]:
    """The values of the only column."""
    values = []
    for batch in batches:
        (column,) = batch.columns
        tensors = isinstance(column.type, pa.FixedShapeTensorType)
        make = tensor_decoder if tensors else array_decoder
        get = nullable(column, make(column, zero_copy=zero_copy))
        values += [get(row) for row in range(len(column))]
    return values


# --- the cases ---

_LEAVES: list[tuple[pa.DataType, Any, list[Any]]] = [
    (pa.int8(), np.int8, [-128, 127]),
    (pa.int16(), np.int16, [-(2**15), 2**15 - 1]),
    (pa.int32(), np.int32, [-(2**31), 2**31 - 1]),
    (pa.int64(), np.int64, [-(2**63), 2**63 - 1]),
    (pa.uint8(), np.uint8, [0, 255]),
    (pa.uint16(), np.uint16, [0, 2**16 - 1]),
    (pa.uint32(), np.uint32, [0, 2**32 - 1]),
    (pa.uint64(), np.uint64, [0, 2**63 + 5]),
    (pa.float16(), np.float16, [math.inf, -0.0]),
    (pa.float32(), np.float32, [math.inf, -0.0]),
    (pa.float64(), np.float64, [math.inf, -0.0]),
    (pa.bool_(), np.bool_, [True, False]),
]


def _lists() -> list[Case]:
    cases = []
    for leaf, dtype, (low, high) in _LEAVES:

        def array(values: list[Any], dtype: Any = dtype) -> np.ndarray:
            return np.array(values, dtype)

        zero = leaf.to_pandas_dtype()(0).item()
        for name, kind in (("list", pa.list_(leaf)), ("large_list", pa.large_list(leaf))):
            rows: list[Any] = [
                [low, high, zero],
                None,
                [],
                [high],
                [low, None, high],
                [None],
                [zero] * 9,
                [],
            ]
            expected: list[Any] = [
                array([low, high, zero]),
                None,
                array([]),
                array([high]),
                [low, None, high],
                [None],
                array([zero] * 9),
                array([]),
            ]
            cases.append(Case(f"{name}_{leaf}", pa.array(rows, kind), expected, "numpy.ndarray"))
            rows, expected = rows[:4], expected[:4]
            cases.append(
                Case(f"{name}_{leaf}_no_nulls", pa.array(rows, kind), expected, "numpy.ndarray")
            )
        rows = [[low, high, zero], None, [high, high, low], [low, None, high]]
        expected = [array(rows[0]), None, array(rows[2]), [low, None, high]]
        kind = pa.list_(leaf, 3)
        cases.append(Case(f"fixed_list_{leaf}", pa.array(rows, kind), expected, "numpy.ndarray"))
        rows, expected = [rows[0], rows[2]], [expected[0], expected[2]]
        cases.append(
            Case(f"fixed_list_{leaf}_no_nulls", pa.array(rows, kind), expected, "numpy.ndarray")
        )
        # Nested: inner axes. An inner null makes a Python list of the row, and only of that row.
        matrix = pa.list_(pa.list_(leaf, 2), 2)
        rows = [
            [[low, high], [high, zero]],
            None,
            [[zero, zero], [low, low]],
            [[low, None], [high, high]],
            [None, [low, high]],
        ]
        expected = [array(rows[0]), None, array(rows[2]), rows[3], rows[4]]
        cases.append(Case(f"matrix_{leaf}", pa.array(rows, matrix), expected, "numpy.ndarray"))
        for outer, name in ((pa.list_, "list"), (pa.large_list, "large_list")):
            rows = [
                [[low, high]],
                None,
                [],
                [[zero, low], [high, high], [low, zero]],
                [[low, high], None],
                [[None, low]],
                [],
            ]
            expected = [
                array(rows[0]),
                None,
                np.empty((0, 2), dtype),
                array(rows[3]),
                rows[4],
                rows[5],
                np.empty((0, 2), dtype),
            ]
            column = pa.array(rows, outer(pa.list_(leaf, 2)))
            cases.append(Case(f"{name}_of_pairs_{leaf}", column, expected, "numpy.ndarray"))
    cube = pa.list_(pa.list_(pa.list_(pa.int16(), 2), 1), 3)
    rows = [[[[1, 2]], [[3, 4]], [[5, 6]]], None, [[[7, 8]], None, [[9, None]]]]
    cases.append(
        Case(
            "cube", pa.array(rows, cube), [np.array(rows[0], np.int16), None, rows[2]],
            "numpy.ndarray",
        )
    )  # fmt: skip
    rows = [[], None, []]
    expected = [np.empty((0,), np.float32), None, np.empty((0,), np.float32)]
    cases.append(
        Case("fixed_list_0", pa.array(rows, pa.list_(pa.float32(), 0)), expected, "numpy.ndarray")
    )
    return cases


def _tensors() -> list[Case]:
    cases = []
    rows: list[Any] = [list(range(6)), None, [5, 4, 3, 2, 1, 0]]
    for leaf, dtype, _ in _LEAVES:
        if leaf == pa.bool_():
            continue  # pyarrow 26 has no such tensors
        kind = pa.fixed_shape_tensor(leaf, [2, 3])
        stored = pa.array(rows, kind.storage_type)
        expected = [None if r is None else np.array(r, dtype).reshape(2, 3) for r in rows]
        column = pa.ExtensionArray.from_storage(kind, stored)
        cases.append(Case(f"tensor_{leaf}", column, expected, "numpy.ndarray"))
    cube = np.arange(24, dtype=np.int32).reshape(2, 3, 4)
    for axes in ([0, 1, 2], [0, 2, 1], [1, 0, 2], [1, 2, 0], [2, 0, 1], [2, 1, 0]):
        kind = pa.fixed_shape_tensor(pa.int32(), [2, 3, 4], permutation=axes)
        stored = pa.array([cube.ravel().tolist(), None], kind.storage_type)
        column = pa.ExtensionArray.from_storage(kind, stored)
        expected = [np.ascontiguousarray(cube.transpose(axes)), None]
        name = "".join(map(str, axes))
        cases.append(Case(f"tensor_permuted_{name}", column, expected, "numpy.ndarray"))
    # A list says what is null where no array can.
    kind = pa.fixed_shape_tensor(pa.int16(), [2, 2])
    stored = pa.array([[1, None, 3, 4], [5, 6, 7, 8]], kind.storage_type)
    column = pa.ExtensionArray.from_storage(kind, stored)
    expected = [[[1, None], [3, 4]], np.array([[5, 6], [7, 8]], np.int16)]
    cases.append(Case("tensor_with_nulls", column, expected, "numpy.ndarray"))
    kind = pa.fixed_shape_tensor(pa.int16(), [2, 2], permutation=[1, 0])
    column = pa.ExtensionArray.from_storage(kind, stored)
    expected = [[[1, 3], [None, 4]], np.array([[5, 7], [6, 8]], np.int16)]
    cases.append(Case("tensor_permuted_with_nulls", column, expected, "numpy.ndarray"))
    return cases


CASES = [*_lists(), *_tensors()]
each_case = pytest.mark.parametrize("case", CASES, ids=[case.name for case in CASES])
FULL = [full(case) for case in CASES]


@pytest.mark.parametrize("case", [*CASES, *FULL], ids=lambda case: case.name)
def test_every_value_of_every_type(case: Case, tmp_path: Path) -> None:
    for way, make in WAYS.items():
        for zero_copy in (False, True):
            found = decode(make(case, tmp_path), zero_copy=zero_copy)
            assert len(found) == len(case.expected), way
            for one, other in zip(found, case.expected, strict=True):
                assert_same(one, other)


@each_case
def test_rows_may_be_read_in_any_order_and_again(case: Case) -> None:
    (batch,) = table_of(case.column).to_batches()
    for row in [*range(len(case.expected))][::-1] * 2:
        assert_same(decode([batch])[row], case.expected[row])


@each_case
def test_no_rows_and_only_nulls(case: Case, tmp_path: Path) -> None:
    empty = case.column.slice(0, 0)
    assert decode([pa.record_batch([empty], names=["c"])]) == []
    assert decode(through_file(table_of(empty), tmp_path)) == []
    for rows in (0, 1, 11):
        nulls = pa.nulls(rows, empty.type)
        assert decode(through_file(table_of(nulls), tmp_path)) == [None] * rows


def test_a_nullable_int_never_becomes_a_float() -> None:
    for kind in (pa.int8(), pa.int64(), pa.uint64()):
        batch = pa.record_batch([pa.array([[1, None, 3]], pa.list_(kind))], names=["c"])
        assert [type(v) for v in decode([batch])[0]] == [int, type(None), int]


# --- ownership ---


@each_case
def test_arrays_are_owned_and_writable(case: Case, tmp_path: Path) -> None:
    batches = through_file(table_of(case.column), tmp_path)
    arrays = [v for v in decode(batches) if isinstance(v, np.ndarray)]
    assert arrays
    for array in arrays:
        assert array.flags.owndata
        assert array.flags.writeable
        assert array.flags.c_contiguous
        array[...] = 1
    # The file is as it was.
    for one, other in zip(decode(batches), case.expected, strict=True):
        assert_same(one, other)


def _is_of_bools(case: Case) -> bool:
    return "bool" in str(case.column.type)


VIEW_CASES = [case for case in CASES if not _is_of_bools(case)]


@pytest.mark.parametrize("case", VIEW_CASES, ids=[case.name for case in VIEW_CASES])
def test_zero_copy_arrays_are_read_only_views(case: Case, tmp_path: Path) -> None:
    batches = through_file(table_of(case.column), tmp_path)
    arrays = [v for v in decode(batches, zero_copy=True) if isinstance(v, np.ndarray)]
    assert arrays
    for array in arrays:
        assert not array.flags.owndata
        assert not array.flags.writeable
        if array.size:
            with pytest.raises(ValueError, match="read-only"):
                array[...] = 1


def test_zero_copy_arrays_of_bools_are_read_only_too(tmp_path: Path) -> None:
    # Bits have no view as bytes, so these are copies; whoever writes to them should not find out
    # by the type of the column.
    for case in filter(_is_of_bools, CASES):
        batches = through_file(table_of(case.column), tmp_path)
        arrays = [v for v in decode(batches, zero_copy=True) if isinstance(v, np.ndarray)]
        assert arrays
        assert not any(array.flags.writeable for array in arrays), case.name


def test_a_zero_copy_view_outlives_its_file(tmp_path: Path) -> None:
    column = pa.array([[1.5, 2.5]] * 1000, pa.list_(pa.float64()))
    last = decode(through_file(table_of(column), tmp_path), zero_copy=True)[-1]
    files = list(tmp_path.glob("*.arrow"))
    assert len(files) == 1
    files[0].unlink()
    assert last.tolist() == [1.5, 2.5]


# --- children that are slices ---

_TWELVE = pa.array(range(12), pa.int32())
_PAIRS = pa.FixedSizeListArray.from_arrays(_TWELVE, 2)


@pytest.mark.parametrize(
    ("column", "rows"),
    [
        (pa.FixedSizeListArray.from_arrays(_TWELVE.slice(4, 4), 2), [[4, 5], [6, 7]]),
        (
            pa.FixedSizeListArray.from_arrays(pa.array([True, False, False] * 4).slice(5, 4), 2),
            [[False, True], [False, False]],
        ),
        (
            pa.ListArray.from_arrays(pa.array([0, 1, 4], pa.int32()), _TWELVE.slice(3, 5)),
            [[3], [4, 5, 6]],
        ),
        (
            pa.FixedSizeListArray.from_arrays(_PAIRS.slice(2, 4), 2),
            [[[4, 5], [6, 7]], [[8, 9], [10, 11]]],
        ),
        (
            pa.ListArray.from_arrays(pa.array([0, 2, 3], pa.int32()), _PAIRS.slice(1, 4)),
            [[[2, 3], [4, 5]], [[6, 7]]],
        ),
    ],
    ids=["fixed", "bools", "list", "fixed of pairs", "list of pairs"],
)
def test_a_child_that_is_a_slice_is_read_from_its_own_start(
    column: pa.Array, rows: list[Any], tmp_path: Path
) -> None:
    assert column.to_pylist() == rows
    for batches in (
        [pa.record_batch([column], names=["c"])],
        through_file(table_of(column), tmp_path),
    ):
        assert [value.tolist() for value in decode(batches)] == rows


def test_an_inner_list_that_is_null_over_values_that_are_not(tmp_path: Path) -> None:
    inner = pa.FixedSizeListArray.from_arrays(
        pa.array(range(8), pa.int16()), 2, mask=pa.array([False, True, False, False])
    )
    assert inner.values.null_count == 0
    for column in (
        pa.FixedSizeListArray.from_arrays(inner, 2),
        pa.ListArray.from_arrays(pa.array([0, 2, 4], pa.int32()), inner),
    ):
        for batches in (
            [pa.record_batch([column], names=["c"])],
            through_file(table_of(column), tmp_path),
        ):
            first, second = decode(batches)
            assert_same(first, [[0, 1], None])
            assert_same(second, np.array([[4, 5], [6, 7]], np.int16))


def test_values_under_a_null_do_not_show(tmp_path: Path) -> None:
    mask = pa.array([False, True, False])
    for column, expected in (
        (
            pa.FixedSizeListArray.from_arrays(pa.array([1, 2, None, 4, 5, 6]), 2, mask=mask),
            [np.array([1, 2]), None, np.array([5, 6])],
        ),
        (
            pa.ListArray.from_arrays(pa.array([0, 1, 3, 4], pa.int32()), _TWELVE, mask=mask),
            [np.array([0], np.int32), None, np.array([3], np.int32)],
        ),
    ):
        for batches in (
            [pa.record_batch([column], names=["c"])],
            through_file(table_of(column), tmp_path),
        ):
            for one, other in zip(decode(batches), expected, strict=True):
                assert_same(one, other)
