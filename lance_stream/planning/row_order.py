"""Where the rows of a table are, listed in the order in which they were appended. Pure."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from itertools import accumulate

import numpy as np
from numpy.typing import NDArray

from lance_stream.planning.rows import RowRange

__all__ = ["RowOrder", "by_row_ids", "cut", "extended", "joined", "paired"]

# Live rows of the table, in table order, listed in the order in which they were appended.
RowOrder = tuple[RowRange, ...]


def by_row_ids(ids: NDArray[np.uint64]) -> RowOrder:
    """The order of appending by stable row ids.

    Args:
        ids: uint64 array (live rows,), in table order.
    """
    places = np.argsort(ids, kind="stable")
    if not len(places):
        return ()
    breaks = np.flatnonzero(np.diff(places) != 1) + 1
    starts = places[np.concatenate([[0], breaks])]
    lasts = places[np.concatenate([breaks, [len(places)]]) - 1]
    return tuple(RowRange(int(a), int(b) + 1) for a, b in zip(starts, lasts, strict=True))


def cut(order: RowOrder, start: int, stop: int) -> RowOrder:
    """Where some rows are, numbered in the order of appending.

    Raises:
        IndexError: They are not all there.
    """
    stops = list(accumulate(len(part) for part in order))
    if not 0 <= start < stop <= (stops[-1] if stops else 0):
        msg = f"rows {RowRange(start, stop)} are not among {stops[-1] if stops else 0}"
        raise IndexError(msg)
    found = []
    for at in range(bisect_right(stops, start), len(order)):
        part, before = order[at], stops[at] - len(order[at])
        if before >= stop:
            break
        first, last = max(start - before, 0), min(stop - before, len(part))
        found.append(RowRange(part.start + first, part.start + last))
    return tuple(found)


def joined(ranges: Iterable[RowRange]) -> RowOrder:
    """Ranges with those put together that follow each other."""
    found: list[RowRange] = []
    for part in ranges:
        if found and found[-1].stop == part.start:
            found[-1] = RowRange(found[-1].start, part.stop)
        elif len(part):
            found.append(part)
    return tuple(found)


def extended(order: RowOrder, old_rows: int, new_rows: int) -> RowOrder:
    """With rows that were appended at the end of the table."""
    return joined([*order, RowRange(old_rows, old_rows + new_rows)])


def paired(sources: Sequence[RowRange], targets: Sequence[RowRange]) -> list[tuple[RowRange, int]]:
    """Pieces of the sources, one after the other, and where the targets take them."""
    found: list[tuple[RowRange, int]] = []
    target, used = 0, 0
    for rows in sources:
        start = rows.start
        while start < rows.stop:
            if used == len(targets[target]):
                target, used = target + 1, 0
                continue
            length = min(rows.stop - start, len(targets[target]) - used)
            found.append((RowRange(start, start + length), targets[target].start + used))
            start, used = start + length, used + length
    return found
