"""``cache_format="mds"``: the same samples from files that the stock reader reads as well."""

from __future__ import annotations

import json
import os
import pickle
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from lance_stream.errors import PlanError, UnsupportedTypeError
from tests.host.test_resume import train
from tests.support.forked import run_forked
from tests.support.lance_process import LanceProcess
from tests.support.mds import stock_samples
from tests.support.streams import batches, cached_files, dataset, disk_bytes, ids
from tests.support.tables import assert_row

FORMATS = ("arrow", "mds")


@pytest.mark.parametrize("workers", [0, 2])
def test_samples_are_the_same_and_the_stock_reader_reads_the_files(
    table_100: str, tmp_path: Path, workers: int
) -> None:
    """Columns that may hold nulls and hold none; the schema's order, which MDS has not."""
    local = tmp_path / "cache"

    def run() -> list[Any]:
        options = {"shard_rows": 30, "local": str(local), "cache_format": "mds"}
        data = dataset(table_100, host={"shuffle": True}, **options)
        epochs = [sorted(ids(batches(data, workers))) for _ in range(2)]
        nullable = [field.nullable for field in data.streams[0].schema]
        return [epochs, list(data[3]), nullable, sorted(cached_files(data))]

    epochs, order, nullable, files = run_forked(run)
    assert epochs == [list(range(100))] * 2
    assert order == ["i", "s", "v"]
    assert nullable == [True] * 3
    assert len(files) == 4
    assert all(name.endswith(".mds") for name in files)
    stock = [row for name in files for row in stock_samples(local / name)]
    assert len(stock) == 100
    for number, row in enumerate(stock):
        assert_row({name: row[name] for name in ("i", "s", "v")}, number)


def test_the_two_formats_do_not_meet(table_100: str, tmp_path: Path) -> None:
    """In one directory each has its own files and its own fingerprint, and keeps them."""

    def run() -> list[Any]:
        found = []
        for cache_format in (*FORMATS, *FORMATS):
            options = {"shard_rows": 50, "local": str(tmp_path / "cache")}
            data = dataset(table_100, cache_format=cache_format, **options)
            before = sorted(cached_files(data))
            assert ids(batches(data, 0)) == list(range(100))
            stream = data.streams[0]
            found.append([stream.fingerprint, stream.index.fingerprint, before])
            del data, stream
        return found

    first, second, third, fourth = run_forked(run)
    assert first[0] == first[1] == second[1]
    assert second[0] != second[1]
    assert (third[:2], fourth[:2]) == (first[:2], second[:2])
    assert (len(first[2]), len(second[2]), len(third[2]), len(fourth[2])) == (0, 2, 4, 4)
    assert sorted(name.rpartition(".")[2] for name in fourth[2]) == [
        "arrow",
        "arrow",
        "mds",
        "mds",
    ]


# --- what is refused when the dataset is built ---


@pytest.fixture(scope="module")
def odd(lance_process: LanceProcess) -> str:
    """A table of which MDS can hold two columns."""
    rows = range(200)
    table = pa.table(
        {
            "i": pa.array(rows),
            "text": pa.array(map(str, rows)),
            "late": pa.array([*rows[:-1], None]),
            "inside": pa.array([[1, 2]] * 150 + [[1, None]] + [[]] * 49, pa.list_(pa.int32())),
            "day": pa.array(rows, pa.date32()),
            "words": pa.array([["a"]] * 200),
            "point": pa.array([{"x": 1}] * 200),
            "flags": pa.array([[True]] * 200),
            "at": pa.array(rows, pa.timestamp("us")),
        }
    )
    return lance_process.write(table, rows_per_file=70)


def test_types_are_refused_by_name(odd: str) -> None:
    """All of them at once, in the main process."""
    with pytest.raises(UnsupportedTypeError) as raised:
        dataset(odd, cache_format="mds")
    message = str(raised.value)
    for words in (
        "'day' (date32[day])",
        "'words' (list<item: string>)",
        "'point' (struct<x: int64>)",
        "'flags' (list<item: bool>)",
        "'at' (timestamp[us])",
    ):
        assert words in message
    assert "'i'" not in message
    assert "'text'" not in message
    assert 'cache_format="arrow"' in message


def test_nulls_are_refused_by_name_wherever_they_are(odd: str) -> None:
    """One null in the last row, or inside of a list, is found before the first epoch."""
    with pytest.raises(
        UnsupportedTypeError, match=r"nulls, and there are some in 'late' \(int64\)"
    ):
        dataset(odd, cache_format="mds", columns=["i", "text", "late"])
    with pytest.raises(UnsupportedTypeError, match=r"'inside' \(list<item: int32>\)"):
        dataset(odd, cache_format="mds", columns=["inside"])
    with pytest.raises(UnsupportedTypeError, match=r"'x' \(int64\).*coalesce"):
        dataset(odd, cache_format="mds", columns={"x": "nullif(i, 77)"})
    # The remedies that the message names.
    replaced = {"i": "i", "late": "coalesce(late, -1)"}
    rows = run_forked(
        lambda: [row["late"] for row in dataset(odd, cache_format="mds", columns=replaced)]
    )
    assert rows == [*range(199), -1]
    rows = run_forked(
        lambda: [row["late"] for row in dataset(odd, cache_format="arrow", columns=["late"])]
    )
    assert rows == [*range(199), None]


def test_a_null_that_was_deleted_is_none(lance_process: LanceProcess) -> None:
    """Only live rows are looked at."""
    table = pa.table({"i": range(100), "n": [None if i % 10 == 3 else i for i in range(100)]})
    uri = lance_process.write(table, rows_per_file=30, delete="i % 10 = 3")
    rows = run_forked(lambda: [row["n"] for row in dataset(uri, cache_format="mds", shard_rows=7)])
    assert rows == [i for i in range(100) if i % 10 != 3]


@pytest.mark.parametrize("cache_format", FORMATS)
def test_a_reader_pickles(table_100: str, cache_format: str) -> None:
    """As for workers that are spawned: with format, hash and views."""

    def run() -> list[Any]:
        options = {"validate_hash": "sha1", "zero_copy": True, "with_row_id": True}
        data = dataset(table_100, shard_rows=10, cache_format=cache_format, **options)
        copies = pickle.loads(pickle.dumps(data.shards))
        assert data[70]["i"] == 70  # the host has the charge corrected
        row = copies[7].get_item(3)
        return [row.pop("_rowid"), row["v"].flags.writeable, row["v"].tolist(), list(row)]

    row_id, writeable, values, names = run_forked(run)
    assert row_id == (2 << 32) + 23  # the fragment, and the row in it
    assert (writeable, names) == (False, ["i", "s", "v"])
    assert values == [73 + k / 8 for k in range(8)]


def test_another_format_is_refused(table_100: str) -> None:
    """By name."""
    with pytest.raises(PlanError, match="cache_format='parquet' must be 'arrow' or 'mds'"):
        dataset(table_100, cache_format="parquet")


# --- the cache ---


@pytest.mark.parametrize("workers", [0, 2])
def test_a_cache_limit_is_exact(table_100: str, tmp_path: Path, workers: int) -> None:
    """Evicting, reading again and counting are the same in either format."""
    local = tmp_path / "cache"

    def run() -> list[Any]:
        options = {"shard_rows": 5, "local": str(local), "cache_format": "mds"}
        largest = max(shard.get_raw_size() for shard in dataset(table_100, **options).shards)
        limit = 6 * largest
        data = dataset(table_100, host={"shuffle": True, "cache_limit": limit}, **options)
        rows = sorted(ids(batches(data, workers)))
        time.sleep(0.3)
        usage, disk = data.cache_usage, disk_bytes(local)
        for shard in range(data.num_shards):
            data.evict_shard(shard)
        left = [data.cache_usage - disk_bytes(local), len(cached_files(data))]
        evictions = data.streams[0].cache.ledger.evictions
        # See test_cache_limit.py for what may be on top.
        allowed = limit + 4 * max(1, workers) * largest
        return [rows, usage, disk, allowed, left, evictions]

    rows, usage, disk, allowed, left, evictions = run_forked(run)
    assert rows == list(range(100))
    assert usage == disk <= allowed
    assert left == [0, 0]
    assert evictions > 10


def test_the_estimate_of_a_file_is_close(table_100: str, tmp_path: Path) -> None:
    """It errs high, for the sake of the limit, but not by much."""

    def run() -> list[list[int]]:
        found = []
        for cache_format in FORMATS:
            local = str(tmp_path / cache_format)
            data = dataset(table_100, shard_rows=50, local=local, cache_format=cache_format)
            ids(batches(data, 0))
            expected = [shard.get_raw_size() for shard in data.shards]
            found.append([*expected, *(size for _, size in sorted(cached_files(data).items()))])
        return found

    for first, second, size_first, size_second in run_forked(run):
        assert size_first <= first < 2 * size_first + 4_096
        assert size_second <= second < 2 * size_second + 4_096


@pytest.mark.parametrize("workers", [0, 2])
def test_a_run_resumes(table_100: str, tmp_path: Path, workers: int) -> None:
    """In the middle of an epoch, whatever the workers then; in the order of either format."""

    def build(cache_format: str) -> Any:
        local = str(tmp_path / cache_format)
        options = {"shard_rows": 10, "local": local, "cache_format": cache_format}
        return dataset(table_100, host={"shuffle": True}, **options)

    ((whole,), _) = run_forked(train, lambda: build("arrow"), 0, [None])
    ((first,), state) = run_forked(train, lambda: build("mds"), workers, [9])
    ((rest,), _) = run_forked(train, lambda: build("mds"), 2 - workers, [None], state)
    assert first + rest == whole
    assert json.loads(state)["sample_in_epoch"] == 36


# --- arrays ---


@pytest.mark.parametrize("cache_format", FORMATS)
def test_arrays_are_the_users_own(lance_process: LanceProcess, cache_format: str) -> None:
    """Writable, and nobody else's: not the file's, not the next sample's."""
    uri = lance_process.write(_arrays())

    def run() -> int:
        data = dataset(uri, cache_format=cache_format, shard_rows=4)
        rows = [row for _ in range(2) for row in data]
        for row in rows:
            for name in ("fixed", "list", "matrix", "tensor"):
                array = row[name]
                assert array.flags.owndata
                assert array.flags.writeable
                assert array.flags.c_contiguous
                assert array.ravel().tolist() == _values(name, row["i"])
                array[...] = -1
        return len(rows)

    assert run_forked(run) == 20


@pytest.mark.parametrize("cache_format", FORMATS)
def test_views_stay_valid_after_eviction(
    lance_process: LanceProcess, tmp_path: Path, cache_format: str
) -> None:
    """``zero_copy=True``: read-only, and kept alive by whoever keeps them."""
    uri = lance_process.write(_arrays())
    local = str(tmp_path / "cache")

    def run() -> int:
        options = {"zero_copy": True, "shard_rows": 2, "local": local}
        data = dataset(uri, cache_format=cache_format, **options)
        rows = list(data)
        views = sum(not row[name].flags.owndata for row in rows for name in ("fixed", "matrix"))
        for shard in range(data.num_shards):
            data.evict_shard(shard)
        assert not cached_files(data)
        # Other shards take the place, on disk and in memory.
        rows += list(data)
        del data
        for name in os.listdir(local):
            os.unlink(os.path.join(local, name))
        assert len(rows) == 20
        for row in rows:
            for name in ("fixed", "list", "matrix", "tensor"):
                array = row[name]
                assert not array.flags.writeable
                assert array.ravel().tolist() == _values(name, row["i"])
                with pytest.raises(ValueError, match="read-only"):
                    array[...] = 0
        return views

    views = run_forked(run)
    # MDS does not align its values: what is not aligned is copied.
    assert views == 20 if cache_format == "arrow" else views > 0


def _values(name: str, i: int) -> list[float]:
    length = {"fixed": 3, "list": i, "matrix": 4, "tensor": 6}[name]
    return [i + k / 8 for k in range(length)]


def _arrays() -> pa.Table:
    """Ten rows with an array of every kind, as ``_values`` has them."""
    rows = range(10)
    tensor = pa.fixed_shape_tensor(pa.float32(), [2, 3])
    stored = pa.array([_values("tensor", i) for i in rows], tensor.storage_type)
    matrix = [np.array(_values("matrix", i)).reshape(2, 2).tolist() for i in rows]
    return pa.table(
        {
            "i": rows,
            "fixed": pa.array([_values("fixed", i) for i in rows], pa.list_(pa.float64(), 3)),
            "list": pa.array([_values("list", i) for i in rows], pa.list_(pa.float32())),
            "matrix": pa.array(matrix, pa.list_(pa.list_(pa.float32(), 2), 2)),
            "tensor": pa.ExtensionArray.from_storage(tensor, stored),
        }
    )
