"""A worker's way through one epoch: which samples come next, and which shards they need. Pure."""

from __future__ import annotations

import operator
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

__all__ = ["Course", "Part", "first_uses", "last_uses"]

_LOOKED_AT = 1 << 18


@dataclass(slots=True, eq=False)
class Part:
    """Consecutive samples of a worker.

    Attributes:
        shards: int64 array (samples,): shard of each.
        rows: int64 array (samples,): row within the shard.
    """

    shards: NDArray[np.int64]
    rows: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.shards)

    def __getitem__(self, at: slice) -> Part:
        return Part(self.shards[at], self.rows[at])


class Course:
    """The samples of one worker in one epoch, in order, and how far it has come.

    Attributes:
        done: Samples that were given out, those of the current part included.
    """

    def __init__(
        self, sample_ids: NDArray[np.int64], shard_stops: NDArray[np.int64], done: int = 0
    ) -> None:
        """Take a worker's share of an epoch.

        Args:
            sample_ids: int64 array: numbers of samples in the dataset; -1 is none.
            shard_stops: int64 array (shards,): cumulative samples.
            done: Samples to leave out, because they were given out before.
        """
        self._ids = sample_ids[sample_ids >= 0]
        self._stops = shard_stops
        self._asked = done
        self._counted = done
        self.done = done
        # Rows of the part that is being given out, and the iterator over them.
        self._rows: list[int] = []
        self._left: Iterator[int] = iter(self._rows)
        self.ended = False

    @property
    def total(self) -> int:
        """Samples of the course."""
        return len(self._ids)

    @property
    def is_over(self) -> bool:
        """Whether there is nothing left to give out."""
        return self.ended or self.done >= self.total

    @property
    def given_out(self) -> int:
        """Samples that were given out, those of the current part one by one."""
        return self.done - operator.length_hint(self._left)

    def give_out(self, part: Part) -> Iterator[int]:
        """Rows of the next part; the iterator ends when the course does."""
        self._rows = part.rows.tolist()
        self._left = iter(self._rows)
        self.done += len(part)
        return self._left

    def peek(self, count: int) -> Part:
        """The next samples, up to so many; empty at the end."""
        return self.between(self.done, self.done + count)

    def ahead(self, count: int) -> NDArray[np.int64]:
        """Shards that come up to ``count`` samples ahead, in order of use.

        Each sample is looked at once, so shards that were seen long ago may come again.
        """
        stop = min(self.done + count, self.total)
        if stop <= self._asked:
            return np.empty(0, np.int64)
        part = self.between(self._asked, stop)
        self._asked = stop
        return part.shards[first_uses(part.shards)]

    def uncounted(self) -> NDArray[np.int64]:
        """Shards of the samples that were given out since this was last asked."""
        # Asked from another thread, which may see a part half begun, or half ended: too few then.
        start, self._counted = self._counted, max(self._counted, self.given_out)
        return self.between(start, self._counted).shards

    def end(self) -> None:
        """Give out no more, not even what is left of the current part."""
        if not self.ended:
            self.done = self.given_out
        self.ended = True
        # An iterator over a list that was emptied has ended.
        self._rows.clear()

    def between(self, start: int, stop: int) -> Part:
        """Samples ``[start, stop)`` of the course, fewer at its end."""
        ids = self._ids[start:stop]
        shards = np.searchsorted(self._stops, ids, side="right")
        before = np.where(shards > 0, self._stops[shards - 1], 0)
        return Part(shards, ids - before)


def first_uses(shards: NDArray[np.int64]) -> NDArray[np.int64]:
    """Positions at which each shard comes for the first time, ascending."""
    _, first = np.unique(shards, return_index=True)
    return np.sort(first)


def last_uses(course: Course, num_shards: int) -> NDArray[np.int64]:
    """Where each shard comes for the last time in what is left of a course.

    Args:
        course: At any place.
        num_shards: Shards of the dataset.

    Returns:
        int64 array (num_shards,): position in the course; -1 for a shard that does not come.
    """
    last = np.full(num_shards, -1, np.int64)
    for start in range(course.done, course.total, _LOOKED_AT):
        shards = course.between(start, start + _LOOKED_AT).shards
        # Of several assignments to one element the last one counts.
        last[shards] = np.arange(start, start + len(shards))
    return last
