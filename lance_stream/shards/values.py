"""Flat Arrow columns to sample values: one decoder per column, chosen once per shard.

A decoder is a function of the row that reads straight from the mapped buffers. What each type
becomes is the table in the README; the rules behind it:

- a value is exact or it is an error when the stream is built, never altered;
- None for null, whatever the type;
- a temporal value that its Python type cannot hold (nanoseconds, the year 20000) is the int that
  Arrow holds, in the unit of the column.
"""

from __future__ import annotations

import datetime as dt
import uuid
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from pyarrow import types as pat

from lance_stream.planning.types import time_zone

__all__ = [
    "Decoder",
    "bfloat16_decoder",
    "column_buffers",
    "flat_decoder",
    "is_number",
    "nullable",
    "number_array",
    "value_offsets",
]

Decoder = Callable[[int], Any]

# struct codes, which are numpy's as well. Half floats are left out: memoryview cannot read them.
_NUMBER_CODES: dict[pa.DataType, Any] = {
    pa.int8(): "b",
    pa.int16(): "h",
    pa.int32(): "i",
    pa.int64(): "q",
    pa.uint8(): "B",
    pa.uint16(): "H",
    pa.uint32(): "I",
    pa.uint64(): "Q",
    pa.float32(): "f",
    pa.float64(): "d",
}
_DTYPES = {kind: np.dtype(code) for kind, code in _NUMBER_CODES.items()}
_DTYPES[pa.float16()] = np.dtype(np.float16)
_UNITS_PER_SECOND = {"s": 1, "ms": 1_000, "us": 1_000_000, "ns": 1_000_000_000}
# Timestamps without a zone are naive.
_EPOCH = dt.datetime(1970, 1, 1)  # noqa: DTZ001
_EPOCH_UTC = dt.datetime(1970, 1, 1, tzinfo=dt.timezone.utc)
_EPOCH_DAY = dt.date(1970, 1, 1).toordinal()
_DAY_US = 86_400_000_000


def flat_decoder(column: pa.Array) -> Decoder:
    """Decode a column that is neither nested nor null anywhere (see ``nullable``)."""
    kind = column.type
    if is_number(kind):
        return _numbers(column, _NUMBER_CODES[kind]).__getitem__
    for matches, make in _DECODERS:
        if matches(kind):
            return make(column)
    # Decimals: pyarrow's own conversion is exact.
    return lambda row: column[row].as_py()


def bfloat16_decoder(column: pa.Array) -> Decoder:
    """Decode bfloat16 numbers as torch tensors without dimensions, owned."""
    import torch  # noqa: PLC0415 - the download process must not load it

    # The two bytes as an integer: neither Arrow nor numpy has the type.
    raw = np.frombuffer(column.buffers()[1] or b"", np.int16)
    raw = raw[column.offset : column.offset + len(column)]
    return lambda row: torch.tensor(int(raw[row]), dtype=torch.int16).view(torch.bfloat16)


def is_number(kind: pa.DataType) -> bool:
    """Whether a memoryview reads values of the type as Python numbers."""
    return not isinstance(kind, pa.BaseExtensionType) and kind in _NUMBER_CODES


def column_buffers(column: pa.Array) -> tuple[memoryview, ...]:
    """What a column of numbers, text or bytes is read from, without its nulls.

    Returns:
        ``(numbers,)``, or ``(offsets, data)``: row ``i`` is ``data[offsets[i]:offsets[i + 1]]``.
    """
    if is_number(column.type):
        return (_numbers(column, _NUMBER_CODES[column.type]),)
    return value_offsets(column), memoryview(column.buffers()[2] or b"")


def nullable(column: pa.Array, decode: Decoder) -> Decoder:
    """A column's decoder that gives None for null."""
    if pat.is_null(column.type):
        return lambda _row: None
    if not column.null_count:
        return decode
    bits, offset = memoryview(column.buffers()[0]), column.offset

    def get(row: int) -> Any:
        at = row + offset
        return decode(row) if bits[at >> 3] >> (at & 7) & 1 else None

    return get


def _numbers(column: pa.Array, code: Any) -> memoryview:
    # The buffer may be longer than its values, by any number of bytes.
    width = column.type.bit_width // 8
    start, stop = column.offset * width, (column.offset + len(column)) * width
    return memoryview(column.buffers()[1] or b"").cast("B")[start:stop].cast(code)


def number_array(column: pa.Array) -> np.ndarray[Any, Any]:
    """A number column, without its nulls, as a read-only view."""
    dtype = _DTYPES[column.type]
    start = column.offset * dtype.itemsize
    return np.frombuffer(column.buffers()[1] or b"", dtype, len(column), start)


def _halves(column: pa.Array) -> Decoder:
    values = number_array(column)
    return lambda row: float(values[row])


def _booleans(column: pa.Array) -> Decoder:
    bits, offset = memoryview(column.buffers()[1] or b""), column.offset

    def get(row: int) -> bool:
        at = row + offset
        return bool(bits[at >> 3] >> (at & 7) & 1)

    return get


def value_offsets(column: pa.Array) -> memoryview:
    """Offsets of a column of variable length: row ``i`` ends where row ``i + 1`` begins."""
    wide = pat.is_large_string(column.type) or pat.is_large_binary(column.type)
    wide = wide or pat.is_large_list(column.type)
    buffer = column.buffers()[1]
    if buffer is None or not len(buffer):
        return memoryview(bytes(8)).cast("q")
    return memoryview(buffer).cast("B").cast("q" if wide else "i")[column.offset :]


def _strings(column: pa.Array) -> Decoder:
    offsets, data = value_offsets(column), memoryview(column.buffers()[2] or b"")
    return lambda row: str(data[offsets[row] : offsets[row + 1]], "utf-8")


def _bytes(column: pa.Array) -> Decoder:
    offsets, data = value_offsets(column), memoryview(column.buffers()[2] or b"")
    return lambda row: data[offsets[row] : offsets[row + 1]].tobytes()


def _fixed_bytes(column: pa.Array) -> Decoder:
    width = column.type.byte_width
    data, start = memoryview(column.buffers()[1] or b""), column.offset * width
    return lambda row: data[start + row * width : start + (row + 1) * width].tobytes()


def _uuids(column: pa.Array) -> Decoder:
    get = _fixed_bytes(column.storage)
    return lambda row: uuid.UUID(bytes=get(row))


def _dates(column: pa.Array) -> Decoder:
    wide = pat.is_date64(column.type)
    values = _numbers(column, "q" if wide else "i")

    def get(row: int) -> dt.date | int:
        value = values[row]
        days, rest = divmod(value, 86_400_000) if wide else (value, 0)
        ordinal = days + _EPOCH_DAY
        if rest or not 0 < ordinal <= dt.date.max.toordinal():
            return value
        return dt.date.fromordinal(ordinal)

    return get


def _microseconds(column: pa.Array) -> tuple[memoryview, Callable[[int], int | None]]:
    """Raw values, and what turns one into whole microseconds (None if it is not whole)."""
    per_second = _UNITS_PER_SECOND[column.type.unit]
    raw = _numbers(column, "i" if column.type.bit_width == 32 else "q")
    if per_second <= 1_000_000:
        factor = 1_000_000 // per_second
        return raw, lambda value: value * factor
    return raw, lambda value: None if value % 1_000 else value // 1_000


def _times(column: pa.Array) -> Decoder:
    raw, to_us = _microseconds(column)

    def get(row: int) -> dt.time | int:
        us = to_us(raw[row])
        if us is None or not 0 <= us < _DAY_US:
            return raw[row]
        return (_EPOCH + dt.timedelta(microseconds=us)).time()

    return get


def _timestamps(column: pa.Array) -> Decoder:
    raw, to_us = _microseconds(column)
    zone = None if column.type.tz is None else time_zone(column.type)

    def get(row: int) -> dt.datetime | int:
        us = to_us(raw[row])
        if us is None:
            return raw[row]
        try:
            if zone is None:
                return _EPOCH + dt.timedelta(microseconds=us)
            return (_EPOCH_UTC + dt.timedelta(microseconds=us)).astimezone(zone)
        except OverflowError:
            return raw[row]

    return get


def _durations(column: pa.Array) -> Decoder:
    raw, to_us = _microseconds(column)

    def get(row: int) -> dt.timedelta | int:
        us = to_us(raw[row])
        try:
            return raw[row] if us is None else dt.timedelta(microseconds=us)
        except OverflowError:
            return raw[row]

    return get


_DECODERS: Sequence[tuple[Callable[[pa.DataType], bool], Callable[[pa.Array], Decoder]]] = (
    (pat.is_boolean, _booleans),
    (pat.is_float16, _halves),
    (lambda t: pat.is_string(t) or pat.is_large_string(t), _strings),
    (lambda t: pat.is_binary(t) or pat.is_large_binary(t), _bytes),
    (lambda t: isinstance(t, pa.UuidType), _uuids),
    (pat.is_fixed_size_binary, _fixed_bytes),
    (pat.is_date, _dates),
    (pat.is_time, _times),
    (pat.is_timestamp, _timestamps),
    (pat.is_duration, _durations),
)
