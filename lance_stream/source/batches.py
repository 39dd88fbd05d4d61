"""Read rows in batches that Arrow can hold. Pure but for the scan that it is given.

Offsets of ``string``, ``binary`` and ``list`` are 32-bit: one batch has at most 2^31 bytes of such
a column, and Lance refuses a larger one, or panics in an expression. How large a batch is cannot
be known before it is decoded, so it is made smaller where that happens. Measured with pylance 14.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

import pyarrow as pa

from lance_stream.planning.rows import RowRange

__all__ = ["OneRowTooLargeError", "Scan", "batch_rows", "in_batches", "is_too_large"]

Scan = Callable[[RowRange, int], Iterator[pa.RecordBatch]]
"""Gives rows in order, in batches of at most so many."""

# Far from what overflows, and few enough batches for a shard.
_BATCH_BYTES = 256 << 20
_TOO_LARGE = re.compile(r"\b(?:offset|size) overflow", re.IGNORECASE)
# A panic of the thread that evaluates an expression. Whatever its reason, fewer rows tell more.
_PANIC = re.compile(r"producer terminated before end of stream", re.IGNORECASE)


class OneRowTooLargeError(Exception):
    """A single row does not fit into a batch."""

    def __init__(self, row: int) -> None:
        """Keep the row, as it is counted in the ranges."""
        super().__init__(f"row {row} does not fit into a batch")
        self.row = row


def is_too_large(error: BaseException) -> bool:
    """Whether fewer rows at a time can help against an error of Lance."""
    text = str(error)
    return bool(_TOO_LARGE.search(text) or _PANIC.search(text))


def batch_rows(num_rows: int, row_bytes: float) -> int:
    """Rows to ask for in one batch: all of them, unless they are many bytes by their mean size."""
    return max(1, min(num_rows, int(_BATCH_BYTES / max(row_bytes, 1.0))))


def in_batches(scan: Scan, rows: RowRange, most: int) -> Iterator[pa.RecordBatch]:
    """Read rows in order, with fewer in a batch where they would be too large for one.

    Args:
        scan: Reads a range of rows; called again for what is left where it fails.
        rows: Which.
        most: Rows of a batch, at least 1.

    Raises:
        OneRowTooLargeError: A row is too large by itself.
        BaseException: Whatever else the scan raises.
    """
    start = rows.start
    while start < rows.stop:
        try:
            for batch in scan(RowRange(start, rows.stop), most):
                start += batch.num_rows
                yield batch
            return
        except Exception as error:
            if not is_too_large(error):
                raise
            left = min(most, rows.stop - start)
            if left <= 1:
                if _TOO_LARGE.search(str(error)):
                    raise OneRowTooLargeError(start) from error
                raise
        # A part in smaller batches, then on as before: large rows may lie close together.
        stop = start + left // 2
        yield from in_batches(scan, RowRange(start, stop), left // 2)
        start = stop
