from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lance_stream.planning.permutation import mixed, permuted, place_of

SEEDS = st.integers(-(2**63), 2**63 - 1)


def whole(count: int, seed: int) -> list[int]:
    return permuted(np.arange(count), count, seed).tolist()


@pytest.mark.parametrize(
    ("count", "seed", "expected"),
    [
        (1, 7, [0]),
        (2, 0, [0, 1]),
        (10, 0, [4, 5, 7, 2, 0, 8, 3, 6, 1, 9]),
        (10, 1, [0, 9, 2, 6, 5, 1, 7, 3, 8, 4]),
        (10, -1, [5, 2, 1, 4, 7, 0, 9, 3, 6, 8]),
        (17, 2**63 - 1, [7, 10, 1, 13, 15, 8, 2, 3, 11, 5, 12, 0, 14, 4, 6, 16, 9]),
    ],
)
def test_golden_permutations(count: int, seed: int, expected: list[int]) -> None:
    # Who depends on these numbers: every index with a scattered layout that was ever made. It
    # holds the seed, not the runs, so the rows of its shards are what these say.
    assert whole(count, seed) == expected


def test_golden_places_of_a_large_permutation() -> None:
    # Who depends on it: as above.
    places = np.array([0, 1, 2, 999_999_999, 500_000_000])
    assert permuted(places, 10**9, 20_260).tolist() == [
        321_456_985, 466_914_563, 231_808_385, 244_594_774, 239_811_156,
    ]  # fmt: skip


def test_golden_mixer() -> None:
    # Who depends on it: the permutation above, and the place of every number in a subset. These
    # are the first numbers of SplitMix64 with seed 0, as its authors give them.
    steps = np.arange(3, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    assert [hex(value) for value in mixed(steps).tolist()] == [
        "0xe220a8397b1dcdaf", "0x6e789e6aa1b965f4", "0x6c45d188009454f",
    ]  # fmt: skip


@given(count=st.integers(1, 3000), seed=SEEDS)
def test_it_is_a_permutation(count: int, seed: int) -> None:
    assert sorted(whole(count, seed)) == list(range(count))


@given(count=st.integers(1, 2**50), seed=SEEDS, data=st.data())
def test_any_part_of_any_size_stands_alone(count: int, seed: int, data: st.DataObject) -> None:
    places = data.draw(st.lists(st.integers(0, count - 1), max_size=50))
    together = permuted(np.array(places, np.int64), count, seed)
    assert together.dtype == np.int64
    assert all(0 <= value < count for value in together.tolist())
    for place, value in zip(places, together.tolist(), strict=True):
        assert permuted(np.array([place]), count, seed).tolist() == [value]
        assert place_of(value, count, seed) == place


def test_what_is_given_stays_as_it_is() -> None:
    places = np.arange(100)
    permuted(places, 100, 3)
    assert places.tolist() == list(range(100))


def test_seeds_give_other_permutations() -> None:
    found = {tuple(whole(20, seed)) for seed in range(500)}
    assert len(found) == 500


def test_numbers_come_from_everywhere() -> None:
    # A thousandth of a million numbers, ten at a time: like throws of a die with 1,000 faces.
    count = 1_000_000
    values = permuted(np.arange(10_000), count, 5)
    faces = np.bincount(values // 1000, minlength=1000)
    chi_squared = float(((faces - 10.0) ** 2 / 10.0).sum())
    # 999 degrees of freedom: a deviation of 45.
    assert abs(chi_squared - 999) < 4 * 45
    # Neighbours are no neighbours any more.
    steps = np.abs(np.diff(values))
    assert abs(float(steps.mean()) / count - 1 / 3) < 0.02
    assert int((steps == 1).sum()) < 5
