from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest

from lance_stream.errors import PlanError, UnsupportedTypeError
from lance_stream.planning.sizing import RowSize
from lance_stream.shards.mds_limits import check_mds_nulls, check_mds_sizes

WHERE = "s3://b/t.lance version 3"
FLAT = pa.schema([("i", pa.int64()), ("t", pa.string())])


def size(mean_bytes: float) -> RowSize:
    return RowSize(mean_bytes, 0.0, 0)


def test_columns_that_fit_are_let_through() -> None:
    check_mds_sizes(FLAT, size(100.0), 1_000_000, WHERE)


@pytest.mark.parametrize(
    "kind",
    [
        pa.date32(),
        pa.timestamp("us"),
        pa.list_(pa.string()),
        pa.list_(pa.list_(pa.int64())),
        pa.list_(pa.bool_()),
        pa.struct([("x", pa.int64())]),
        pa.map_(pa.string(), pa.int64()),
        pa.uuid(),
        pa.null(),
    ],
    ids=str,
)
def test_a_type_without_an_encoding_is_named(kind: pa.DataType) -> None:
    schema = pa.schema([("good", pa.int64()), ("the column", kind)])
    with pytest.raises(UnsupportedTypeError, match=re.escape(f"'the column' ({kind})")):
        check_mds_sizes(schema, size(1.0), 1, WHERE)


def test_a_shard_beyond_four_gigabytes_is_refused_with_the_remedy() -> None:
    check_mds_sizes(FLAT, size(4_000.0), 1_000_000, WHERE)
    with pytest.raises(PlanError, match="4294967295: choose shard_rows=") as raised:
        check_mds_sizes(FLAT, size(5_000.0), 1_000_000, WHERE)
    assert str(raised.value).startswith(f"{WHERE}: 1000000 rows per shard would take about 5")
    fit = int(str(raised.value).rpartition("shard_rows=")[2].split()[0])
    check_mds_sizes(FLAT, size(5_000.0), fit, WHERE)
    with pytest.raises(PlanError, match="choose shard_rows="):
        check_mds_sizes(FLAT, size(5_000.0), int(fit * 1.02), WHERE)


def test_what_a_row_takes_beyond_arrow_is_counted() -> None:
    # A hundred columns of text without a letter: 4 bytes each in Arrow, 4 more in MDS.
    schema = pa.schema([(f"c{i}", pa.string()) for i in range(100)])
    check_mds_sizes(schema, size(400.0), 5_000_000, WHERE)
    with pytest.raises(PlanError, match="choose shard_rows="):
        check_mds_sizes(schema, size(400.0), 8_000_000, WHERE)


def test_one_row_that_is_too_large() -> None:
    with pytest.raises(PlanError, match="choose shard_rows=1 or less"):
        check_mds_sizes(FLAT, size(5e9), 1, WHERE)


# --- nulls ---

ROWS: list[tuple[str, pa.DataType, Any, Any]] = [
    ("int", pa.int64(), [1, 2], [1, None]),
    ("text", pa.string(), ["a", ""], ["a", None]),
    ("list", pa.list_(pa.int64()), [[1], []], [[1], None]),
    ("in a list", pa.list_(pa.int64()), [[1], []], [[1, None], []]),
    ("large list", pa.large_list(pa.int64()), [[1], []], [[None], []]),
    ("fixed", pa.list_(pa.int64(), 2), [[1, 2], [3, 4]], [[1, 2], None]),
    ("in fixed", pa.list_(pa.int64(), 2), [[1, 2], [3, 4]], [[1, 2], [None, 4]]),
    (
        "in fixed in a list",
        pa.list_(pa.list_(pa.int64(), 2)),
        [[[1, 2]], []],
        [[[1, 2], [None, 3]], []],
    ),
    ("fixed in a list", pa.list_(pa.list_(pa.int64(), 2)), [[[1, 2]], []], [[None], []]),
]
WAYS: dict[str, Callable[[pa.Array], pa.Array]] = {
    "whole": lambda array: array,
    "slice": lambda array: pa.concat_arrays([array, array]).slice(1, 2),
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(("name", "kind", "whole", "nulls"), ROWS, ids=[row[0] for row in ROWS])
def test_a_null_is_found_wherever_it_is(
    name: str, kind: pa.DataType, whole: list[Any], nulls: list[Any], way: str
) -> None:
    good, bad = (WAYS[way](pa.array(rows, kind)) for rows in (whole, nulls))

    def check(column: pa.Array) -> None:
        batch = pa.record_batch([pa.array([1, 2]), column], names=["i", "c"])
        check_mds_nulls(batch, WHERE)

    check(good)
    with pytest.raises(UnsupportedTypeError, match=re.escape(f"'c' ({kind})")) as raised:
        check(bad)
    assert "'i'" not in str(raised.value)
    assert str(raised.value).startswith(f"{WHERE}: MDS cannot hold nulls")
    assert "coalesce" in str(raised.value)
    assert 'cache_format="arrow"' in str(raised.value)


def test_a_null_outside_of_a_slice_is_none() -> None:
    column = pa.array([[None], [1], [2, None]], pa.list_(pa.int64())).slice(1, 1)
    fixed = pa.array([[None, 1], [1, 2], None], pa.list_(pa.int64(), 2)).slice(1, 1)
    batch = pa.record_batch([column, fixed], names=["a", "b"])
    check_mds_nulls(batch, WHERE)


def test_a_null_in_a_tensor() -> None:
    kind = pa.fixed_shape_tensor(pa.int16(), [2])
    for rows, is_bad in (([[1, 2]], False), ([None], True), ([[1, None]], True)):
        column = pa.ExtensionArray.from_storage(kind, pa.array(rows, kind.storage_type))
        batch = pa.record_batch([column], names=["t"])
        if is_bad:
            with pytest.raises(UnsupportedTypeError, match="'t'"):
                check_mds_nulls(batch, WHERE)
        else:
            check_mds_nulls(batch, WHERE)


def test_every_column_of_a_batch_is_named() -> None:
    batch = pa.record_batch(
        [pa.array([None, 1]), pa.array([1, 2]), pa.array([None, "a"])], names=["a", "b", "c"]
    )
    with pytest.raises(UnsupportedTypeError, match=r"'a' \(int64\), 'c' \(string\)"):
        check_mds_nulls(batch, WHERE)
