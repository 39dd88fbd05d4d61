"""Lists of numbers or bools, and tensors, to numpy arrays.

Arrays are owned and writable, or read-only views of the shard (``zero_copy``). A row whose list
has null elements is a Python list, since no array of that dtype can hold it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
from pyarrow import types as pat

from lance_stream.planning.types import is_bfloat16
from lance_stream.shards.values import Decoder, number_array, value_offsets

__all__ = ["array_decoder", "regular_array", "tensor_decoder"]


def tensor_decoder(column: pa.Array, *, zero_copy: bool) -> Decoder:
    """Decode tensors of one shape, nulls left aside.

    The type's ``permutation`` is applied: axis ``i`` of the array is axis ``permutation[i]`` of
    what is stored. (``FixedShapeTensorScalar.to_numpy`` of pyarrow 26 gives other values where
    the first axis is moved.)
    """
    kind: pa.FixedShapeTensorType = column.type
    shape, axes = tuple(kind.shape), kind.permutation
    flat = array_decoder(column.storage, zero_copy=True)

    def get(row: int) -> Any:
        array = flat(row)
        if isinstance(array, list):
            array = np.array(array, object)
            masked = array.reshape(shape)
            return (masked if axes is None else masked.transpose(axes)).tolist()
        array = array.reshape(shape)
        if axes is not None:
            array = array.transpose(axes)
        return array if zero_copy else np.array(array, order="C")

    return get


def regular_array(
    field: pa.Field, column: pa.Array
) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any] | None] | None:
    """A whole column as one array: numbers, bools, and lists and tensors of one shape of them.

    Returns:
        ``(values, valid)``: the rows on the first axis, a read-only view of the batch (bools are
        unpacked), and a bool array of the rows that are not null, None if all are; or None if the
        column is no such thing, or holds nulls inside its values.
    """
    if is_bfloat16(field):
        return None
    kind, shape, axes = column.type, [], None
    leaf, start = column, 0
    if isinstance(kind, pa.FixedShapeTensorType):
        shape, axes = list(kind.shape), kind.permutation
        leaf = column.storage
        start, leaf = leaf.offset * leaf.type.list_size, leaf.values
    else:
        while pat.is_fixed_size_list(leaf.type):
            if shape and leaf.null_count:
                return None
            shape.append(leaf.type.list_size)
            start = (start + leaf.offset) * leaf.type.list_size
            leaf = leaf.values
    if isinstance(leaf.type, pa.BaseExtensionType) or (shape and leaf.null_count):
        return None
    width = math.prod(shape)
    begin, end = start, start + len(column) * width
    if pat.is_boolean(leaf.type):
        flat = _flat_values(leaf)(begin, end)
        flat.flags.writeable = False
    elif pat.is_integer(leaf.type) or pat.is_floating(leaf.type):
        flat = number_array(leaf)[begin:end]
    else:
        return None
    values = flat.reshape(len(column), *shape) if shape else flat
    if axes is not None:
        values = values.transpose(0, *(1 + axis for axis in axes))
    if not column.null_count:
        return values, None
    # Not by ``is_valid``, which has pyarrow import its functions, and with them pandas.
    return values, _bits(column.buffers()[0], column.offset)(0, len(column))


def array_decoder(column: pa.Array, *, zero_copy: bool) -> Decoder:
    """Decode lists of numbers or bools as arrays; fixed-size inner lists are inner axes."""
    kind = column.type
    if pat.is_fixed_size_list(kind):
        size, start = kind.list_size, column.offset

        def bounds(row: int) -> tuple[int, int]:
            return (start + row) * size, (start + row + 1) * size

    else:
        offsets = value_offsets(column)

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
    if pat.is_boolean(values.type):
        return _bits(values.buffers()[1], values.offset)
    flat = number_array(values)
    return lambda begin, end: flat[begin:end]


def _bits(buffer: pa.Buffer | None, offset: int) -> Callable[[int, int], np.ndarray]:
    """Slices of a bitmap as bool arrays."""
    packed = np.frombuffer(buffer or b"", np.uint8)

    def get(begin: int, end: int) -> np.ndarray:
        begin, end = begin + offset, end + offset
        unpacked = np.unpackbits(packed[begin >> 3 : (end + 7) >> 3], bitorder="little")
        first = begin & 7
        return unpacked[first : first + end - begin].astype(bool)

    return get
