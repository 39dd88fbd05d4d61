from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import pytest

from tests.support.object_store import S3Server
from tests.support.scripts import run_script
from tests.support.tables import assert_row, expected_row, write_table
from tests.unit.support.lance_read import read_table

DESCRIBE = """
    import json, sys
    import lance
    dataset = lance.dataset(sys.argv[1])
    print(json.dumps({
        "version": dataset.version,
        "fields": [f"{field.name} {field.type}" for field in dataset.schema],
        "file_rows": [fragment.count_rows() for fragment in dataset.get_fragments()],
        "i": dataset.to_table(columns=["i"])["i"].to_pylist(),
    }))
"""


def test_expected_rows_are_pinned() -> None:
    row = expected_row(20)
    assert list(row) == ["i", "s", "v"]
    assert (row["i"], row["s"]) == (20, "row 20 abc")
    assert row["v"].dtype == np.float32
    assert row["v"].tolist() == [20.0, 20.125, 20.25, 20.375, 20.5, 20.625, 20.75, 20.875]
    assert expected_row(17, ["s"]) == {"s": "row 17 "}


def test_assert_row_sees_values_types_and_column_order() -> None:
    good = expected_row(5)
    assert_row(good, 5)
    other_vector = expected_row(5)["v"]
    other_vector[3] += 1
    bad = [
        {**good, "i": 6},
        {**good, "i": np.int64(5)},
        {**good, "s": "row 5"},
        {**good, "v": other_vector},
        {**good, "v": good["v"].astype(np.float64)},
        {**good, "v": good["v"].tolist()},
        {"s": good["s"], "i": 5, "v": good["v"]},
        {"i": 5, "s": good["s"]},
        {**good, "more": 1},
    ]
    for row in bad:
        with pytest.raises(AssertionError, match="row 5: expected"):
            assert_row(row, 5)


def test_a_table_has_the_rows_files_and_types_it_should(tmp_path: Path) -> None:
    uri = str(tmp_path / "t.lance")
    assert write_table(uri, 250, 100) == 1
    table = run_script(DESCRIBE, uri).json()
    assert table["file_rows"] == [100, 100, 50]
    assert table["fields"] == ["i int64", "s string", "v fixed_size_list<item: float>[8]"]
    assert table["i"] == list(range(250))
    assert read_table(uri, {}, range(250)).good

    assert write_table(uri, 30, 100, first_row=250, mode="append") == 2
    assert run_script(DESCRIBE, uri).json()["i"] == list(range(280))
    assert read_table(uri, {}, range(280)).good

    assert write_table(uri, 10, 4, columns=["s", "i"], mode="overwrite") == 3
    table = run_script(DESCRIBE, uri).json()
    assert table["fields"] == ["s string", "i int64"]
    assert table["file_rows"] == [4, 4, 2]


def test_a_table_larger_than_a_batch_has_full_files(tmp_path: Path) -> None:
    uri = str(tmp_path / "t.lance")
    write_table(uri, 120_001, 60_000)
    table = run_script(DESCRIBE, uri).json()
    assert table["file_rows"] == [60_000, 60_000, 1]
    assert table["i"] == list(range(120_001))


def test_a_table_on_the_server_is_read_back(s3_server: S3Server, table_uri: str) -> None:
    assert read_table(table_uri, s3_server.storage_options()).good


def test_a_write_that_fails_shows_why(tmp_path: Path) -> None:
    uri = str(tmp_path / "t.lance")
    write_table(uri, 1, 1)
    with pytest.raises(AssertionError, match="already exists"):
        write_table(uri, 1, 1)
    with pytest.raises(AssertionError, match="column 'x' is none of"):
        write_table(uri, 1, 1, columns=["x"])


def test_this_process_has_not_imported_lance() -> None:
    loaded = run_script(
        """
        import json, sys
        import tests.support.fixtures, tests.support.tables
        print(json.dumps([name for name in ("lance", "pyarrow", "torch") if name in sys.modules]))
        """
    ).json()
    assert loaded == []
    assert "lance" not in sys.modules, json.dumps(sorted(sys.modules))[:200]
