"""Every column type through a real stream: a value, null, an edge and what is empty."""

from __future__ import annotations

import datetime as dt
import json
import sys
import uuid
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import numpy as np
import pyarrow as pa
import pytest
import torch

from lance_stream.errors import UnsupportedTypeError
from tests.support.any_tables import lance_tables, mds_can_hold, mds_tables
from tests.support.forked import run_forked
from tests.support.lance_process import LanceProcess, Refused
from tests.support.scripts import run_script
from tests.support.streams import batches, dataset
from tests.support.values import arrow_array, assert_same, bfloat16_field, expected_rows

ALL = ("2.0", "2.1", "2.2")


@dataclass(frozen=True)
class Column:
    """A column of four rows.

    Attributes:
        name: Its name.
        field: Type, and what is marked beside it.
        rows: Values for ``pa.array`` of the storage type.
        expected: What they are in a sample.
        versions: Data storage versions that can hold the type.
    """

    name: str
    field: pa.Field
    rows: list[Any]
    expected: list[Any]
    versions: tuple[str, ...] = ALL


def _column(
    name: str,
    kind: pa.DataType | pa.Field,
    rows: list[Any],
    expected: list[Any] | None = None,
    versions: tuple[str, ...] = ALL,
) -> Column:
    field = kind.with_name(name) if isinstance(kind, pa.Field) else pa.field(name, kind)
    return Column(name, field, rows, rows if expected is None else expected, versions)


def _array(values: Any, dtype: Any, shape: tuple[int, ...] | None = None) -> np.ndarray[Any, Any]:
    array = np.array(values, dtype)
    return array if shape is None else array.reshape(shape)


def _numbers() -> list[Column]:
    columns = [
        _column(
            f"{sign}int{bits}",
            getattr(pa, f"{sign}int{bits}")(),
            [7, None, (1 << (bits - (not sign))) - 1, 0 if sign else -(1 << (bits - 1))],
        )
        for bits in (8, 16, 32, 64)
        for sign in ("", "u")
    ]
    columns += [
        _column("float16", pa.float16(), [1.5, None, 65504.0, -0.0]),
        _column("float32", pa.float32(), [1.5, None, float("inf"), 1.401298464324817e-45]),
        _column("float64", pa.float64(), [0.1, None, 1.7976931348623157e308, 5e-324]),
        _column("bool", pa.bool_(), [True, None, False, True]),
        _column("null", pa.null(), [None] * 4),
    ]
    return columns


def _texts() -> list[Column]:
    texts: list[Any] = ["a", None, "ünïcödé \U0001d11e\0 " * 100, ""]
    data: list[Any] = [b"a", None, bytes(range(256)) * 100, b""]
    return [
        _column("string", pa.string(), texts),
        _column("large_string", pa.large_string(), texts),
        _column("string_view", pa.string_view(), texts),
        _column("binary", pa.binary(), data),
        _column("large_binary", pa.large_binary(), data),
        _column("binary_view", pa.binary_view(), data),
        _column("fixed_size_binary", pa.binary(3), [b"abc", None, b"\xff\xfe\xfd", b"\0\0\0"]),
        _column("fixed_size_binary_0", pa.binary(0), [b"", None, b"", b""], versions=("2.2",)),
        _column("dictionary", pa.dictionary(pa.int32(), pa.string()), texts),
        _column("dictionary_8", pa.dictionary(pa.int8(), pa.large_string()), texts),
        _column(
            "dictionary_of_ints", pa.dictionary(pa.int8(), pa.int64()), [7, None, 2**63 - 1, 0]
        ),
        _column(
            "json",
            pa.json_(),
            ['{"b": 1.50, "a": [null]}', None, '"ü"', "{}"],
            ['{"a":[null],"b":1.5}', None, '"ü"', "{}"],
        ),
    ]


def _temporal() -> list[Column]:
    utc, berlin = dt.timezone.utc, ZoneInfo("Europe/Berlin")
    offset = dt.timezone(dt.timedelta(hours=5, minutes=30))
    naive = dt.datetime(2024, 10, 27, 1, 0)  # noqa: DTZ001
    seconds = 1_729_990_800  # the same: when Berlin puts its clocks back
    epoch = dt.datetime(1970, 1, 1)  # noqa: DTZ001
    return [
        _column("date32", pa.date32(), [19_782, None, 2**31 - 1, 0],
                [dt.date(2024, 2, 29), None, 2**31 - 1, dt.date(1970, 1, 1)]),
        _column("date64", pa.date64(), [dt.date(2024, 2, 29), None, dt.date(9999, 12, 31), 0],
                [dt.date(2024, 2, 29), None, dt.date(9999, 12, 31), dt.date(1970, 1, 1)]),
        _column("time32", pa.time32("s"), [45_296, None, 86_399, 0],
                [dt.time(12, 34, 56), None, dt.time(23, 59, 59), dt.time(0)]),
        _column("time64_us", pa.time64("us"), [1, None, 86_399_999_999, 0],
                [dt.time(0, 0, 0, 1), None, dt.time(23, 59, 59, 999_999), dt.time(0)]),
        _column("time64_ns", pa.time64("ns"), [1_000, None, 1_001, 0],
                [dt.time(0, 0, 0, 1), None, 1_001, dt.time(0)]),
        _column("timestamp_s", pa.timestamp("s"), [seconds, None, 10**14, 0],
                [naive, None, 10**14, epoch]),
        _column("timestamp_ms", pa.timestamp("ms"), [seconds * 1_000, None, -1, 0],
                [naive, None, epoch - dt.timedelta(milliseconds=1), epoch]),
        _column("timestamp_us", pa.timestamp("us"), [seconds * 1_000_000, None, 2**62, 0],
                [naive, None, 2**62, epoch]),
        _column("timestamp_ns", pa.timestamp("ns"), [1_000, None, 1_001, 0],
                [epoch + dt.timedelta(microseconds=1), None, 1_001, epoch]),
        _column("timestamp_utc", pa.timestamp("us", "UTC"), [seconds * 1_000_000, None, -1, 0],
                [naive.replace(tzinfo=utc), None,
                 epoch.replace(tzinfo=utc) - dt.timedelta(microseconds=1),
                 epoch.replace(tzinfo=utc)]),
        _column("timestamp_berlin", pa.timestamp("s", "Europe/Berlin"),
                [seconds, None, seconds - 3_600, 0],
                [dt.datetime(2024, 10, 27, 2, tzinfo=berlin, fold=1), None,
                 dt.datetime(2024, 10, 27, 2, tzinfo=berlin),
                 dt.datetime(1970, 1, 1, 1, tzinfo=berlin)]),
        _column("timestamp_offset", pa.timestamp("ms", "+05:30"), [1, None, -1, 0],
                [dt.datetime(1970, 1, 1, 5, 30, 0, 1_000, tzinfo=offset), None,
                 dt.datetime(1970, 1, 1, 5, 29, 59, 999_000, tzinfo=offset),
                 dt.datetime(1970, 1, 1, 5, 30, tzinfo=offset)]),
        _column("duration_s", pa.duration("s"), [90_061, None, 2**62, 0],
                [dt.timedelta(days=1, hours=1, minutes=1, seconds=1), None, 2**62,
                 dt.timedelta(0)]),
        _column("duration_ns", pa.duration("ns"), [-1_000, None, 1_001, 0],
                [dt.timedelta(microseconds=-1), None, 1_001, dt.timedelta(0)]),
        _column("decimal128", pa.decimal128(38, 10),
                [Decimal("1.5000000000"), None, Decimal("9" * 28 + "." + "9" * 10),
                 Decimal("0E-10")]),
        _column("decimal256", pa.decimal256(76, 0),
                [Decimal(7), None, Decimal("-" + "9" * 76), Decimal(0)]),
    ]  # fmt: skip


def _arrays() -> list[Column]:
    columns = []
    for name in ("int8", "uint64", "float16", "float32", "float64", "bool"):
        leaf = pa.bool_() if name == "bool" else getattr(pa, name)()
        one, two = (True, False) if name == "bool" else (1, 2)
        # Lists with a null in them stay lists.
        alone = float(two) if "float" in name else two
        columns += [
            _column(
                f"list_{name}",
                pa.list_(leaf),
                [[one, two], None, [two, None], []],
                [_array([one, two], name), None, [alone, None], _array([], name)],
            ),
            _column(
                f"fixed_list_{name}",
                pa.list_(leaf, 2),
                [[one, two], None, [two, None], [two, two]],
                [_array([one, two], name), None, [alone, None], _array([two, two], name)],
            ),
        ]
    pair, tensor = pa.list_(pa.float32(), 2), pa.fixed_shape_tensor(pa.float32(), [2, 3])
    turned = pa.fixed_shape_tensor(pa.int16(), [2, 3], permutation=[1, 0])
    six: list[Any] = [1, 2, 3, 4, 5, 6]
    return [
        *columns,
        _column(
            "large_list",
            pa.large_list(pa.int32()),
            [[1, 2], None, [3] * 1_000, []],
            [_array([1, 2], "int32"), None, _array([3] * 1_000, "int32"), _array([], "int32")],
        ),
        _column(
            "list_of_pairs",
            pa.list_(pair),
            [[[1, 2], [3, 4]], None, [[1, 2], None], []],
            [
                _array([[1, 2], [3, 4]], "float32"),
                None,
                [[1.0, 2.0], None],
                _array([], "float32", (0, 2)),
            ],
        ),
        _column(
            "matrix",
            pa.list_(pair, 2),
            [[[1, 2], [3, 4]], None, [[1, None], [3, 4]], [[0, 0], [0, 0]]],
            [
                _array([[1, 2], [3, 4]], "float32"),
                None,
                [[1.0, None], [3.0, 4.0]],
                _array([[0, 0], [0, 0]], "float32"),
            ],
        ),
        _column(
            "tensor",
            tensor,
            [six, None, six[::-1], [0] * 6],
            [
                _array(six, "float32", (2, 3)),
                None,
                _array(six[::-1], "float32", (2, 3)),
                _array([0] * 6, "float32", (2, 3)),
            ],
        ),
        _column(
            "tensor_turned",
            turned,
            [six, None, six[::-1], [0] * 6],
            [
                _array([[1, 4], [2, 5], [3, 6]], "int16"),
                None,
                _array([[6, 3], [5, 2], [4, 1]], "int16"),
                _array([0] * 6, "int16", (3, 2)),
            ],
        ),
    ]


def _torch(value: float) -> torch.Tensor:
    return torch.tensor(value, dtype=torch.bfloat16)


def _nested() -> list[Column]:
    bits: list[Any] = [b"\x80\x3f", None, b"\x80\x7f", b"\x00\x00"]
    point = pa.struct([("x", pa.int64()), ("v", pa.list_(pa.float32()))])
    point_rows: list[Any] = [{"x": 1, "v": [1.5]}, None, {"x": None, "v": None}, {"x": 0, "v": []}]
    points: list[Any] = [
        {"x": 1, "v": _array([1.5], "float32")},
        None,
        {"x": None, "v": None},
        {"x": 0, "v": _array([], "float32")},
    ]
    tree = pa.struct([("a", pa.struct([("b", pa.list_(pa.struct([("c", pa.string())])))]))])
    tree_rows: list[Any] = [
        {"a": {"b": [{"c": "x"}, {"c": None}]}},
        {"a": {"b": None}},
        {"a": {"b": [{"c": "long " * 100}]}},
        {"a": {"b": []}},
    ]
    mapped = pa.map_(pa.string(), pa.list_(pa.int64()))
    return [
        _column(
            "bfloat16",
            bfloat16_field(""),
            bits,
            [_torch(1.0), None, _torch(float("inf")), _torch(0.0)],
        ),
        _column(
            "list_of_bfloat16",
            pa.list_(bfloat16_field("item")),
            [bits[:1], None, [None, bits[2]], []],
            [[_torch(1.0)], None, [None, _torch(float("inf"))], []],
        ),
        _column(
            "list_of_text", pa.list_(pa.string()), [["a", "b"], None, [None, "", "c" * 99], []]
        ),
        _column(
            "list_of_dates",
            pa.list_(pa.date32()),
            [[0], None, [None, 2**31 - 1], []],
            [[dt.date(1970, 1, 1)], None, [None, 2**31 - 1], []],
        ),
        _column(
            "list_of_lists",
            pa.list_(pa.list_(pa.int16())),
            [[[1, 2], [3]], None, [None, [4, None]], []],
            [[_array([1, 2], "int16"), _array([3], "int16")], None, [None, [4, None]], []],
        ),
        _column("struct", point, point_rows, points, ("2.1", "2.2")),
        _column(
            "struct_never_null",
            point,
            [point_rows[0], point_rows[2], point_rows[3], point_rows[3]],
            [points[0], points[2], points[3], points[3]],
        ),
        _column(
            "list_of_structs",
            pa.list_(point),
            [point_rows[:1], None, point_rows, []],
            [points[:1], None, points, []],
            ("2.1", "2.2"),
        ),
        _column("tree", tree, tree_rows),
        _column(
            "map",
            mapped,
            [[("k", [1, 2])], None, [("k", [1]), ("", None), ("k", [2, None])], []],
            [
                {"k": _array([1, 2], "int64")},
                None,
                # A key that comes twice: a dict would drop one.
                [("k", _array([1], "int64")), ("", None), ("k", [2, None])],
                {},
            ],
            ("2.2",),
        ),
        _column(
            "map_of_structs",
            pa.map_(pa.int32(), point),
            [[(7, point_rows[0])], None, [(-1, None), (0, point_rows[2])], []],
            [{7: points[0]}, None, {-1: None, 0: points[2]}, {}],
            ("2.2",),
        ),
        _column(
            "uuid",
            pa.uuid(),
            [uuid.UUID(int=1).bytes, None, b"\xff" * 16, bytes(16)],
            [uuid.UUID(int=1), None, uuid.UUID(bytes=b"\xff" * 16), uuid.UUID(int=0)],
        ),
        _column("bool8", pa.bool8(), [1, None, 0, 1], [True, None, False, True]),
    ]


COLUMNS = [*_numbers(), *_texts(), *_temporal(), *_arrays(), *_nested()]
CASES = [(column, version) for column in COLUMNS for version in column.versions]


def _table(*columns: Column) -> pa.Table:
    arrays = [arrow_array(column.rows, column.field) for column in columns]
    return pa.table(arrays, schema=pa.schema([column.field for column in columns]))


@pytest.fixture(scope="module")
def streamed(lance_process: LanceProcess) -> dict[str, dict[str, list[str]]]:
    """For each version and column what is wrong with its values, as two workers gave them."""
    found = {}
    for version in ALL:
        columns = [column for column in COLUMNS if version in column.versions]
        uri = lance_process.write(_table(*columns), version=version, rows_per_file=3)
        found[version] = run_forked(_wrong, uri, columns)
    return found


def _wrong(uri: str, columns: list[Column]) -> dict[str, list[str]]:
    wrong: dict[str, list[str]] = {column.name: [] for column in columns}
    for workers in (0, 2):
        data = dataset(uri, shard_rows=3, with_row_id=True)
        rows = {row["_rowid"]: row for batch in batches(data, workers) for row in batch}
        for number, (_, row) in enumerate(sorted(rows.items())):
            assert list(row) == [*(column.name for column in columns), "_rowid"]
            for column in columns:
                try:
                    assert_same(row[column.name], column.expected[number])
                except AssertionError as error:
                    wrong[column.name].append(f"{workers} workers, row {number}: {error}")
        assert len(rows) == 4
    assert "lance" not in sys.modules
    return wrong


@pytest.mark.parametrize(
    ("column", "version"), CASES, ids=[f"{column.name}-{version}" for column, version in CASES]
)
def test_every_type(
    streamed: dict[str, dict[str, list[str]]], column: Column, version: str
) -> None:
    """A value, null, an edge, and an empty or zero one; the same in every version."""
    assert streamed[version][column.name] == []


@pytest.mark.parametrize("column", COLUMNS, ids=[column.name for column in COLUMNS])
def test_versions_that_cannot_hold_a_type_refuse_it(
    lance_process: LanceProcess, column: Column
) -> None:
    """What is left out above is left out for Lance's sake."""
    for version in set(ALL) - set(column.versions):
        uri = lance_process.new_path(".lance")
        with pytest.raises(Refused, match=r"."):
            _write_and_fetch(lance_process, column, uri, version)


def _write_and_fetch(process: LanceProcess, column: Column, uri: str, version: str) -> None:
    process.fetch(process.write(_table(column), uri=uri, version=version))


def test_blobs_through_a_stream(lance_process: LanceProcess) -> None:
    """Both encodings, null and empty apart, and inside of structs."""
    source = """
uri, version, v2 = args
if v2:
    field, blobs = lance.blob_field("b"), lance.blob_array([b"abc", None, b"", b"x" * 2_000_000])
else:
    field = pa.field("b", pa.large_binary(), metadata={"lance-encoding:blob": "true"})
    blobs = pa.array([b"abc", None, b"", b"x" * 2_000_000], pa.large_binary())
struct = pa.StructArray.from_arrays([blobs], fields=[field])
table = pa.table([blobs, struct], schema=pa.schema([field, pa.field("s", struct.type)]))
lance.write_dataset(table, uri, data_storage_version=version, max_rows_per_file=3)
"""

    def run(uri: str) -> list[Any]:
        data = dataset(uri, shard_rows=2)
        rows = [row for batch in batches(data, 2) for row in batch]
        assert all(row["s"] == {"b": row["b"]} for row in rows)
        return [
            None if row["b"] is None else [row["b"][:3].decode(), len(row["b"])] for row in rows
        ]

    for version, v2 in [("2.0", False), ("2.1", False), ("2.2", False), ("2.2", True)]:
        uri = lance_process.new_path(".lance")
        lance_process.run(source, uri, version, v2)
        found = run_forked(run, uri)
        assert sorted(found, key=str) == [None, ["", 0], ["abc", 3], ["xxx", 2_000_000]]


# --- what is refused ---

_REFUSED: list[tuple[pa.DataType, Any, str]] = [
    (pa.opaque(pa.binary(), "kind", "vendor"), b"a", "extension<arrow.opaque["),
    (
        pa.map_(pa.struct([("x", pa.int64())]), pa.int64()),
        [({"x": 1}, 1)],
        "map<struct<x: int64>, int64>",
    ),
    (pa.map_(pa.list_(pa.int64()), pa.int64()), [([1], 1)], "map<list<item: int64>, int64>"),
    (pa.timestamp("us", "Mars/Olympus_Mons"), 0, "timestamp[us, tz=Mars/Olympus_Mons]"),
    (
        pa.list_(pa.timestamp("us", "Mars/Olympus_Mons")),
        [0],
        "list<item: timestamp[us, tz=Mars/Olympus_Mons]>",
    ),
    (
        pa.struct([("y", pa.opaque(pa.binary(), "kind", "vendor"))]),
        {"y": b"a"},
        "struct<y: extension<arrow.opaque[",
    ),
]


@pytest.mark.parametrize(
    ("kind", "value", "words"), _REFUSED, ids=[words for _, _, words in _REFUSED]
)
def test_other_types_are_refused_when_the_dataset_is_built(
    lance_process: LanceProcess, kind: pa.DataType, value: Any, words: str
) -> None:
    """In the main process, with column and type; the other columns can be chosen."""
    column = arrow_array([value], pa.field("the column", kind))
    table = pa.table({"i": [1], "the column": column})
    uri = lance_process.write(table, version="2.2")
    with pytest.raises(UnsupportedTypeError) as raised:
        dataset(uri)
    message = str(raised.value)
    assert message.startswith(f"{uri} version 1: columns of a type that is not supported: ")
    assert f"'the column' ({words}" in message
    assert "'i'" not in message
    assert run_forked(lambda: [row["i"] for row in dataset(uri, columns=["i"])]) == [1]


# --- any table, from end to end ---


@pytest.mark.parametrize("cache_format", ["arrow", "mds"])
def test_any_table_from_end_to_end(lance_process: LanceProcess, cache_format: str) -> None:
    """A few of the tables of ``unit/service/test_fetching.py``, through the stock class."""
    from hypothesis import HealthCheck, given, settings

    @settings(
        max_examples=6,
        derandomize=True,
        deadline=None,
        database=None,
        suppress_health_check=[HealthCheck.too_slow],
    )
    @given(table=lance_tables("2.2") if cache_format == "arrow" else mds_tables())
    def check(table: pa.Table) -> None:
        table = table.add_column(0, "id", pa.array(range(len(table))))
        expected = expected_rows(table)
        uri = lance_process.write(table, version="2.2", rows_per_file=4)
        stream = {"cache_format": cache_format, "shard_rows": 3}
        if cache_format == "mds" and not mds_can_hold(table):
            with pytest.raises(UnsupportedTypeError, match=r"'c\d'"):
                dataset(uri, **stream)
            return

        def run() -> int:
            for workers in (0, 2):
                data = dataset(uri, host={"shuffle": True}, **stream)
                rows = {row["id"]: row for batch in batches(data, workers) for row in batch}
                assert sorted(rows) == list(range(len(expected)))
                for number, row in rows.items():
                    assert_same(row, expected[number])
            return len(expected)

        assert run_forked(run) == len(table)

    check()


# --- without pandas ---

_PANDAS = """
raise ImportError("no pandas here")
"""
_NO_PANDAS = """
import json, sys
from tests.support.streams import batches, dataset
from torch.utils.data import IterableDataset, DataLoader

class Watched(IterableDataset):
    def __init__(self, data):
        self.data, self.batch_size = data, data.batch_size
    def __iter__(self):
        for row in self.data:
            yield {**row, "worker": "pandas" in sys.modules}

if __name__ == "__main__":
    data = dataset(sys.argv[1], shard_rows=2, transform="watching:whether")
    rows = [row for batch in batches(Watched(data), 2) for row in batch]
    rows += [{**row, "worker": False} for row in data]
    print(json.dumps([
        [[repr(row["t"]), row["there"], row["worker"]] for row in rows],
        "pandas" in sys.modules,
    ]))
"""
_WATCHING = """
import sys
import pyarrow as pa

def whether(batch):
    there = pa.array(["pandas" in sys.modules] * batch.num_rows)
    return batch.append_column("there", there)
"""


_PANDAS_THAT_TELLS = """
import os
with open(os.environ["PANDAS_TOLD"], "a") as file:
    print(os.getpid(), file=file)
VALUE = 7
"""
_USES_PANDAS = """
import pyarrow as pa

def add(batch):
    import pandas
    return batch.append_column("there", pa.array([pandas.VALUE] * batch.num_rows))
"""
_WITH_PANDAS = """
import json, sys
from tests.support.streams import batches, dataset

if __name__ == "__main__":
    uri, transform = sys.argv[1:]
    data = dataset(uri, shard_rows=2, transform=transform or None)
    rows = [row for batch in batches(data, 2) for row in batch]
    print(json.dumps([[repr(row["t"]), row.get("there"), repr(row["n"])] for row in rows]))
"""


@pytest.mark.parametrize("transform", ["", "using:add"])
def test_pandas_is_imported_for_functions_of_users_only(
    lance_process: LanceProcess, tmp_path: Path, transform: str
) -> None:
    """It takes half a second wherever it is installed and pyarrow comes to want it."""
    folder, told = tmp_path / "modules", tmp_path / "told"
    folder.mkdir()
    (folder / "pandas.py").write_text(_PANDAS_THAT_TELLS)
    (folder / "using.py").write_text(_USES_PANDAS)
    table = pa.table({"t": ["a", None, "c"], "n": pa.array([1, None, 3], pa.int64())})
    uri = lance_process.write(table)
    script = tmp_path / "train.py"
    script.write_text(_WITH_PANDAS)
    env = {"PYTHONPATH": str(folder), "PANDAS_TOLD": str(told)}
    rows = json.loads(run_script(script, uri, transform, env=env).check().stdout.splitlines()[-1])
    there = 7 if transform else None
    assert sorted(rows) == sorted(
        [["'a'", there, "1"], ["None", there, "None"], ["'c'", there, "3"]]
    )
    # With a transform only the download process, which pyarrow has look for it too.
    assert len(set(told.read_text().split()) if told.exists() else ()) == bool(transform)


def test_without_pandas(lance_process: LanceProcess, tmp_path: Path) -> None:
    """Nanoseconds are what pyarrow would need it for. No process of a stream has loaded it."""
    folder = tmp_path / "modules"
    folder.mkdir()
    # Also where it is installed.
    (folder / "pandas.py").write_text(_PANDAS)
    (folder / "watching.py").write_text(_WATCHING)
    table = pa.table({"t": pa.array([1_000, None, 1_001, 0], pa.timestamp("ns"))})
    uri = lance_process.write(table)
    script = tmp_path / "train.py"
    script.write_text(_NO_PANDAS)
    result = run_script(script, uri, env={"PYTHONPATH": str(folder)})
    rows, loaded = json.loads(result.check().stdout.splitlines()[-1])
    assert not loaded
    expected = [
        "datetime.datetime(1970, 1, 1, 0, 0, 0, 1)",
        "None",
        "1001",
        "datetime.datetime(1970, 1, 1, 0, 0)",
    ]
    assert [[text, False, False] for text in sorted(expected * 2)] == sorted(rows)
