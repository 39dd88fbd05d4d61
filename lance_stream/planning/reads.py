"""By which route some rows of a table are read. Pure.

Measured with pylance 14 (2,000 rows of 1.5 KB): consecutive rows take one request per column by a
scan; runs of 64 rows about 1.2 requests per run and column by address; single rows one or two
each. A scan over a gap costs the gap's bytes, a request costs about as much as ``_REQUEST_BYTES``.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from lance_stream.planning.rows import FragmentRows, FragmentSpan, RowRange

__all__ = ["Scan", "Take", "expected_requests", "num_runs", "route", "rows_array"]

# What a further request is worth in bytes of a scan. Small enough that a sparse filter never
# reads much of what it leaves out.
_REQUEST_BYTES = 16 << 10
_MAX_SCAN_SHARE = 16
_REQUESTS_PER_RUN = 1.2


@dataclass(frozen=True, slots=True, eq=False)
class Scan:
    """Read consecutive live rows.

    Attributes:
        span: Where they lie.
        keep: int64 array of the rows to keep, counted from the span's first; None for all.
    """

    span: FragmentSpan
    keep: NDArray[np.int64] | None


@dataclass(frozen=True, slots=True, eq=False)
class Take:
    """Read rows by their address.

    Attributes:
        rows: int64 array of live rows of the table, ascending.
    """

    rows: NDArray[np.int64]


def route(
    fragments: FragmentRows,
    rows: RowRange | NDArray[np.int64],
    *,
    row_bytes: float,
    num_columns: int,
) -> Scan | Take:
    """Choose how to read live rows of a table.

    Args:
        fragments: Live rows of the table.
        rows: The rows: a range, or an int64 array in ascending order; at least one.
        row_bytes: Mean bytes of a row.
        num_columns: Columns that are read.
    """
    if isinstance(rows, RowRange):
        return Scan(fragments.span(rows), None)
    first, last = int(rows[0]), int(rows[-1])
    span_rows, runs = last + 1 - first, num_runs(rows)
    if runs == 1:
        return Scan(fragments.span(RowRange(first, last + 1)), None)
    take_bytes = runs * max(1, num_columns) * _REQUEST_BYTES + len(rows) * row_bytes
    if span_rows * row_bytes <= take_bytes and span_rows <= _MAX_SCAN_SHARE * len(rows):
        return Scan(fragments.span(RowRange(first, last + 1)), rows - first)
    return Take(rows)


def expected_requests(way: Scan | Take, num_columns: int) -> int:
    """About how many requests to the store a route takes, for columns of a plain type.

    Args:
        way: As ``route`` gives it.
        num_columns: Columns that are read.
    """
    columns = max(1, num_columns)
    if isinstance(way, Scan):
        return columns * len(way.span.fragment_ids)
    return round(_REQUESTS_PER_RUN * columns * num_runs(way.rows))


def num_runs(rows: NDArray[np.int64]) -> int:
    """How many runs of consecutive rows an ascending array has."""
    return 1 + int(np.count_nonzero(np.diff(rows) != 1))


def rows_array(ranges: list[RowRange]) -> NDArray[np.int64]:
    """The rows of some ranges as one array."""
    return np.concatenate([np.arange(part.start, part.stop) for part in ranges])
