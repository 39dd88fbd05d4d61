"""Batches that are made smaller where they would be too large, by a scan that refuses such."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lance_stream.planning.rows import RowRange
from lance_stream.source.batches import (
    OneRowTooLargeError,
    Scan,
    batch_rows,
    in_batches,
    is_too_large,
)

_LIMIT = 100


def scan_of(sizes: list[int], asked: list[tuple[str, int]]) -> Scan:
    """Rows of so many bytes each; a batch of more than 100 is refused, as Lance does it."""

    def scan(rows: RowRange, most: int) -> Iterator[pa.RecordBatch]:
        asked.append((str(rows), most))
        for start in range(rows.start, rows.stop, most):
            stop = min(rows.stop, start + most)
            if sum(sizes[start:stop]) > _LIMIT:
                msg = f"External error: LanceError(Arrow): Offset overflow error: {start}"
                raise pa.ArrowInvalid(msg)
            yield pa.record_batch({"row": list(range(start, stop))})

    return scan


def read(sizes: list[int], rows: RowRange, most: int) -> list[list[int]]:
    return [batch["row"].to_pylist() for batch in in_batches(scan_of(sizes, []), rows, most)]


@given(st.lists(st.integers(0, _LIMIT), min_size=1, max_size=60), st.data())
def test_every_row_comes_once_and_in_order(sizes: list[int], data: st.DataObject) -> None:
    start = data.draw(st.integers(0, len(sizes) - 1))
    rows = RowRange(start, data.draw(st.integers(start + 1, len(sizes))))
    found = read(sizes, rows, data.draw(st.integers(1, len(sizes))))
    assert [row for batch in found for row in batch] == list(range(rows.start, rows.stop))
    assert all(sum(sizes[row] for row in batch) <= _LIMIT for batch in found)


def test_only_where_it_is_needed() -> None:
    """Batches are halved around the large rows, and as large as asked for elsewhere."""
    sizes = [1] * 40 + [60] * 4 + [1] * 40
    asked: list[tuple[str, int]] = []
    found = list(in_batches(scan_of(sizes, asked), RowRange(0, 84), 20))
    assert [batch.num_rows for batch in found[:2]] == [20, 20]
    assert [batch.num_rows for batch in found].count(20) >= 3
    assert all(count <= 1 for count in map(large_rows, found))
    assert len(asked) < 20


def large_rows(batch: pa.RecordBatch) -> int:
    return sum(40 <= row < 44 for row in batch["row"].to_pylist())


def test_a_row_that_is_too_large_alone_is_named() -> None:
    with pytest.raises(OneRowTooLargeError, match="row 5 does not fit") as caught:
        read([1, 1, 1, 1, 1, 101, 1], RowRange(0, 7), 7)
    assert caught.value.row == 5


@pytest.mark.parametrize(
    ("text", "is_one"),
    [
        ("LanceError(Arrow): Offset overflow error: 2202029600", True),
        ("string size overflow on repeat, max size is 2147483647, but got 3000000000", True),
        ("External error: Lance reader producer terminated before end of stream", True),
        ("Arithmetic overflow: Overflow happened on: 1 + 2", False),
        ("Divide by zero error", False),
    ],
)
def test_what_fewer_rows_may_help_against(text: str, is_one: bool) -> None:
    assert is_too_large(pa.ArrowInvalid(text)) is is_one


def failing(error: Exception, calls: list[int]) -> Scan:
    def scan(_rows: RowRange, most: int) -> Iterator[pa.RecordBatch]:
        calls.append(most)
        raise error
        yield

    return scan


def test_other_errors_are_raised_at_once() -> None:
    calls: list[int] = []
    with pytest.raises(ValueError, match="broken"):
        list(in_batches(failing(ValueError("broken"), calls), RowRange(0, 64), 64))
    assert calls == [64]


def test_a_panic_that_stays_is_raised_as_it_is() -> None:
    """Its reason may be another one than the size."""
    calls: list[int] = []
    error = pa.ArrowInvalid("Lance reader producer terminated before end of stream")
    with pytest.raises(pa.ArrowInvalid, match="producer terminated"):
        list(in_batches(failing(error, calls), RowRange(0, 64), 64))
    assert calls == [64, 32, 16, 8, 4, 2, 1]


@pytest.mark.parametrize(
    ("num_rows", "row_bytes", "expected"),
    [(1000, 100.0, 1000), (1000, float(1 << 20), 256), (5, float(1 << 30), 1), (5, 0.0, 5)],
)
def test_rows_to_ask_for(num_rows: int, row_bytes: float, expected: int) -> None:
    assert batch_rows(num_rows, row_bytes) == expected
