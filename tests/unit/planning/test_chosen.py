from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lance_stream.planning.chosen import ChosenRows, RowBits
from lance_stream.planning.rows import RowRange

# Around the borders of bytes and of the blocks that are counted together.
SIZES = st.one_of(
    st.integers(1, 70),
    st.sampled_from([4095, 4096, 4097, 8191, 8192, 8193, 12_288, 20_001]),
)


def bits_of(num_rows: int, rows: list[int]) -> RowBits:
    bits = RowBits(num_rows)
    bits.add(np.array(rows, np.int64))
    return bits


@st.composite
def tables(draw: st.DrawFn) -> tuple[int, list[int]]:
    """Live rows of a table, and some of them in any order, also twice."""
    num_rows = draw(SIZES)
    kind = draw(st.sampled_from(["few", "many", "all", "ends"]))
    if kind == "few":
        return num_rows, draw(st.lists(st.integers(0, num_rows - 1), max_size=30))
    if kind == "ends":
        return num_rows, [0, num_rows - 1]
    if kind == "all":
        return num_rows, list(range(num_rows))
    seed = draw(st.integers(0, 1000))
    return num_rows, np.flatnonzero(np.random.default_rng(seed).random(num_rows) < 0.3).tolist()


@given(table=tables(), parts=st.integers(1, 5), data=st.data())
def test_the_chosen_rows_are_those_that_were_added(
    table: tuple[int, list[int]], parts: int, data: st.DataObject
) -> None:
    num_rows, rows = table
    bits = RowBits(num_rows)
    for part in range(parts):
        bits.add(np.array(rows[part::parts], np.int64))
    expected = sorted(set(rows))
    assert bits.count == len(expected)
    chosen = bits.chosen()
    assert (chosen.count, chosen.num_rows) == (len(expected), num_rows)
    if not expected:
        return
    assert chosen.rows(RowRange(0, len(expected))).tolist() == expected
    start = data.draw(st.integers(0, len(expected) - 1))
    stop = data.draw(st.integers(start + 1, len(expected)))
    found = chosen.rows(RowRange(start, stop))
    assert found.dtype == np.int64
    assert found.tolist() == expected[start:stop]


@given(table=tables(), limit=st.integers(0, 40))
def test_a_limit_takes_the_first_rows(table: tuple[int, list[int]], limit: int) -> None:
    num_rows, rows = table
    bits = bits_of(num_rows, rows)
    before = bits.bits.copy()
    chosen = bits.chosen(limit)
    expected = sorted(set(rows))[:limit]
    assert chosen.count == len(expected)
    if expected:
        assert chosen.rows(RowRange(0, len(expected))).tolist() == expected
    # The bits are those of the scan still, which may be kept for a later run.
    assert np.array_equal(bits.bits, before)


@pytest.mark.parametrize("limit", [3, 4, 10**12, None])
def test_a_limit_that_is_not_reached_changes_nothing(limit: int | None) -> None:
    assert bits_of(20, [1, 5, 19]).chosen(limit).rows(RowRange(0, 3)).tolist() == [1, 5, 19]


def test_no_row_at_all() -> None:
    bits = bits_of(100, [])
    assert bits.count == bits.chosen().count == bits.chosen(5).count == 0


@pytest.mark.parametrize("chosen", [RowRange(0, 4), RowRange(-1, 2), RowRange(2, 2)])
def test_other_ranges_are_index_errors(chosen: RowRange) -> None:
    with pytest.raises(IndexError, match="are not in a selection of 3 rows"):
        bits_of(20, [1, 5, 19]).chosen().rows(chosen)


def test_bits_of_an_earlier_run_are_taken_over() -> None:
    bits = bits_of(20, [1])
    bits.replace(bits_of(20, [5, 19]).bits)
    assert bits.chosen().rows(RowRange(0, 2)).tolist() == [5, 19]
    with pytest.raises(ValueError, match="broadcast"):
        bits.replace(bits_of(2000, []).bits)


def test_golden_bits() -> None:
    # Who depends on them: index files hold these bytes.
    assert bits_of(20, [0, 1, 9, 19]).bits.tolist() == [0b11, 0b10, 0b1000]
    assert ChosenRows(np.array([0b11, 0b10, 0b1000], np.uint8), 20).count == 4


def test_a_hundred_million_rows_take_an_eighth_of_a_byte_each() -> None:
    bits = RowBits(100_000_000)
    rows = np.arange(0, 100_000_000, 1000)
    bits.add(rows)
    chosen = bits.chosen()
    assert bits.bits.nbytes == 12_500_000
    assert np.array_equal(chosen.rows(RowRange(50_000, 51_000)), rows[50_000:51_000])


def test_rows_before_a_row_are_counted() -> None:
    rows = np.array([0, 7, 8, 4095, 4096, 9000])
    bits = RowBits(9001)
    bits.add(rows)
    chosen = bits.chosen()
    for row in (0, 1, 7, 8, 9, 4095, 4096, 4097, 8999, 9000, 9001):
        assert chosen.before(row) == int((rows < row).sum())
