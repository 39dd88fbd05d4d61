"""A function of the user's over each shard: what it gets and gives, and what becomes of errors."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from lance_stream.errors import (
    PlanError,
    ShardUnavailableError,
    TransformError,
    UnsupportedTypeError,
)
from tests.support.forked import run_forked
from tests.support.streams import batches, cached_files, dataset

_NAMES = count()

# What every module begins with; PATH is that of a file of the test's.
_HEAD = """
import os
import pyarrow as pa
import pyarrow.compute as pc

PATH = {path!r}

def log(text):
    with open(PATH, "a") as file:
        file.write(text + "\\\\n")
"""
_DOUBLE = """
def double(batch):
    log(f"{batch.num_rows} {','.join(batch.schema.names)}")
    return pa.record_batch({
        "twice": pc.multiply(batch["i"], 2),
        "v": batch["v"],
        "words": pc.split_pattern(batch["s"], " "),
    })

def triple(batch):
    return pa.record_batch({"twice": pc.multiply(batch["i"], 3)})
"""


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], str]:
    """Makes a module that only this process's ``sys.path`` leads to; gives its name."""
    folder = tmp_path / "modules"
    folder.mkdir()
    monkeypatch.syspath_prepend(str(folder))

    def make(source: str) -> str:
        # A download process may outlive a test, and with it the modules that it has loaded.
        name = f"transforms_{next(_NAMES)}_{tmp_path.name}"
        head = _HEAD.replace("{path!r}", repr(str(tmp_path / "file"))).replace("\\\\n", "\\n")
        (folder / f"{name}.py").write_text(head + source)
        return name

    return make


def _lines(tmp_path: Path) -> list[str]:
    path = tmp_path / "file"
    return path.read_text().splitlines() if path.exists() else []


@pytest.mark.parametrize("workers", [0, 2])
def test_samples_are_what_the_function_returns(
    table_100: str, module: Callable[[str], str], workers: int
) -> None:
    """Its columns in its order, in every row's place; the stream's schema says so too."""
    name = module(_DOUBLE)

    def run() -> list[Any]:
        data = dataset(table_100, shard_rows=30, transform=f"{name}:double")
        rows = [row for batch in batches(data, workers) for row in batch]
        for row in rows:
            i = row["twice"] // 2
            assert list(row) == ["twice", "v", "words"]
            assert row["words"][:2] == ["row", str(i)]
            assert row["v"].tolist() == [i + k / 8 for k in range(8)]
        schema = data.streams[0].schema
        loaded = [module for module in sys.modules if module.startswith("transforms_")]
        return [
            [row["twice"] for row in rows],
            schema.names,
            str(schema.field("words").type),
            loaded,
        ]

    twice, names, words, loaded = run_forked(run)
    assert sorted(twice) == list(range(0, 200, 2))
    assert names == ["twice", "v", "words"]
    assert words == "list<item: string>"
    assert loaded == []  # it runs elsewhere


def test_a_shard_is_transformed_once(
    table_100: str, module: Callable[[str], str], tmp_path: Path
) -> None:
    """Two epochs, two workers, and a second dataset: what is cached is the result."""
    name = module(_DOUBLE)

    def run() -> list[int]:
        calls = []
        for _ in range(2):
            data = dataset(
                table_100,
                shard_rows=7,
                local=str(tmp_path / "cache"),
                transform=f"{name}:double",
                transform_version=1,
            )
            planned = len(_lines(tmp_path))
            for _ in range(2):
                assert sum(len(batch) for batch in batches(data, 2)) == 100
            calls.append(len(_lines(tmp_path)) - planned)
            del data
        return calls

    assert run_forked(run) == [15, 0]


def _built(uri: str, **stream: Any) -> list[Any]:
    data = dataset(uri, **stream)
    found = [data.streams[0].fingerprint, len(data.streams[0].index.shards)]
    del data
    return found


@pytest.mark.parametrize("where", ["local", "default"])
def test_building_calls_it_twice_and_not_again(
    table_5000: str, module: Callable[[str], str], tmp_path: Path, where: str
) -> None:
    """An index in the cache directory knows what it gives; in the same version only."""
    function = f"{module(_DOUBLE)}:double"
    stream: dict[str, Any] = {"transform": function}
    if where == "local":
        stream["local"] = str(tmp_path / "cache")

    def run() -> list[Any]:
        found, calls = [], []
        small: dict[str, Any] = {"shard_bytes": "64kb"}
        for more in (small, small, {"shard_rows": 100}, {**small, "transform_version": 2}):
            before = len(_lines(tmp_path))
            found.append(_built(table_5000, **stream, **more))
            calls.append([int(line.split()[0]) for line in _lines(tmp_path)[before:]])
        return [found, calls]

    found, calls = run_forked(run)
    assert found[0] == found[1]  # the same shards, whether it is known or not
    assert found[0][1] == found[3][1] > 3
    assert calls == [[256, 256], [], [], [256, 256]]


def test_one_that_takes_longer_than_the_timeout(
    table_100: str, module: Callable[[str], str], tmp_path: Path
) -> None:
    """It is named, not the store; with how long it ran, and what to do."""
    name = module("""
import time

def slow(batch):
    if os.path.exists(PATH):
        time.sleep(60)
    return batch
""")
    function = f"{name}:slow"
    options = {"download_timeout": 1.5, "download_retry": 0}
    message = _fail(table_100, function, tmp_path, 0, **options)
    assert f"transform={function!r} was still running after 1." in message
    assert "download_timeout is 1.5 s in all" in message
    assert "raise download_timeout" in message
    assert "store" not in message

    (tmp_path / "file").touch()
    with pytest.raises(TransformError, match=r"transform=.* was still running after 1\.\d s"):
        # Another version of it, which no index knows.
        dataset(table_100, transform=function, transform_version=2, **options)


def test_one_that_ends_the_process_is_a_suspect(
    table_100: str, module: Callable[[str], str], tmp_path: Path
) -> None:
    name = module("""
def exits(batch):
    if os.path.exists(PATH):
        os._exit(3)
    return batch
""")
    message = _fail(table_100, f"{name}:exits", tmp_path, 0)
    assert "died 3 times" in message
    assert f"transform='{name}:exits' on them, which is the first suspect" in message


def test_an_exception_that_says_nothing(table_100: str, module: Callable[[str], str]) -> None:
    name = module("""
class Mute(Exception):
    def __str__(self):
        raise ValueError("no words")

def raises(batch):
    raise Mute(batch)
""")
    with pytest.raises(TransformError, match=r"raised Mute: \(its __str__ raised ") as e:
        dataset(table_100, transform=f"{name}:raises")
    assert "in raises" in str(e.value)


def test_another_function_or_version_is_another_cache(
    table_100: str, module: Callable[[str], str], tmp_path: Path
) -> None:
    """Name and version of the function are part of what names a shard file."""
    name = module(_DOUBLE)
    double, triple = f"{name}:double", f"{name}:triple"
    ways: list[dict[str, Any]] = [
        {},
        {"transform": double},
        {"transform": double, "transform_version": 1},
        {"transform": double, "transform_version": "2"},
        {"transform": triple},
        {"transform": double, "transform_version": "1"},
    ]

    def run() -> list[Any]:
        found = []
        for way in ways:
            data = dataset(table_100, shard_rows=50, local=str(tmp_path / "cache"), **way)
            first = data[1]
            fingerprint = data.streams[0].fingerprint
            found.append([fingerprint, first.get("twice"), len(cached_files(data))])
            del data
        return found

    found = run_forked(run)
    fingerprints = [fingerprint for fingerprint, _, _ in found]
    assert len(set(fingerprints)) == 5
    assert fingerprints[2] == fingerprints[5]  # a version is its text
    assert [twice for _, twice, _ in found] == [None, 2, 2, 2, 3, 2]


def test_row_ids_and_columns(table_100: str, module: Callable[[str], str], tmp_path: Path) -> None:
    """It gets the chosen columns only; row ids stay with their rows."""
    name = module("""
def negate(batch):
    log(','.join(batch.schema.names))
    return pa.record_batch({"minus": pc.negate(batch["k"])})
""")

    def run() -> list[Any]:
        data = dataset(
            table_100,
            shard_rows=30,
            columns={"k": "i + 1", "s": "s"},
            with_row_id=True,
            transform=f"{name}:negate",
        )
        rows = [[row["_rowid"], row["minus"], list(row)] for row in data]
        plain = dataset(table_100, shard_rows=30, with_row_id=True, columns=["i"])
        return [rows, [[row["_rowid"], row["i"]] for row in plain]]

    rows, plain = run_forked(run)
    assert [[row_id, -minus - 1] for row_id, minus, _ in rows] == plain
    assert {tuple(names) for _, _, names in rows} == {("minus", "_rowid")}
    assert set(_lines(tmp_path)) == {"k,s"}


# --- failures in the middle of an epoch ---

# Each fails only when the test's file is there: after the dataset was built.
_LATER = """
def later(name):
    def function(batch):
        if not os.path.exists(PATH):
            return batch
        return globals()[name](batch)
    return function

def bad_value(batch):
    raise ValueError("no good")

def short(batch):
    return batch.slice(1)

def other_type(batch):
    return batch.set_column(0, "i", batch["i"].cast(pa.int32()))

def not_null(batch):
    fields = [field.with_nullable(False) for field in batch.schema]
    return pa.record_batch(batch.columns, schema=pa.schema(fields))

def unsupported(batch):
    values = [[{"x": 1}, None]] * batch.num_rows
    kind = pa.list_view(pa.struct([("x", pa.int64())]))
    return pa.record_batch({"i": pa.array(values, kind)})

def no_batch(batch):
    return batch.to_pylist()

for name in ("bad_value", "short", "other_type", "not_null", "unsupported", "no_batch"):
    globals()[name + "_later"] = later(name)
"""


def _epoch(data: Any, workers: int) -> str:
    try:
        for batch in batches(data, workers):
            len(batch)
    except ShardUnavailableError as error:
        return str(error)
    return ""


def _fail(uri: str, function: str, tmp_path: Path, workers: int, **stream: Any) -> str:
    """What reaches the training loop."""

    def run() -> list[Any]:
        data = dataset(uri, shard_rows=25, transform=function, **stream)
        (tmp_path / "file").touch()
        failed = _epoch(data, workers)
        (tmp_path / "file").unlink()
        # Forgotten when it is over.
        return [failed, _epoch(data, workers)]

    failed, later = run_forked(run)
    assert later == ""
    return failed


@pytest.mark.parametrize("workers", [0, 2])
def test_what_it_raises_reaches_the_training_loop(
    table_100: str, module: Callable[[str], str], tmp_path: Path, workers: int
) -> None:
    """In the same epoch, with shard, rows and the traceback from the function on."""
    function = f"{module(_LATER)}:bad_value_later"
    message = _fail(table_100, function, tmp_path, workers)
    first = message[message.index("shard ") :].splitlines()[0]
    assert first.startswith(("shard 0 (rows [0, 25))", "shard 2 (rows [50, 75))"))
    assert f"of {table_100} version 1: the transform failed: " in first
    assert f"transform={function!r} raised ValueError: no good" in first
    assert "Traceback (most recent call last):" in message
    assert 'raise ValueError("no good")' in message
    assert "in bad_value" in message


@pytest.mark.parametrize(
    ("function", "words"),
    [
        ("short_later", "returned 24 rows for 25; every row must stay"),
        ("other_type_later", r"it gave 25 rows of i: int32, .* and 25 rows of i: int64, "),
        ("not_null_later", r"it gave 25 rows of i: int64 not null, .* and 25 rows of i: int64, "),
        ("unsupported_later", r"'i' \(list_view<item: struct<x: int64>>\)"),
        ("no_batch_later", "returned a list, not a pyarrow.RecordBatch"),
    ],
)
def test_what_it_returns_must_stay_what_it_was(
    table_100: str, module: Callable[[str], str], tmp_path: Path, function: str, words: str
) -> None:
    """Rows and types are checked for every shard."""
    message = _fail(table_100, f"{module(_LATER)}:{function}", tmp_path, 0)
    assert message.startswith("shard 0 (rows [0, 25)) of ")
    assert re.search(words, message), message


def test_a_null_that_mds_cannot_hold(
    table_100: str, module: Callable[[str], str], tmp_path: Path
) -> None:
    """Whether a transform gives nulls is known only when it does."""
    name = module("""
def nulls(batch):
    if not os.path.exists(PATH):
        return batch
    none = pa.nulls(batch.num_rows, pa.string())
    return batch.set_column(1, "s", none)
""")
    message = _fail(table_100, f"{name}:nulls", tmp_path, 0, cache_format="mds")
    assert message.startswith("shard 0 (rows [0, 25)) of ")
    assert "'s' (string) holds a null at row 0" in message
    assert 'cache_format="arrow"' in message


# --- refused when the dataset is built ---


def test_a_function_that_cannot_work_is_refused_at_once(
    table_100: str, module: Callable[[str], str]
) -> None:
    """Its errors on the first rows are errors of building the dataset."""
    name = module("""
def raises(batch):
    return {}["missing"]

def short(batch):
    return batch.slice(1)

def table(batch):
    return pa.Table.from_batches([batch])

number = 5
""")
    with pytest.raises(TransformError, match="raised KeyError: 'missing'") as raised:
        dataset(table_100, transform=f"{name}:raises")
    assert table_100 in str(raised.value)
    assert 'return {}["missing"]' in str(raised.value)
    with pytest.raises(TransformError, match="every row must stay, in its place"):
        dataset(table_100, transform=f"{name}:short")
    with pytest.raises(TransformError, match=r"returned a Table, not a pyarrow\.RecordBatch"):
        dataset(table_100, transform=f"{name}:table")
    with pytest.raises(PlanError, match=f"transform='{name}:nope': AttributeError"):
        dataset(table_100, transform=f"{name}:nope")
    with pytest.raises(PlanError, match="is a int, not a function"):
        dataset(table_100, transform=f"{name}:number")
    with pytest.raises(PlanError, match="transform='no_such_module:f': ModuleNotFoundError"):
        dataset(table_100, transform="no_such_module:f")


def test_types_that_change_between_rows(table_5000: str, module: Callable[[str], str]) -> None:
    """As when a column is None for some rows, and nobody said of which type."""
    name = module("""
def guess(batch):
    small = batch["i"][0].as_py() < 2500
    return pa.record_batch({"c": pa.array([None if small else 1.5] * batch.num_rows)})
""")
    with pytest.raises(TransformError, match=r"it gave c: .* for some rows and c: .* for others"):
        dataset(table_5000, transform=f"{name}:guess")


# What Lance cannot store, and so only a transform can give.
_ODD = {
    "dense_union<0: int64=0>": """
        pa.UnionArray.from_dense(
            pa.array([0] * n, pa.int8()), pa.array(range(n), pa.int32()), [pa.nulls(n, pa.int64())]
        )""",
    "sparse_union<x: int64=0>": """
        pa.UnionArray.from_sparse(pa.array([0] * n, pa.int8()), [pa.array(range(n))], ["x"])""",
    "month_day_nano_interval": "pa.array([(1, 2, 3)] * n, pa.month_day_nano_interval())",
    "run_end_encoded<run_ends: int32, values: int64>": """
        pa.RunEndEncodedArray.from_arrays(pa.array([n], pa.int32()), pa.array([1]))""",
    "list_view<item: int64>": "pa.array([[1]] * n, pa.list_view(pa.int64()))",
    "large_list_view<item: int64>": "pa.array([[1]] * n, pa.large_list_view(pa.int64()))",
    "map<list<item: int64>, int64>": """
        pa.array([[([1], 1)]] * n, pa.map_(pa.list_(pa.int64()), pa.int64()))""",
    "struct<x: int64, x: int64>": """
        pa.StructArray.from_arrays([pa.array(range(n))] * 2, names=["x", "x"])""",
    "timestamp[us, tz=Mars/Olympus]": "pa.array([0] * n, pa.timestamp('us', 'Mars/Olympus'))",
    "list<item: list_view<item: int64>>": """
        pa.array([[[1]]] * n, pa.list_(pa.list_view(pa.int64())))""",
}


def test_unsupported_types_are_refused_by_column_and_type(
    table_100: str, module: Callable[[str], str]
) -> None:
    """Every type that only a transform can give, in the main process, when it is built."""
    functions = "\n".join(
        f"def f{number}(batch):\n    n = batch.num_rows\n"
        f"    return pa.record_batch({{'good': batch['i'], 'the column': {source.strip()}}})\n"
        for number, source in enumerate(_ODD.values())
    )
    name = module(functions)
    for number, kind in enumerate(_ODD):
        with pytest.raises(UnsupportedTypeError) as raised:
            dataset(table_100, transform=f"{name}:f{number}")
        message = str(raised.value)
        assert message.startswith(f"transform='{name}:f{number}': ")
        assert f"'the column' ({kind})" in message
        assert "good" not in message


def test_what_mds_has_no_encoding_for(table_100: str, module: Callable[[str], str]) -> None:
    """A type of the transform's is refused as one of the table's is."""
    name = module("""
def dates(batch):
    return pa.record_batch({"d": pa.array([0] * batch.num_rows, pa.date32())})
""")
    with pytest.raises(UnsupportedTypeError, match=r"MDS cannot hold: 'd' \(date32\[day\]\)"):
        dataset(table_100, transform=f"{name}:dates", cache_format="mds")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"transform": "module"}, "transform='module' must be text, 'package.module:function'"),
        ({"transform": "module:"}, "transform='module:' must be text"),
        ({"transform": ":f"}, "transform=':f' must be text"),
        ({"transform": "a:b:c"}, "transform='a:b:c' must be text"),
        ({"transform": len}, "transform=<built-in function len> must be text"),
        ({"transform": "__main__:f"}, "cannot import __main__; use a module"),
        ({"transform_version": 1}, "transform_version is given without a transform"),
    ],
)
def test_other_arguments_are_refused(
    arguments: dict[str, Any], words: str, table_100: str
) -> None:
    """Before anything is asked of the table."""
    with pytest.raises(PlanError, match=words):
        dataset(table_100, **arguments)


def test_the_working_directory_is_part_of_the_search_path(
    table_100: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As of a script that is run where its modules are."""
    folder = tmp_path / "here"
    folder.mkdir()
    (folder / "transform_in_the_working_directory.py").write_text(
        "def same(batch):\n    return batch.select(['i'])\n"
    )

    def run() -> list[list[str]]:
        monkeypatch.chdir(folder)
        monkeypatch.syspath_prepend("")
        data = dataset(table_100, transform="transform_in_the_working_directory:same")
        return [list(data[0])]

    assert run_forked(run) == [["i"]]


def test_the_function_gets_plain_types(
    tmp_path: Path, module: Callable[[str], str], lance_process: Any
) -> None:
    """What a sample would hold: decoded dictionaries, the bytes of blobs, text of JSON."""
    uri = lance_process.new_path(".lance")
    lance_process.run(
        """
field = lance.blob_field("blob")
fields = [field, pa.field("d", pa.dictionary(pa.int8(), pa.string())), pa.field("j", pa.json_())]
arrays = [
    lance.blob_array([b"abc", b""]),
    pa.array(["a", "b"], fields[1].type),
    pa.array(["{}", "[]"], fields[2].type),
]
table = pa.table(arrays, schema=pa.schema(fields))
lance.write_dataset(table, args[0], data_storage_version="2.2")
""",
        uri,
    )
    name = module("""
def same(batch):
    log(str([str(kind) for kind in batch.schema.types]))
    return batch
""")

    def run() -> list[Any]:
        data = dataset(uri, transform=f"{name}:same")
        return [[row["blob"].decode(), row["d"], row["j"]] for row in data]

    assert run_forked(run) == [["abc", "a", "{}"], ["", "b", "[]"]]
    assert set(_lines(tmp_path)) == {"['large_binary', 'string', 'string']"}
