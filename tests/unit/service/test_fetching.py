"""Tables of any type, written by Lance, planned and fetched by its reader, read as a trainer does.

What a sample must hold is told by pyarrow from the rows that were written (``support.values``).
"""

from __future__ import annotations

import os
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lance_stream.planning.types import sample_schema
from tests.support.any_tables import lance_tables, mds_can_hold, mds_tables
from tests.support.lance_process import LanceProcess, Refused
from tests.support.mds import stock_samples
from tests.support.values import assert_same, bfloat16_field, expected_rows

VERSIONS = ["2.0", "2.1", "2.2"]


def _numbered(table: pa.Table) -> pa.Table:
    """The table with a column to delete by."""
    return table.add_column(0, "id", pa.array(range(len(table)), pa.int64()))


def _deletion(ids: set[int]) -> str:
    return f"id in ({', '.join(map(str, sorted(ids)))})" if ids else ""


@pytest.mark.parametrize("version", VERSIONS)
def test_samples_of_any_table_are_its_values(lance_process: LanceProcess, version: str) -> None:
    @settings(max_examples=80)
    @given(data=st.data())
    def check(data: st.DataObject) -> None:
        table = _numbered(data.draw(lance_tables(version)))
        # Not the last one: a table without rows has nothing to stream.
        deleted = data.draw(st.sets(st.integers(0, len(table)), max_size=5)) - {len(table) - 1}
        uri = lance_process.write(
            table,
            version=version,
            rows_per_file=data.draw(st.integers(1, 9)),
            delete=_deletion(deleted),
        )
        fetched = lance_process.fetch(uri, shard_rows=data.draw(st.integers(1, 9)))
        expected = [row for i, row in enumerate(expected_rows(table)) if i not in deleted]
        found = fetched.samples(zero_copy=data.draw(st.booleans()))
        assert len(found) == len(expected) == fetched.index.num_rows
        for one, other in zip(found, expected, strict=True):
            assert_same(one, other)
        plain = sample_schema(fetched.index.schema, "")
        assert fetched.index.schema.equals(plain, check_metadata=True)

    check()


def test_mds_holds_the_same_values_or_is_refused_when_planned(lance_process: LanceProcess) -> None:
    seen = {True: 0, False: 0}

    @settings(max_examples=120)
    @given(table=mds_tables() | lance_tables("2.2"), zero_copy=st.booleans())
    def check(table: pa.Table, zero_copy: bool) -> None:
        table = _numbered(table)
        uri = lance_process.write(table, version="2.2", rows_per_file=7)
        holds = mds_can_hold(table)
        seen[holds] += 1
        if not holds:
            with pytest.raises(Refused, match=r"^UnsupportedTypeError: .*'c\d'"):
                lance_process.fetch(uri, shard_rows=5, cache_format="mds")
            return
        fetched = lance_process.fetch(uri, shard_rows=5, cache_format="mds")
        expected = expected_rows(table)
        found = fetched.samples("mds", zero_copy=zero_copy)
        stock = [row for path in fetched.paths for row in stock_samples(path)]
        assert len(found) == len(stock) == len(expected)
        for one, other, third in zip(found, expected, stock, strict=True):
            assert_same(one, other)
            assert_same({name: third[name] for name in other}, other)

    check()
    assert min(seen.values()) > 30, seen


# --- how much a shard takes ---


def _words(length: int, rows: int) -> pa.DictionaryArray:
    """A dictionary column over 5,000 texts of a length, each used in turn."""
    words = pa.array([f"{i:05d}".ljust(length, "x") for i in range(5_000)])
    return pa.DictionaryArray.from_arrays(pa.array([i % 5_000 for i in range(rows)]), words)


def _plain_file_bytes(column: pa.Array) -> int:
    """What an Arrow IPC file of one column takes without a word of ours."""
    table, sink = pa.table({"c": column}).combine_chunks(), pa.MockOutputStream()
    with pa.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table)
    return sink.size()


def test_a_shard_carries_no_words_that_its_rows_do_not_use(lance_process: LanceProcess) -> None:
    # The whole dictionary in each of the 1,000 shards would be some 500 times the rows.
    column = _words(64, 10_000)
    decoded = column.cast(pa.string())
    fetched = lance_process.fetch(lance_process.write(pa.table({"c": column})), shard_rows=10)
    assert len(fetched.paths) == 1_000
    assert [sample["c"] for sample in fetched.samples()] == decoded.to_pylist()
    assert sum(os.path.getsize(path) for path in fetched.paths) < 3 * decoded.nbytes


@pytest.mark.parametrize("length", [5, 20, 200])
def test_a_small_shard_takes_little_more_than_a_plain_file(
    lance_process: LanceProcess, length: int
) -> None:
    column = _words(length, 50)
    fetched = lance_process.fetch(lance_process.write(pa.table({"c": column})), shard_rows=10)
    plain = _plain_file_bytes(column.cast(pa.string())[:10])
    assert [os.path.getsize(path) < plain + 256 for path in fetched.paths] == [True] * 5


# --- columns that Lance keeps in another form than it gives ---

_BLOBS: list[Any] = [b"abc", None, b"", b"x" * 100_000, b"\0", None, b"y" * 3_000_000]
_LEGACY = """
field = pa.field("b", pa.large_binary(), metadata={"lance-encoding:blob": "true"})
blobs = pa.array(values, pa.large_binary())
"""
_V2 = """
field = lance.blob_field("b")
blobs = lance.blob_array(values)
"""
_COLUMN = """
table = pa.table([pa.array(range(7)), blobs], schema=pa.schema([pa.field("i", pa.int64()), field]))
"""
_STRUCT = """
parts = [pa.array(range(7)), blobs]
struct = pa.StructArray.from_arrays(parts, fields=[pa.field("i", pa.int64()), field])
table = pa.table([struct], schema=pa.schema([pa.field("s", struct.type)]))
"""
_WRITE_BLOBS = """
uri, version = args
values = [b"abc", None, b"", b"x" * 100_000, b"\\0", None, b"y" * 3_000_000]
"""
_WRITE = "lance.write_dataset(table, uri, data_storage_version=version, max_rows_per_file=3)\n"


def _write_blobs(process: LanceProcess, encoding: str, shape: str, version: str) -> str:
    uri = process.new_path(".lance")
    process.run(_WRITE_BLOBS + encoding + shape + _WRITE, uri, version)
    return uri


each_encoding = pytest.mark.parametrize(
    ("encoding", "version"),
    [*((_LEGACY, version) for version in VERSIONS), (_V2, "2.2")],
    ids=[*(f"legacy-{version}" for version in VERSIONS), "v2-2.2"],
)


@each_encoding
def test_blobs_are_bytes_and_null_is_not_empty(
    lance_process: LanceProcess, encoding: str, version: str
) -> None:
    uri = _write_blobs(lance_process, encoding, _COLUMN, version)
    rows = [{"i": i, "b": blob} for i, blob in enumerate(_BLOBS)]
    fetched = lance_process.fetch(uri, shard_rows=2)
    assert fetched.index.schema == pa.schema([("i", pa.int64()), ("b", pa.large_binary())])
    assert fetched.samples() == rows
    assert lance_process.fetch(uri, shard_bytes=100).samples() == rows
    renamed = lance_process.fetch(uri, columns=[("blob", "b"), ("j", "i + 1")], shard_rows=7)
    assert renamed.samples() == [{"blob": row["b"], "j": row["i"] + 1} for row in rows]


@each_encoding
def test_blobs_inside_of_structs(lance_process: LanceProcess, encoding: str, version: str) -> None:
    uri = _write_blobs(lance_process, encoding, _STRUCT, version)
    rows = [{"s": {"i": i, "b": blob}} for i, blob in enumerate(_BLOBS)]
    assert lance_process.fetch(uri, shard_rows=2).samples() == rows


def test_blobs_inside_of_lists(lance_process: LanceProcess) -> None:
    shape = """
list_ = pa.ListArray.from_arrays(pa.array([0, 2, 2, 7], pa.int32()), blobs)
table = pa.table({"l": list_})
"""
    uri = _write_blobs(lance_process, _V2, shape, "2.2")
    rows = [{"l": _BLOBS[:2]}, {"l": []}, {"l": _BLOBS[2:]}]
    assert lance_process.fetch(uri, shard_rows=2).samples() == rows


@each_encoding
def test_nulls_of_blobs_are_found_for_mds(
    lance_process: LanceProcess, encoding: str, version: str
) -> None:
    uri = _write_blobs(lance_process, encoding, _COLUMN, version)
    with pytest.raises(Refused, match=r"^UnsupportedTypeError: .*nulls.*'b' \(large_binary\)"):
        lance_process.fetch(uri, cache_format="mds")
    lance_process.run("lance.dataset(args[0]).delete('i in (1, 5)')", uri)
    rows = [{"i": i, "b": blob} for i, blob in enumerate(_BLOBS) if blob is not None]
    assert lance_process.fetch(uri, cache_format="mds", shard_rows=2).samples("mds") == rows


@pytest.mark.parametrize("version", VERSIONS)
def test_json_is_its_text(lance_process: LanceProcess, version: str) -> None:
    texts = ['{"a": [1, 2.5], "b": null}', None, "[]", '"ü"']
    table = pa.table({"j": pa.array(texts, pa.json_())})
    uri = lance_process.write(table, version=version)
    found = [sample["j"] for sample in lance_process.fetch(uri, shard_rows=3).samples()]
    # As Lance keeps it, without the spaces.
    assert found == ['{"a":[1,2.5],"b":null}', None, "[]", '"ü"']


@pytest.mark.parametrize("version", VERSIONS)
def test_a_null_among_the_words_of_a_dictionary(lance_process: LanceProcess, version: str) -> None:
    column = pa.DictionaryArray.from_arrays(
        pa.array([0, 1, None, 0], pa.int8()), pa.array(["a", None])
    )
    uri = lance_process.write(pa.table({"c": column}), version=version)
    found = [sample["c"] for sample in lance_process.fetch(uri, shard_rows=3).samples()]
    assert found == ["a", None, None, "a"]
    with pytest.raises(Refused, match=r"^UnsupportedTypeError: .*'c'"):
        lance_process.fetch(uri, cache_format="mds")


def test_columns_may_be_renamed_whatever_their_type(lance_process: LanceProcess) -> None:
    tensor = pa.fixed_shape_tensor(pa.float32(), [2, 2])
    fields = [
        bfloat16_field("h"),
        pa.field("u", pa.uuid()),
        pa.field("t", tensor),
        pa.field("d", pa.dictionary(pa.int8(), pa.string())),
        pa.field("l", pa.list_(bfloat16_field("item"))),
    ]
    values: list[Any] = [b"\x80\x3f", b"u" * 16, [1, 2, 3, 4], "word", [b"\x00\x40", None]]
    arrays = [
        pa.array([value, None], field.type) for field, value in zip(fields, values, strict=True)
    ]
    table = pa.table(arrays, schema=pa.schema(fields))
    uri = lance_process.write(table, version="2.2")
    columns = [(f"new {name}", name) for name in table.schema.names]
    found = lance_process.fetch(uri, columns=columns).samples()
    for one, other in zip(found, expected_rows(table), strict=True):
        assert_same(one, {f"new {name}": value for name, value in other.items()})


# --- planning ---


def test_a_shard_of_mds_that_would_be_too_large_is_refused_with_the_remedy(
    lance_process: LanceProcess,
) -> None:
    # 5,000 rows of 1 MB are more than 4 GiB; only a few of them are read to find out.
    uri = lance_process.write(pa.table({"t": ["x"] * 5_000}))
    columns = [("t", "repeat(t, 1000000)")]
    with pytest.raises(
        Refused, match=r"^PlanError: .*choose shard_rows=4\d\d\d or less"
    ) as raised:
        lance_process.fetch(uri, columns=columns, cache_format="mds", shard_rows=5_000)
    assert uri in raised.value.message
    assert "5000 rows per shard" in raised.value.message
