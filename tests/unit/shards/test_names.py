"""Names of shards: in a window they are those of its parts, whatever window they are in."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np

from lance_stream.planning.index import ShardIndex
from lance_stream.planning.rows import RowRange
from lance_stream.planning.window import Part, Window
from lance_stream.shards.names import ShardNames
from lance_stream.shards.paths import index_name
from tests.unit.planning.test_index import make_index

FAMILY = "0123456789abcdef"


def windowed(parts: range, version: int = 17, family: str = FAMILY) -> ShardIndex:
    """Parts of 100 rows, in shards of 40, 40 and 20."""
    made = [Part(RowRange(n * 100, n * 100 + 100), f"part {n}", "", 100, 3) for n in parts]
    stops = [at * 100 + stop for at in range(len(made)) for stop in (40, 80, 100)]
    # The last 50 rows of part 1 were moved to the end of the table.
    places = {1: (RowRange(100, 150), RowRange(950, 1000))}
    ranges = [r for n in parts for r in places.get(n, (RowRange(n * 100, n * 100 + 100),))]
    return make_index(
        version=version,
        shard_stops=np.array(stops, np.int64),
        window=Window(family, tuple(made), tuple(ranges)),
    )


def test_an_index_without_a_window_has_one_name() -> None:
    index = make_index()
    names = ShardNames(index, "arrow", None)
    assert names.fingerprint == index.fingerprint
    assert names.name(2) == f"{index.fingerprint[:20]}.00000002.arrow"
    assert names.find(names.name(2)) == 2
    assert names.find(f"{index.fingerprint[:20]}.00000099.arrow") is None
    assert names.find(f"{index.fingerprint[:20]}.00000001.mds") is None
    assert names.header(1).fingerprint == index.fingerprint
    assert not names.is_left_behind("0123456789abcdef0123.00000000.arrow")


def test_parts_keep_their_names_in_other_windows_and_versions() -> None:
    for cache_format, algorithm in (("arrow", None), ("mds", "sha256")):
        first = ShardNames(windowed(range(3)), cache_format, algorithm)
        later = ShardNames(windowed(range(1, 4), version=30), cache_format, algorithm)
        assert [later.name(n) for n in range(6)] == [first.name(n) for n in range(3, 9)]
        assert [later.header(n) for n in range(6)] == [first.header(n) for n in range(3, 9)]
        assert later.fingerprint != first.fingerprint
        assert [later.find(first.name(n)) for n in (2, 3, 8)] == [None, 0, 5]
        left = [later.is_left_behind(first.name(n)) for n in range(9)]
        assert left == [True] * 3 + [False] * 6
        assert len({first.name(n) for n in range(9)}) == 9
        assert all(first.name(n).startswith(FAMILY[:8]) for n in range(9))


def test_other_families_and_files_are_left_alone() -> None:
    names = ShardNames(windowed(range(2)), "arrow", None)
    other = ShardNames(windowed(range(2), family="fedcba9876543210"), "arrow", None)
    assert not names.is_left_behind(other.name(0))
    assert not names.is_left_behind("01234567.txt")
    assert not names.is_left_behind(index_name(windowed(range(2)).fingerprint))
    assert names.is_left_behind(index_name(windowed(range(3)).fingerprint))


def test_a_window_survives_the_file(tmp_path: Path) -> None:
    index = windowed(range(3))
    index.save(tmp_path / "index")
    loaded = ShardIndex.load(tmp_path / "index")
    assert loaded.window == index.window
    assert loaded.fingerprint == index.fingerprint
    assert loaded.rows_fingerprint == windowed(range(3), version=99).rows_fingerprint
    assert dataclasses.replace(index, window=None).fingerprint != index.fingerprint


def test_rows_that_moved_are_read_where_they_are() -> None:
    index = windowed(range(3))
    assert [index.reads(shard) for shard in (0, 3)] == [[RowRange(0, 40)], [RowRange(100, 140)]]
    # Two ascending ranges are one read, others are not.
    (rows,) = index.reads(4)
    assert rows.tolist() == [*range(140, 150), *range(950, 980)]
    assert index.describe_rows(4) == "shard 1 of rows [100, 200) in order of appending"
    back = dataclasses.replace(
        index,
        window=dataclasses.replace(
            index.window, ranges=(RowRange(500, 600), RowRange(0, 100), RowRange(100, 200))
        ),
        shard_stops=np.array([90, 150, 200, 240, 280, 300]),
    )
    window = dataclasses.replace(
        back.window,
        parts=(
            Part(RowRange(0, 200), "a", "", 200, 3),
            Part(RowRange(200, 300), "b", "", 100, 3),
        ),
    )
    back = dataclasses.replace(back, window=window)
    assert back.reads(1) == [RowRange(590, 600), RowRange(0, 50)]
