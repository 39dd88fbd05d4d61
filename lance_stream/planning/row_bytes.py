"""Bytes that each row takes, exactly, and shards cut by them. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pyarrow import types as pat

__all__ = ["ExactCut", "row_bytes"]


def row_bytes(columns: Iterable[pa.Array]) -> NDArray[np.float64]:
    """Bytes of Arrow data that each row takes: values, offsets and validity.

    Returns:
        float64 array (rows,); eighths of a byte count, for bits.
    """
    return np.sum([_value_bytes(column) for column in columns], axis=0, dtype=np.float64)


def _value_bytes(array: pa.Array) -> NDArray[Any]:
    kind = array.type
    if isinstance(array, pa.ExtensionArray):
        return _value_bytes(array.storage)
    if pat.is_null(kind) or not len(array):
        return np.zeros(len(array))
    size: NDArray[Any] = np.full(len(array), 0.125 if array.null_count else 0.0)
    if pat.is_struct(kind):
        return size + sum(_value_bytes(array.field(i)) for i in range(kind.num_fields))
    if pat.is_fixed_size_list(kind):
        inner = _value_bytes(array.values.slice(array.offset * kind.list_size))
        return size + inner[: len(array) * kind.list_size].reshape(len(array), -1).sum(axis=1)
    if pat.is_list(kind) or pat.is_large_list(kind) or pat.is_map(kind):
        wide = pat.is_large_list(kind)
        stops = _offsets(array, wide=wide)
        child = array.values if not pat.is_map(kind) else _entries(array)
        total = np.concatenate([[0.0], np.cumsum(_value_bytes(child))])
        return size + (8 if wide else 4) + (total[stops[1:]] - total[stops[:-1]])
    if pat.is_string(kind) or pat.is_binary(kind):
        return size + 4 + np.diff(_offsets(array, wide=False))
    if pat.is_large_string(kind) or pat.is_large_binary(kind):
        return size + 8 + np.diff(_offsets(array, wide=True))
    return size + kind.bit_width / 8


def _entries(array: pa.Array) -> pa.Array:
    return pa.StructArray.from_arrays([array.keys, array.items], names=["key", "value"])


def _offsets(array: pa.Array, *, wide: bool) -> NDArray[np.int64]:
    flat = np.frombuffer(array.buffers()[1], np.int64 if wide else np.int32)
    return flat[array.offset : array.offset + len(array) + 1].astype(np.int64)


class ExactCut:
    """Cut rows, given in order, into shards that take at most so many bytes, or are one row."""

    def __init__(self, shard_bytes: int) -> None:
        """Start with no row.

        Args:
            shard_bytes: Bytes of a shard to stay below.
        """
        self._limit = float(shard_bytes)
        self._stops: list[int] = []
        self._rows = 0
        self._open_bytes = 0.0
        self._bytes: list[float] = []

    def add(self, sizes: NDArray[np.float64]) -> None:
        """Take the bytes of the next rows."""
        begin, total = 0, np.concatenate([[0.0], np.cumsum(sizes)])
        while begin < len(sizes):
            is_open = self._rows + begin > (self._stops[-1] if self._stops else 0)
            limit = total[begin] + self._limit - self._open_bytes
            stop = max(begin, int(np.searchsorted(total, limit, side="right")) - 1)
            if stop == begin and not is_open:
                stop = begin + 1  # a row that is too large is a shard of its own
            elif stop == len(sizes):
                self._open_bytes += float(total[-1] - total[begin])
                break
            self._stops.append(self._rows + stop)
            self._bytes.append(self._open_bytes + float(total[stop] - total[begin]))
            self._open_bytes = 0.0
            begin = stop
        self._rows += len(sizes)

    def stops(self) -> NDArray[np.int64]:
        """Cumulative rows of the shards, once all rows were given; at least one was."""
        closed = self._stops[-1] if self._stops else 0
        ends = self._stops if closed == self._rows else [*self._stops, self._rows]
        return np.array(ends, np.int64)

    def shard_bytes(self) -> NDArray[np.int64]:
        """Bytes of the rows of each shard, once all rows were given."""
        closed = self._stops[-1] if self._stops else 0
        found = self._bytes if closed == self._rows else [*self._bytes, self._open_bytes]
        return np.ceil(np.array(found)).astype(np.int64)

    @property
    def num_rows(self) -> int:
        """Rows given."""
        return self._rows
