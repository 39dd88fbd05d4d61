from __future__ import annotations

import datetime as dt
import math
import uuid
from decimal import Decimal
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import numpy as np
import pyarrow as pa
import pytest
import torch

from lance_stream.shards.values import (
    bfloat16_decoder,
    column_buffers,
    flat_decoder,
    is_number,
    nullable,
    number_array,
    value_offsets,
)
from tests.support.columns import WAYS, Case, full, raw_array, table_of, through_file
from tests.support.values import assert_same, bfloat16_field


def decode(batches: list[pa.RecordBatch]) -> list[Any]:
    """The values of the only column."""
    values = []
    for batch in batches:
        (column,) = batch.columns
        get = nullable(column, flat_decoder(column))
        values += [get(row) for row in range(len(column))]
    return values


# --- the cases ---


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
        for kind in (pa.string(), pa.large_string())
    ]
    data: list[Any] = [b"a", None, b"", b"\0\xff", b"\xc3\x28", b"more than twelve", b""]
    cases += [
        Case(str(kind), pa.array(data, kind), data, "bytes")
        for kind in (pa.binary(), pa.large_binary())
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
        Case("date32", raw_array(pa.date32(), days), expected, kind),
        Case(
            "date64",
            raw_array(pa.date64(), [*ms, 1, -(2**63)]),
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
        cases.append(Case(str(kind), raw_array(kind, raw), expected, "datetime.time"))
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
        column = raw_array(pa.timestamp(unit), [*raw, *extra])
        cases.append(Case(f"timestamp_{unit}", column, [*naive, *beyond], kind))

        utc = [
            v.replace(tzinfo=dt.timezone.utc) if isinstance(v, dt.datetime) else v
            for v in [*naive, *beyond]
        ]
        for zone in ("UTC", "Etc/UTC", "+00:00"):
            column = raw_array(pa.timestamp(unit, zone), [*raw, *extra])
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
        column = raw_array(pa.timestamp(unit, "Europe/Berlin"), raw)
        cases.append(Case(f"timestamp_{unit}_berlin", column, walls, kind))

    fixed = dt.timezone(dt.timedelta(hours=5, minutes=30))
    column = raw_array(pa.timestamp("ms", "+05:30"), [0, None, 1])
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
    column = raw_array(pa.timestamp("s", "America/New_York"), [_MIN_S, _MIN_S + 86_400, 0])
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
        cases.append(Case(f"duration_{unit}", raw_array(pa.duration(unit), raw), expected, kind))
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
    cases.append(Case("duration_ns", raw_array(pa.duration("ns"), raw), expected, kind))
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


def _uuids() -> list[Case]:
    one, other = uuid.UUID(int=0), uuid.UUID("12345678-9abc-def0-1234-56789abcdef0")
    stored = pa.array([one.bytes, None, other.bytes], pa.binary(16))
    column = pa.ExtensionArray.from_storage(pa.uuid(), stored)
    return [Case("uuid", column, [one, None, other], "uuid.UUID")]


CASES = [
    *_numbers(),
    *_texts(),
    *_dates(),
    *_times(),
    *_timestamps(),
    *_durations(),
    *_decimals(),
    *_uuids(),
    Case("null", pa.nulls(3), [None, None, None], "None"),
]
each_case = pytest.mark.parametrize("case", CASES, ids=[case.name for case in CASES])
FULL = [full(case) for case in CASES if case.kind != "None"]


@pytest.mark.parametrize("case", [*CASES, *FULL], ids=lambda case: case.name)
def test_every_value_of_every_type(case: Case, tmp_path: Path) -> None:
    for way, make in WAYS.items():
        found = decode(make(case, tmp_path))
        assert len(found) == len(case.expected), way
        for one, other in zip(found, case.expected, strict=True):
            assert_same(one, other)


@each_case
def test_rows_may_be_read_in_any_order_and_again(case: Case) -> None:
    get = nullable(case.column, flat_decoder(case.column))
    for row in [*range(len(case.expected))][::-1] * 2:
        assert_same(get(row), case.expected[row])


@each_case
def test_no_rows_and_only_nulls(case: Case, tmp_path: Path) -> None:
    empty = case.column.slice(0, 0)
    assert decode([pa.record_batch([empty], names=["c"])]) == []
    assert decode(through_file(table_of(empty), tmp_path)) == []
    for rows in (0, 1, 11):
        nulls = pa.nulls(rows, empty.type)
        assert decode(through_file(table_of(nulls), tmp_path)) == [None] * rows


def test_a_nullable_int_never_becomes_a_float() -> None:
    for kind in (pa.int8(), pa.int64(), pa.uint64()):
        batch = pa.record_batch([pa.array([1, None, 3], kind)], names=["c"])
        assert [type(v) for v in decode([batch])] == [int, type(None), int]


def test_values_under_a_null_do_not_show(tmp_path: Path) -> None:
    column = pa.array([1, 2, 3], pa.int64(), mask=np.array([False, True, False]))
    for batches in (
        [pa.record_batch([column], names=["c"])],
        through_file(table_of(column), tmp_path),
    ):
        assert decode(batches) == [1, None, 3]


# --- bfloat16 ---

_BITS = [0, 0x3F80, 0xBF80, 0x7F80, 0xFF80, 0x8000, 0x0001, 0x7FFF, 0x3DCD]


def _bfloat16(bits: int) -> torch.Tensor:
    (number,) = np.array([bits << 16], np.uint32).view(np.float32)
    return torch.tensor(float(number), dtype=torch.bfloat16)


def test_bfloat16_numbers_are_tensors_without_dimensions(tmp_path: Path) -> None:
    stored = pa.array([bits.to_bytes(2, "little") for bits in _BITS], pa.binary(2))
    case = Case("bfloat16", stored, [], "torch.Tensor", bfloat16_field("c"))
    for way, make in WAYS.items():
        found = [
            bfloat16_decoder(batch.column(0))(row)
            for batch in make(case, tmp_path)
            for row in range(batch.num_rows)
        ]
        assert len(found) == len(_BITS), way
        for value, bits in zip(found, _BITS, strict=True):
            assert (value.dtype, value.shape) == (torch.bfloat16, ())
            # The bits: no number is altered, not even a NaN.
            assert value.view(torch.int16).item() == np.array([bits], np.uint16).view(np.int16)
            if bits != 0x7FFF:
                assert value == _bfloat16(bits)


def test_bfloat16_tensors_are_owned() -> None:
    get = bfloat16_decoder(pa.array([b"\x80\x3f"] * 2, pa.binary(2)))
    first = get(0)
    first.fill_(7)
    assert get(0) == 1
    assert first == 7
    assert first.untyped_storage().nbytes() == 2


# --- the parts that other decoders use ---


@pytest.mark.parametrize("kind", [pa.int8(), pa.uint64(), pa.float32(), pa.float64()])
def test_numbers_are_read_in_place(kind: pa.DataType, tmp_path: Path) -> None:
    assert is_number(kind)
    (batch,) = through_file(table_of(pa.array(range(10), kind)), tmp_path)
    column = batch.column(0).slice(3, 5)
    (numbers,) = column_buffers(column)
    assert numbers.tolist() == [3, 4, 5, 6, 7]
    array = number_array(column)
    assert array.dtype == np.dtype(kind.to_pandas_dtype())
    assert array.tolist() == [3, 4, 5, 6, 7]
    assert not array.flags.writeable
    assert array.__array_interface__["data"][0] == column.buffers()[1].address + 3 * array.itemsize


@pytest.mark.parametrize(
    "kind",
    [
        pa.float16(),  # memoryview cannot read it
        pa.bool_(),
        pa.string(),
        pa.date32(),
        pa.timestamp("us"),
        pa.decimal128(3),
        pa.list_(pa.int8()),
        pa.bool8(),
        pa.uuid(),
    ],
    ids=str,
)
def test_other_types_are_no_numbers(kind: pa.DataType) -> None:
    assert not is_number(kind)


@pytest.mark.parametrize(
    "kind", [pa.string(), pa.large_string(), pa.binary(), pa.large_binary()], ids=str
)
def test_text_is_read_in_place(kind: pa.DataType) -> None:
    column = pa.array(["a", "", "bcd", "e", "f"], kind).slice(1, 3)
    offsets, data = column_buffers(column)
    found = [data[offsets[i] : offsets[i + 1]].tobytes() for i in range(3)]
    assert found == [b"", b"bcd", b"e"]


@pytest.mark.parametrize("kind", [pa.list_(pa.int8()), pa.large_list(pa.int8())], ids=str)
def test_offsets_of_lists(kind: pa.DataType) -> None:
    column = pa.array([[1], [], [2, 3], [4]], kind)
    assert value_offsets(column)[:5].tolist() == [0, 1, 1, 3, 4]
    assert value_offsets(column.slice(1, 2))[:3].tolist() == [1, 1, 3]
    assert value_offsets(column.slice(0, 0))[0] == 0
    assert value_offsets(pa.array([], kind))[0] == 0
