"""Which rows of a table are selected: one bit for each live row, found by rank. Pure."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from lance_stream.planning.rows import RowRange

__all__ = ["ChosenRows", "RowBits"]

# Rows whose bits are counted together.
_BLOCK_ROWS = 4096
_BLOCK_BYTES = _BLOCK_ROWS // 8


class RowBits:
    """Bits that are set while a table is read, in any order.

    Attributes:
        bits: uint8 array (live rows / 8, rounded up), the lowest bit first.
    """

    def __init__(self, num_rows: int) -> None:
        """Start with no row.

        Args:
            num_rows: Live rows of the table.
        """
        self._num_rows = num_rows
        self.bits = np.zeros(-(-num_rows // 8), np.uint8)

    @property
    def count(self) -> int:
        """Rows added."""
        return int(_POPULATION[self.bits].sum(dtype=np.int64))

    def replace(self, bits: NDArray[np.uint8]) -> None:
        """Take the bits of an earlier run.

        Raises:
            ValueError: They are of a table of another size.
        """
        self.bits[:] = bits

    def add(self, rows: NDArray[np.int64]) -> None:
        """Set the bits of rows."""
        if len(rows):
            # Several rows share a byte: ``|=`` with an index would keep only the last of them.
            masks = np.left_shift(1, rows & 7, dtype=np.int64).astype(np.uint8)
            np.bitwise_or.at(self.bits, rows >> 3, masks)

    def chosen(self, limit: int | None = None) -> ChosenRows:
        """The rows that were added, or the first ``limit`` of them in table order."""
        chosen = ChosenRows(self.bits, self._num_rows)
        if limit is None or chosen.count <= limit:
            return chosen
        bits = self.bits.copy()
        if limit == 0:
            bits[:] = 0
            return ChosenRows(bits, self._num_rows)
        last = int(chosen.rows(RowRange(limit - 1, limit))[0])
        bits[(last >> 3) + 1 :] = 0
        bits[last >> 3] &= (1 << ((last & 7) + 1)) - 1
        return ChosenRows(bits, self._num_rows)


class ChosenRows:
    """Rows of a table, in table order, numbered from 0 without gaps.

    Attributes:
        bits: uint8 array (live rows / 8, rounded up), the lowest bit first.
        num_rows: Live rows of the table.
        count: Rows chosen.
    """

    def __init__(self, bits: NDArray[np.uint8], num_rows: int) -> None:
        """Take bits as they are in an index."""
        self.bits = bits
        self.num_rows = num_rows
        padded = -len(bits) % _BLOCK_BYTES
        blocks = np.concatenate([bits, np.zeros(padded, np.uint8)]) if padded else bits
        counts = _POPULATION[blocks.reshape(-1, _BLOCK_BYTES)].sum(axis=1, dtype=np.int64)
        self._stops = np.cumsum(counts)
        self.count = int(self._stops[-1]) if len(counts) else 0

    def rows(self, chosen: RowRange) -> NDArray[np.int64]:
        """The rows of the table that a range of chosen rows are, ascending.

        Raises:
            IndexError: The range is empty or not inside.
        """
        if not 0 <= chosen.start < chosen.stop <= self.count:
            msg = f"rows {chosen} are not in a selection of {self.count} rows"
            raise IndexError(msg)
        first = int(np.searchsorted(self._stops, chosen.start, side="right"))
        last = int(np.searchsorted(self._stops, chosen.stop, side="left"))
        part = self.bits[first * _BLOCK_BYTES : (last + 1) * _BLOCK_BYTES]
        found = np.flatnonzero(np.unpackbits(part, bitorder="little"))
        before = int(self._stops[first - 1]) if first else 0
        return found[chosen.start - before : chosen.stop - before] + first * _BLOCK_ROWS

    def before(self, row: int) -> int:
        """How many of the chosen rows come before a row of the table."""
        block = row // _BLOCK_ROWS
        first = self.bits[block * _BLOCK_BYTES : (row >> 3) + 1]
        inside = np.unpackbits(first, bitorder="little")[: row - block * _BLOCK_ROWS]
        return int(inside.sum()) + (int(self._stops[block - 1]) if block else 0)


_POPULATION = np.array([bin(value).count("1") for value in range(256)], np.uint8)
