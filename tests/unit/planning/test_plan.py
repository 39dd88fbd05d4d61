from __future__ import annotations

import numpy as np
import pytest

from lance_stream.errors import PlanError
from lance_stream.planning.index import Selection, ShardIndex
from lance_stream.planning.plan import contiguous_shard_stops
from lance_stream.planning.rows import FragmentRows, FragmentSpan, RowRange
from lance_stream.planning.sizing import RowSize


def test_golden_plan() -> None:
    # Who depends on these numbers: the shard caches that users have on disk (a file holds the
    # rows of shard k), and their checkpoints (the order of samples is a function of the shards'
    # sizes). Where this changes, INDEX_FORMAT must change with it.
    fragments = FragmentRows.from_counts([(0, 250), (1, 0), (2, 1), (5, 399), (3, 350)])
    stops = contiguous_shard_stops(fragments.num_rows, 150)
    assert stops.tolist() == [150, 300, 450, 600, 750, 900, 1000]
    spans = [
        fragments.span(RowRange(int(start), int(stop)))
        for start, stop in zip([0, *stops[:-1]], stops, strict=True)
    ]
    assert spans == [
        FragmentSpan((0,), 0, 150),
        FragmentSpan((0, 2, 5), 150, 150),
        FragmentSpan((5,), 49, 150),
        FragmentSpan((5,), 199, 150),
        FragmentSpan((5, 3), 349, 150),
        FragmentSpan((3,), 100, 150),
        FragmentSpan((3,), 250, 100),
    ]


def test_fragments_of_one_row_do_not_make_shards_of_one_row() -> None:
    fragments = FragmentRows.from_counts([(i, 1) for i in range(2000)])
    stops = contiguous_shard_stops(fragments.num_rows, 100)
    assert stops.tolist() == list(range(100, 2001, 100))
    assert fragments.span(RowRange(1900, 2000)) == FragmentSpan(tuple(range(1900, 2000)), 0, 100)


def test_one_large_fragment_makes_many_shards() -> None:
    fragments = FragmentRows.from_counts([(4, 1000)])
    stops = contiguous_shard_stops(fragments.num_rows, 300)
    assert stops.tolist() == [300, 600, 900, 1000]
    assert fragments.span(RowRange(900, 1000)) == FragmentSpan((4,), 900, 100)


@pytest.mark.parametrize(
    ("num_rows", "shard_rows", "stops"),
    [
        (1, 1, [1]),
        (1, 100, [1]),
        (3, 1, [1, 2, 3]),
        (99, 100, [99]),
        (100, 100, [100]),
        (101, 100, [100, 101]),
        (10, 1 << 40, [10]),
        (1 << 40, 1 << 39, [1 << 39, 1 << 40]),
    ],
)
def test_only_the_last_shard_is_shorter(num_rows: int, shard_rows: int, stops: list[int]) -> None:
    found = contiguous_shard_stops(num_rows, shard_rows)
    assert found.tolist() == stops
    assert found.dtype == np.int64


def test_a_typo_does_not_make_a_billion_shards() -> None:
    with pytest.raises(PlanError, match=r"shard_rows=1 over 1000000000 rows .* larger shards"):
        contiguous_shard_stops(1_000_000_000, 1)


def test_an_index_gives_the_shards_of_the_plan() -> None:
    fragments = FragmentRows.from_counts([(0, 3), (1, 4)])
    import pyarrow as pa

    index = ShardIndex(
        uri="/t.lance",
        version=1,
        identity="x",
        selection=Selection(),
        schema=pa.schema([("a", pa.int64())]),
        fragments=fragments,
        shard_stops=contiguous_shard_stops(7, 3),
        row_size=RowSize(8.0, 0.0, 0),
    )
    assert [shard.rows for shard in index.shards] == [
        RowRange(0, 3),
        RowRange(3, 6),
        RowRange(6, 7),
    ]
