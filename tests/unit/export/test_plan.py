from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pyarrow as pa
import pytest

from lance_stream.errors import PlanError, UnsupportedTypeError
from lance_stream.export.plan import FileFacts, Found, finished_shards, make_plan, require_ours
from lance_stream.planning.sizing import RowSize
from tests.unit.export.plans import content, entry, export_plan, shard_index

EMPTY = Found({}, None, None)


def found(
    *names: str, state: Mapping[str, Any] | None = None, index: Mapping[str, Any] | None = None
) -> Found:
    return Found(dict.fromkeys(names, 1), state, index)


def test_the_identity_of_an_export() -> None:
    # Golden: an export that was begun by another version is continued or refused by it.
    plan = export_plan(hashes=("xxh64", "sha1", "sha1"), compression="zstd:3")
    identity = plan.identity()
    assert identity.pop("fingerprint") == plan.index.fingerprint
    assert identity == {
        "format": 1,
        "uri": "/data/t.lance",
        "version": 3,
        "rows": 25,
        "shards": 3,
        "columns": {"a": "int64", "b": "str", "v": "ndarray:float32:2"},
        "compression": "zstd:3",
        "hashes": ["sha1", "xxh64"],
    }
    assert json.loads(json.dumps(plan.identity())) == plan.identity()


def test_names() -> None:
    plan = export_plan()
    assert plan.stored_name(7) == plan.raw_name(7) == "shard.00007.mds"
    assert plan.raw_name(123_456) == "shard.123456.mds"
    assert export_plan(compression="gz:3").stored_name(7) == "shard.00007.mds.gz"


def test_an_entry_of_the_index() -> None:
    plan = export_plan(compression="zstd", hashes=("sha1",))
    raw, zipped = FileFacts(100, {"sha1": "aa"}), FileFacts(10, {"sha1": "bb"})
    assert plan.entry(2, raw, zipped) == {
        "version": 2,
        "format": "mds",
        "size_limit": None,
        "compression": "zstd",
        "hashes": ["sha1"],
        "column_names": ["a", "b", "v"],
        "column_encodings": ["int64", "str", "ndarray:float32:2"],
        "column_sizes": [8, None, 8],
        "samples": 5,
        "raw_data": {"basename": "shard.00002.mds", "bytes": 100, "hashes": {"sha1": "aa"}},
        "zip_data": {"basename": "shard.00002.mds.zstd", "bytes": 10, "hashes": {"sha1": "bb"}},
    }
    assert plan.stored_bytes(plan.entry(2, raw, zipped)) == 10
    assert export_plan().entry(0, raw, None)["zip_data"] is None


def test_the_index_has_all_shards_in_order() -> None:
    plan = export_plan()
    entries = {shard: entry(plan, shard) for shard in (2, 0, 1)}
    index = json.loads(plan.index_text(entries))
    assert index["version"] == 2
    assert index["shards"] == [entry(plan, shard) for shard in range(3)]
    assert index["lance_stream"] == plan.identity()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({1: None}, "15 rows in 2 shards, but the table has 25 in 3"),
        ({1: {"samples": 9}}, "24 rows in 3 shards, but the table has 25 in 3"),
    ],
)
def test_an_index_that_is_not_all_of_the_table(change: dict[int, Any], words: str) -> None:
    plan = export_plan()
    entries = {shard: entry(plan, shard) for shard in range(3)} | change
    with pytest.raises(PlanError, match=words):
        plan.index_text({shard: told for shard, told in entries.items() if told})


def test_what_cannot_be_exported() -> None:
    schema = pa.schema([("x", pa.date32()), ("y", pa.int8()), ("z", pa.null())])
    message = r"t\.lance version 3: .* 'x' \(date32\[day\]\), 'z' \(null\)\. Cast .*--columns"
    with pytest.raises(UnsupportedTypeError, match=message):
        make_plan(shard_index(schema=schema), None, "", ())
    with pytest.raises(PlanError, match="10 rows per shard would take about"):
        make_plan(shard_index(row_size=RowSize(1e9, 0.0, 0)), None, "", ())


# --- where it goes ---


@pytest.mark.parametrize("place", [EMPTY, found("lost+found")])
def test_an_empty_place(place: Found) -> None:
    assert require_ours(place, export_plan(), "/out") is False


def test_a_place_that_was_begun() -> None:
    plan = export_plan()
    place = found("shard.00000.mds", state=plan.identity())
    assert require_ours(place, plan, "/out") is False


@pytest.mark.parametrize("begun", [True, False])
def test_a_place_that_is_complete(begun: bool) -> None:
    plan = export_plan()
    index = {"version": 2, "shards": [], "lance_stream": plan.identity()}
    state = plan.identity() if begun else None
    assert require_ours(found("index.json", state=state, index=index), plan, "/out") is True


@pytest.mark.parametrize(
    ("place", "words"),
    [
        (found("a"), r"/out is not empty, and not an export \(a\): choose another --out"),
        (found("d", "b", "a", "c"), r"\(a, b, c, \.\.\.\)"),
        (found("index.json", index={}), "/out holds a dataset that lance-stream did not export"),
        (found("index.json", index={"version": 2, "shards": []}), "did not export"),
        (found("index.json", index={"lance_stream": "x"}), "did not export"),
        (found(state={}), "part of another export"),
    ],
)
def test_a_place_of_somebody_else(place: Found, words: str) -> None:
    with pytest.raises(PlanError, match=words):
        require_ours(place, export_plan(), "/out")


@pytest.mark.parametrize(
    ("other", "words"),
    [
        ({"version": 4}, r"\(version 4 there, 3 here\): add --version 4 to complete it, or"),
        ({"rows": 26, "shard_rows": 13}, r"\(rows 26 there, 25 here; shards 2 there, 3 here\)"),
        ({"uri": "/other"}, r"\(uri /other there, /data/t\.lance here\): choose another --out"),
        ({"compression": "br"}, r"\(compression br there, None here\): choose another --out"),
        ({"hashes": ("sha1",)}, r"\(hashes \['sha1'\] there, \[\] here\): choose another --out"),
        ({"schema": pa.schema([("a", pa.int64())])}, r"\(columns \{'a': 'int64'\} there, \{'a'"),
        ({"identity": "1" * 32}, r"\(fingerprint [0-9a-f]{32} there, [0-9a-f]{32} here\)"),
    ],
)
def test_a_place_of_another_export(other: dict[str, Any], words: str) -> None:
    identity = export_plan(**other).identity()
    with pytest.raises(PlanError, match=f"/out holds part of another export {words}"):
        require_ours(found(state=identity), export_plan(), "/out")
    complete = found("index.json", index={"shards": [], "lance_stream": identity})
    with pytest.raises(PlanError, match=r"/out holds another export .* choose another --out"):
        require_ours(complete, export_plan(), "/out")


# --- what is finished ---


def sizes(*shards: int, ending: str = "") -> dict[str, int]:
    return {f"shard.{shard:05}.mds{ending}": len(content(shard)) for shard in shards}


def test_finished_is_what_is_recorded_and_there() -> None:
    plan = export_plan()
    records = {shard: entry(plan, shard) for shard in (0, 2)}
    assert finished_shards(plan, records, Found(sizes(0, 1, 2), None, None)) == records
    assert list(finished_shards(plan, records, Found(sizes(1, 2), None, None))) == [2]
    assert finished_shards(plan, {}, Found(sizes(0, 1, 2), None, None)) == {}
    shorter = {**sizes(0, 2), "shard.00002.mds": 1}
    assert list(finished_shards(plan, records, Found(shorter, None, None))) == [0]


def test_finished_with_compression_is_the_compressed_file() -> None:
    plan = export_plan(compression="zstd")
    records = {0: entry(plan, 0)}
    assert list(finished_shards(plan, records, Found(sizes(0), None, None))) == []
    assert list(finished_shards(plan, records, Found(sizes(0, ending=".zstd"), None, None))) == [0]


def test_an_index_tells_as_well() -> None:
    plan = export_plan()
    index = json.loads(plan.index_text({shard: entry(plan, shard) for shard in range(3)}))
    assert list(finished_shards(plan, {}, Found(sizes(0, 2), None, index))) == [0, 2]


DAMAGED: list[Any] = [
    None,
    {},
    [],
    "x",
    {"raw_data": None},
    {"raw_data": {"basename": "shard.00000.mds", "bytes": 8, "hashes": {}}, "zip_data": None},
]


@pytest.mark.parametrize("record", DAMAGED)
def test_a_damaged_record_is_none(record: Any) -> None:
    assert finished_shards(export_plan(), {0: record}, Found(sizes(0), None, None)) == {}


@pytest.mark.parametrize(
    "change",
    [{"samples": 9}, {"hashes": ["sha1"]}, {"column_names": ["a"]}, {"format": "json"}, {"x": 1}],
)
def test_a_record_of_something_else_is_none(change: dict[str, Any]) -> None:
    plan = export_plan()
    records = {0: {**entry(plan, 0), **change}}
    assert finished_shards(plan, records, Found(sizes(0), None, None)) == {}


def test_a_record_of_a_shard_that_is_not_in_the_plan_is_none() -> None:
    plan = export_plan()
    records = {shard: entry(plan, 0) for shard in (-1, 3, 10**9)}
    assert finished_shards(plan, records, Found(sizes(0, 3), None, None)) == {}
