"""Rows to the bytes of an MDS shard, version 2, and back, as mosaicml-streaming 0.13 has it. Pure.

    uint32 n                 samples
    uint32 offsets[n + 1]    of each sample in the file, and of the end; so no file exceeds 4 GiB
    JSON                     the writer's configuration; the stock reader skips it
    samples                  uint32 size of each value of variable size, then the values

Columns are in the order of their names. Nothing can stand for null.

Written column by column: each is a few binary Arrow arrays that share the memory of the column,
and Arrow joins these row by row.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray
from pyarrow import types as pat

from lance_stream.errors import PlanError
from lance_stream.shards.mds_columns import (
    MAX_DIMENSION_BYTES,
    MdsColumn,
    mds_columns,
    mds_encodings,
    mds_overhead_bytes,
    mds_unsupported,
)
from lance_stream.shards.mds_samples import mds_samples

__all__ = [
    "MAX_MDS_BYTES",
    "encode_mds",
    "mds_encodings",
    "mds_overhead_bytes",
    "mds_samples",
    "mds_unsupported",
    "write_mds",
]

# Offsets are uint32.
MAX_MDS_BYTES = 2**32 - 1
# What is encoded at a time.
_CHUNK_BYTES = 8 << 20
_CHUNK_ROWS = 1 << 16


def write_mds(
    path: str | os.PathLike[str], table: pa.Table, *, config: Mapping[str, Any] | None = None
) -> int:
    """Write a complete MDS shard file.

    Takes little more memory than the table.

    Args:
        path: File to write.
        table: The rows, without nulls.
        config: As for ``encode_mds``.

    Returns:
        Bytes of the file.

    Raises:
        UnsupportedTypeError: MDS cannot hold a column; nothing is written.
        PlanError: There is a null, or the file would exceed 4 GiB; nothing is written.
        OSError: The file cannot be written. What was written is left for the caller to remove.
    """
    num_bytes, pieces = encode_mds(table, config=config)
    with open(path, "wb") as file:
        file.writelines(pieces)
    return num_bytes


def encode_mds(
    table: pa.Table, *, config: Mapping[str, Any] | None = None
) -> tuple[int, Iterator[bytes | memoryview]]:
    """Encode rows as an MDS shard file.

    Args:
        table: The rows, without nulls.
        config: JSON values of the configuration, beside or in place of those that ``MDSWriter``
            has there for no compression, no hashes and no size limit. It begins at byte
            ``4 * (rows + 2)`` of the file and ends at the first offset, the uint32 at byte 4.

    Returns:
        Bytes of the file, and its content piece by piece.

    Raises:
        UnsupportedTypeError: MDS cannot hold a column.
        PlanError: There is a null, or the file would exceed 4 GiB.
    """
    columns = mds_columns(table.schema)
    _require_no_null(table)
    plain = [_plain(table[column.name], column) for column in columns]
    heads, sample_bytes = _measure(plain, columns, table.num_rows)
    written = {
        "version": 2,
        "format": "mds",
        "compression": None,
        "hashes": [],
        "size_limit": None,
        **(config or {}),
        "column_names": [column.name for column in columns],
        "column_encodings": [column.encoding for column in columns],
        "column_sizes": [column.size for column in columns],
    }
    text = json.dumps(written, sort_keys=True).encode()
    ends = np.concatenate(([0], sample_bytes)).cumsum()
    start = 4 * (table.num_rows + 2) + len(text)
    num_bytes = start + int(ends[-1])
    if num_bytes > MAX_MDS_BYTES:
        msg = (
            f"{table.num_rows} rows would make an MDS file of {num_bytes} bytes, and such a file "
            f"has at most {MAX_MDS_BYTES}: choose smaller shards with shard_rows or shard_bytes; "
            "where rows differ in size, cut them by exact bytes: build_index(..., exact=True) or "
            "lance-stream index --exact, and index="
        )
        raise PlanError(msg)

    def pieces() -> Iterator[bytes | memoryview]:
        yield np.uint32(table.num_rows).tobytes()
        yield (ends + start).astype("<u4").tobytes()
        yield text
        for first, stop in _chunks(ends):
            yield _samples(plain, columns, heads[first:stop], first)

    return num_bytes, pieces()


def _samples(
    plain: list[pa.ChunkedArray], columns: list[MdsColumn], heads: NDArray[np.uint32], first: int
) -> memoryview:
    """The samples of consecutive rows, from a row on; as many as there are heads."""
    num_rows, width = len(heads), heads.shape[1] * 4
    parts = [_fixed(num_rows, heads, width)]
    for column, values in zip(columns, plain, strict=True):
        parts += _parts(_one(values.slice(first, num_rows)), column)
    separator = pa.scalar(b"", pa.large_binary())
    joined = pc.call_function("binary_join_element_wise", [*parts, separator])
    return memoryview(joined.buffers()[2])[: _offsets(joined)[-1]]


def _chunks(ends: NDArray[np.int64]) -> Iterator[tuple[int, int]]:
    """Rows to encode at a time, half-open: as many as keep to the limits, at least one."""
    first, num_rows = 0, len(ends) - 1
    while first < num_rows:
        fit = int(np.searchsorted(ends, ends[first] + _CHUNK_BYTES, side="right")) - 1
        stop = min(max(fit, first + 1), first + _CHUNK_ROWS, num_rows)
        yield first, stop
        first = stop


def _plain(values: pa.ChunkedArray, column: MdsColumn) -> pa.ChunkedArray:
    """A column in the type that its bytes are taken from."""
    if column.kind in ("bool", "decimal"):
        # The words are those of JSON and of Python's Decimal.
        return values.cast(pa.large_string())
    if isinstance(values.type, pa.BaseExtensionType):
        stored = [chunk.storage for chunk in values.chunks]
        return pa.chunked_array(stored, values.type.storage_type)
    return values


def _one(values: pa.ChunkedArray) -> pa.Array:
    return values.chunk(0) if values.num_chunks == 1 else values.combine_chunks()


def _measure(
    plain: list[pa.ChunkedArray], columns: list[MdsColumn], num_rows: int
) -> tuple[NDArray[np.uint32], NDArray[np.int64]]:
    """The sizes that stand in front of each sample, and the bytes of each sample."""
    variable = [pair for pair in zip(plain, columns, strict=True) if pair[1].size is None]
    heads = np.empty((num_rows, len(variable)), "<u4")
    sample_bytes = np.full(num_rows, 4 * len(variable), np.int64)
    sample_bytes += sum(column.size or 0 for column in columns)
    for number, (values, column) in enumerate(variable):
        first = 0
        for chunk in values.chunks:
            found = _value_bytes(chunk, column)
            sample_bytes[first : first + len(chunk)] += found
            # Larger ones wrap around, and then the file is too large anyway.
            heads[first : first + len(chunk), number] = found.astype(np.uint32)
            first += len(chunk)
    return heads, sample_bytes


def _value_bytes(array: pa.Array, column: MdsColumn) -> NDArray[np.int64]:
    """Bytes of each value of a variable column."""
    if pat.is_fixed_size_binary(array.type):
        return np.full(len(array), array.type.byte_width, np.int64)
    lengths = np.diff(_offsets(array))
    if column.kind != "ragged":
        return lengths
    dimensions = 1 + len(column.shape)
    return 1 + dimensions * _dimension_bytes(lengths, column) + lengths * _item_bytes(column)


def _item_bytes(column: MdsColumn) -> int:
    """Bytes of one item along the first axis of a ragged array."""
    return int(np.prod(column.shape, dtype=np.int64)) * np.dtype(column.dtype).itemsize


def _dimension_bytes(lengths: NDArray[np.int64], column: MdsColumn) -> NDArray[np.int64]:
    """Bytes of each dimension in the shape of each array: 1, 2, 4 or 8."""
    largest = np.maximum(lengths, max(column.shape, default=0))
    found = np.ones(len(lengths), np.int64)
    for width in (1, 2, 4):
        found[largest >= 1 << (8 * width)] = 2 * width
    return found


def _parts(array: pa.Array, column: MdsColumn) -> list[pa.Array]:
    """The bytes of each value, as binary arrays that are joined row by row."""
    if column.kind == "number":
        return [_fixed(len(array), _values(array), column.size or 0)]
    if pat.is_fixed_size_binary(array.type):
        return [_fixed(len(array), _values(array), array.type.byte_width)]
    if column.kind == "array":
        values = _values(_leaf(array))
        if column.axes is not None:
            stored = tuple(column.shape[axis] for axis in np.argsort(column.axes))
            typed = values.view(column.dtype).reshape(len(array), *stored)
            values = np.ascontiguousarray(typed.transpose(0, *(1 + a for a in column.axes)))
        return [_fixed(len(array), values, column.size or 0)]
    offsets = _offsets(array)
    if column.kind != "ragged":
        return [_variable(offsets, array.buffers()[2])]
    leaf = array.values.slice(offsets[0], offsets[-1] - offsets[0])
    bounds = (offsets - offsets[0]) * _item_bytes(column)
    return [_shapes(np.diff(offsets), column), _variable(bounds, _values(_leaf(leaf)))]


def _shapes(lengths: NDArray[np.int64], column: MdsColumn) -> pa.Array:
    """What stands in front of the values of each ragged array.

    One byte (dimensions * 4 + log2 of the bytes of each), then the shape.
    """
    shape = np.empty((len(lengths), 1 + len(column.shape)), np.int64)
    shape[:, 0], shape[:, 1:] = lengths, column.shape
    widths = _dimension_bytes(lengths, column)
    offsets = np.concatenate(([0], 1 + shape.shape[1] * widths)).cumsum()
    content = np.empty(offsets[-1], np.uint8)
    for exponent in range(MAX_DIMENSION_BYTES.bit_length()):
        width = 1 << exponent
        rows = np.flatnonzero(widths == width)
        at = offsets[rows]
        content[at] = shape.shape[1] << 2 | exponent
        text = shape[rows].astype(f"<u{width}").view(np.uint8)
        content[at[:, None] + 1 + np.arange(text.shape[1])] = text
    return _variable(offsets, content)


def _leaf(array: pa.Array) -> pa.Array:
    """What nested fixed-size lists hold."""
    while pat.is_fixed_size_list(array.type):
        array = _items(array)
    return array


def _items(array: pa.Array) -> pa.Array:
    """What the rows of a fixed-size list hold, also those that are null."""
    size = array.type.list_size
    return array.values.slice(array.offset * size, len(array) * size)


def _values(array: pa.Array) -> NDArray[np.uint8]:
    """The bytes of values of one size."""
    width = array.type.bit_width // 8
    content = np.frombuffer(array.buffers()[1] or b"", np.uint8)
    return content[array.offset * width : (array.offset + len(array)) * width]


def _offsets(array: pa.Array) -> NDArray[np.int64]:
    """Where each value of variable size begins in what the array holds, and the last one ends."""
    wide = any(
        matches(array.type)
        for matches in (pat.is_large_string, pat.is_large_binary, pat.is_large_list)
    )
    found = np.frombuffer(array.buffers()[1] or bytes(8), np.int64 if wide else np.int32)
    return found[array.offset : array.offset + len(array) + 1].astype(np.int64)


def _fixed(num_rows: int, content: NDArray[Any], width: int) -> pa.Array:
    """A binary array of values of one size."""
    return _variable(np.arange(num_rows + 1, dtype=np.int64) * width, content)


def _variable(offsets: NDArray[np.int64], content: Any) -> pa.Array:
    """A binary array of the values between the offsets; shares their memory."""
    data = b"" if content is None else content
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(data)]
    return pa.Array.from_buffers(pa.large_binary(), len(offsets) - 1, buffers)


def _require_no_null(table: pa.Table) -> None:
    """Refuse what MDS has no value for: PlanError with the column and its first such row."""
    for field, column in zip(table.schema, table.columns, strict=True):
        first = 0
        for chunk in column.chunks:
            at = _first_null(chunk)
            if at is not None:
                where = "a null" if chunk.slice(at, 1).null_count else "a list with a null in it"
                msg = (
                    f"column {field.name!r} ({field.type}) holds {where} at row {first + at} of "
                    f"the shard's {table.num_rows}, and MDS has no null: replace it, as with "
                    f'columns={{{field.name!r}: "coalesce({field.name}, ...)"}}, or leave the '
                    "column out"
                )
                raise PlanError(msg)
            first += len(chunk)


def _first_null(array: pa.Array) -> int | None:
    """The first row that is null or has a null in it."""
    if isinstance(array, pa.ExtensionArray):
        array = array.storage
    rows = []
    if array.null_count:
        rows.append(pc.index(array.is_null(), True).as_py())
    if pat.is_fixed_size_list(array.type):
        found = _first_null(_items(array))
        rows += [] if found is None else [found // array.type.list_size]
    elif pat.is_list(array.type) or pat.is_large_list(array.type):
        offsets = _offsets(array)
        found = _first_null(array.values.slice(offsets[0], offsets[-1] - offsets[0]))
        if found is not None:
            rows.append(int(np.searchsorted(offsets, found + offsets[0], side="right")) - 1)
    return min(rows, default=None)
