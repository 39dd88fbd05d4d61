"""Arrow columns to sample values: one decoder per column, chosen once per shard.

A decoder is a function of the row that reads straight from the mapped buffers. What each type
becomes is the table in the README; the rules behind it:

- a value is exact or it is an error when the stream is built, never altered;
- None for null, whatever the type;
- a temporal value that its Python type cannot hold (nanoseconds, the year 20000) is the int that
  Arrow holds, in the unit of the column;
- numeric lists are arrays; a row whose list has null elements is a Python list, since no array
  of that dtype can hold it.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from pyarrow import types as pat

from lance_stream.errors import UnsupportedTypeError

__all__ = [
    "check_supported",
    "column_buffers",
    "column_decoders",
    "is_number",
    "number_array",
    "sample_type",
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


def check_supported(schema: pa.Schema, where: str) -> None:
    """Refuse what samples cannot hold, before anything is read.

    Args:
        schema: Columns of a sample.
        where: Table and version, for the error.

    Raises:
        UnsupportedTypeError: Names every column that is not supported, and its type.
    """
    bad = [f"{field.name!r} ({_type_name(field)})" for field in schema if not sample_type(field)]
    if bad:
        msg = (
            f"{where}: columns of a type that is not supported yet: {', '.join(bad)}. "
            "Choose the other columns with columns=[...], or cast these with "
            "columns={name: SQL expression}"
        )
        raise UnsupportedTypeError(msg)


def sample_type(field: pa.Field) -> str | None:
    """Name of the Python type that the field becomes in a sample; None if not supported."""
    kind = field.type
    if _is_blob(field) or isinstance(kind, pa.BaseExtensionType):
        return None
    if _is_list(kind):
        leaf = _list_leaf(kind)
        return None if leaf is None else "numpy.ndarray"
    if pat.is_timestamp(kind) and kind.tz is not None and _zone(kind) is None:
        return None
    for matches, name in _SAMPLE_TYPES:
        if matches(kind):
            return name
    return None


def _zone(kind: pa.TimestampType) -> dt.tzinfo | None:
    """The zone of a type; None if this machine does not know it."""
    try:
        return pa.scalar(0, pa.timestamp("us", kind.tz)).as_py().tzinfo
    except (ValueError, KeyError, OSError, pa.ArrowException):
        return None


_SAMPLE_TYPES: Sequence[tuple[Callable[[pa.DataType], bool], str]] = (
    (pat.is_boolean, "bool"),
    (pat.is_integer, "int"),
    (pat.is_floating, "float"),
    (lambda t: pat.is_string(t) or pat.is_large_string(t) or pat.is_string_view(t), "str"),
    (lambda t: pat.is_binary(t) or pat.is_large_binary(t) or pat.is_binary_view(t), "bytes"),
    (pat.is_fixed_size_binary, "bytes"),
    (pat.is_date, "datetime.date"),
    (pat.is_time, "datetime.time"),
    (pat.is_timestamp, "datetime.datetime"),
    (pat.is_duration, "datetime.timedelta"),
    (lambda t: pat.is_decimal128(t) or pat.is_decimal256(t), "decimal.Decimal"),
    (pat.is_null, "None"),
)


def column_decoders(batch: pa.RecordBatch, *, zero_copy: bool) -> list[tuple[str, Decoder]]:
    """Make the decoders of one record batch.

    Args:
        batch: Rows whose buffers stay valid as long as a decoder, or a view it gave, lives.
        zero_copy: Arrays are read-only views of the batch, instead of owned and writable.

    Returns:
        ``(column name, row -> value)`` in column order.
    """
    return [
        (field.name, _nullable(column, _decoder(column, zero_copy=zero_copy)))
        for field, column in zip(batch.schema, batch.columns, strict=True)
    ]


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
    return _offsets(column), memoryview(column.buffers()[2] or b"")


def _type_name(field: pa.Field) -> str:
    return "blob" if _is_blob(field) else str(field.type)


def _is_blob(field: pa.Field) -> bool:
    metadata = field.metadata or {}
    return metadata.get(b"lance-encoding:blob") == b"true"


def _is_list(kind: pa.DataType) -> bool:
    return pat.is_list(kind) or pat.is_large_list(kind) or pat.is_fixed_size_list(kind)


def _list_leaf(kind: pa.DataType) -> pa.DataType | None:
    """Number or bool that a list ends in, if it is a regular array: [fixed lists of] leaf."""
    kind = kind.value_type
    while pat.is_fixed_size_list(kind) and not isinstance(kind, pa.BaseExtensionType):
        kind = kind.value_type
    if isinstance(kind, pa.BaseExtensionType):
        return None
    return kind if kind in _DTYPES or pat.is_boolean(kind) else None


def _nullable(column: pa.Array, decode: Decoder) -> Decoder:
    if pat.is_null(column.type):
        return lambda _row: None
    if not column.null_count:
        return decode
    bits, offset = memoryview(column.buffers()[0]), column.offset

    def get(row: int) -> Any:
        at = row + offset
        return decode(row) if bits[at >> 3] >> (at & 7) & 1 else None

    return get


def _decoder(column: pa.Array, *, zero_copy: bool) -> Decoder:
    kind = column.type
    if kind in _NUMBER_CODES:
        return _numbers(column, _NUMBER_CODES[kind]).__getitem__
    if _is_list(kind):
        return _arrays(column, zero_copy=zero_copy)
    for matches, make in _DECODERS:
        if matches(kind):
            return make(column)
    # Decimals and views: pyarrow's own conversion is exact.
    return lambda row: column[row].as_py()


def _numbers(column: pa.Array, code: Any) -> memoryview:
    buffer = column.buffers()[1]
    if buffer is None:
        return memoryview(b"").cast(code)
    return memoryview(buffer).cast("B").cast(code)[column.offset : column.offset + len(column)]


def number_array(column: pa.Array) -> np.ndarray[Any, Any]:
    """A number column, without its nulls, as a read-only view."""
    flat = np.frombuffer(column.buffers()[1] or b"", _DTYPES[column.type])
    return flat[column.offset : column.offset + len(column)]


def _halves(column: pa.Array) -> Decoder:
    values = number_array(column)
    return lambda row: float(values[row])


def _booleans(column: pa.Array) -> Decoder:
    bits, offset = memoryview(column.buffers()[1] or b""), column.offset

    def get(row: int) -> bool:
        at = row + offset
        return bool(bits[at >> 3] >> (at & 7) & 1)

    return get


def _offsets(column: pa.Array) -> memoryview:
    wide = pat.is_large_string(column.type) or pat.is_large_binary(column.type)
    wide = wide or pat.is_large_list(column.type)
    buffer = column.buffers()[1]
    if buffer is None or not len(buffer):
        return memoryview(bytes(8)).cast("q")
    return memoryview(buffer).cast("B").cast("q" if wide else "i")[column.offset :]


def _strings(column: pa.Array) -> Decoder:
    offsets, data = _offsets(column), memoryview(column.buffers()[2] or b"")
    return lambda row: str(data[offsets[row] : offsets[row + 1]], "utf-8")


def _bytes(column: pa.Array) -> Decoder:
    offsets, data = _offsets(column), memoryview(column.buffers()[2] or b"")
    return lambda row: data[offsets[row] : offsets[row + 1]].tobytes()


def _fixed_bytes(column: pa.Array) -> Decoder:
    width = column.type.byte_width
    data, start = memoryview(column.buffers()[1] or b""), column.offset * width
    return lambda row: data[start + row * width : start + (row + 1) * width].tobytes()


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
    zone = None if column.type.tz is None else _zone(column.type)

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
    (pat.is_fixed_size_binary, _fixed_bytes),
    (pat.is_date, _dates),
    (pat.is_time, _times),
    (pat.is_timestamp, _timestamps),
    (pat.is_duration, _durations),
)


def _arrays(column: pa.Array, *, zero_copy: bool) -> Decoder:
    """Decode lists of numbers or bools as arrays; fixed-size inner lists are inner axes."""
    kind = column.type
    if pat.is_fixed_size_list(kind):
        size, start = kind.list_size, column.offset

        def bounds(row: int) -> tuple[int, int]:
            return (start + row) * size, (start + row + 1) * size

    else:
        offsets = _offsets(column)

        def bounds(row: int) -> tuple[int, int]:
            return offsets[row], offsets[row + 1]

    # The child as stored: offsets of the parent count from its start. A child of fixed lists may
    # itself begin inside its own child: ``skipped`` leaf values come before its first.
    values, inner, masked, skipped = column.values, [], False, 0
    while pat.is_fixed_size_list(values.type):
        masked = masked or values.null_count > 0
        size_inner = values.type.list_size
        inner.append(size_inner)
        skipped = (skipped + values.offset) * size_inner
        values = values.values
    flat = _flat_values(values)
    width = int(np.prod(inner, dtype=np.int64))
    shape = (-1, *inner)
    child = column.values

    def get(row: int) -> Any:
        begin, end = bounds(row)
        array = flat(skipped + begin * width, skipped + end * width)
        if inner:
            array = array.reshape((end - begin, *shape[1:]))
        if not zero_copy:
            return array.copy()
        # Bools are unpacked, and so are owned after all; they look like the others.
        array.flags.writeable = False
        return array

    if not masked and not values.null_count:
        return get

    def get_exact(row: int) -> Any:
        begin, end = bounds(row)
        if _has_null(child.slice(begin, end - begin)):
            return column[row].as_py()
        return get(row)

    return get_exact


def _has_null(array: pa.Array) -> bool:
    while True:
        if array.null_count:
            return True
        if not pat.is_fixed_size_list(array.type):
            return False
        array = array.flatten()


def _flat_values(values: pa.Array) -> Callable[[int, int], np.ndarray]:
    """Slices of a leaf as one-dimensional arrays."""
    buffer, offset = values.buffers()[1], values.offset
    if pat.is_boolean(values.type):
        packed = np.frombuffer(buffer or b"", np.uint8)

        def bits(begin: int, end: int) -> np.ndarray:
            begin, end = begin + offset, end + offset
            unpacked = np.unpackbits(packed[begin >> 3 : (end + 7) >> 3], bitorder="little")
            first = begin & 7
            return unpacked[first : first + end - begin].astype(bool)

        return bits
    flat = number_array(values)
    return lambda begin, end: flat[begin:end]
