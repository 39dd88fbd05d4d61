"""Which rows are streamed: filter, limit, subset and layout, in the stock StreamingDataset."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from streaming import StreamingDataset

from lance_stream import ShardIndex, build_index
from lance_stream.errors import EmptyStreamError, PlanError
from lance_stream.planning.rows import RowRange
from tests.support.forked import run_forked
from tests.support.scripts import run_script
from tests.support.streams import batches, dataset, ids
from tests.support.tables import write_table

ROWS = 400

# Row i of this table; every fifth row of it is deleted, and it lies in four files.
_RICH = """
import sys, uuid
import lance
import numpy as np
import pyarrow as pa

uri, rows, stable = sys.argv[1], int(sys.argv[2]), sys.argv[3] == "True"
n = range(rows)

def some(values, kind, every=13):
    return pa.array([None if i % every == 0 else v for i, v in zip(n, values)], kind)

def stored(kind):
    numbers = some([i // 2 for i in n], pa.int64())
    return (numbers.cast(pa.int32()) if kind.bit_width == 32 else numbers).view(kind)

columns = {
    "i": pa.array(n, pa.int64()),
    "label": pa.array([i // 40 for i in n], pa.int32()),
    "My Key": some([f"key {i // 2}" for i in n], pa.string()),
    "i8": some([i // 4 for i in n], pa.int8()),
    "u64": some([2**64 - 1 - i // 2 for i in n], pa.uint64()),
    "f16": some([np.float16(i // 2) for i in n], pa.float16()),
    "f64": some([i / 3 for i in n], pa.float64()),
    "bool": some([i % 3 == 0 for i in n], pa.bool_()),
    "text": some([f"text {i // 2}" for i in n], pa.large_string()),
    "bytes": some([bytes([i % 256, i // 256]) for i in n], pa.binary()),
    "fixed": some([bytes([i % 256, i // 256]) for i in n], pa.binary(2)),
    "date": stored(pa.date32()),
    "time": stored(pa.time64("us")),
    "stamp": stored(pa.timestamp("us", "UTC")),
    "duration": stored(pa.duration("ms")),
    "dictionary": some([f"text {i // 2}" for i in n], pa.string()).dictionary_encode(),
    "uuid": some([uuid.UUID(int=i // 2).bytes for i in n], pa.uuid()),
    "nested": pa.array(
        [None if i % 7 == 0 else {"a": i, "l": [str(k) for k in range(i % 4)]} for i in n],
        pa.struct([("a", pa.int64()), ("l", pa.list_(pa.string()))]),
    ),
    "vectors": pa.array([[[i, k] for k in range(i % 3)] for i in n],
                        pa.list_(pa.list_(pa.float32(), 2))),
    "blob": pa.array([bytes([i % 256]) * (3000 + i) for i in n], pa.large_binary()),
}
table = pa.table(columns)
at = table.schema.get_field_index("blob")
field = pa.field("blob", pa.large_binary(), metadata={"lance-encoding:blob": "true"})
table = table.set_column(at, field, table["blob"])
lance.write_dataset(table, uri, max_rows_per_file=110, enable_stable_row_ids=stable,
                    data_storage_version="2.1")
lance.dataset(uri).delete("i % 5 = 4")
"""
LIVE = [i for i in range(ROWS) if i % 5 != 4]
KEYS = (
    *("i", "label", "My Key", "i8", "u64", "f16", "f64", "bool", "text", "bytes", "fixed"),
    *("date", "time", "stamp", "duration", "dictionary", "uuid", "blob", None),
)

# A change of a table: arguments are its uri and what to do.
_CHANGE = """
import sys, lance
import pyarrow as pa
uri, *changes = sys.argv[1:]
for change in changes:
    table = lance.dataset(uri)
    kind, _, argument = change.partition(": ")
    if kind == "append":
        first, stop = map(int, argument.split())
        rows = [{"i": i, "My Key": f"key {i // 2}"} for i in range(first, stop)]
        full = pa.Table.from_pylist(rows, schema=pa.schema(
            [table.schema.field(n) for n in ("i", "My Key")]))
        lance.write_dataset(full, uri, mode="append")
    elif kind == "delete":
        table.delete(argument)
    elif kind == "update":
        table.update({"label": "99"}, where=argument)
    elif kind == "compact":
        table.optimize.compact_files(target_rows_per_fragment=100_000)
    elif kind == "index":
        table.create_scalar_index(argument, "BTREE")
    else:
        raise ValueError(change)
"""


def change(uri: str, *changes: str) -> None:
    """Change a table in a process of its own."""
    run_script(_CHANGE, uri, *changes).check()


@pytest.fixture(scope="module")
def rich(tables: Path) -> str:
    """The table of every type, with deletions."""
    uri = str(tables / "rich.lance")
    run_script(_RICH, uri, ROWS, False).check()
    return uri


@pytest.fixture(scope="module")
def stable(tables: Path) -> str:
    """The same with stable row ids, compacted."""
    uri = str(tables / "stable.lance")
    run_script(_RICH, uri, ROWS, True).check()
    change(uri, "update: i % 10 = 0", "compact")
    return uri


def samples(uri: str, **stream: Any) -> list[dict[str, Any]]:
    """The samples of an unshuffled epoch, read in this process."""
    host = stream.pop("host", {})
    data = dataset(uri, host=host, **{"shard_rows": 30, **stream})
    found = [sample for batch in batches(data, 0) for sample in batch]
    assert len(found) == len(data) == data.streams[0].index.num_rows
    return found


def found(uri: str, name: str = "i", **stream: Any) -> list[int]:
    """One column of an unshuffled epoch."""
    if "columns" not in stream and name == "i":
        stream["columns"] = ["i"]
    return [sample[name] for sample in samples(uri, **stream)]


# --- filter and limit ---

FILTERS: list[tuple[str, Callable[[int], bool]]] = [
    ("i < 7", lambda i: i < 7),
    ("i % 2 = 0", lambda i: i % 2 == 0),
    ("label = 3 or label = 8", lambda i: i // 40 in (3, 8)),
    ("`My Key` = 'key 6'", lambda i: i // 2 == 6 and i % 13 != 0),
    ("`My Key` is null", lambda i: i % 13 == 0),
    ("bool", lambda i: i % 3 == 0 and i % 13 != 0),
    ("not bool", lambda i: i % 3 != 0 and i % 13 != 0),
    ("nested.a > 390", lambda i: i > 390 and i % 7 != 0),
    ("text like 'text 1_'", lambda i: 10 <= i // 2 < 20 and i % 13 != 0),
    ("date >= date '1970-05-31'", lambda i: i // 2 >= 150 and i % 13 != 0),
    ("i in (1, 2, 3, 4, 399, 1000)", lambda i: i in (1, 2, 3, 4, 399)),
    ("true", lambda i: True),
    ("LABEL = 3", lambda i: i // 40 == 3),
    ("blob is not null and i < 9", lambda i: i < 9),
]


def test_a_filter_gives_the_rows_that_match_in_table_order(rich: str, stable: str) -> None:
    """Exact counts, whatever the columns; rows that are deleted never come."""

    def run() -> list[Any]:
        return [[found(uri, filter=text) for text, _ in FILTERS] for uri in (rich, stable)]

    plain, moved = run_forked(run)
    for (text, matches), rows, others in zip(FILTERS, plain, moved, strict=True):
        expected = [i for i in LIVE if matches(i)]
        assert rows == expected, text
        # Updated rows lie at the end.
        assert sorted(others) == expected or "label" in text.lower(), text


def test_filters_with_workers_and_shuffle(rich: str) -> None:
    """Two epochs in another order, each row once."""

    def run() -> list[Any]:
        data = dataset(
            rich,
            columns=["i"],
            filter="i % 3 = 1",
            shard_rows=10,
            host={"shuffle": True},
        )
        loader = batches(data, 2, persistent_workers=True)
        return [ids(loader, check=False) for _ in range(2)]

    first, second = run_forked(run)
    expected = [i for i in LIVE if i % 3 == 1]
    assert sorted(first) == sorted(second) == expected
    assert first != second


def test_limits(rich: str) -> None:
    """The first rows of the selection; a limit that is not reached is none."""

    def run() -> list[Any]:
        even = {"filter": "i % 2 = 0"}
        return [
            found(rich, limit=1),
            found(rich, limit=31),
            found(rich, limit=100_000),
            found(rich, limit=11, **even),
            found(rich, limit=100_000, **even),
            sorted(found(rich, limit=50, layout="scattered", run_rows=4)),
        ]

    evens = [i for i in LIVE if i % 2 == 0]
    assert run_forked(run) == [LIVE[:1], LIVE[:31], LIVE, evens[:11], evens, LIVE[:50]]


def test_columns_have_nothing_to_do_with_the_filter(rich: str) -> None:
    """Expressions, odd names and row ids beside a filter on other columns."""

    def run() -> list[Any]:
        selection = {"filter": "`My Key` = 'key 6' or label = 9 and i % 20 = 0", "shard_rows": 5}
        rows = samples(
            rich, columns={"My Key": "`My Key`", "Twice": "i * 2"}, with_row_id=True, **selection
        )
        plain = samples(rich, columns=["My Key", "i"], **selection)
        renamed = samples(rich, columns={"i": "label", "label": "i"}, **selection)
        return [rows, plain, renamed]

    rows, plain, renamed = run_forked(run)
    expected = [12, 360, 380]
    keys = [None if i % 13 == 0 else f"key {i // 2}" for i in expected]
    assert [list(row) for row in rows] == [["My Key", "Twice", "_rowid"]] * 3
    assert [row["Twice"] for row in rows] == [2 * i for i in expected]
    assert [row["My Key"] for row in rows] == keys
    # Without stable ids the id is the address: fragments of 110 rows.
    assert [row["_rowid"] for row in rows] == [(i // 110 << 32) + i % 110 for i in expected]
    assert plain == [{"My Key": key, "i": i} for key, i in zip(keys, expected, strict=True)]
    assert renamed == [{"i": i // 40, "label": i} for i in expected]


def test_a_filter_that_gives_other_rows_each_time_is_planned_once(rich: str) -> None:
    """``random()``: what was planned stays, in every epoch and every process."""

    def run() -> list[Any]:
        data = dataset(rich, columns=["i"], filter="random() < 0.5", shard_rows=10)
        loader = batches(data, 2)
        return [ids(loader, check=False) for _ in range(2)] + [len(data)]

    first, second, length = run_forked(run)
    assert sorted(first) == sorted(second)
    assert len(set(first)) == length
    assert 100 < length < 220


@pytest.mark.parametrize(
    ("stream", "error", "says"),
    [
        ({"filter": "i >"}, PlanError, r"filter='i >': .*Expected: an expression"),
        ({"filter": "nothing = 3"}, PlanError, "filter='nothing = 3': .*No field named nothing"),
        ({"filter": "f(i) = 3"}, PlanError, r"filter='f\(i\) = 3': .*Invalid function 'f'"),
        ({"filter": "i + 1"}, PlanError, r"filter='i \+ 1': .*does not return a boolean"),
        ({"filter": "i = 'x'"}, PlanError, "filter=\"i = 'x'\": .*could not convert to literal"),
        # What only the rows tell.
        (
            {"filter": "100 / (i - 50) > 0", "columns": ["i"]},
            PlanError,
            r"filter='100 / \(i - 50\) > 0': fails on rows of the table: .*Divide by zero",
        ),
        ({"filter": "i > 1000"}, EmptyStreamError, "no row of 320 is selected by filter='i > 10"),
        (
            {"filter": "i = 3", "subset": (0.5, 0.5000001), "subset_key": "i"},
            EmptyStreamError,
            r"filter='i = 3', subset=\(0.5, 0.5000001\), subset_key='i'",
        ),
        ({"subset": (0, 0.5), "subset_key": "my key"}, PlanError, "no column 'my key'.*My Key"),
        (
            {"subset": (0, 0.5), "subset_key": "nested"},
            PlanError,
            "subset_key='nested' is of type struct.*choose a column of numbers, text",
        ),
    ],
    ids=repr,
)
def test_wrong_selections(
    rich: str, stream: dict[str, Any], error: type[Exception], says: str
) -> None:
    """Errors when the dataset is built, in the parser's words, naming the argument."""
    with pytest.raises(error, match=says):
        dataset(rich, **stream)


def test_a_filter_of_a_megabyte(rich: str) -> None:
    """Works; an error about it does not show all of it."""
    numbers = ",".join(str(10**6 + k) for k in range(130_000))
    assert run_forked(lambda: found(rich, filter=f"i in (3,{numbers},7)")) == [3, 7]
    with pytest.raises(PlanError, match=r"filter='i in .* \.\.\. .*") as caught:
        dataset(rich, filter=f"i in (3,{numbers},x)")
    assert len(str(caught.value)) < 2500


# --- subset ---


def test_subsets_by_every_type_of_key(rich: str, stable: str) -> None:
    """Disjoint and complete, rows of equal keys (and of nulls) together, about the share."""

    def run() -> list[Any]:
        said = []
        for uri in (rich, stable):
            for key in KEYS if uri == rich else ("My Key", "uuid", None):
                parts = [(0, 0.1 + 0.2), (0.1 + 0.2, 0.9), (0.9, 1)]
                rows = []
                for part in parts:
                    try:
                        rows.append(found(uri, subset=part, subset_key=key))
                    except EmptyStreamError:
                        rows.append([])
                said.append([uri, key, rows])
        return said

    for uri, key, parts in run_forked(run):
        assert sorted(i for part in parts for i in part) == LIVE, key
        if uri == rich:
            assert all(part == sorted(part) for part in parts)
        if key not in (None, "i", "bytes", "fixed", "f64", "label", "i8", "bool", "blob"):
            together = [{i // 2 for i in part if i % 13} for part in parts]
            assert not any(a & b for n, a in enumerate(together) for b in together[n + 1 :]), key
        nulls = [sum(i % 13 == 0 for i in part) for part in parts]
        if key not in (None, "i", "label", "blob"):
            assert sorted(nulls)[:2] == [0, 0], key
        if key in (None, "i", "f64", "bytes"):
            # 320 rows, of which those without a key are in one part.
            assert 60 <= len(parts[0]) <= 130, key
            assert 140 <= len(parts[1]) <= 250, key


def test_a_subset_of_a_filter_with_a_limit(rich: str) -> None:
    """The filter, then the subset, then the limit."""

    def run() -> list[Any]:
        part = {"subset": (0.2, 0.8), "subset_key": "i"}
        whole = found(rich, **part)
        return [
            whole,
            found(rich, filter="i % 2 = 0", **part),
            found(rich, limit=9, **part),
            found(rich, filter="i % 2 = 0", limit=9, **part),
            sorted(
                found(rich, filter="i % 2 = 0", limit=20, layout="scattered", run_rows=2, **part)
            ),
        ]

    whole, even, first, first_even, mixed = run_forked(run)
    assert even == [i for i in whole if i % 2 == 0]
    assert first == whole[:9]
    assert first_even == even[:9]
    assert mixed == even[:20]


def test_a_subset_is_stable(tmp_path: Path) -> None:
    """A row is where it was after appends, deletions, compaction and (by a key) updates."""
    uri = str(tmp_path / "t.lance")
    run_script(_RICH, uri, ROWS, False).check()

    def parts(key: str | None) -> list[list[int]]:
        train = {"subset": (0, 0.7), "subset_key": key}
        return [sorted(found(uri, **train)), sorted(found(uri, subset=(0.7, 1), subset_key=key))]

    def all_parts() -> list[Any]:
        return [parts(key) for key in ("i", "My Key", None)]

    before = run_forked(all_parts)
    change(uri, "append: 400 500", "delete: i % 5 = 3")
    live = {i for i in range(500) if i % 5 != 3 and (i >= 400 or i % 5 != 4)}
    after = run_forked(all_parts)
    for old, new in zip(before, after, strict=True):
        assert set(new[0]) | set(new[1]) == live
        assert not set(new[0]) & set(new[1])
        for mine, theirs in zip(old, new, strict=True):
            assert {i for i in theirs if i < 400} == set(mine) & live
    change(uri, "update: i % 2 = 0", "compact")
    moved = run_forked(all_parts)
    assert moved[:2] == after[:2]
    # By address: every row is in one of the two still.
    assert set(moved[2][0]) | set(moved[2][1]) == live


def test_train_and_validation_in_one_program(rich: str) -> None:
    """Two datasets of one table, their own caches, workers; no row in both."""

    def run() -> list[Any]:
        data = [
            dataset(rich, columns=["i"], subset=part, subset_key="text", shard_rows=20)
            for part in ((0, 0.8), (0.8, 1))
        ]
        loaders = [batches(d, 2) for d in data]
        return [ids(loader, check=False) for loader in loaders] + [
            [d.streams[0].fingerprint for d in data],
            [d.streams[0].local for d in data],
        ]

    train, validation, names, directories = run_forked(run)
    assert sorted(train + validation) == LIVE
    assert len(set(names)) == len(set(directories)) == 2


def test_by_name_without_importing_lance_stream(rich: str) -> None:
    """The host's registry passes all of it on."""

    def run() -> list[int]:
        data = StreamingDataset(
            stream_name="lance",
            remote=rich,
            batch_size=4,
            num_canonical_nodes=1,
            stream_config={"filter": "i > 350", "limit": 7, "columns": ["i"], "shard_rows": 3},
        )
        return [data[k]["i"] for k in range(len(data))]

    assert run_forked(run) == [i for i in LIVE if i > 350][:7]


# --- layouts ---


def entropy(labels: list[int]) -> float:
    """Bits of the distribution of labels."""
    counts = np.array(list(Counter(labels).values())) / len(labels)
    return float(-(counts * np.log2(counts)).sum())


def test_a_scattered_layout_mixes_a_sorted_table(rich: str) -> None:
    """Every row once; each shard has many labels; the seed decides, and only it."""

    def run() -> list[Any]:
        said = []
        for seed in (0, 0, 1):
            data = dataset(
                rich,
                columns=["i", "label"],
                shard_rows=40,
                layout="scattered",
                run_rows=4,
                layout_seed=seed,
            )
            index = data.streams[0].index
            rows = [[s["i"], s["label"]] for batch in batches(data, 0) for s in batch]
            said.append([rows, [shard.rows for shard in index.shards], index.fingerprint])
        return said

    first, again, other = run_forked(run)
    assert first == again
    assert other[2] != first[2]
    assert [i for i, _ in other[0]] != [i for i, _ in first[0]]
    for rows, lengths, _ in (first, other):
        assert sorted(i for i, _ in rows) == LIVE
        assert all(label == i // 40 for i, label in rows)
        assert lengths == [40] * 8
        mixed = [entropy([label for _, label in rows[at : at + 40]]) for at in range(0, 320, 40)]
        # A shard of consecutive rows has one label or two; a random one 3 bits.
        assert min(mixed) > 2.0


def test_layouts_of_a_selection(rich: str, stable: str) -> None:
    """Scattered over a filter, over deletions, over compacted stable ids; runs of one row too."""

    def run() -> list[Any]:
        scattered = {"layout": "scattered", "shard_rows": 7}
        return [
            sorted(found(rich, filter="i % 3 = 0", run_rows=2, **scattered)),
            sorted(found(rich, run_rows=1, **scattered)),
            sorted(found(rich, run_rows=64, **scattered)),
            sorted(found(rich, run_rows=100_000, **scattered)),
            sorted(found(stable, run_rows=3, **scattered)),
            sorted(found(stable, filter="i % 3 = 0", run_rows=3, **scattered)),
        ]

    thirds = [i for i in LIVE if i % 3 == 0]
    assert run_forked(run) == [thirds, LIVE, LIVE, LIVE, LIVE, thirds]


# --- every kind of column, by every route ---


def assert_rich(row: dict[str, Any]) -> None:
    """Compare a sample of the rich table with what was written."""
    i = row["i"]
    nested = None if i % 7 == 0 else {"a": i, "l": [str(k) for k in range(i % 4)]}
    assert row["nested"] == nested
    assert row["blob"] == bytes([i % 256]) * (3000 + i)
    assert type(row["blob"]) is bytes
    assert row["vectors"].shape == (i % 3, 2)
    assert row["vectors"].tolist() == [[i, k] for k in range(i % 3)]
    has_key = i % 13 != 0
    assert row["My Key"] == (f"key {i // 2}" if has_key else None)
    assert row["dictionary"] == row["text"] == (f"text {i // 2}" if has_key else None)
    assert row["f64"] is None if not has_key else math.isclose(row["f64"], i / 3)
    assert row["u64"] == (2**64 - 1 - i // 2 if has_key else None)
    assert row["uuid"] is None if not has_key else row["uuid"].int == i // 2


@pytest.mark.parametrize(
    "selection",
    [
        {},
        # Far apart: by address.
        {"filter": "i in (0, 1, 91, 208, 313, 396)"},
        # Near to each other: scanned over.
        {"filter": "i % 2 = 0"},
        {"subset": (0, 0.3), "subset_key": "i"},
        {"layout": "scattered", "run_rows": 1, "shard_rows": 11},
        {"layout": "scattered", "run_rows": 8},
        {"limit": 3},
    ],
    ids=repr,
)
def test_nested_columns_and_blobs(rich: str, stable: str, selection: dict[str, Any]) -> None:
    """The values are exact by whatever route the rows are read."""

    def run() -> list[int]:
        counts = []
        for uri in (rich, stable):
            rows = samples(uri, **selection)
            for row in rows:
                assert_rich(row)
            assert len({row["i"] for row in rows}) == len(rows)
            counts.append(len(rows))
        return counts

    plain, moved = run_forked(run)
    assert plain == moved > 0


def test_addresses_and_ids_as_columns(rich: str, stable: str) -> None:
    """``_rowaddr`` and ``_rowid`` by name, among others, far apart and not."""

    def run() -> list[Any]:
        return [
            [
                samples(uri, filter=text, columns=["_rowaddr", "i"]),
                samples(uri, filter=text, columns={"at": "_rowaddr", "i": "i"}),
                samples(uri, filter=text, columns=["i", "_rowaddr"], with_row_id=True),
                samples(uri, filter=text, columns=["_rowid", "i"]),
            ]
            for uri in (rich, stable)
            for text in ("i in (1, 91, 208, 313, 396)", "i < 40")
        ]

    for first, renamed, with_id, only_id in run_forked(run):
        assert [list(row) for row in first] == [["_rowaddr", "i"]] * len(first)
        assert [list(row) for row in with_id] == [["i", "_rowaddr", "_rowid"]] * len(first)
        assert [row["at"] for row in renamed] == [row["_rowaddr"] for row in first]
        assert [row["_rowaddr"] for row in with_id] == [row["_rowaddr"] for row in first]
        assert [row["_rowid"] for row in with_id] == [row["_rowid"] for row in only_id]
        assert [row["i"] for row in only_id] == [row["i"] for row in first]


def test_row_ids_lead_back_to_the_rows(stable: str, rich: str) -> None:
    """What ``with_row_id`` gives is what Lance takes."""

    def run() -> list[Any]:
        return [
            [[s["_rowid"], s["i"]] for s in samples(uri, columns=["i"], with_row_id=True, **more)]
            for uri in (stable, rich)
            for more in ({"filter": "i % 50 = 1"}, {"layout": "scattered", "run_rows": 2})
        ]

    script = """
import json, sys, lance
uris, pairs = json.loads(sys.argv[1])
for uri, rows in zip(uris, pairs):
    table = lance.dataset(uri)
    back = table._take_rows([row for row, _ in rows], columns=["i"])["i"].to_pylist()
    assert back == [i for _, i in rows], uri
print(len(pairs))
"""
    said = run_forked(run)
    arguments = json.dumps([[stable, stable, rich, rich], said])
    assert run_script(script, arguments).json() == 4


# --- sizes ---

_SIZED = """
import json, sys, lance
import pyarrow as pa
uri, lengths = sys.argv[1], json.load(open(sys.argv[2]))
table = pa.table({"i": range(len(lengths)), "b": [bytes(k) for k in lengths]})
lance.write_dataset(table, uri, max_rows_per_file=3_000)
"""


def _lengths(kind: str) -> np.ndarray[Any, Any]:
    if kind == "skewed":
        # Long rows at one end.
        return np.linspace(10, 2000, 20_000).astype(int)
    return np.random.default_rng(3).exponential(400, 20_000).astype(int)


def _rows(index: ShardIndex, shard: int) -> list[int]:
    rows = index.table_rows(shard)
    return list(range(rows.start, rows.stop)) if isinstance(rows, RowRange) else rows.tolist()


@pytest.mark.parametrize("kind", ["skewed", "exponential"])
def test_shards_have_about_the_bytes_that_were_asked_for(tmp_path: Path, kind: str) -> None:
    """Within a quarter of the target on average, by sampling; exactly, by measuring."""
    uri = str(tmp_path / "t.lance")
    lengths = _lengths(kind)
    (tmp_path / "lengths").write_text(json.dumps(lengths.tolist()))
    run_script(_SIZED, uri, tmp_path / "lengths").check()

    def run() -> list[Any]:
        how: list[dict[str, Any]] = [{}, {"layout": "scattered"}, {"exact": True}]
        indexes = [build_index(uri, shard_bytes="256kb", **more) for more in how]
        return [[_rows(index, shard) for shard in range(index.num_shards)] for index in indexes]

    sampled, mixed, exact = (
        # A number, an offset and the value.
        [int(12 * len(rows) + lengths[rows].sum()) for rows in shards]
        for shards in run_forked(run)
    )
    target = 256 << 10
    for sizes in (sampled, mixed):
        assert 0.75 * target < np.mean(sizes[:-1]) < 1.25 * target
    assert max(exact) <= target
    assert min(exact[:-1]) > target - 4000


# --- what is read ---

_INDEXED = """
import json, sys, lance
from tests.support.planning import plan
uri = sys.argv[1]
from lance_stream.source.table import Table
opened = []
init = Table.__init__
def remember(self, *arguments):
    init(self, *arguments)
    opened.append(self)
Table.__init__ = remember
index = plan(uri, filter="s = 'row 17777 abcdefghijkl'", columns=(("i", "i"),))
assert index.num_rows == 1
plain = plan(uri, columns=(("i", "i"),))
assert plain.num_rows == 20_000
print(json.dumps([table.dataset.io_stats_snapshot().read_bytes for table in opened]))
"""


def test_scalar_indices_are_used(tmp_path: Path) -> None:
    """With an index on the filter's column, the column is not read."""
    uri = str(tmp_path / "t.lance")
    write_table(uri, 20_000, 4_000)
    without, plain = run_script(_INDEXED, uri).json()
    change(uri, "index: s")
    with_index, _ = run_script(_INDEXED, uri).json()
    # 20,000 texts, in five files with their footers.
    assert without > 150_000
    assert with_index < without / 2
    # A plan without a filter reads a few sampled runs.
    assert plain < without / 2
