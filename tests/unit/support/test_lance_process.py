from __future__ import annotations

import sys

import pyarrow as pa
import pytest

from tests.support.lance_process import LanceProcess, Refused

TABLE = pa.table({"i": range(10), "s": [f"row {i}" for i in range(10)]})


def test_a_table_is_written_and_fetched(lance_process: LanceProcess) -> None:
    uri = lance_process.write(TABLE, rows_per_file=4, delete="i in (3, 8)", version="2.1")
    shape = """
table = lance.dataset(args[0])
result = [len(table.get_fragments()), table.count_rows(), table.data_storage_version]
"""
    assert lance_process.run(shape, uri) == [3, 8, "2.1"]
    for cache_format in ("arrow", "mds"):
        fetched = lance_process.fetch(uri, shard_rows=3, cache_format=cache_format)
        assert len(fetched.paths) == 3
        rows = [row for row in TABLE.to_pylist() if row["i"] not in (3, 8)]
        assert fetched.samples(cache_format) == rows
    assert "lance" not in sys.modules


def test_a_table_may_grow(lance_process: LanceProcess) -> None:
    uri = lance_process.write(TABLE)
    lance_process.write(TABLE.slice(2, 3), uri=uri, mode="append")
    assert [row["i"] for row in lance_process.fetch(uri).samples()] == [*range(10), 2, 3, 4]


def test_an_error_has_its_name(lance_process: LanceProcess) -> None:
    uri = lance_process.write(TABLE)
    with pytest.raises(Refused, match="already exists") as raised:
        lance_process.write(TABLE, uri=uri)
    assert raised.value.name == "OSError"
    with pytest.raises(Refused, match="no column 'x'") as raised:
        lance_process.fetch(uri, columns=[("x", "x")])
    assert raised.value.name == "PlanError"
    with pytest.raises(Refused, match="ZeroDivisionError: division by zero"):
        lance_process.run("1 / 0")
    assert lance_process.run("result = args[0] + 1", 2) == 3


def test_a_process_that_dies_says_so() -> None:
    with (
        LanceProcess() as process,
        pytest.raises(AssertionError, match=r"(?s)run: .*the last words"),
    ):
        process.run("import os, sys; print('the last words', flush=True); os._exit(3)")
