"""Batches of samples, whatever their types: tensors where torch can hold the values, else lists.

torch's default_collate refuses None, times, decimals and ragged arrays, rounds where it meets ints
among floats or arrays of two dtypes, and transposes lists and dicts. Here the rules are:

- no value is altered: what no tensor holds exactly stays what it is, in a list;
- a column of a batch has one entry per sample, first axis first, whatever its type. The host's
  ``StreamingDataLoader`` takes the batch size, and so the point to resume at, from the length of
  the first column.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence, Sized
from typing import Any

import numpy as np
import torch
from torch.utils.data import get_worker_info

from lance_stream.errors import PlanError

__all__ = ["collate"]

# By kind and size: dtypes of either byte order and of either name of a C type are the same here.
_TORCH_DTYPES = {
    ("b", 1): torch.bool,
    ("i", 1): torch.int8,
    ("i", 2): torch.int16,
    ("i", 4): torch.int32,
    ("i", 8): torch.int64,
    ("u", 1): torch.uint8,
    ("u", 2): torch.uint16,
    ("u", 4): torch.uint32,
    ("u", 8): torch.uint64,
    ("f", 2): torch.float16,
    ("f", 4): torch.float32,
    ("f", 8): torch.float64,
    ("c", 8): torch.complex64,
    ("c", 16): torch.complex128,
}
# Exact types: an enum is an int, but an int is not that enum; a masked array has a mask.
_ARRAYS = {np.ndarray, np.memmap}
_BOOLS = {bool, np.bool_}
_INTS = {int} | {np.dtype(code).type for code in "bBhHiIlLqQ"}
_FLOATS = {float, np.float16, np.float32, np.float64}


def collate(samples: Sequence[Any]) -> Any:
    """The batch of samples: the ``collate_fn`` of a ``DataLoader`` or ``StreamingDataLoader``.

    A batch of dicts is a dict of columns in the order of the first sample. Tuples and lists have a
    column per position: a batch of them is a list of columns, and of named tuples such a tuple.
    Samples of any other type are one column, which ``StreamingDataLoader`` counts rightly only
    where it is a tensor.

    What a column of a batch is depends on its values only, never on the schema, so it can change
    from batch to batch:

    ======================================  ======================================================
    all values of the column are            column of the batch
    ======================================  ======================================================
    ``bool``                                bool tensor
    ``int``                                 int64 tensor; uint64 if not all fit int64 but all
                                            uint64; else list
    ``float``                               float64 tensor
    numpy scalars of one dtype              tensor of that dtype, if torch has it
    of these, mixed within bools, within    as ``bool``, ``int``, ``float``
    ints or within floats
    numpy arrays of one shape and dtype     stacked: tensor of that dtype, if torch has it
    torch tensors of one shape and dtype    stacked: tensor
    anything else: ``str``, ``bytes``,      list of the values as they are, except that numpy
    times, decimals, uuids, lists, dicts    arrays are tensors, if torch has their dtype
    (structs and maps), ``None`` anywhere,
    mixed types, ragged arrays
    ======================================  ======================================================

    Structs are not collated field by field, since a sample shows no difference between a struct
    and a map: a map column would change its form with its keys. Where the dicts of a column all
    have the same keys, ``collate(batch[name])`` gives the columns of the fields.

    Tensors are copies, in native byte order; those in one list are views of one buffer. In a
    worker process they are made in shared memory: a batch reaches the trainer without another
    copy, and a column of arrays takes one file descriptor, however ragged. Arrays inside of lists
    and dicts stay as they are; so do subclasses of arrays and tensors, sparse and nested tensors,
    and in a list those that require gradients or are not on the CPU.

    Args:
        samples: At least one.

    Raises:
        PlanError: ``samples`` is empty or is one sample; or they are not alike: some are dicts and
            some are not, or they have different columns, as from streams with different columns.
    """
    if isinstance(samples, Mapping):
        raise PlanError(
            "collate takes a list of samples, got one sample or a whole batch, a dict; leave out"
            " collate_fn where the DataLoader has batch_size=None"
        )
    if not isinstance(samples, Iterable) or not isinstance(samples, Sized):
        raise PlanError(f"collate takes a list of samples, got a {type(samples).__name__}")
    if not len(samples):
        raise PlanError("collate takes a list of samples, got none")
    first, kind = samples[0], _kind(samples[0])
    for number, sample in enumerate(samples):
        if _kind(sample) is not kind:
            raise PlanError(
                f"sample {number} of a batch is a {type(sample).__name__}, sample 0 is a"
                f" {type(first).__name__}; the samples of a batch must be alike"
            )
    if kind is Mapping:
        _check_columns([sample.keys() for sample in samples])
        return {name: _column([sample[name] for sample in samples]) for name in first}
    if kind is None:
        return _column(list(samples))
    _check_columns([range(len(sample)) for sample in samples])
    columns = [_column(list(column)) for column in zip(*samples, strict=True)]
    return kind(*columns) if hasattr(kind, "_fields") else columns


def _kind(sample: Any) -> Any:
    """What gives a sample columns: ``Mapping``, its type of tuple or list; None if nothing."""
    if type(sample) is dict or isinstance(sample, Mapping):
        return Mapping
    return type(sample) if isinstance(sample, tuple | list) else None


def _check_columns(columns: list[Any]) -> None:
    for number, found in enumerate(columns):
        if found != columns[0]:
            raise PlanError(
                f"sample {number} of a batch has the columns {list(found)}, sample 0 has"
                f" {list(columns[0])}; give all streams of a dataset the same columns"
            )


def _column(values: list[Any]) -> Any:
    """One entry per value, as the table of ``collate`` says."""
    kinds = set(map(type, values))
    if kinds <= _ARRAYS:
        stacked = _stack_arrays(values)
    elif kinds == {torch.Tensor}:
        stacked = _stack_tensors(values)
    else:
        stacked = _numbers(values, kinds)
    return _entries(values) if stacked is None else stacked


def _numbers(values: list[Any], kinds: set[type]) -> torch.Tensor | None:
    """A tensor without further dimensions, or None if there is no exact one."""
    dtype: Any
    if len(kinds) == 1 and isinstance(values[0], np.generic):
        dtype = values[0].dtype
        if (dtype.kind, dtype.itemsize) not in _TORCH_DTYPES:
            return None
    elif kinds <= _BOOLS:
        dtype = np.bool_
    elif kinds <= _FLOATS:
        dtype = np.float64
    elif kinds <= _INTS:
        low, high = min(values), max(values)
        if low >= -(2**63) and high < 2**63:
            dtype = np.int64
        elif low >= 0 and high < 2**64:
            dtype = np.uint64
        else:
            return None
    else:
        return None
    return torch.from_numpy(np.array(values, dtype))


def _stack_arrays(arrays: list[np.ndarray[Any, Any]]) -> torch.Tensor | None:
    """Arrays of one shape and dtype as one tensor; None if they are not that."""
    first, dtype = arrays[0], _buffer_dtype(arrays[0])
    if dtype is None:
        return None
    if any(array.shape != first.shape or _buffer_dtype(array) != dtype for array in arrays):
        return None
    out = _empty((len(arrays), *first.shape), dtype)
    # By numpy: torch warns of arrays that are read-only, and refuses a foreign byte order.
    np.stack(arrays, out=out.numpy())
    return out


def _stack_tensors(tensors: list[torch.Tensor]) -> torch.Tensor | None:
    """Dense tensors of one shape, dtype and device as one; None if they are not that."""
    if not all(map(_is_dense, tensors)):
        return None
    first = tensors[0]
    form = (first.shape, first.dtype, first.device)
    if any((tensor.shape, tensor.dtype, tensor.device) != form for tensor in tensors):
        return None
    if any(_buffer_dtype(tensor) is None for tensor in tensors):
        return torch.stack(tensors)
    out = _empty((len(tensors), *first.shape), first.dtype)
    return torch.stack(tensors, out=out)


def _is_dense(tensor: torch.Tensor) -> bool:
    # A nested tensor is strided as well, but has no shape.
    return tensor.layout is torch.strided and not tensor.is_nested


def _buffer_dtype(value: Any) -> torch.dtype | None:
    """The dtype of a buffer that an array or tensor can be copied into; None for all else."""
    if type(value) in _ARRAYS:
        return _TORCH_DTYPES.get((value.dtype.kind, value.dtype.itemsize))
    if type(value) is torch.Tensor and _is_dense(value) and not value.requires_grad:
        return value.dtype if value.device.type == "cpu" else None
    return None


def _entries(values: list[Any]) -> list[Any]:
    """The values, the arrays among them as tensors."""
    entries = list(values)
    places = defaultdict[tuple[bool, torch.dtype], list[int]](list)
    for place, value in enumerate(values):
        dtype = _buffer_dtype(value)
        if dtype is not None:
            places[type(value) is torch.Tensor, dtype].append(place)
    for (are_tensors, dtype), group in places.items():
        # One buffer for all: a tensor on its own takes a file descriptor to leave a worker, and
        # with some hundred in a batch the trainer would run out of them.
        flat = [values[place].reshape(-1) for place in group]
        lengths = [len(part) for part in flat]
        buffer = _empty((sum(lengths),), dtype)
        if are_tensors:
            torch.cat(flat, out=buffer)
        else:
            np.concatenate(flat, out=buffer.numpy())
        for place, part in zip(group, buffer.split(lengths), strict=True):
            entries[place] = part.view(values[place].shape)
    return entries


def _empty(shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    """A tensor to fill; in a worker in shared memory, where it would be copied to at the end."""
    tensor = torch.empty(shape, dtype=dtype)
    return tensor if get_worker_info() is None else tensor.share_memory_()
