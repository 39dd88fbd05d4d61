from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lance_stream.shards.samples import sample_decoder
from tests.unit.shards.test_values import (
    CASES,
    WAYS,
    Case,
    any_tables,
    assert_same,
    oracle,
    through_file,
)


def _full(case: Case) -> Case:
    """The rows of a case that are not null, nor hold a null."""
    rows = [i for i, value in enumerate(case.expected) if not isinstance(value, list | None)]
    column = pa.concat_arrays([case.column.slice(i, 1) for i in rows])
    return Case(case.name, column, [case.expected[i] for i in rows], case.kind)


# Columns without nulls are read by generated code, so each type comes with and without.
FULL = [_full(case) for case in CASES if case.kind != "None"]


def samples(batches: list[pa.RecordBatch], *, zero_copy: bool = False) -> list[dict[str, Any]]:
    found = []
    for batch in batches:
        sample = sample_decoder(batch, zero_copy=zero_copy)
        found += [sample(row) for row in range(batch.num_rows)]
    return found


@pytest.mark.parametrize(
    "case",
    [*CASES, *FULL],
    ids=[*(case.name for case in CASES), *(f"{case.name} full" for case in FULL)],
)
def test_every_value_of_every_type(case: Case, tmp_path: Path) -> None:
    for way, make in WAYS.items():
        for zero_copy in (False, True):
            found = samples(make(case.column, tmp_path), zero_copy=zero_copy)
            assert len(found) == len(case.expected), way
            for one, other in zip(found, case.expected, strict=True):
                assert list(one) == ["c"]
                assert_same(one["c"], other)


@pytest.mark.parametrize("case", FULL, ids=[case.name for case in FULL])
def test_arrays_are_owned_unless_asked_for(case: Case, tmp_path: Path) -> None:
    batches = WAYS["file"](case.column, tmp_path)
    for sample in samples(batches):
        if isinstance(sample["c"], np.ndarray):
            assert sample["c"].flags.owndata
            assert sample["c"].flags.writeable
            sample["c"][...] = 1
    if "bool" not in case.name:
        for sample in samples(batches, zero_copy=True):
            if isinstance(sample["c"], np.ndarray):
                assert not sample["c"].flags.owndata
                assert not sample["c"].flags.writeable
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


@settings(max_examples=150)
@given(table=any_tables(), zero_copy=st.booleans())
def test_samples_of_any_table_are_its_values(table: pa.Table, zero_copy: bool) -> None:
    with tempfile.TemporaryDirectory() as directory:
        for batches in (through_file(table, Path(directory)), table.to_batches()):
            found = samples(batches, zero_copy=zero_copy)
            assert len(found) == table.num_rows
            for field in table.schema:
                column = table.column(field.name).to_pylist()
                for sample, value in zip(found, column, strict=True):
                    assert_same(sample[field.name], oracle(value, field.type))
