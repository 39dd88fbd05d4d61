"""A window over a table that grows: parts whose shards are the same in whatever window. Pure.

Each part is cut into shards by itself, and its shards are named by what the part is. So a window
that has slid on finds the shards of the parts that it still holds.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

from lance_stream.planning.row_order import RowOrder, cut
from lance_stream.planning.rows import RowRange

__all__ = ["FAMILY_CHARS", "Part", "Window"]

# Of the name of a shard: what all windows of one kind have in common.
FAMILY_CHARS = 8


@dataclass(frozen=True, slots=True)
class Part:
    """Rows that are cut into shards by themselves.

    Attributes:
        rows: Numbered in the order of appending.
        identity: Names their content.
        chosen: Names which of them are selected; empty for all.
        num_rows: How many are selected.
        num_shards: Shards of the part; none if no row is selected.
    """

    rows: RowRange
    identity: str
    chosen: str
    num_rows: int
    num_shards: int


@dataclass(frozen=True, slots=True)
class Window:
    """Consecutive parts.

    Attributes:
        family: Hex: names what the windows over one table have in common that a later one takes
            the place of.
        parts: In order of appending.
        ranges: Where the selected rows are, in order of appending: among the live rows of the
            table, in table order, or among those that a filter leaves.
    """

    family: str
    parts: tuple[Part, ...]
    ranges: RowOrder

    @property
    def rows(self) -> RowRange:
        """The rows of all parts, numbered in the order of appending."""
        return RowRange(self.parts[0].rows.start, self.parts[-1].rows.stop)

    def place(self, shard: int) -> tuple[int, int]:
        """The part that a shard belongs to, and its number in it."""
        stops = list(accumulate(part.num_shards for part in self.parts))
        part = bisect_right(stops, shard)
        return part, shard - (stops[part - 1] if part else 0)

    def rows_before(self, part: int) -> int:
        """Selected rows of the parts before one."""
        return sum(part.num_rows for part in self.parts[:part])

    def cut(self, ranges: Sequence[RowRange]) -> list[RowRange]:
        """Where selected rows are, numbered through the window."""
        return [found for part in ranges for found in cut(self.ranges, part.start, part.stop)]

    def as_json(self) -> dict[str, Any]:
        """The window as JSON values."""
        return {
            "family": self.family,
            "parts": [
                [p.rows.start, p.rows.stop, p.identity, p.chosen, p.num_rows, p.num_shards]
                for p in self.parts
            ],
            "ranges": [[part.start, part.stop] for part in self.ranges],
        }

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> Window:
        """The inverse of ``as_json``."""
        return cls(
            family=str(value["family"]),
            parts=tuple(
                Part(RowRange(int(a), int(b)), str(identity), str(chosen), int(n), int(shards))
                for a, b, identity, chosen, n, shards in value["parts"]
            ),
            ranges=tuple(RowRange(int(a), int(b)) for a, b in value["ranges"]),
        )
