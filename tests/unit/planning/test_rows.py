from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lance_stream.planning.layout import shard_stops
from lance_stream.planning.rows import FragmentRows, FragmentSpan, RowRange, rows_for


def _rows(fragments: FragmentRows, span: FragmentSpan) -> list[tuple[int, int]]:
    """The rows of a span as (fragment id, live row of the fragment), as a scan would give them."""
    starts = [0, *fragments.stops[:-1].tolist()]
    length = {
        int(i): int(stop) - start
        for i, start, stop in zip(fragments.ids, starts, fragments.stops, strict=True)
    }
    live = [(i, row) for i in span.fragment_ids for row in range(length[i])]
    return live[span.offset : span.offset + span.num_rows]


def test_a_row_range_is_half_open() -> None:
    rows = RowRange(1000, 2000)
    assert len(rows) == 1000
    assert str(rows) == "[1000, 2000)"
    assert rows == RowRange(1000, 2000)
    assert len({rows, RowRange(1000, 2000)}) == 1


def test_fragments_without_live_rows_are_left_out() -> None:
    fragments = FragmentRows.from_counts([(0, 0), (3, 5), (4, 0), (7, 2), (9, 0)])
    assert fragments.ids.tolist() == [3, 7]
    assert fragments.stops.tolist() == [5, 7]
    assert fragments.ids.dtype == fragments.stops.dtype == np.int64
    assert fragments.num_rows == 7


@pytest.mark.parametrize("counts", [[], [(0, 0)], [(0, 0), (1, 0)]])
def test_a_table_without_rows_has_no_spans(counts: list[tuple[int, int]]) -> None:
    fragments = FragmentRows.from_counts(counts)
    assert fragments.num_rows == 0
    assert len(fragments.ids) == 0
    with pytest.raises(IndexError, match=r"rows \[0, 1\) are not in a table of 0 rows"):
        fragments.span(RowRange(0, 1))


def test_table_order_is_the_order_given_not_the_order_of_ids() -> None:
    fragments = FragmentRows.from_counts([(9, 2), (1, 2)])
    assert fragments.span(RowRange(0, 3)) == FragmentSpan((9, 1), 0, 3)
    assert fragments.span(RowRange(2, 4)) == FragmentSpan((1,), 0, 2)


# Fragments 10: rows 0 to 3; 20: row 3; 30: rows 4 to 9; 40 has none; 50: rows 9 to 11.
BORDERS = [(10, 3), (20, 1), (30, 5), (40, 0), (50, 2)]


@pytest.mark.parametrize(
    ("start", "stop", "ids", "offset"),
    [
        (0, 1, (10,), 0),
        (0, 3, (10,), 0),
        (2, 3, (10,), 2),
        (2, 4, (10, 20), 2),
        (3, 4, (20,), 0),
        (3, 5, (20, 30), 0),
        (4, 5, (30,), 0),
        (4, 9, (30,), 0),
        (8, 9, (30,), 4),
        (8, 10, (30, 50), 4),
        (9, 10, (50,), 0),
        (10, 11, (50,), 1),
        (0, 4, (10, 20), 0),
        (0, 11, (10, 20, 30, 50), 0),
        (1, 10, (10, 20, 30, 50), 1),
    ],
)
def test_span_at_the_borders_of_fragments(
    start: int, stop: int, ids: tuple[int, ...], offset: int
) -> None:
    fragments = FragmentRows.from_counts(BORDERS)
    assert fragments.span(RowRange(start, stop)) == FragmentSpan(ids, offset, stop - start)


def test_every_span_of_a_small_table_gives_its_rows_and_no_needless_fragment() -> None:
    fragments = FragmentRows.from_counts(BORDERS)
    table = [(i, row) for i, rows in BORDERS for row in range(rows)]
    for start in range(len(table)):
        for stop in range(start + 1, len(table) + 1):
            span = fragments.span(RowRange(start, stop))
            assert _rows(fragments, span) == table[start:stop]
            assert set(span.fragment_ids) == {i for i, _ in table[start:stop]}


@pytest.mark.parametrize(
    ("start", "stop"), [(0, 0), (5, 5), (5, 4), (-1, 1), (0, 12), (11, 12), (100, 101)]
)
def test_a_range_that_is_empty_or_outside_is_refused(start: int, stop: int) -> None:
    fragments = FragmentRows.from_counts(BORDERS)
    with pytest.raises(
        IndexError, match=rf"rows \[{start}, {stop}\) are not in a table of 11 rows"
    ):
        fragments.span(RowRange(start, stop))


def test_ids_of_a_span_are_plain_ints() -> None:
    span = FragmentRows.from_counts(BORDERS).span(RowRange(0, 11))
    assert {type(i) for i in span.fragment_ids} == {int}
    assert type(span.offset) is type(span.num_rows) is int


@given(
    counts=st.lists(st.integers(0, 9), min_size=1, max_size=40),
    ids=st.randoms(use_true_random=False),
    shard_rows=st.integers(1, 50),
)
def test_the_shards_of_any_table_hold_every_live_row_once_in_order(
    counts, ids, shard_rows
) -> None:
    numbered = list(zip(ids.sample(range(1000), len(counts)), counts, strict=True))
    fragments = FragmentRows.from_counts(numbered)
    table = [(i, row) for i, rows in numbered for row in range(rows)]
    assert fragments.num_rows == len(table)
    if not table:
        return
    stops = shard_stops(fragments.num_rows, shard_rows).tolist()
    pieces = [
        _rows(fragments, fragments.span(RowRange(start, stop)))
        for start, stop in zip([0, *stops[:-1]], stops, strict=True)
    ]
    assert [row for piece in pieces for row in piece] == table
    assert all(len(piece) == shard_rows for piece in pieces[:-1])
    assert 1 <= len(pieces[-1]) <= shard_rows


@given(
    counts=st.lists(st.integers(0, 30), min_size=1, max_size=12).filter(any),
    num_rows=st.integers(1, 50),
)
def test_parts_are_whole_fragments_or_rows_of_one(counts: list[int], num_rows: int) -> None:
    fragments = FragmentRows.from_counts(list(enumerate(counts)))
    row = 0
    while row < fragments.num_rows:
        part = fragments.part(row, num_rows)
        assert part.start == row
        assert 1 <= len(part) <= num_rows
        span = fragments.span(part)
        whole = sum(counts[i] for i in span.fragment_ids) == len(part)
        assert whole or len(span.fragment_ids) == 1
        row = part.stop
    assert row == fragments.num_rows


def test_the_largest_part() -> None:
    fragments = FragmentRows.from_counts([(0, 10), (1, 10), (2, 100)])
    assert fragments.part(0, 25) == RowRange(0, 20)
    assert fragments.part(0, 4) == RowRange(0, 4)
    # The rest of a fragment comes alone.
    assert fragments.part(4, 25) == RowRange(4, 10)
    assert fragments.part(20, 25) == RowRange(20, 45)
    assert fragments.part(95, 1000) == RowRange(95, 120)


@pytest.mark.parametrize(
    ("rows", "seconds", "then"),
    [
        (10_000, 3.0, 10_000),
        (10_000, 1.5, 20_000),
        (10_000, 6.0, 5_000),
        # No more than four times as many, or a quarter, or a thousand.
        (10_000, 0.0, 40_000),
        (10_000, 100.0, 2_500),
        (2_000, 100.0, 1_024),
        (1, 0.0, 1_024),
    ],
)
def test_parts_take_about_the_same_time(rows: int, seconds: float, then: int) -> None:
    assert rows_for(3.0, rows, seconds) == then
