from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from lance_stream.errors import PlanError
from lance_stream.planning.index import Selection
from lance_stream.service.transform import TransformFailedError, transformed
from lance_stream.source.failures import FailureKind
from lance_stream.source.functions import load_function

FUNCTIONS = """
import sys
import pyarrow as pa

calls = []

def same(batch):
    calls.append((type(batch).__name__, batch.num_rows, batch.schema.names))
    return batch

def double(batch):
    return pa.record_batch({"twice": pa.array([2 * v.as_py() for v in batch["i"]])})

def raises(batch):
    def deeper():
        raise KeyError("the cause")
    deeper()

def raises_at_length(batch):
    raise ValueError("x" * 100_000)

def leaves(batch):
    sys.exit("enough")

def table(batch):
    return pa.Table.from_batches([batch])

def nothing(batch):
    pass

def fewer(batch):
    return batch.slice(1)

def no_columns(batch):
    return batch.select([])

def same_names(batch):
    return pa.record_batch([batch["i"], batch["i"]], names=["i", "i"])

def row_id(batch):
    return pa.record_batch({"_rowid": batch["i"]})
"""
TABLE = pa.table({"i": [1, 2, 3], "t": ["a", None, "c"]})


@pytest.fixture(autouse=True)
def functions(tmp_path: Path) -> Iterator[Any]:
    """The module of the functions above; all is undone."""
    (tmp_path / "our_transforms.py").write_text(FUNCTIONS)
    path, names = list(sys.path), set(sys.modules)
    sys.path.append(str(tmp_path))
    import our_transforms  # pyright: ignore[reportMissingImports]

    yield our_transforms
    sys.path[:] = path
    for name in set(sys.modules) - names:
        del sys.modules[name]


def run(name: str | None, table: pa.Table = TABLE, *, with_row_id: bool = False) -> pa.Table:
    transform = None if name is None else f"our_transforms:{name}"
    return transformed(table, Selection(with_row_id=with_row_id, transform=transform), ())


def test_without_a_transform_rows_stay_as_they_are() -> None:
    assert run(None) is TABLE


def test_the_rows_of_a_shard_are_one_record_batch(functions: Any) -> None:
    chunks = pa.concat_tables([TABLE, TABLE, TABLE.slice(0, 0)])
    assert run("same", chunks).equals(chunks)
    assert functions.calls == [("RecordBatch", 6, ["i", "t"])]


def test_what_it_returns_takes_the_place_of_the_columns() -> None:
    assert run("double").to_pydict() == {"twice": [2, 4, 6]}


def test_row_ids_stay_with_their_rows(functions: Any) -> None:
    table = TABLE.append_column("_rowid", pa.array([7, 8, 9], pa.uint64()))
    assert run("double", table, with_row_id=True).to_pydict() == {
        "twice": [2, 4, 6],
        "_rowid": [7, 8, 9],
    }
    run("same", table, with_row_id=True)
    # It is not given them: they are no column that was chosen.
    assert functions.calls == [("RecordBatch", 3, ["i", "t"])]


def failure(name: str, table: pa.Table = TABLE, **selection: bool) -> tuple[str, str]:
    with pytest.raises(TransformFailedError, match=r"^transform='our_transforms:") as raised:
        run(name, table, **selection)
    found = raised.value.failure
    assert found.kind is FailureKind.TRANSFORM
    assert not found.retryable
    assert found.message == str(raised.value)
    return found.message, found.detail


def test_what_it_raises_is_told_with_its_traceback() -> None:
    message, detail = failure("raises")
    assert message == "transform='our_transforms:raises' raised KeyError: 'the cause'"
    lines = detail.splitlines()
    assert lines[0] == "Traceback (most recent call last):"
    assert lines[-1] == "KeyError: 'the cause'"
    assert "our_transforms.py" in detail
    assert "in deeper" in detail
    # From the user's function on: our own frames say nothing.
    assert "service/transform.py" not in detail


def test_a_long_traceback_is_cut_at_its_beginning() -> None:
    message, detail = failure("raises_at_length")
    assert len(detail) <= 4000
    assert detail.endswith("x" * 100)
    assert message.startswith("transform='our_transforms:raises_at_length' raised ValueError: xxx")


def test_one_that_ends_the_process_is_a_failure_like_others() -> None:
    message, detail = failure("leaves")
    assert message == "transform='our_transforms:leaves' raised SystemExit: enough"
    assert "in leaves" in detail


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("table", "returned a Table, not a pyarrow.RecordBatch"),
        ("nothing", "returned a NoneType, not a pyarrow.RecordBatch"),
        ("fewer", "returned 2 rows for 3; every row must stay, in its place"),
        ("no_columns", r"returned the columns \[\]: they must be distinct, and at least one"),
        ("same_names", r"returned the columns \['i', 'i'\]: they must be distinct"),
    ],
)
def test_other_results_are_refused(name: str, words: str) -> None:
    with pytest.raises(TransformFailedError, match=words):
        run(name)


def test_the_name_of_row_ids_is_taken_only_if_they_are_asked_for() -> None:
    assert run("row_id").schema.names == ["_rowid"]
    table = TABLE.append_column("_rowid", pa.array([7, 8, 9], pa.uint64()))
    message, _ = failure("row_id", table, with_row_id=True)
    assert "returned the columns ['_rowid']: they must be distinct" in message


def test_a_function_that_is_not_there_is_a_wrong_argument() -> None:
    with pytest.raises(PlanError, match="transform='our_transforms:nope': AttributeError"):
        run("nope")


def test_a_module_that_ends_the_program_is_a_wrong_argument(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A script without a guard of its main part."""
    (tmp_path / "script_of_a_test.py").write_text("def f(rows): return rows\nraise SystemExit(0)")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(PlanError, match="transform='script_of_a_test:f': SystemExit: 0; it must"):
        load_function("transform", "script_of_a_test:f", ())
