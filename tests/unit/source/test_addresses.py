from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from lance_stream.planning.rows import FragmentRows
from lance_stream.source import addresses
from lance_stream.source.addresses import LiveRows


@dataclass
class Fragment:
    """A fragment as Lance shows it, and its deleted offsets."""

    fragment_id: int
    physical_rows: int
    deleted: list[int]

    @property
    def num_deletions(self) -> int:
        return len(self.deleted)


class FakeTable:
    """Fragments in table order, and the addresses that a scan of them gives."""

    def __init__(self, fragments: list[Fragment], batch_rows: int = 7) -> None:
        self.fragments = {fragment.fragment_id: fragment for fragment in fragments}
        self.rows = FragmentRows.from_counts(
            [(f.fragment_id, f.physical_rows - f.num_deletions) for f in fragments]
        )
        self.looked: list[list[int]] = []
        self._batch_rows = batch_rows

    def live_addresses(self, fragments: list[Any]) -> Iterator[NDArray[np.uint64]]:
        self.looked.append([fragment.fragment_id for fragment in fragments])
        found = np.array([a for f in fragments for a in addresses_of(f)], np.uint64)
        for start in range(0, len(found), self._batch_rows):
            yield found[start : start + self._batch_rows]

    def live(self, max_bytes: int = 1 << 20) -> LiveRows:
        return LiveRows(self.fragments, self.live_addresses, max_bytes)

    def all_addresses(self) -> list[int]:
        """Addresses of all live rows in table order."""
        return [a for f in self.fragments.values() for a in addresses_of(f)]


def addresses_of(fragment: Fragment) -> list[int]:
    offsets = set(range(fragment.physical_rows)) - set(fragment.deleted)
    return [(fragment.fragment_id << 32) + offset for offset in sorted(offsets)]


@st.composite
def tables(draw: st.DrawFn) -> FakeTable:
    ids = draw(st.lists(st.integers(0, 2**31), min_size=1, max_size=5, unique=True))
    fragments = []
    for fragment in ids:
        rows = draw(st.integers(1, 40))
        deleted = draw(st.sets(st.integers(0, rows - 1), max_size=rows))
        fragments.append(Fragment(fragment, rows, sorted(deleted)))
    return FakeTable(fragments, draw(st.integers(1, 50)))


@given(table=tables(), max_bytes=st.sampled_from([0, 20, 1 << 20]), data=st.data())
def test_rows_and_addresses_are_two_names_of_the_same(
    table: FakeTable, max_bytes: int, data: st.DataObject
) -> None:
    expected = table.all_addresses()
    live = table.live(max_bytes)
    if not expected:
        return
    rows = np.array(sorted(data.draw(st.sets(st.integers(0, len(expected) - 1), min_size=1))))
    found = live.addresses(table.rows, rows)
    assert found.dtype == np.uint64
    assert found.tolist() == [expected[row] for row in rows]
    mixed = np.random.default_rng(0).permutation(len(rows))
    back = live.rows(table.rows, found[mixed])
    assert back.dtype == np.int64
    assert back.tolist() == rows[mixed].tolist()


def test_a_table_without_deletions_is_not_read() -> None:
    table = FakeTable([Fragment(7, 10, []), Fragment(3, 5, [])])
    live = table.live()
    assert live.addresses(table.rows, np.array([0, 9, 10])).tolist() == [
        7 << 32, (7 << 32) + 9, 3 << 32,
    ]  # fmt: skip
    assert live.rows(table.rows, np.array([3 << 32], np.uint64)).tolist() == [10]
    assert table.looked == []


def test_deletions_are_read_once_and_together() -> None:
    table = FakeTable([Fragment(i, 10, [i]) for i in range(5)])
    live = table.live()
    rows = np.arange(0, 45, 9)
    for _ in range(3):
        assert live.addresses(table.rows, rows).tolist() == [
            (i << 32) + (1 if i == 0 else 0) for i in range(5)
        ]
    assert table.looked == [[0, 1, 2, 3, 4]]


def test_only_fragments_that_are_asked_for_are_read() -> None:
    table = FakeTable([Fragment(i, 10, [0]) for i in range(5)])
    live = table.live()
    live.addresses(table.rows, np.array([9, 17]))
    assert table.looked == [[1]]
    live.addresses(table.rows, np.array([0, 9, 44]))
    assert table.looked == [[1], [0, 4]]


def test_what_is_not_used_is_forgotten_when_room_is_short() -> None:
    table = FakeTable([Fragment(i, 10, [1, 2]) for i in range(3)])
    live = table.live(max_bytes=16)
    for fragment in (0, 1, 0, 2, 0, 1):
        live.addresses(table.rows, np.array([8 * fragment]))
    assert table.looked == [[0], [1], [2], [1]]


def test_many_rows_are_looked_at_a_part_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(addresses, "_LOOK_ROWS", 20)
    table = FakeTable([Fragment(i, 10, [3]) for i in range(5)])
    assert set(table.live().deletions(range(5))) == {0, 1, 2, 3, 4}
    assert table.looked == [[0, 1], [2, 3], [4]]


def test_from_several_threads() -> None:
    table = FakeTable([Fragment(i, 50, [i, 40]) for i in range(8)])
    expected, live, wrong = table.all_addresses(), table.live(max_bytes=24), []

    def run(seed: int) -> None:
        source = np.random.default_rng(seed)
        for _ in range(100):
            rows = np.unique(source.integers(0, len(expected), 9))
            found = live.addresses(table.rows, rows).tolist()
            if found != [expected[row] for row in rows]:
                wrong.append(found)

    threads = [threading.Thread(target=run, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
