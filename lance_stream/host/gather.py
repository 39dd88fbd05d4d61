"""Whole batches by column, straight from mapped shards.

Samples are gathered for several batches at a time: each record batch of a shard gives all of its
rows of a column in one copy, a second one puts them in order, a batch at a time, so that every
batch owns its memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, MutableMapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import pyarrow as pa
import torch
from numpy.typing import NDArray
from torch.utils.data import default_convert

from lance_stream.host.course import Part
from lance_stream.shards.samples import ColumnValues, column_values

__all__ = ["PackedBatch", "ShardColumns", "gathered", "tensors"]

# The columns of a record batch, and rows of it.
_Piece: TypeAlias = "tuple[list[ColumnValues], NDArray[np.int64]]"
# Types of values that may be, or hold, arrays.
_WITH_ARRAYS = frozenset({np.ndarray, list, tuple, dict})


class ShardColumns:
    """The columns of one mapped shard, as arrays where they are regular.

    A shard of more than some ten MB has several record batches. They stay apart: joined, each
    column would be a copy in private memory for as long as the shard is mapped.

    Attributes:
        names: Of the columns, in order.
        batches: The columns of each record batch, in the same order.
        starts: The first row of each record batch.
    """

    __slots__ = ("batches", "names", "starts")

    def __init__(self, batches: Sequence[pa.RecordBatch]) -> None:
        """Look at the columns; nothing is copied but bools."""
        self.names = list(batches[0].schema.names)
        self.batches: list[list[ColumnValues]] = [column_values(batch) for batch in batches]
        stops = np.cumsum([batch.num_rows for batch in batches], dtype=np.int64)
        self.starts: NDArray[np.int64] = np.concatenate([[0], stops[:-1]])


def gathered(
    part: Part, shards: Mapping[int, ShardColumns], batch_size: int
) -> Iterator[dict[str, Any]]:
    """Batches of samples.

    Args:
        part: The samples of some batches.
        shards: Columns of every shard among them, all alike.
        batch_size: Samples of a batch; the last one may have fewer.

    Yields:
        ``{column: ndarray or list}`` in column order: an array, owned, of the column's dtype
        where every value of the batch is a number, or an array of one shape; else a list of
        values as in samples.
    """
    order = np.argsort(part.shards, kind="stable")
    pieces: list[_Piece] = []
    for shard, start, stop in _runs(part.shards[order]):
        columns = shards[shard]
        if len(columns.batches) == 1:
            pieces.append((columns.batches[0], part.rows[order[start:stop]]))
            continue
        numbers = np.searchsorted(columns.starts, part.rows[order[start:stop]], side="right") - 1
        by_batch = np.argsort(numbers, kind="stable")
        order[start:stop] = order[start:stop][by_batch]
        for number, begin, end in _runs(numbers[by_batch]):
            rows = part.rows[order[start + begin : start + end]] - columns.starts[number]
            pieces.append((columns.batches[number], rows))
    back = np.empty(len(order), np.int64)
    back[order] = np.arange(len(order))
    names = next(iter(shards.values())).names
    takes = [_column(pieces, at) for at in range(len(names))]
    for start in range(0, len(part), batch_size):
        rows = back[start : start + batch_size]
        yield {name: take(rows) for name, take in zip(names, takes, strict=True)}


def _runs(shards: NDArray[np.int64]) -> list[tuple[int, int, int]]:
    """``(value, start, stop)`` of each run of a sorted array."""
    starts = np.concatenate([[0], np.flatnonzero(np.diff(shards)) + 1])
    stops = np.concatenate([starts[1:], [len(shards)]])
    return list(zip(shards[starts].tolist(), starts.tolist(), stops.tolist(), strict=True))


def _column(pieces: list[_Piece], at: int) -> Callable[[NDArray[np.int64]], Any]:
    """Gather one column; gives what takes a batch's rows out of it."""
    arrays = [columns[at].array for columns, _ in pieces]
    if any(array is None for array in arrays):
        return _listed(pieces, at)
    count = sum(len(rows) for _, rows in pieces)
    known = [array for array in arrays if array is not None]
    first = known[0][0]
    values = np.empty((count, *first.shape[1:]), first.dtype)
    valid = None
    if any(mask is not None for _, mask in known):
        valid = np.ones(count, bool)
    begin = 0
    for (source, mask), (_, rows) in zip(known, pieces, strict=True):
        # Rows are inside: "clip" only spares numpy a copy of the output.
        np.take(source, rows, axis=0, out=values[begin : begin + len(rows)], mode="clip")
        if valid is not None and mask is not None:
            valid[begin : begin + len(rows)] = mask[rows]
        begin += len(rows)
    if valid is None:
        return lambda rows: values.take(rows, axis=0)

    def take(rows: NDArray[np.int64]) -> Any:
        taken, is_valid = values.take(rows, axis=0), valid[rows]
        if is_valid.all():
            return taken
        plain = list(taken) if taken.ndim > 1 else taken.tolist()
        return [value if ok else None for value, ok in zip(plain, is_valid.tolist(), strict=True)]

    return take


def _listed(pieces: list[_Piece], at: int) -> Callable[[NDArray[np.int64]], Any]:
    values: list[Any] = []
    for columns, rows in pieces:
        values += map(columns[at].decode, rows.tolist())

    def take(rows: NDArray[np.int64]) -> Any:
        taken = [values[row] for row in rows.tolist()]
        kinds = {
            (type(value), getattr(value, "shape", None), getattr(value, "dtype", None))
            for value in taken
        }
        # An array each, all of one shape: a regular column after all.
        if len(kinds) == 1 and isinstance(taken[0], np.ndarray) and taken[0].ndim:
            return np.stack(taken)
        if len(kinds) == 1 and isinstance(taken[0], torch.Tensor):
            return torch.stack(taken)
        return taken

    return take


def tensors(columns: Mapping[str, Any]) -> dict[str, Any]:
    """Arrays as tensors that share their memory, also those in lists."""
    return {name: _tensor(value) for name, value in columns.items()}


def _tensor(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        # By its canonical dtype: of C's two names for 64 bits, torch refuses one.
        return torch.from_numpy(value.view(value.dtype.str))
    if isinstance(value, list) and not _WITH_ARRAYS.isdisjoint(map(type, value)):
        # As the DataLoader does without workers, and does not with them.
        return default_convert(value)
    return value


if TYPE_CHECKING:
    _Methods: TypeAlias = MutableMapping[str, Any]
else:

    class _Methods:
        """Those of ``MutableMapping`` without being one.

        ``default_convert``, which a DataLoader calls in its workers, opens up every ``Mapping``:
        all of it would become tensors before it is sent.
        """

        __slots__ = ()
        __contains__ = Mapping.__contains__
        keys, values, items = Mapping.keys, Mapping.values, Mapping.items
        get = Mapping.get
        setdefault, update = MutableMapping.setdefault, MutableMapping.update


class PackedBatch(_Methods):
    """A batch on its way out of a DataLoader worker: arrays, until it is unpickled.

    A tensor that leaves a worker takes a shared-memory file and a descriptor, about 100 us; an
    array is a few copied bytes. What the other side unpickles is a dict of tensors. In the worker
    it has the methods of that dict, and its values: each is made when it is first asked for.
    """

    __slots__ = ("_columns", "_made")

    def __init__(self, columns: dict[str, Any]) -> None:
        """Take arrays and lists."""
        self._columns = columns
        # What was given to the user, or by him: he may have changed it.
        self._made: dict[str, Any] = {}

    def __reduce__(self) -> tuple[Any, ...]:
        sent = {
            name: value
            for name, value in self._made.items()
            if value is self._columns[name] or not _is_still(value, self._columns[name])
        }
        if not sent:
            return tensors, (self._columns,)
        return _with_own, ({**self._columns, **dict.fromkeys(sent)}, sent)

    def __getitem__(self, name: str) -> Any:
        if name not in self._made:
            self._made[name] = _tensor(self._columns[name])
        return self._made[name]

    def __setitem__(self, name: str, value: Any) -> None:
        # ``batch[name] += 1`` gives back what it was given.
        if name not in self._made or value is not self._made[name]:
            self._columns[name] = self._made[name] = value

    def __delitem__(self, name: str) -> None:
        del self._columns[name]
        self._made.pop(name, None)

    def __iter__(self) -> Iterator[str]:
        return iter(self._columns)

    def __reversed__(self) -> Iterator[str]:
        return reversed(self._columns)

    def __len__(self) -> int:
        return len(self._columns)

    def __repr__(self) -> str:
        return repr(dict(self))

    def __or__(self, other: Mapping[str, Any]) -> dict[str, Any]:
        return {**self, **other}

    def __ror__(self, other: Mapping[str, Any]) -> dict[str, Any]:
        return {**other, **self}

    def __ior__(self, other: Any) -> PackedBatch:
        self.update(other)
        return self

    def copy(self) -> dict[str, Any]:
        """A dict of the same values."""
        return dict(self)

    def pop(self, name: str, *default: Any) -> Any:
        """Take a column out."""
        if name not in self._columns and default:
            return default[0]
        value = self[name]
        del self[name]
        return value

    def popitem(self) -> tuple[str, Any]:
        """Take the last column out."""
        if not self._columns:
            raise KeyError("popitem(): the batch has no columns")
        name = next(reversed(self._columns))
        return name, self.pop(name)

    def clear(self) -> None:
        """Take all columns out."""
        self._columns.clear()
        self._made.clear()


def _is_still(made: Any, value: Any) -> bool:
    """Whether what was made of a value is what would be made of it now."""
    if isinstance(value, np.ndarray):
        # A tensor that shares the array's memory, so whatever was written into it is there too.
        return (
            type(made) is torch.Tensor
            and not made.requires_grad
            and made.device.type == "cpu"
            and made.numpy().__array_interface__ == value.__array_interface__
        )
    if isinstance(value, dict):
        return (
            type(made) is dict
            and list(made) == list(value)
            and all(map(_is_still, made.values(), value.values()))
        )
    if isinstance(value, (list, tuple)):
        alike = type(made) is type(value) and len(made) == len(value)
        return alike and all(map(_is_still, made, value))
    return made is value


def _with_own(columns: dict[str, Any], own: dict[str, Any]) -> dict[str, Any]:
    """``tensors``, with some values as they are."""
    return {name: own[name] if name in own else _tensor(columns[name]) for name in columns}
