from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lance_stream.errors import PlanError
from lance_stream.planning.sizing import (
    RowSize,
    estimate_row_size,
    parse_bytes,
    rows_per_shard,
)


@pytest.mark.parametrize(
    ("value", "num_bytes"),
    [
        (1, 1),
        (1024, 1024),
        (1 << 40, 1 << 40),
        ("1", 1),
        ("1024", 1024),
        ("7b", 7),
        ("64k", 64 << 10),
        ("64kb", 64 << 10),
        ("64KiB", 64 << 10),
        ("32mb", 32 << 20),
        ("32MB", 32 << 20),
        ("32 mib", 32 << 20),
        ("1.5 GB", 3 << 29),
        (" 2g ", 2 << 30),
        ("0.5k", 512),
        ("1.999b", 1),
    ],
)
def test_sizes_that_are_understood(value: int | str, num_bytes: int) -> None:
    found = parse_bytes(value, "shard_bytes")
    assert found == num_bytes
    assert type(found) is int


@pytest.mark.parametrize(
    "value",
    [
        *("-1", "-1mb", "0", "0mb", "0.1", "x", "", "mb", "1 tb", "1mb2", "1,5mb", "1e3", "nan"),
        *("inf", "\N{ARABIC-INDIC DIGIT ONE}mb", 0, -1, True, False, 1.5, None, [1], b"1mb"),
    ],
)
def test_sizes_that_are_refused_name_the_argument(value: Any) -> None:
    with pytest.raises(PlanError, match=r"shard_bytes=.* is not a size: .*'32mb'"):
        parse_bytes(value, "shard_bytes")


@pytest.mark.parametrize(
    "value", [10**400, "9" * 400, "9" * 400 + "gb"], ids=["int", "digits", "gigabytes"]
)
def test_absurd_sizes_are_refused_like_others(value: int | str) -> None:
    with pytest.raises(PlanError, match="shard_bytes="):
        parse_bytes(value, "shard_bytes")


def test_large_sizes_are_exact() -> None:
    assert parse_bytes((1 << 53) + 1, "shard_bytes") == (1 << 53) + 1


def test_rows_of_equal_size_are_estimated_exactly() -> None:
    size = estimate_row_size([(64, 6400), (64, 6400), (10, 1000)], 500)
    assert size == RowSize(100.0, 0.0, 500)
    assert size.shard_bytes(1000) == 100_501


def test_one_run_gives_a_mean_without_a_deviation() -> None:
    assert estimate_row_size([(3, 300)], 0) == RowSize(100.0, 0.0, 0)


def test_the_mean_is_weighted_by_rows() -> None:
    assert estimate_row_size([(1, 1000), (9, 0)], 0).mean_bytes == 100.0


def test_a_run_without_rows_says_nothing() -> None:
    with_empty = estimate_row_size([(10, 1000), (0, 0), (10, 1200)], 0)
    assert with_empty == estimate_row_size([(10, 1000), (10, 1200)], 0)


def test_the_deviation_of_a_row_follows_from_that_of_run_means() -> None:
    # Means of 4 rows each: 90 and 110; each deviates by 10 from 100, so a row by 10 * sqrt(4)
    # times the small-sample correction sqrt(2).
    size = estimate_row_size([(4, 360), (4, 440)], 0)
    assert size.mean_bytes == 100.0
    assert size.deviation_bytes == pytest.approx(10 * 2 * 2**0.5)


def test_the_margin_of_a_shard_grows_with_the_root_of_its_rows() -> None:
    # Overhead 100, 25 rows of 10, two deviations of 4 times the root of 25; rounded up.
    assert RowSize(10.0, 4.0, 100).shard_bytes(25) == 100 + 250 + 40 + 1


@given(
    mean=st.floats(0, 1e6),
    deviation=st.floats(0, 1e6),
    overhead=st.integers(0, 10_000),
    rows=st.integers(0, 10**9),
)
def test_an_estimate_errs_high(mean: float, deviation: float, overhead: int, rows: int) -> None:
    size = RowSize(mean, deviation, overhead)
    assert size.shard_bytes(rows) > overhead + int(mean * rows) - 1
    assert size.shard_bytes(rows) >= 1
    assert type(size.shard_bytes(rows)) is int
    assert size.shard_bytes(rows + 1) >= size.shard_bytes(rows)


@pytest.mark.parametrize(
    ("mean", "shard_bytes", "rows"),
    [(100.0, 1000, 10), (100.0, 1049, 10), (100.0, 1051, 11), (100.0, 1, 1), (1e12, 1 << 20, 1)],
)
def test_rows_per_shard(mean: float, shard_bytes: int, rows: int) -> None:
    assert rows_per_shard(RowSize(mean, 0.0, 0), shard_bytes) == rows


def test_rows_without_bytes_still_make_a_plan() -> None:
    assert rows_per_shard(RowSize(0.0, 0.0, 0), 1) >= 1


def test_files_say_more_than_samples_that_missed_large_rows() -> None:
    size = RowSize(100.0, 5.0, 1000)
    # Compressed, or about what the samples say.
    assert size.of_files(0.0) == size.of_files(20.0) == size.of_files(120.0) == size
    assert size.of_files(600.0) == RowSize(600.0, 5.0, 1000)
