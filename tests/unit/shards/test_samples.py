from __future__ import annotations

import datetime as dt
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lance_stream.planning.types import sample_schema, sample_table
from lance_stream.shards.samples import sample_decoder
from tests.support.any_tables import any_tables
from tests.support.columns import WAYS, Case, full, table_of, through_file
from tests.support.values import assert_same, expected_rows
from tests.unit.shards import test_arrays, test_values

# How a shard marks them.
BFLOAT16 = {"lance_stream:type": "bfloat16"}


def _array(values: Any, dtype: Any) -> np.ndarray[Any, Any]:
    return np.array(values, dtype)


def _bfloat16(value: float) -> torch.Tensor:
    return torch.tensor(value, dtype=torch.bfloat16)


def _lists() -> list[Case]:
    day = dt.date(2024, 2, 29)
    cases = []
    for name, kind in (
        ("list", pa.list_(pa.string())),
        ("large_list", pa.large_list(pa.string())),
    ):
        rows: list[Any] = [["a", "", None], None, [], ["long " * 9], [None]]
        cases.append(Case(f"{name}_of_text", pa.array(rows, kind), rows, "list"))
    rows = [[day, None], None, [None, day], [day, day]]
    cases.append(
        Case("fixed_list_of_dates", pa.array(rows, pa.list_(pa.date32(), 2)), rows, "list")
    )
    rows = [[None], None, [], [None, None]]
    cases.append(Case("list_of_null", pa.array(rows, pa.list_(pa.null())), rows, "list"))
    rows = [[[1, 2], None, []], None, [], [[3, None]], [[4]]]
    expected: list[Any] = [
        [_array([1, 2], np.int64), None, _array([], np.int64)],
        None,
        [],
        [[3, None]],
        [_array([4], np.int64)],
    ]
    kind = pa.list_(pa.list_(pa.int64()))
    cases.append(Case("list_of_lists", pa.array(rows, kind), expected, "list"))
    rows = [[[1.5], [2.5, 3.5]], None, [[], None]]
    expected = [
        [_array([1.5], np.float32), _array([2.5, 3.5], np.float32)],
        None,
        [_array([], np.float32), None],
    ]
    kind = pa.list_(pa.large_list(pa.float32()), 2)
    cases.append(Case("fixed_list_of_lists", pa.array(rows, kind), expected, "list"))
    rows = [[["a", "b"], None], None, [["c", None], ["d", "e"]]]
    kind = pa.list_(pa.list_(pa.string(), 2), 2)
    cases.append(Case("fixed_list_of_fixed_lists_of_text", pa.array(rows, kind), rows, "list"))
    return cases


def _structs() -> list[Case]:
    kind = pa.struct(
        [
            ("n", pa.int32()),
            ("t", pa.string()),
            ("v", pa.list_(pa.float32())),
            ("w", pa.list_(pa.int8(), 2)),
        ]
    )
    rows: list[Any] = [
        {"n": 1, "t": "a", "v": [1.5, 2.5], "w": [1, 2]},
        None,
        {"n": None, "t": None, "v": None, "w": None},
        {"n": -2, "t": "", "v": [], "w": [None, 4]},
    ]
    expected: list[Any] = [
        {"n": 1, "t": "a", "v": _array([1.5, 2.5], np.float32), "w": _array([1, 2], np.int8)},
        None,
        {"n": None, "t": None, "v": None, "w": None},
        {"n": -2, "t": "", "v": _array([], np.float32), "w": [None, 4]},
    ]
    deep = pa.struct([("s", pa.struct([("s", pa.struct([("x", pa.bool_())]))]))])
    deep_rows = [
        {"s": {"s": {"x": True}}},
        {"s": None},
        None,
        {"s": {"s": None}},
        {"s": {"s": {"x": None}}},
    ]
    return [
        Case("struct", pa.array(rows, kind), expected, "dict"),
        Case("struct_in_struct", pa.array(deep_rows, deep), deep_rows, "dict"),
        Case(
            "struct_without_fields",
            pa.array([{}, None, {}], pa.struct([])),
            [{}, None, {}],
            "dict",
        ),
        Case(
            "list_of_structs",
            pa.array([rows, None, [], [None]], pa.list_(kind)),
            [expected, None, [], [None]],
            "list",
        ),
        Case(
            "fixed_list_of_structs",
            pa.array([rows[:2], None, rows[2:]], pa.list_(kind, 2)),
            [expected[:2], None, expected[2:]],
            "list",
        ),
    ]


def _maps() -> list[Case]:
    kind = pa.map_(pa.string(), pa.int64())
    rows: list[Any] = [[("b", 1), ("a", None)], None, [], [("a", 1), ("a", 2)], [("", 0)]]
    expected: list[Any] = [{"b": 1, "a": None}, None, {}, [("a", 1), ("a", 2)], {"": 0}]
    nested = pa.map_(pa.int32(), pa.list_(pa.struct([("x", pa.list_(pa.uint8()))])))
    nested_rows: list[Any] = [[(7, [{"x": [1, 2]}, None]), (-7, None)], None, [(0, [])]]
    nested_expected: list[Any] = [
        {7: [{"x": _array([1, 2], np.uint8)}, None], -7: None},
        None,
        {0: []},
    ]
    return [
        Case("map", pa.array(rows, kind), expected, "dict"),
        Case("map_of_lists_of_structs", pa.array(nested_rows, nested), nested_expected, "dict"),
        Case(
            "list_of_maps",
            pa.array([rows, None, []], pa.list_(kind)),
            [expected, None, []],
            "list",
        ),
    ]


def _marked() -> list[Case]:
    """Columns whose type says less than their field, and extension types inside of others."""
    bits = [b"\x80\x3f", None, b"\x00\xc0"]
    numbers: list[Any] = [_bfloat16(1.0), None, _bfloat16(-2.0)]
    field = pa.field("c", pa.binary(2), metadata=BFLOAT16)
    item = pa.field("item", pa.binary(2), metadata=BFLOAT16)
    tensor = pa.fixed_shape_tensor(pa.int16(), [2, 2])
    cases = [
        Case("bfloat16", pa.array(bits, field.type), numbers, "torch.Tensor", field),
        Case(
            "list_of_bfloat16",
            pa.array([bits, None, [], bits[:1]], pa.list_(item)),
            [numbers, None, [], numbers[:1]],
            "list",
            pa.field("c", pa.list_(item)),
        ),
        Case(
            "fixed_list_of_bfloat16",
            pa.array([bits, None], pa.list_(item, 3)),
            [numbers, None],
            "list",
            pa.field("c", pa.list_(item, 3)),
        ),
        Case(
            "struct_of_bfloat16",
            pa.array([{"x": value} for value in bits], pa.struct([item.with_name("x")])),
            [{"x": value} for value in numbers],
            "dict",
        ),
    ]
    stored = pa.array([[[1, 2, 3, 4], None], None, []], pa.list_(tensor.storage_type))
    expected = [[_array([[1, 2], [3, 4]], np.int16), None], None, []]
    cases.append(Case("list_of_tensors", stored.cast(pa.list_(tensor)), expected, "list"))
    return cases


NESTED = [*_lists(), *_structs(), *_maps(), *_marked()]
FLAT = [*test_values.CASES, *test_arrays.CASES]
CASES = [*FLAT, *NESTED]
# Columns without nulls are read by generated code, so each type comes with and without.
FULL = [full(case) for case in CASES if case.kind != "None"]
ARRAYS = [full(case) for case in CASES if case.kind == "numpy.ndarray"]


def samples(batches: list[pa.RecordBatch], *, zero_copy: bool = False) -> list[dict[str, Any]]:
    found = []
    for batch in batches:
        sample = sample_decoder(batch, zero_copy=zero_copy)
        found += [sample(row) for row in range(batch.num_rows)]
    return found


@pytest.mark.parametrize("case", [*CASES, *FULL], ids=lambda case: case.name)
def test_every_value_of_every_type(case: Case, tmp_path: Path) -> None:
    for way, make in WAYS.items():
        for zero_copy in (False, True):
            found = samples(make(case, tmp_path), zero_copy=zero_copy)
            assert len(found) == len(case.expected), way
            for one, other in zip(found, case.expected, strict=True):
                assert list(one) == ["c"]
                assert_same(one["c"], other)


@pytest.mark.parametrize("case", NESTED, ids=lambda case: case.name)
def test_no_rows_and_only_nulls(case: Case, tmp_path: Path) -> None:
    empty = case.column.slice(0, 0)
    assert samples(through_file(table_of(empty, case.field), tmp_path)) == []
    for rows in (0, 1, 11):
        nulls = table_of(pa.nulls(rows, empty.type), case.field)
        assert samples(through_file(nulls, tmp_path)) == [{"c": None}] * rows


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_the_stream_says_what_type_comes(case: Case) -> None:
    (field,) = sample_schema(case.schema(), "t.lance version 1")
    assert field.equals(case.schema().field(0), check_metadata=True)
    values = {type(v).__name__ for v in case.expected if not isinstance(v, int | list | None)}
    assert values <= {case.kind.rpartition(".")[2]}


@pytest.mark.parametrize("case", ARRAYS, ids=lambda case: case.name)
def test_arrays_are_owned_unless_asked_for(case: Case, tmp_path: Path) -> None:
    batches = WAYS["file"](case, tmp_path)
    for sample in samples(batches):
        assert sample["c"].flags.owndata
        assert sample["c"].flags.writeable
        assert sample["c"].flags.c_contiguous
        sample["c"][...] = 1
    for sample in samples(batches, zero_copy=True):
        assert not sample["c"].flags.writeable
        if sample["c"].dtype != np.bool_:
            assert not sample["c"].flags.owndata
    # The file is as it was.
    for sample, expected in zip(samples(batches), case.expected, strict=True):
        assert_same(sample["c"], expected)


def _leaves(value: Any) -> list[np.ndarray[Any, Any]]:
    """The arrays inside a value."""
    if isinstance(value, np.ndarray):
        return [value]
    parts = value.values() if isinstance(value, dict) else value
    return [leaf for part in parts for leaf in _leaves(part)] if _is_parts(value) else []


def _is_parts(value: Any) -> bool:
    return isinstance(value, dict | list | tuple)


@pytest.mark.parametrize("case", NESTED, ids=lambda case: case.name)
def test_arrays_inside_of_values_are_owned_unless_asked_for(case: Case, tmp_path: Path) -> None:
    batches = WAYS["file"](case, tmp_path)
    for leaf in _leaves(samples(batches)):
        assert leaf.flags.owndata
        assert leaf.flags.writeable
        leaf[...] = 1
    for leaf in _leaves(samples(batches, zero_copy=True)):
        assert not leaf.flags.writeable
    for sample, expected in zip(samples(batches), case.expected, strict=True):
        assert_same(sample["c"], expected)


def test_columns_come_in_order_of_the_schema() -> None:
    batch = pa.record_batch(
        {
            "z": pa.array([1, 2]),
            "a": pa.array(["x", None]),
            "m": pa.nulls(2),
            "b": pa.array([b"1", b"22"]),
            "v": pa.array([[1.5, 2.5], [3.5, 4.5]], pa.list_(pa.float32(), 2)),
        }
    )
    first, second = samples([batch])
    assert list(first) == list(second) == ["z", "a", "m", "b", "v"]
    assert (first.pop("v").tolist(), second.pop("v").tolist()) == ([1.5, 2.5], [3.5, 4.5])
    assert first == {"z": 1, "a": "x", "m": None, "b": b"1"}
    assert second == {"z": 2, "a": None, "m": None, "b": b"22"}


@pytest.mark.parametrize(
    "name",
    ["", "f0", "n0", "r", "a b", "it's", 'a"b', "a\\", "a\nb", "{x}", "ünï", "\0", "'''", "None"],
)
def test_a_name_is_only_a_name(name: str) -> None:
    # Names are part of generated source.
    columns = [pa.array([7, 8]), pa.array([None, "x"]), pa.array(["y", "z"])]
    batch = pa.record_batch(columns, names=[name, name + "1", name + "2"])
    assert samples([batch]) == [
        {name: 7, name + "1": None, name + "2": "y"},
        {name: 8, name + "1": "x", name + "2": "z"},
    ]


def test_a_name_is_not_run() -> None:
    name = "': 1} or __import__('os')._exit(3) or {'"
    assert samples([pa.record_batch([pa.array([5])], names=[name])]) == [{name: 5}]


def test_batches_of_equal_types_do_not_share_their_rows() -> None:
    # The generated function is compiled once for all of them.
    batches = [
        pa.record_batch(
            {"a": pa.array([i]), "b": pa.array([str(i)]), "c": pa.array([None, i])[i % 2 :][:1]}
        )
        for i in range(4)
    ]
    decoders = [sample_decoder(batch, zero_copy=False) for batch in batches]
    assert [decoder(0) for decoder in decoders] == [
        {"a": 0, "b": "0", "c": None},
        {"a": 1, "b": "1", "c": 1},
        {"a": 2, "b": "2", "c": None},
        {"a": 3, "b": "3", "c": 3},
    ]


def test_many_columns() -> None:
    names = [f"c{i}" for i in range(2000)]
    batch = pa.record_batch(
        [pa.array([i, None if i % 3 else -i]) for i in range(2000)], names=names
    )
    first, second = samples([batch])
    assert first == {f"c{i}": i for i in range(2000)}
    assert second == {f"c{i}": None if i % 3 else -i for i in range(2000)}


def test_no_columns_and_no_rows() -> None:
    assert samples([pa.record_batch({"a": pa.array([], pa.int64())})]) == []
    sample = sample_decoder(pa.record_batch([], names=[]), zero_copy=False)
    assert sample(0) == {}


def test_rows_may_be_read_in_any_order_and_again() -> None:
    batch = pa.record_batch({"a": pa.array(range(10)), "b": pa.array(map(str, range(10)))})
    sample = sample_decoder(batch, zero_copy=False)
    for row in (3, 0, 9, 3, 3):
        assert sample(row) == {"a": row, "b": str(row)}


def test_samples_live_as_long_as_their_function(tmp_path: Path) -> None:
    table = pa.table(
        {
            "n": pa.array(range(1000)),
            "t": pa.array([str(i) for i in range(1000)]),
            "v": pa.array([[i, i] for i in range(1000)], pa.list_(pa.int64(), 2)),
        }
    )
    (batch,) = through_file(table, tmp_path)
    sample = sample_decoder(batch, zero_copy=True)
    del batch
    for file in tmp_path.glob("*.arrow"):
        file.unlink()
    last = sample(999)
    del sample
    assert (last["n"], last["t"], last["v"].tolist()) == (999, "999", [999, 999])


@settings(max_examples=200)
@given(table=any_tables(), zero_copy=st.booleans())
def test_samples_of_any_table_are_its_values(table: pa.Table, zero_copy: bool) -> None:
    expected = expected_rows(table)
    held = sample_table(table, sample_schema(table.schema, "t.lance version 1"))
    with tempfile.TemporaryDirectory() as directory:
        for batches in (through_file(held, Path(directory)), held.to_batches()):
            found = samples(batches, zero_copy=zero_copy)
            assert len(found) == len(expected)
            for one, other in zip(found, expected, strict=True):
                assert_same(one, other)
