from __future__ import annotations

import datetime as dt
import math
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from lance_stream.offline.same_rows import first_difference
from lance_stream.shards.header import ShardHeader
from lance_stream.shards.shard_file import open_shard, write_shard

TABLE = pa.table(
    {
        "i": pa.array([1, None, 3], pa.int64()),
        "f": pa.array([math.nan, -0.0, 1.5], pa.float64()),
        "v": pa.array([[math.nan, 1.0], [], None], pa.list_(pa.float32())),
        "s": pa.array(["a", "", None], pa.string()),
        "t": pa.array([dt.datetime(2024, 1, 2), None, dt.datetime(1, 1, 1)], pa.timestamp("us")),  # noqa: DTZ001
        "d": pa.array([{"x": math.nan, "y": [1]}, None, {"x": 2.0, "y": None}]),
    }
)
PLAIN = pa.table({"i": pa.array([1, 2]), "f": pa.array([math.nan, 2.0]), "s": ["a", "b"]})


def difference(tmp_path: Path, file: pa.Table, table: pa.Table, kind: str = "arrow") -> str | None:
    path = str(tmp_path / f"shard.{kind}")
    header = ShardHeader("0" * 32, 0, file.num_rows)
    write_shard(kind, path, file, header)
    return first_difference(open_shard(kind, path, header, table.schema, verified=None), table)


@pytest.mark.parametrize("kind", ["arrow", "mds"])
def test_the_same(tmp_path: Path, kind: str) -> None:
    table = PLAIN if kind == "mds" else TABLE
    assert difference(tmp_path, table, table, kind) is None


def test_chunks_do_not_matter(tmp_path: Path) -> None:
    chunked = pa.concat_tables([TABLE.slice(0, 1), TABLE.slice(1)])
    assert difference(tmp_path, TABLE, chunked) is None
    assert difference(tmp_path, chunked, TABLE.combine_chunks()) is None


@pytest.mark.parametrize(
    ("column", "values", "words"),
    [
        ("i", [1, None, 4], "row 2 of the shard, column 'i': 4 in the file, 3 in the table"),
        ("i", [1, 0, 3], "row 1 of the shard, column 'i': 0 in the file, None in the table"),
        ("f", [1.0, -0.0, 1.5], "row 0 of the shard, column 'f': 1.0 in the file, nan"),
        ("v", [[math.nan, 2.0], [], None], "row 0 of the shard, column 'v'"),
        ("v", [[math.nan, 1.0], None, None], "row 1 of the shard, column 'v'"),
        ("s", ["a", "", "x" * 999], "column 's': 'xxxx"),
        ("d", [{"x": math.nan, "y": [2]}, None, {"x": 2.0, "y": None}], "column 'd'"),
    ],
)
def test_another_value(tmp_path: Path, column: str, values: list[Any], words: str) -> None:
    at = TABLE.schema.get_field_index(column)
    field = TABLE.schema.field(at)
    other = TABLE.set_column(at, field, pa.array(values, field.type))
    found = difference(tmp_path, other, TABLE)
    assert found is not None
    assert words in found
    assert len(found) < 250


def test_another_value_in_mds(tmp_path: Path) -> None:
    other = PLAIN.set_column(2, "s", pa.array(["a", "c"]))
    found = difference(tmp_path, other, PLAIN, "mds")
    assert found == "row 1 of the shard, column 's': 'c' in the file, 'b' in the table"
