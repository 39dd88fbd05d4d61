from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lance_stream.planning.reads import (
    Scan,
    Take,
    expected_requests,
    num_runs,
    route,
    rows_array,
)
from lance_stream.planning.rows import FragmentRows, FragmentSpan, RowRange

TABLE = FragmentRows.from_counts([(0, 1000), (3, 500), (2, 2_000_000)])


def test_consecutive_rows_are_scanned() -> None:
    way = route(TABLE, RowRange(990, 1510), row_bytes=1000.0, num_columns=4)
    assert isinstance(way, Scan)
    assert way.span == FragmentSpan((0, 3, 2), 990, 520)
    assert way.keep is None


def test_an_array_of_consecutive_rows_is_scanned_whole() -> None:
    way = route(TABLE, np.arange(5, 50), row_bytes=1e9, num_columns=1)
    assert isinstance(way, Scan)
    assert way.span == FragmentSpan((0,), 5, 45)
    assert way.keep is None


def test_small_gaps_are_scanned_over() -> None:
    rows = np.array([10, 11, 14, 20])
    way = route(TABLE, rows, row_bytes=100.0, num_columns=2)
    assert isinstance(way, Scan)
    assert way.span == FragmentSpan((0,), 10, 11)
    assert way.keep is not None
    assert way.keep.tolist() == [0, 1, 4, 10]


def test_large_gaps_are_not_read() -> None:
    # Gaps of 400 KB against 2 more requests per run.
    rows = np.arange(0, 20_000, 1000)
    way = route(TABLE, rows, row_bytes=400.0, num_columns=2)
    assert isinstance(way, Take)
    assert way.rows.tolist() == rows.tolist()


@pytest.mark.parametrize(
    ("gap", "row_bytes", "num_columns", "kind"),
    [
        # Tiny rows: bytes are cheap, but decoding sixteen for one is not.
        (16, 1.0, 1, Scan),
        (17, 1.0, 1, Take),
        # 1 KB rows of 4 columns: a gap of 64 KB is worth the requests of a run, which is more
        # than what is allowed for decoding.
        (16, 1024.0, 4, Scan),
        (17, 1024.0, 4, Take),
        # 100 KB rows: no gap is worth it.
        (2, 100_000.0, 4, Take),
        (2, 100_000.0, 10, Scan),
    ],
)
def test_where_the_routes_part(
    gap: int, row_bytes: float, num_columns: int, kind: type[Scan] | type[Take]
) -> None:
    rows = np.arange(200) * gap
    way = route(TABLE, rows, row_bytes=row_bytes, num_columns=num_columns)
    assert isinstance(way, kind)


@given(
    rows=st.sets(st.integers(0, 2_001_499), min_size=1, max_size=60),
    row_bytes=st.floats(0.1, 1e6),
    num_columns=st.integers(0, 50),
)
def test_any_route_gives_the_rows(rows: set[int], row_bytes: float, num_columns: int) -> None:
    wanted = np.array(sorted(rows))
    way = route(TABLE, wanted, row_bytes=row_bytes, num_columns=num_columns)
    if isinstance(way, Take):
        assert way.rows.tolist() == wanted.tolist()
        return
    span = way.span
    first = int(TABLE.stops[TABLE.ids.tolist().index(span.fragment_ids[0]) - 1])
    first = span.offset + (first if span.fragment_ids[0] != 0 else 0)
    keep = np.arange(span.num_rows) if way.keep is None else way.keep
    assert (first + keep).tolist() == wanted.tolist()
    assert int(keep[-1]) == span.num_rows - 1
    # Never much more than what is wanted.
    assert span.num_rows <= 16 * len(wanted)


@given(st.sets(st.integers(0, 300), min_size=1))
def test_runs_are_counted(rows: set[int]) -> None:
    array = np.array(sorted(rows))
    assert num_runs(array) == sum(row - 1 not in rows for row in rows)


def test_ranges_become_rows() -> None:
    assert rows_array([RowRange(0, 2), RowRange(5, 6)]).tolist() == [0, 1, 5]


def test_expected_requests() -> None:
    scan = route(TABLE, RowRange(990, 1510), row_bytes=1000.0, num_columns=4)
    assert expected_requests(scan, 4) == 4 * 3
    runs = np.concatenate([np.arange(at, at + 8) for at in range(0, 500_000, 50_000)])
    take = route(TABLE, runs, row_bytes=1000.0, num_columns=2)
    assert isinstance(take, Take)
    assert expected_requests(take, 2) == 24
