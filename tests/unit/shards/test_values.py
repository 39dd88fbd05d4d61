from __future__ import annotations

import datetime as dt
import math
import struct
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal
from itertools import count
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lance_stream.errors import UnsupportedTypeError
from lance_stream.shards.arrow_file import ShardFile, ShardHeader, write_shard
from lance_stream.shards.values import check_supported, column_decoders, sample_type

# --- comparing ---


def assert_same(found: Any, expected: Any) -> None:
    """The same value of the same type: bits of floats, dtype and shape, wall time and offset."""
    assert type(found) is type(expected), f"{found!r} is not {expected!r}"
    if isinstance(expected, float):
        if math.isnan(expected):
            assert math.isnan(found)
        else:
            assert struct.pack("d", found) == struct.pack("d", expected)
    elif isinstance(expected, np.ndarray):
        assert found.dtype == expected.dtype
        assert found.shape == expected.shape
        assert found.tobytes() == expected.tobytes()
    elif isinstance(expected, list):
        assert len(found) == len(expected)
        for one, other in zip(found, expected, strict=True):
            assert_same(one, other)
    elif isinstance(expected, dt.datetime):
        # Not ==, which is always False between zones for a wall time that occurs twice.
        assert found.replace(tzinfo=None, fold=0) == expected.replace(tzinfo=None, fold=0)
        assert (found.tzinfo is None) is (expected.tzinfo is None)
        assert found.utcoffset() == expected.utcoffset()
    elif isinstance(expected, Decimal):
        assert found.as_tuple() == expected.as_tuple()
    else:
        assert found == expected


# --- the ways that rows come ---

_NAMES = count()


def through_file(table: pa.Table, directory: Path) -> list[pa.RecordBatch]:
    path = str(directory / f"{next(_NAMES)}.arrow")
    header = ShardHeader("f" * 32, 0, table.num_rows)
    write_shard(path, table, header)
    return list(ShardFile(path, header, table.schema).batches)


def table_of(column: pa.Array | pa.ChunkedArray) -> pa.Table:
    return pa.table([column], schema=pa.schema([pa.field("c", column.type)]))


def _padded(column: pa.Array, before: int, after: int) -> pa.Array:
    """The column as the middle of a longer one, of its own values in other places, and nulls."""
    turned = [column.slice(1), pa.nulls(1, column.type), column.slice(0, 1)]
    pad = pa.concat_arrays(turned * (1 + max(before, after)))
    parts = [pad.slice(0, before), column, pad.slice(1, after)]
    return pa.concat_arrays(parts).slice(before, len(column))


def _chunks(column: pa.Array) -> pa.ChunkedArray:
    middle = len(column) // 2
    return pa.chunked_array(
        [
            column.slice(0, 0),
            column.slice(0, middle),
            _padded(column.slice(middle), 3, 1),
            column.slice(0, 0),
        ],
        column.type,
    )


WAYS: dict[str, Callable[[pa.Array, Path], list[pa.RecordBatch]]] = {
    "batch": lambda column, _: table_of(column).to_batches(),
    "slice": lambda column, _: table_of(_padded(column, 11, 5)).to_batches(),
    "file": lambda column, path: through_file(table_of(column), path),
    "file_of_slice": lambda column, path: through_file(table_of(_padded(column, 11, 5)), path),
    "file_of_table_slice": lambda column, path: through_file(
        table_of(pa.concat_arrays([column, column])).slice(len(column), len(column)), path
    ),
    "file_of_chunks": lambda column, path: through_file(table_of(_chunks(column)), path),
}


def decode(batches: list[pa.RecordBatch], *, zero_copy: bool = False) -> list[Any]:
    """The values of the only column."""
    values = []
    for batch in batches:
        ((name, decoder),) = column_decoders(batch, zero_copy=zero_copy)
        assert name == batch.schema.names[0]
        values += [decoder(row) for row in range(batch.num_rows)]
    return values


# --- the cases ---


@dataclass
class Case:
    """A column and what its rows become, written out."""

    name: str
    column: pa.Array
    expected: list[Any]
    kind: str


def _raw(kind: pa.DataType, values: list[int | None]) -> pa.Array:
    """A temporal column by the numbers that Arrow holds."""
    width = pa.int32() if kind.bit_width == 32 else pa.int64()
    return pa.array(values, width).view(kind)


def _us(seconds: int, unit: str) -> int:
    return seconds * {"s": 1, "ms": 1_000, "us": 1_000_000, "ns": 1_000_000_000}[unit]


def _numbers() -> list[Case]:
    cases = []
    for bits in (8, 16, 32, 64):
        low, high = -(1 << (bits - 1)), (1 << (bits - 1)) - 1
        values: list[Any] = [7, None, low, high, 0, -1]
        kind = getattr(pa, f"int{bits}")()
        cases.append(Case(f"int{bits}", pa.array(values, kind), values, "int"))
        values = [7, None, 0, (1 << bits) - 1, 1 << (bits - 1)]
        kind = getattr(pa, f"uint{bits}")()
        cases.append(Case(f"uint{bits}", pa.array(values, kind), values, "int"))
    large = [2**63 + 5, None, 2**53 + 1]
    cases.append(Case("uint64_large", pa.array(large, pa.uint64()), large, "int"))
    for kind, extremes in (
        (pa.float16(), [65504.0, 2.0**-24, 0.0999755859375]),
        (pa.float32(), [3.4028234663852886e38, 1.401298464324817e-45, 0.10000000149011612]),
        (pa.float64(), [1.7976931348623157e308, 5e-324, 0.1]),
    ):
        values = [1.5, None, math.nan, math.inf, -math.inf, -0.0, 0.0, *extremes]
        cases.append(Case(str(kind), pa.array(values, kind), values, "float"))
    values = [True, None, False, True, True, False, False, True, None, True, False]
    cases.append(Case("bool", pa.array(values, pa.bool_()), values, "bool"))
    return cases


def _texts() -> list[Case]:
    cases: list[Case] = []
    values: list[Any] = ["a", None, "", "ünïcödé", "𝄞\0x", "a string longer than twelve", ""]
    cases += [
        Case(str(kind), pa.array(values, kind), values, "str")
        for kind in (pa.string(), pa.large_string(), pa.string_view())
    ]
    data: list[Any] = [b"a", None, b"", b"\0\xff", b"\xc3\x28", b"more than twelve", b""]
    cases += [
        Case(str(kind), pa.array(data, kind), data, "bytes")
        for kind in (pa.binary(), pa.large_binary(), pa.binary_view())
    ]
    values = [b"abc", None, b"\0\0\0", b"\xff\xfe\xfd"]
    cases.append(Case("fixed", pa.array(values, pa.binary(3)), values, "bytes"))
    values = [b"", None, b""]
    cases.append(Case("fixed_0", pa.array(values, pa.binary(0)), values, "bytes"))
    return cases


def _dates() -> list[Case]:
    kind = "datetime.date"
    days = [0, None, 19_782, -1, -719_162, 2_932_896, -719_163, 2_932_897, 2**31 - 1, -(2**31)]
    expected: list[Any] = [
        dt.date(1970, 1, 1),
        None,
        dt.date(2024, 2, 29),
        dt.date(1969, 12, 31),
        dt.date(1, 1, 1),
        dt.date(9999, 12, 31),
        -719_163,
        2_932_897,
        2**31 - 1,
        -(2**31),
    ]
    ms = [None if d is None else d * 86_400_000 for d in days]
    return [
        Case("date32", _raw(pa.date32(), days), expected, kind),
        Case(
            "date64",
            _raw(pa.date64(), [*ms, 1, -(2**63)]),
            [
                *expected[:6],
                *(d * 86_400_000 for d in (-719_163, 2_932_897, 2**31 - 1, -(2**31))),
                1,
                -(2**63),
            ],
            kind,
        ),
    ]


def _times() -> list[Case]:
    cases = []
    for kind, per_second in (
        (pa.time32("s"), 1),
        (pa.time32("ms"), 1_000),
        (pa.time64("us"), 1_000_000),
        (pa.time64("ns"), 1_000_000_000),
    ):
        day = 86_400 * per_second
        raw: list[Any] = [0, None, 45_296 * per_second, 86_399 * per_second, day, -1]
        expected: list[Any] = [
            dt.time(0, 0),
            None,
            dt.time(12, 34, 56),
            dt.time(23, 59, 59),
            day,
            -1,
        ]
        if per_second == 1_000:
            raw.append(day - 1)
            expected.append(dt.time(23, 59, 59, 999_000))
        if per_second == 1_000_000:
            raw.append(day - 1)
            expected.append(dt.time(23, 59, 59, 999_999))
        if per_second == 1_000_000_000:
            raw += [123_000, 123_001, day - 1]
            expected += [dt.time(0, 0, 0, 123), 123_001, day - 1]
        cases.append(Case(str(kind), _raw(kind, raw), expected, "datetime.time"))
    return cases


# Europe/Berlin: UTC+1, UTC+2 from 2024-03-31T01:00Z to 2024-10-27T01:00Z.
_SPRING, _AUTUMN = 1_711_846_800, 1_729_990_800
_MIN_S, _MAX_S = -62_135_596_800, 253_402_300_799  # years 1 and 9999 in UTC


def _naive(*parts: int) -> dt.datetime:
    return dt.datetime(*parts)  # type: ignore[arg-type]  # noqa: DTZ001


def _timestamps() -> list[Case]:
    cases = []
    kind = "datetime.datetime"
    berlin = ZoneInfo("Europe/Berlin")

    def in_berlin(*parts: int, fold: int = 0) -> dt.datetime:
        return dt.datetime(*parts, tzinfo=berlin, fold=fold)  # type: ignore[misc,arg-type]

    for unit in ("s", "ms", "us", "ns"):
        seconds: list[Any] = [0, None, -1, _SPRING]
        naive: list[Any] = [
            _naive(1970, 1, 1),
            None,
            _naive(1969, 12, 31, 23, 59, 59),
            _naive(2024, 3, 31, 1, 0),
        ]
        extra: list[int] = []
        beyond: list[Any] = []
        if unit == "ns":
            extra = [1_000, 1_001, -1, 2**63 - 1, -(2**63) + 1]
            beyond = [_naive(1970, 1, 1, 0, 0, 0, 1), *extra[1:]]
        else:
            seconds += [_MIN_S, _MAX_S]
            naive += [_naive(1, 1, 1), _naive(9999, 12, 31, 23, 59, 59)]
            extra = [_us(_MIN_S, unit) - 1, _us(_MAX_S + 1, unit), 2**63 - 1, -(2**63)]
            beyond = list(extra)
        if unit == "us":
            extra.append(1_234_567)
            beyond.append(_naive(1970, 1, 1, 0, 0, 1, 234_567))
        raw = [None if s is None else _us(s, unit) for s in seconds]
        column = _raw(pa.timestamp(unit), [*raw, *extra])
        cases.append(Case(f"timestamp_{unit}", column, [*naive, *beyond], kind))

        utc = [
            v.replace(tzinfo=dt.timezone.utc) if isinstance(v, dt.datetime) else v
            for v in [*naive, *beyond]
        ]
        for zone in ("UTC", "Etc/UTC", "+00:00"):
            column = _raw(pa.timestamp(unit, zone), [*raw, *extra])
            cases.append(Case(f"timestamp_{unit}_{zone}", column, utc, kind))

        instants = [0, None, _SPRING - 1, _SPRING, _AUTUMN - 1, _AUTUMN, _AUTUMN - 3600]
        walls: list[Any] = [
            in_berlin(1970, 1, 1, 1, 0),
            None,
            in_berlin(2024, 3, 31, 1, 59, 59),
            in_berlin(2024, 3, 31, 3, 0),
            in_berlin(2024, 10, 27, 2, 59, 59),
            in_berlin(2024, 10, 27, 2, 0, fold=1),
            in_berlin(2024, 10, 27, 2, 0),
        ]
        if unit != "ns":
            # The last hour of the year 9999 in UTC is the year 10000 in Berlin.
            instants += [_MAX_S, _MAX_S - 3600, _MIN_S]
            walls += [
                _us(_MAX_S, unit),
                in_berlin(9999, 12, 31, 23, 59, 59),
                in_berlin(1, 1, 1, 0, 53, 28),  # local mean time
            ]
        raw = [None if s is None else _us(s, unit) for s in instants]
        column = _raw(pa.timestamp(unit, "Europe/Berlin"), raw)
        cases.append(Case(f"timestamp_{unit}_berlin", column, walls, kind))

    fixed = dt.timezone(dt.timedelta(hours=5, minutes=30))
    column = _raw(pa.timestamp("ms", "+05:30"), [0, None, 1])
    cases.append(
        Case(
            "timestamp_fixed_offset",
            column,
            [
                dt.datetime(1970, 1, 1, 5, 30, tzinfo=fixed),
                None,
                dt.datetime(1970, 1, 1, 5, 30, 0, 1_000, tzinfo=fixed),
            ],
            kind,
        )
    )
    new_york = ZoneInfo("America/New_York")
    column = _raw(pa.timestamp("s", "America/New_York"), [_MIN_S, _MIN_S + 86_400, 0])
    cases.append(
        Case(
            "timestamp_before_year_1_in_its_zone",
            column,
            [
                _MIN_S,
                dt.datetime(1, 1, 1, 19, 3, 58, tzinfo=new_york),
                dt.datetime(1969, 12, 31, 19, 0, tzinfo=new_york),
            ],
            kind,
        )
    )
    return cases


def _durations() -> list[Case]:
    kind = "datetime.timedelta"
    largest_s = 999_999_999 * 86_400 + 86_399
    cases = []
    for unit in ("s", "ms", "us"):
        raw: list[Any] = [0, None, -1, _us(90_061, unit)]
        smallest = {"s": 1_000_000, "ms": 1_000, "us": 1}[unit]
        expected: list[Any] = [
            dt.timedelta(0),
            None,
            dt.timedelta(microseconds=-smallest),
            dt.timedelta(days=1, hours=1, minutes=1, seconds=1),
        ]
        if unit == "us":
            raw += [2**63 - 1, -(2**63)]
            expected += [dt.timedelta(microseconds=2**63 - 1), dt.timedelta(microseconds=-(2**63))]
        else:
            raw += [_us(largest_s, unit), _us(largest_s + 1, unit), 2**63 - 1]
            expected += [
                dt.timedelta(days=999_999_999, seconds=86_399),
                _us(largest_s + 1, unit),
                2**63 - 1,
            ]
        cases.append(Case(f"duration_{unit}", _raw(pa.duration(unit), raw), expected, kind))
    raw = [0, None, 1_000, 1_001, -1, -1_000, 2**63 - 1]
    expected = [
        dt.timedelta(0),
        None,
        dt.timedelta(microseconds=1),
        1_001,
        -1,
        dt.timedelta(microseconds=-1),
        2**63 - 1,
    ]
    cases.append(Case("duration_ns", _raw(pa.duration("ns"), raw), expected, kind))
    return cases


def _decimals() -> list[Case]:
    cases = []
    for name, kind, values in (
        ("decimal128", pa.decimal128(38, 10), ["1.0000000000", None, "-0.0000000001"]),
        ("decimal128_max", pa.decimal128(38, 0), ["9" * 38, None, "-" + "9" * 38, "0"]),
        ("decimal256", pa.decimal256(76, 5), ["9" * 71 + ".99999", None, "-1.50000"]),
        ("decimal_negative_scale", pa.decimal128(5, -3), ["1.2E+4", None]),
    ):
        expected = [None if v is None else Decimal(v) for v in values]
        cases.append(Case(name, pa.array(expected, kind), expected, "decimal.Decimal"))
    return cases


_LEAVES: list[tuple[pa.DataType, Any, list[Any]]] = [
    (pa.int8(), np.int8, [-128, 127]),
    (pa.int16(), np.int16, [-(2**15), 2**15 - 1]),
    (pa.int32(), np.int32, [-(2**31), 2**31 - 1]),
    (pa.int64(), np.int64, [-(2**63), 2**63 - 1]),
    (pa.uint8(), np.uint8, [0, 255]),
    (pa.uint16(), np.uint16, [0, 2**16 - 1]),
    (pa.uint32(), np.uint32, [0, 2**32 - 1]),
    (pa.uint64(), np.uint64, [0, 2**63 + 5]),
    (pa.float16(), np.float16, [math.inf, -0.0]),
    (pa.float32(), np.float32, [math.inf, -0.0]),
    (pa.float64(), np.float64, [math.inf, -0.0]),
    (pa.bool_(), np.bool_, [True, False]),
]


def _lists() -> list[Case]:
    cases = []
    for leaf, dtype, (low, high) in _LEAVES:

        def array(values: list[Any], dtype: Any = dtype) -> np.ndarray:
            return np.array(values, dtype)

        zero = leaf.to_pandas_dtype()(0).item()
        for name, kind in (("list", pa.list_(leaf)), ("large_list", pa.large_list(leaf))):
            rows: list[Any] = [
                [low, high, zero],
                None,
                [],
                [high],
                [low, None, high],
                [None],
                [zero] * 9,
                [],
            ]
            expected: list[Any] = [
                array([low, high, zero]),
                None,
                array([]),
                array([high]),
                [low, None, high],
                [None],
                array([zero] * 9),
                array([]),
            ]
            cases.append(Case(f"{name}_{leaf}", pa.array(rows, kind), expected, "numpy.ndarray"))
            rows, expected = rows[:4], expected[:4]
            cases.append(
                Case(f"{name}_{leaf}_no_nulls", pa.array(rows, kind), expected, "numpy.ndarray")
            )
        rows = [[low, high, zero], None, [high, high, low], [low, None, high]]
        expected = [array(rows[0]), None, array(rows[2]), [low, None, high]]
        kind = pa.list_(leaf, 3)
        cases.append(Case(f"fixed_list_{leaf}", pa.array(rows, kind), expected, "numpy.ndarray"))
        rows, expected = [rows[0], rows[2]], [expected[0], expected[2]]
        cases.append(
            Case(f"fixed_list_{leaf}_no_nulls", pa.array(rows, kind), expected, "numpy.ndarray")
        )
        # Nested: inner axes. An inner null makes a Python list of the row, and only of that row.
        matrix = pa.list_(pa.list_(leaf, 2), 2)
        rows = [
            [[low, high], [high, zero]],
            None,
            [[zero, zero], [low, low]],
            [[low, None], [high, high]],
            [None, [low, high]],
        ]
        expected = [array(rows[0]), None, array(rows[2]), rows[3], rows[4]]
        cases.append(Case(f"matrix_{leaf}", pa.array(rows, matrix), expected, "numpy.ndarray"))
        for outer, name in ((pa.list_, "list"), (pa.large_list, "large_list")):
            rows = [
                [[low, high]],
                None,
                [],
                [[zero, low], [high, high], [low, zero]],
                [[low, high], None],
                [[None, low]],
                [],
            ]
            expected = [
                array(rows[0]),
                None,
                np.empty((0, 2), dtype),
                array(rows[3]),
                rows[4],
                rows[5],
                np.empty((0, 2), dtype),
            ]
            column = pa.array(rows, outer(pa.list_(leaf, 2)))
            cases.append(Case(f"{name}_of_pairs_{leaf}", column, expected, "numpy.ndarray"))
    cube = pa.list_(pa.list_(pa.list_(pa.int16(), 2), 1), 3)
    rows = [[[[1, 2]], [[3, 4]], [[5, 6]]], None, [[[7, 8]], None, [[9, None]]]]
    cases.append(
        Case(
            "cube", pa.array(rows, cube), [np.array(rows[0], np.int16), None, rows[2]],
            "numpy.ndarray",
        )
    )  # fmt: skip
    rows = [[], None, []]
    expected = [np.empty((0,), np.float32), None, np.empty((0,), np.float32)]
    cases.append(
        Case("fixed_list_0", pa.array(rows, pa.list_(pa.float32(), 0)), expected, "numpy.ndarray")
    )
    return cases


CASES = [
    *_numbers(),
    *_texts(),
    *_dates(),
    *_times(),
    *_timestamps(),
    *_durations(),
    *_decimals(),
    *_lists(),
    Case("null", pa.nulls(3), [None, None, None], "None"),
]
each_case = pytest.mark.parametrize("case", CASES, ids=[case.name for case in CASES])


@each_case
def test_every_value_of_every_type(case: Case, tmp_path: Path) -> None:
    for way, make in WAYS.items():
        for zero_copy in (False, True):
            found = decode(make(case.column, tmp_path), zero_copy=zero_copy)
            assert len(found) == len(case.expected), way
            for one, other in zip(found, case.expected, strict=True):
                assert_same(one, other)


@each_case
def test_rows_may_be_read_in_any_order_and_again(case: Case) -> None:
    (batch,) = table_of(case.column).to_batches()
    ((_, decoder),) = column_decoders(batch, zero_copy=False)
    for row in [*range(len(case.expected))][::-1] * 2:
        assert_same(decoder(row), case.expected[row])


@each_case
def test_no_rows_and_only_nulls(case: Case, tmp_path: Path) -> None:
    empty = case.column.slice(0, 0)
    assert decode([pa.record_batch([empty], names=["c"])]) == []
    assert decode(through_file(table_of(empty), tmp_path)) == []
    for rows in (0, 1, 11):
        nulls = pa.nulls(rows, empty.type)
        assert decode(through_file(table_of(nulls), tmp_path)) == [None] * rows


@each_case
def test_the_type_is_supported_under_its_name(case: Case) -> None:
    field = pa.field("c", case.column.type)
    assert sample_type(field) == case.kind
    assert sample_type(field.with_metadata({"any": "thing"})) == case.kind
    check_supported(pa.schema([field]), "t.lance version 1")
    values = {type(v).__name__ for v in case.expected if not isinstance(v, int | list | None)}
    assert values <= {case.kind.rpartition(".")[2]}


def test_a_nullable_int_never_becomes_a_float() -> None:
    for kind in (pa.int8(), pa.int64(), pa.uint64()):
        batch = pa.record_batch([pa.array([1, None, 3], kind)], names=["c"])
        assert [type(v) for v in decode([batch])] == [int, type(None), int]
        batch = pa.record_batch([pa.array([[1, None, 3]], pa.list_(kind))], names=["c"])
        assert [type(v) for v in decode([batch])[0]] == [int, type(None), int]


# --- ownership ---

ARRAY_CASES = [case for case in CASES if case.kind == "numpy.ndarray"]


@pytest.mark.parametrize("case", ARRAY_CASES, ids=[case.name for case in ARRAY_CASES])
def test_arrays_are_owned_and_writable(case: Case, tmp_path: Path) -> None:
    batches = through_file(table_of(case.column), tmp_path)
    arrays = [v for v in decode(batches) if isinstance(v, np.ndarray)]
    assert arrays
    for array in arrays:
        assert array.flags.owndata
        assert array.flags.writeable
        assert array.flags.c_contiguous
        array[...] = 1
    for one, other in zip(decode(batches), case.expected, strict=True):
        assert_same(one, other)


def _is_of_bools(case: Case) -> bool:
    return "bool" in str(case.column.type)


VIEW_CASES = [case for case in ARRAY_CASES if not _is_of_bools(case)]


@pytest.mark.parametrize("case", VIEW_CASES, ids=[case.name for case in VIEW_CASES])
def test_zero_copy_arrays_are_read_only_views(case: Case, tmp_path: Path) -> None:
    batches = through_file(table_of(case.column), tmp_path)
    arrays = [v for v in decode(batches, zero_copy=True) if isinstance(v, np.ndarray)]
    assert arrays
    for array in arrays:
        assert not array.flags.owndata
        assert not array.flags.writeable
        if array.size:
            with pytest.raises(ValueError, match="read-only"):
                array[...] = 1


def test_zero_copy_arrays_of_bools_are_read_only_too(tmp_path: Path) -> None:
    # Bits have no view as bytes, so these are copies; whoever writes to them should not find out
    # by the type of the column.
    for case in filter(_is_of_bools, ARRAY_CASES):
        batches = through_file(table_of(case.column), tmp_path)
        arrays = [v for v in decode(batches, zero_copy=True) if isinstance(v, np.ndarray)]
        assert arrays
        assert not any(array.flags.writeable for array in arrays), case.name


def test_a_zero_copy_view_outlives_its_file(tmp_path: Path) -> None:
    column = pa.array([[1.5, 2.5]] * 1000, pa.list_(pa.float64()))
    last = decode(through_file(table_of(column), tmp_path), zero_copy=True)[-1]
    files = list(tmp_path.glob("*.arrow"))
    assert len(files) == 1
    files[0].unlink()
    assert last.tolist() == [1.5, 2.5]


# --- several columns ---


def test_columns_come_in_order_of_the_schema() -> None:
    batch = pa.record_batch(
        {"z": pa.array([1, 2]), "a": pa.array(["x", None]), "m": pa.nulls(2)},
    )
    decoders = column_decoders(batch, zero_copy=False)
    assert [name for name, _ in decoders] == ["z", "a", "m"]
    assert [{name: get(row) for name, get in decoders} for row in range(2)] == [
        {"z": 1, "a": "x", "m": None},
        {"z": 2, "a": None, "m": None},
    ]


_TWELVE = pa.array(range(12), pa.int32())
_PAIRS = pa.FixedSizeListArray.from_arrays(_TWELVE, 2)


@pytest.mark.parametrize(
    ("column", "rows"),
    [
        (pa.FixedSizeListArray.from_arrays(_TWELVE.slice(4, 4), 2), [[4, 5], [6, 7]]),
        (
            pa.FixedSizeListArray.from_arrays(pa.array([True, False, False] * 4).slice(5, 4), 2),
            [[False, True], [False, False]],
        ),
        (
            pa.ListArray.from_arrays(pa.array([0, 1, 4], pa.int32()), _TWELVE.slice(3, 5)),
            [[3], [4, 5, 6]],
        ),
        (
            pa.FixedSizeListArray.from_arrays(_PAIRS.slice(2, 4), 2),
            [[[4, 5], [6, 7]], [[8, 9], [10, 11]]],
        ),
        (
            pa.ListArray.from_arrays(pa.array([0, 2, 3], pa.int32()), _PAIRS.slice(1, 4)),
            [[[2, 3], [4, 5]], [[6, 7]]],
        ),
    ],
    ids=["fixed", "bools", "list", "fixed of pairs", "list of pairs"],
)
def test_a_child_that_is_a_slice_is_read_from_its_own_start(
    column: pa.Array, rows: list[Any], tmp_path: Path
) -> None:
    assert column.to_pylist() == rows
    for batches in (
        [pa.record_batch([column], names=["c"])],
        through_file(table_of(column), tmp_path),
    ):
        assert [value.tolist() for value in decode(batches)] == rows


def test_an_inner_list_that_is_null_over_values_that_are_not(tmp_path: Path) -> None:
    inner = pa.FixedSizeListArray.from_arrays(
        pa.array(range(8), pa.int16()), 2, mask=pa.array([False, True, False, False])
    )
    assert inner.values.null_count == 0
    for column in (
        pa.FixedSizeListArray.from_arrays(inner, 2),
        pa.ListArray.from_arrays(pa.array([0, 2, 4], pa.int32()), inner),
    ):
        for batches in (
            [pa.record_batch([column], names=["c"])],
            through_file(table_of(column), tmp_path),
        ):
            first, second = decode(batches)
            assert_same(first, [[0, 1], None])
            assert_same(second, np.array([[4, 5], [6, 7]], np.int16))


def test_values_under_a_null_do_not_show(tmp_path: Path) -> None:
    mask = pa.array([False, True, False])
    for column, expected in (
        (pa.array([1, 2, 3], pa.int64(), mask=np.array([False, True, False])), [1, None, 3]),
        (
            pa.FixedSizeListArray.from_arrays(pa.array([1, 2, None, 4, 5, 6]), 2, mask=mask),
            [np.array([1, 2]), None, np.array([5, 6])],
        ),
        (
            pa.ListArray.from_arrays(pa.array([0, 1, 3, 4], pa.int32()), _TWELVE, mask=mask),
            [np.array([0], np.int32), None, np.array([3], np.int32)],
        ),
    ):
        for batches in (
            [pa.record_batch([column], names=["c"])],
            through_file(table_of(column), tmp_path),
        ):
            for one, other in zip(decode(batches), expected, strict=True):
                assert_same(one, other)


# --- unsupported types ---


class _OurExtension(pa.ExtensionType):
    def __init__(self) -> None:
        super().__init__(pa.int64(), "lance_stream.tests.ours")

    def __arrow_ext_serialize__(self) -> bytes:
        return b""

    @classmethod
    def __arrow_ext_deserialize__(cls, storage_type: Any, serialized: Any) -> _OurExtension:
        return cls()


UNSUPPORTED = [
    pa.struct([("x", pa.int64())]),
    pa.map_(pa.string(), pa.int64()),
    pa.list_(pa.string()),
    pa.list_(pa.binary()),
    pa.list_(pa.date32()),
    pa.list_(pa.timestamp("us")),
    pa.list_(pa.decimal128(10, 2)),
    pa.list_(pa.null()),
    pa.list_(pa.list_(pa.int64())),
    pa.list_(pa.large_list(pa.float32())),
    pa.list_(pa.struct([("x", pa.int64())])),
    pa.list_(pa.list_(pa.int64()), 2),
    pa.list_(pa.list_(pa.string(), 2), 2),
    pa.large_list(pa.list_(pa.int64())),
    pa.list_view(pa.int64()),
    pa.large_list_view(pa.int64()),
    pa.dictionary(pa.int32(), pa.string()),
    pa.dictionary(pa.int8(), pa.int64()),
    pa.list_(pa.dictionary(pa.int8(), pa.int64())),
    pa.run_end_encoded(pa.int32(), pa.int64()),
    pa.dense_union([pa.field("x", pa.int64())]),
    pa.sparse_union([pa.field("x", pa.int64())]),
    pa.month_day_nano_interval(),
    pa.fixed_shape_tensor(pa.float32(), [2, 3]),
    pa.list_(pa.fixed_shape_tensor(pa.float32(), [2, 3])),
    pa.uuid(),
    pa.json_(),
    pa.bool8(),
    pa.opaque(pa.binary(), "type", "vendor"),
    _OurExtension(),
    pa.list_(_OurExtension()),
]


@pytest.mark.parametrize("kind", UNSUPPORTED, ids=str)
def test_other_types_are_refused_by_column_and_type(kind: pa.DataType) -> None:
    assert sample_type(pa.field("c", kind)) is None
    schema = pa.schema([("good", pa.int64()), ("the column", kind)])
    with pytest.raises(UnsupportedTypeError) as raised:
        check_supported(schema, "s3://b/t.lance version 3")
    message = str(raised.value)
    assert message.startswith("s3://b/t.lance version 3: ")
    assert f"'the column' ({kind})" in message
    assert "good" not in message
    assert "columns=" in message


@pytest.mark.parametrize("kind", [pa.large_binary(), pa.binary()])
def test_blobs_are_refused(kind: pa.DataType) -> None:
    blob = pa.field("image", kind, metadata={"lance-encoding:blob": "true"})
    with pytest.raises(UnsupportedTypeError, match=r"'image' \(blob\)"):
        check_supported(pa.schema([blob]), "t.lance version 1")


def test_every_refused_column_is_named_at_once() -> None:
    schema = pa.schema(
        [("a", pa.struct([])), ("b", pa.int64()), ("c", pa.map_(pa.string(), pa.string()))]
    )
    with pytest.raises(UnsupportedTypeError, match=r"'a' \(struct<>\), 'c' \(map<string, string>"):
        check_supported(schema, "t.lance version 1")


def test_a_time_zone_that_is_not_known_is_refused_when_the_stream_is_built() -> None:
    # Otherwise it is an error of every worker at its first shard.
    schema = pa.schema([("at", pa.timestamp("us", "Mars/Olympus_Mons"))])
    with pytest.raises(UnsupportedTypeError, match=r"'at' \(timestamp\[us, tz=Mars/Olympus_Mons"):
        check_supported(schema, "t.lance version 1")


# --- any table ---

_integers = {
    pa.int8(): (-128, 127),
    pa.int32(): (-(2**31), 2**31 - 1),
    pa.int64(): (-(2**63), 2**63 - 1),
    pa.uint8(): (0, 255),
    pa.uint64(): (0, 2**64 - 1),
}
_numbers_of: dict[pa.DataType, st.SearchStrategy[Any]] = {
    **{kind: st.integers(*bounds) for kind, bounds in _integers.items()},
    # Of floats(width=16) most would be rejected. All that are finite:
    pa.float16(): st.integers(0, 0x7BFF).map(lambda bits: float(np.uint16(bits).view(np.float16))),
    pa.float32(): st.floats(width=32, allow_nan=False),
    pa.float64(): st.floats(allow_nan=False),
    pa.bool_(): st.booleans(),
}
_us_between = st.integers(-62_135_596_800_000_000 + 10**12, 253_402_300_799_000_000 - 10**12)
_scalars: dict[pa.DataType, st.SearchStrategy[Any]] = {
    **_numbers_of,
    pa.string(): st.text(max_size=20),
    pa.large_string(): st.text(max_size=20),
    pa.string_view(): st.text(max_size=20),
    pa.binary(): st.binary(max_size=20),
    pa.large_binary(): st.binary(max_size=20),
    pa.binary_view(): st.binary(max_size=20),
    pa.binary(5): st.binary(min_size=5, max_size=5),
    pa.date32(): st.dates(),
    pa.date64(): st.dates(),
    pa.time64("us"): st.times(),
    pa.timestamp("us"): _us_between,
    pa.timestamp("us", "UTC"): _us_between,
    pa.timestamp("us", "Asia/Kathmandu"): _us_between,
    pa.duration("us"): st.integers(-(2**63), 2**63 - 1),
    pa.decimal128(20, 4): st.decimals(-(10**15), 10**15, places=4),
    pa.null(): st.none(),
}


@st.composite
def _kinds(draw: st.DrawFn) -> tuple[pa.DataType, st.SearchStrategy[Any]]:
    """A supported type, and its values; None among them, or not."""
    none = st.none() if draw(st.booleans()) else st.nothing()
    shape = draw(st.sampled_from(["scalar", "scalar", "list", "large_list", "fixed", "nested"]))
    if shape == "scalar":
        kind = draw(st.sampled_from(list(_scalars)))
        return kind, none | _scalars[kind]
    kind = draw(st.sampled_from(list(_numbers_of)))
    values = _numbers_of[kind]
    if draw(st.booleans()):
        values = values | st.none()
    if shape == "nested":
        size = draw(st.integers(1, 3))
        kind, values = pa.list_(kind, size), st.lists(values, min_size=size, max_size=size)
        if draw(st.booleans()):
            values = values | st.none()
        shape = draw(st.sampled_from(["list", "large_list", "fixed"]))
    if shape == "fixed":
        size = draw(st.integers(0, 4))
        return pa.list_(kind, size), none | st.lists(values, min_size=size, max_size=size)
    make = pa.list_ if shape == "list" else pa.large_list
    return make(kind), none | st.lists(values, max_size=5)


@st.composite
def any_tables(draw: st.DrawFn) -> pa.Table:
    """A table of any chunks, each of them a slice of a longer one."""
    columns = draw(st.lists(_kinds(), min_size=1, max_size=4))
    schema = pa.schema([pa.field(f"c{i}", kind) for i, (kind, _) in enumerate(columns)])
    chunks = []
    for _ in range(draw(st.integers(1, 3))):
        rows = draw(st.integers(0, 12))
        arrays = [
            pa.array(draw(st.lists(values, min_size=rows, max_size=rows)), kind)
            for kind, values in columns
        ]
        chunk = pa.Table.from_arrays(arrays, schema=schema)
        start = draw(st.integers(0, rows))
        chunks.append(chunk.slice(start, draw(st.integers(0, rows - start))))
    return pa.concat_tables(chunks)


def oracle(value: Any, kind: pa.DataType) -> Any:
    """What pyarrow's own (exact) Python value is in a sample."""
    if isinstance(value, list):
        shape, leaf = [len(value)], kind.value_type
        while pa.types.is_fixed_size_list(leaf):
            shape.append(leaf.list_size)
            leaf = leaf.value_type

        def has_null(part: Any) -> bool:
            return part is None or (isinstance(part, list) and any(map(has_null, part)))

        if has_null(value):
            return value
        return np.array(value, leaf.to_pandas_dtype()).reshape(shape)
    if pa.types.is_floating(kind) and value is not None:
        return float(value)
    return value


@settings(max_examples=150)
@given(table=any_tables(), zero_copy=st.booleans())
def test_samples_of_any_table_are_its_values(table: pa.Table, zero_copy: bool) -> None:
    with tempfile.TemporaryDirectory() as directory:
        read_back = through_file(table, Path(directory))
        for batches in (read_back, table.to_batches()):
            found = [
                {name: get(row) for name, get in column_decoders(batch, zero_copy=zero_copy)}
                for batch in batches
                for row in range(batch.num_rows)
            ]
            assert len(found) == table.num_rows
            for field in table.schema:
                column = table.column(field.name).to_pylist()
                for sample, value in zip(found, column, strict=True):
                    assert_same(sample[field.name], oracle(value, field.type))
