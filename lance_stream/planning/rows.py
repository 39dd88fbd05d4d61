"""Row ranges of a table, and the fragments that hold them. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

__all__ = ["FragmentRows", "FragmentSpan", "RowRange", "rows_for"]

_MIN_ROWS = 1_024
_MAX_CHANGE = 4.0


@dataclass(frozen=True, slots=True)
class RowRange:
    """Live rows of the selection in table order, half-open: ``start`` <= row < ``stop``."""

    start: int
    stop: int

    def __len__(self) -> int:
        return self.stop - self.start

    def __str__(self) -> str:
        return f"[{self.start}, {self.stop})"


@dataclass(frozen=True, slots=True)
class FragmentSpan:
    """Where a row range lies: consecutive fragments, and the offset of its first row.

    Attributes:
        fragment_ids: Fragments in table order; each gives at least one row.
        offset: Live rows of the first fragment that come before the range.
        num_rows: Rows of the range.
    """

    fragment_ids: tuple[int, ...]
    offset: int
    num_rows: int


class FragmentRows:
    """The live rows of each fragment of one table version, in table order.

    Deleted rows are not counted, and fragments without a live row are left out, so positions
    are the ones that a scan in order would give.
    """

    def __init__(self, ids: NDArray[np.int64], stops: NDArray[np.int64]) -> None:
        """Take arrays as they are in an index.

        Args:
            ids: int64 array (fragments,): fragment ids.
            stops: int64 array (fragments,): cumulative live rows, so fragment ``j`` holds the
                rows ``stops[j - 1]`` to ``stops[j]``. Strictly increasing.
        """
        self.ids = ids
        self.stops = stops

    @classmethod
    def from_counts(cls, counts: Sequence[tuple[int, int]]) -> FragmentRows:
        """Make it from ``(fragment id, live rows)`` pairs in table order."""
        kept = [(fragment, rows) for fragment, rows in counts if rows > 0]
        ids = np.array([fragment for fragment, _ in kept], np.int64)
        return cls(ids, np.cumsum(np.array([rows for _, rows in kept], np.int64)))

    @property
    def num_rows(self) -> int:
        """Live rows in all fragments."""
        return int(self.stops[-1]) if len(self.stops) else 0

    def span(self, rows: RowRange) -> FragmentSpan:
        """Find the fragments that hold a range of rows.

        Raises:
            IndexError: The range is empty or not inside the table.
        """
        if not 0 <= rows.start < rows.stop <= self.num_rows:
            msg = f"rows {rows} are not in a table of {self.num_rows} rows"
            raise IndexError(msg)
        first = int(np.searchsorted(self.stops, rows.start, side="right"))
        last = int(np.searchsorted(self.stops, rows.stop, side="left"))
        before = int(self.stops[first - 1]) if first else 0
        ids = tuple(int(i) for i in self.ids[first : last + 1])
        return FragmentSpan(ids, rows.start - before, len(rows))

    def part(self, start: int, num_rows: int) -> RowRange:
        """About so many rows from one on: whole fragments, or rows of a single one.

        Args:
            start: First row, in the table.
            num_rows: At most so many, at least 1.
        """
        first = int(np.searchsorted(self.stops, start, side="right"))
        after = int(np.searchsorted(self.stops, start + num_rows, side="right"))
        if after > first:
            # The rest of a fragment that is begun comes alone.
            begun = start > (int(self.stops[first - 1]) if first else 0)
            return RowRange(start, int(self.stops[first if begun else after - 1]))
        return RowRange(start, min(start + num_rows, self.num_rows))


def rows_for(wanted_s: float, rows: int, took_s: float) -> int:
    """How many rows take a time, when so many took another; without sudden changes.

    Args:
        wanted_s: The time in seconds.
        rows: That were looked at.
        took_s: How many seconds that took.
    """
    factor = min(_MAX_CHANGE, max(1 / _MAX_CHANGE, wanted_s / max(took_s, 1e-3)))
    return max(_MIN_ROWS, int(rows * factor))
