"""Live rows of a table, numbered in table order, and the addresses that Lance gives them.

An address is the fragment's id above 32 bits of offset in its files, deleted rows counted.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lance_stream.planning.rows import FragmentRows

__all__ = ["LiveRows"]

# Deletions that are remembered, four bytes each.
_MAX_BYTES = 64 << 20
# Rows of the fragments whose deletions are looked for at a time, a byte each.
_LOOK_ROWS = 4 << 20
_OFFSET = np.uint64(0xFFFFFFFF)


class LiveRows:
    """Both ways between live rows and addresses. Thread-safe."""

    def __init__(
        self,
        fragments: Mapping[int, Any],
        live_addresses: Callable[[list[Any]], Iterable[NDArray[np.uint64]]],
        max_bytes: int = _MAX_BYTES,
    ) -> None:
        """Prepare; nothing is read before it is needed.

        Args:
            fragments: Lance's fragments by id.
            live_addresses: Reads the addresses of the live rows of some fragments, in parts.
            max_bytes: Memory for deletions that were looked up.
        """
        self._fragments = fragments
        self._live_addresses = live_addresses
        self._max_bytes = max_bytes
        self._known: OrderedDict[int, NDArray[np.uint32]] = OrderedDict()
        self._bytes = 0
        self._lock = threading.Lock()

    def addresses(self, fragments: FragmentRows, rows: NDArray[np.int64]) -> NDArray[np.uint64]:
        """Addresses of live rows in ascending order, uint64 of the same length."""
        at = np.searchsorted(fragments.stops, rows, side="right")
        begins = np.flatnonzero(np.diff(at, prepend=-1))
        places = at[begins]
        deletions = self.deletions(fragments.ids[places].tolist())
        addresses = np.empty(len(rows), np.uint64)
        for begin, end, place in zip(
            begins.tolist(), [*begins[1:].tolist(), len(rows)], places.tolist(), strict=True
        ):
            fragment = int(fragments.ids[place])
            offsets = rows[begin:end] - (int(fragments.stops[place - 1]) if place else 0)
            deleted = deletions.get(fragment)
            if deleted is not None:
                # How many live rows come before each deleted one.
                before = deleted - np.arange(len(deleted))
                offsets = offsets + np.searchsorted(before, offsets, side="right")
            addresses[begin:end] = offsets.astype(np.uint64) + np.uint64(fragment << 32)
        return addresses

    def rows(self, fragments: FragmentRows, addresses: NDArray[np.uint64]) -> NDArray[np.int64]:
        """Live rows of addresses in any order, int64 of the same length."""
        ids = (addresses >> np.uint64(32)).astype(np.int64)
        rows = (addresses & _OFFSET).astype(np.int64)
        found = np.unique(ids).tolist()
        deletions = self.deletions(found)
        for fragment in found:
            place = int(np.flatnonzero(fragments.ids == fragment)[0])
            mine = ids == fragment if len(found) > 1 else slice(None)
            offsets, deleted = rows[mine], deletions.get(fragment)
            if deleted is not None:
                offsets = offsets - np.searchsorted(deleted, offsets.astype(np.uint32))
            rows[mine] = offsets + (int(fragments.stops[place - 1]) if place else 0)
        return rows

    def deletions(self, ids: Iterable[int]) -> dict[int, NDArray[np.uint32]]:
        """Offsets of the deleted rows of those fragments that have any, ascending.

        What is not known yet is read for many fragments at a time, and remembered.
        """
        wanted = [fragment for fragment in ids if self._fragments[fragment].num_deletions]
        with self._lock:
            found = {i: self._known[i] for i in wanted if i in self._known}
            for fragment in found:
                self._known.move_to_end(fragment)
        for part in self._parts([fragment for fragment in wanted if fragment not in found]):
            found.update(self._look(part))
        return found

    def _parts(self, ids: Sequence[int]) -> Iterable[list[int]]:
        part, num_rows = [], 0
        for fragment in ids:
            part.append(fragment)
            num_rows += self._fragments[fragment].physical_rows
            if num_rows >= _LOOK_ROWS:
                yield part
                part, num_rows = [], 0
        if part:
            yield part

    def _look(self, ids: list[int]) -> dict[int, NDArray[np.uint32]]:
        deleted = {i: np.ones(self._fragments[i].physical_rows, np.bool_) for i in ids}
        for addresses in self._live_addresses([self._fragments[i] for i in ids]):
            owners = (addresses >> np.uint64(32)).astype(np.int64)
            # A fragment gives its rows one after another.
            begins = np.flatnonzero(np.diff(owners, prepend=-1)).tolist()
            for begin, end in zip(begins, [*begins[1:], len(owners)], strict=True):
                offsets = (addresses[begin:end] & _OFFSET).astype(np.int64)
                deleted[int(owners[begin])][offsets] = False
        found = {i: np.flatnonzero(rows).astype(np.uint32) for i, rows in deleted.items()}
        with self._lock:
            for fragment, offsets in found.items():
                if fragment not in self._known:
                    self._known[fragment] = offsets
                    self._bytes += offsets.nbytes
            while self._bytes > self._max_bytes and len(self._known) > 1:
                self._bytes -= self._known.popitem(last=False)[1].nbytes
        return found
