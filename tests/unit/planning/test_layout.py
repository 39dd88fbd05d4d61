"""Shards, and whole plans: fragments, deletions, a selection and a layout, down to the rows."""

from __future__ import annotations

import itertools
import time
from collections import Counter
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lance_stream.errors import PlanError
from lance_stream.planning.chosen import RowBits
from lance_stream.planning.index import ShardIndex
from lance_stream.planning.layout import Layout, shard_stops
from lance_stream.planning.rows import FragmentRows, RowRange
from lance_stream.planning.selection import Selection
from lance_stream.planning.sizing import RowSize, rows_per_shard

SEEDS = st.integers(-(2**63), 2**63 - 1)
LAYOUTS = st.one_of(
    st.just(Layout()),
    st.builds(Layout, st.just("scattered"), st.integers(1, 40), SEEDS),
)
SCHEMA = pa.schema([pa.field("id", pa.int64())])


def make_index(
    counts: list[tuple[int, int]],
    layout: Layout,
    shard_rows: int,
    *,
    chosen: list[int] | None = None,
    limit: int | None = None,
) -> ShardIndex:
    """An index as the download process makes it of such fragments."""
    fragments = FragmentRows.from_counts(counts)
    picked = None
    count = fragments.num_rows if limit is None else min(limit, fragments.num_rows)
    if chosen is not None:
        bits = RowBits(fragments.num_rows)
        bits.add(np.array(chosen, np.int64))
        picked = bits.chosen(limit)
        count = picked.count
    return ShardIndex(
        uri="s3://bucket/t.lance",
        version=17,
        identity="0123456789abcdef0123456789abcdef",
        selection=Selection(filter=None if chosen is None else "f", limit=limit),
        layout=layout,
        schema=SCHEMA,
        fragments=fragments,
        chosen=picked,
        shard_stops=shard_stops(count, shard_rows),
        row_size=RowSize(8.0, 0.0, 1000),
    )


def table_rows(index: ShardIndex, shard: int) -> list[int]:
    """Live rows of a shard."""
    found = index.table_rows(shard)
    return list(range(found.start, found.stop)) if isinstance(found, RowRange) else found.tolist()


# --- golden ---


def test_golden_plan() -> None:
    # Who depends on these numbers: index files, which hold the layout and not its runs; the shard
    # caches that users have on disk (a file holds the rows of shard k); and their checkpoints
    # (the order of samples is a function of the shards). Where this changes, INDEX_FORMAT must
    # change with it.
    counts = [(0, 25), (1, 0), (4, 1), (2, 14)]
    chosen = [0, 1, 2, 3, 5, 8, 13, 21, 24, 25, 26, 27, 28, 29, 30, 31, 35, 36, 37, 38, 39]
    index = make_index(counts, Layout("scattered", 2, 3), 6, chosen=chosen, limit=19)
    assert index.num_rows == 19
    assert index.shard_stops.tolist() == [6, 12, 18, 19]
    # The short run [18, 19) is in the second shard; the run [2, 4) is cut behind it.
    assert [table_rows(index, shard) for shard in range(4)] == [
        [24, 25, 26, 27, 35, 36],
        [0, 1, 2, 30, 31, 37],
        [3, 5, 8, 13, 21, 28],
        [29],
    ]
    assert [list(map(str, index.selected_ranges(shard))) for shard in range(4)] == [
        ["[8, 12)", "[16, 18)"],
        ["[0, 3)", "[14, 16)", "[18, 19)"],
        ["[3, 8)", "[12, 13)"],
        ["[13, 14)"],
    ]
    assert index.fingerprint == "f734f4dcfe822e5e7a3b12e4f4975dad"


def test_golden_contiguous_plan() -> None:
    # Who depends on it: as above.
    index = make_index([(0, 25), (1, 0), (4, 1), (2, 14)], Layout(), 15)
    assert index.shard_stops.tolist() == [15, 30, 40]
    assert [str(index.table_rows(shard)) for shard in range(3)] == [
        "[0, 15)", "[15, 30)", "[30, 40)",
    ]  # fmt: skip
    spans = [index.fragments.span(index.shard_rows(shard)) for shard in range(3)]
    assert [(s.fragment_ids, s.offset) for s in spans] == [
        ((0,), 0), ((0, 4, 2), 15), ((2,), 4),
    ]  # fmt: skip


# --- shards ---


def shard_ranges(layout: Layout, num_rows: int, shard_rows: int) -> list[list[RowRange]]:
    """The rows of every shard, of a few."""
    stops = shard_stops(num_rows, shard_rows)
    assert stops.dtype == np.int64
    starts = np.concatenate([[0], stops[:-1]])
    fitted = layout.fitted(shard_rows)
    return [
        fitted.ranges(RowRange(start, stop), num_rows)
        for start, stop in zip(starts.tolist(), stops.tolist(), strict=True)
    ]


@given(layout=LAYOUTS, num_rows=st.integers(1, 2000), shard_rows=st.integers(1, 500))
def test_every_row_is_in_one_shard_and_all_shards_are_of_the_rows_that_were_asked_for(
    layout: Layout, num_rows: int, shard_rows: int
) -> None:
    seen: list[int] = []
    lengths = []
    for ranges in shard_ranges(layout, num_rows, shard_rows):
        rows = [row for part in ranges for row in range(part.start, part.stop)]
        # Ascending, and as few ranges as there can be.
        assert all(len(part) > 0 for part in ranges)
        assert all(a.stop < b.start for a, b in itertools.pairwise(ranges))
        seen += rows
        lengths.append(len(rows))
    assert sorted(seen) == list(range(num_rows))
    assert lengths[:-1] == [shard_rows] * (len(lengths) - 1)
    assert 1 <= lengths[-1] <= shard_rows


@pytest.mark.parametrize(
    ("shard_rows", "run_rows"), [(10, 64), (10, 5000), (3, 2), (100, 64), (500, 64), (1, 1)]
)
def test_a_scattered_shard_is_never_larger_than_was_asked_for(
    shard_rows: int, run_rows: int
) -> None:
    index = make_index([(0, 2000)], Layout("scattered", run_rows, 1), shard_rows)
    assert [shard.rows for shard in index.shards][:-1] == [shard_rows] * (index.num_shards - 1)
    # And still from all over: not the rows in table order.
    found = [row for shard in range(index.num_shards) for row in table_rows(index, shard)]
    assert found != sorted(found)
    runs = [part for shard in index.shards for part in shard.row_ranges]
    assert np.mean([len(part) for part in runs]) >= min(run_rows, shard_rows) / 3


@given(num_rows=st.integers(1, 400), shard_rows=st.integers(1, 60), seed=SEEDS)
def test_runs_that_are_too_long_are_cut_to_a_shard(
    num_rows: int, shard_rows: int, seed: int
) -> None:
    """The same shards, and so the same fingerprint, as if that had been asked for."""
    counts = [(0, num_rows)]
    long = make_index(counts, Layout("scattered", 1000, seed), shard_rows)
    cut = make_index(counts, Layout("scattered", min(num_rows, shard_rows), seed), shard_rows)
    assert list(long.shards) == list(cut.shards)
    assert long.fingerprint == cut.fingerprint
    assert long.layout.run_rows == 1000


@given(
    layout=LAYOUTS,
    num_rows=st.integers(1, 10**12),
    shard_rows=st.integers(1, 10**9),
    data=st.data(),
)
def test_shards_of_a_huge_table_stand_alone(
    layout: Layout, num_rows: int, shard_rows: int, data: st.DataObject
) -> None:
    shard_rows = max(shard_rows, num_rows // 1000)
    layout = layout.fitted(shard_rows)
    stops = shard_stops(num_rows, shard_rows)
    assert stops[-1] == num_rows
    assert bool((np.diff(stops, prepend=0) > 0).all())
    if layout.kind == "scattered" and shard_rows > 10_000 * layout.run_rows:
        return
    shard = data.draw(st.integers(0, len(stops) - 1))
    rows = RowRange(int(stops[shard - 1]) if shard else 0, int(stops[shard]))
    ranges = layout.ranges(rows, num_rows)
    assert sum(map(len, ranges)) == len(rows)
    assert ranges[0].start >= 0
    assert ranges[-1].stop <= num_rows


@given(num_rows=st.integers(1, 400), run_rows=st.integers(1, 30), seed=SEEDS)
def test_runs_are_cut_only_where_shards_meet(num_rows: int, run_rows: int, seed: int) -> None:
    """At most at the two ends of a shard; nowhere where shards are whole runs."""
    for ranges in shard_ranges(Layout("scattered", run_rows, seed), num_rows, 3 * run_rows):
        ends = [end for part in ranges for end in (part.start, part.stop) if end != num_rows]
        assert sum(end % run_rows != 0 for end in ends) <= (2 if num_rows % run_rows else 0)


def test_neighbouring_runs_are_one_range() -> None:
    layout = Layout("scattered", 5, 1)
    assert layout.ranges(RowRange(0, 50), 50) == [RowRange(0, 50)]
    assert layout.ranges(RowRange(0, 48), 48) == [RowRange(0, 48)]


def test_a_scattered_shard_comes_from_all_over_the_table() -> None:
    layout = Layout("scattered", 64, 0)
    num_rows, shard_rows = 1_000_000, 6400
    stops = shard_stops(num_rows, shard_rows)
    for shard in (0, 77, 155):
        ranges = layout.ranges(RowRange(int(stops[shard - 1]) if shard else 0, int(stops[shard])),
                               num_rows)  # fmt: skip
        assert len(ranges) >= 90
        tenths = Counter(part.start * 10 // num_rows for part in ranges)
        assert len(tenths) == 10


def test_seeds_give_other_shards() -> None:
    def first(seed: int) -> str:
        return str(Layout("scattered", 10, seed).ranges(RowRange(0, 50), 1000))

    assert len({first(seed) for seed in range(50)}) == 50


def test_absurd_numbers_of_shards_are_refused() -> None:
    with pytest.raises(PlanError, match=r"shard_rows=1 over 1000000000 rows.*100000000 are supp"):
        shard_stops(10**9, 1)


@pytest.mark.parametrize(
    ("layout", "value"),
    [
        (Layout(), {"kind": "contiguous"}),
        # What does not matter makes no other fingerprint.
        (Layout("contiguous", 8, 9), {"kind": "contiguous"}),
        (Layout("scattered", 8, -9), {"kind": "scattered", "run_rows": 8, "seed": -9}),
        (Layout("scattered"), {"kind": "scattered", "run_rows": 64, "seed": 0}),
    ],
)
def test_a_layout_survives_json(layout: Layout, value: dict[str, Any]) -> None:
    assert layout.as_json() == value
    again = Layout.from_json(value)
    assert again.as_json() == value
    rows = RowRange(20, 40)
    assert again.ranges(rows, 100) == layout.ranges(rows, 100)


def test_a_billion_rows_are_planned_at_once() -> None:
    num_rows = 10**9 + 1
    started = time.perf_counter()
    for layout in (Layout(), Layout("scattered", 64, 0), Layout("scattered", 1, 5)):
        stops = shard_stops(num_rows, 1000)
        assert int(stops[-1]) == num_rows
        assert stops.nbytes < 10_000_000
        for shard in (0, len(stops) // 2, len(stops) - 1):
            rows = RowRange(int(stops[shard - 1]) if shard else 0, int(stops[shard]))
            assert sum(map(len, layout.ranges(rows, num_rows))) == len(rows)
    assert time.perf_counter() - started < 5


# --- whole plans ---


@st.composite
def plans(draw: st.DrawFn) -> dict[str, Any]:
    """Arguments of a plan: fragments of odd ids with their live rows, and what is chosen."""
    rows = draw(st.lists(st.integers(0, 60), min_size=1, max_size=8))
    ids = draw(st.permutations(range(0, 3 * len(rows), 3)))
    total = sum(rows)
    if not total:
        rows[0] = total = 1
    chosen = None
    if draw(st.booleans()):
        share = draw(st.sampled_from([0.02, 0.5, 1.0]))
        picked = np.random.default_rng(draw(st.integers(0, 999))).random(total) < share
        chosen = np.flatnonzero(picked).tolist() or [total - 1]
    return {
        "counts": list(zip(ids, rows, strict=True)),
        "layout": draw(LAYOUTS),
        "shard_rows": draw(st.integers(1, 80)),
        "chosen": chosen,
        "limit": draw(st.none() | st.integers(1, 200)),
    }


@given(plan=plans())
def test_every_selected_row_is_in_exactly_one_shard(plan: dict[str, Any]) -> None:
    index = make_index(**plan)
    expected = plan["chosen"]
    if expected is None:
        expected = list(range(index.fragments.num_rows))
    expected = expected[: plan["limit"]] if plan["limit"] else expected
    found: list[int] = []
    for shard in range(index.num_shards):
        rows = table_rows(index, shard)
        assert rows == sorted(rows)
        assert len(rows) == index.shards[shard].rows == len(index.shard_rows(shard)) >= 1
        found += rows
    assert sorted(found) == expected
    assert index.num_rows == len(expected)
    assert max(shard.rows for shard in index.shards) <= plan["shard_rows"]
    if plan["layout"].kind == "contiguous":
        assert found == expected


@given(plan=plans())
def test_a_plan_is_a_pure_function_of_its_inputs(plan: dict[str, Any]) -> None:
    first, second = make_index(**plan), make_index(**plan)
    data = first.to_bytes()
    assert data == second.to_bytes()
    loaded = ShardIndex.from_bytes(data, "test")
    assert loaded.fingerprint == first.fingerprint == second.fingerprint
    assert loaded.rows_fingerprint == first.rows_fingerprint
    for shard in range(first.num_shards):
        assert table_rows(loaded, shard) == table_rows(first, shard)


@given(plan=plans(), other=plans())
def test_other_rows_have_another_fingerprint(plan: dict[str, Any], other: dict[str, Any]) -> None:
    first, second = make_index(**plan), make_index(**other)
    rows = [[table_rows(i, s) for s in range(i.num_shards)] for i in (first, second)]
    if rows[0] != rows[1]:
        assert first.fingerprint != second.fingerprint
        assert first.rows_fingerprint != second.rows_fingerprint


@given(
    sizes=st.lists(st.integers(1, 10_000), min_size=1, max_size=300),
    target=st.integers(1, 100_000),
)
def test_shards_by_bytes_come_near_the_target_on_average(sizes: list[int], target: int) -> None:
    # With the mean known; how well the mean is known from samples is the table's business.
    size = RowSize(float(np.mean(sizes)), 0.0, 0)
    stops = shard_stops(len(sizes), rows_per_shard(size, target))
    total = np.concatenate([[0], np.cumsum(sizes)])
    shards = np.diff(total[np.concatenate([[0], stops])])
    full = len(shards) - 1
    if full and target > 2 * size.mean_bytes:
        rows = rows_per_shard(size, target)
        assert abs(rows * size.mean_bytes - target) <= 0.5 * size.mean_bytes <= 0.25 * target
