"""How many rows make a shard, and how many bytes a shard will take. Pure."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction

from lance_stream.errors import PlanError

__all__ = ["RowSize", "estimate_row_size", "parse_bytes", "rows_per_shard"]

_UNITS = {
    "": 1,
    "b": 1,
    "k": 1 << 10,
    "kb": 1 << 10,
    "kib": 1 << 10,
    "m": 1 << 20,
    "mb": 1 << 20,
    "mib": 1 << 20,
    "g": 1 << 30,
    "gb": 1 << 30,
    "gib": 1 << 30,
}
_MAX_BYTES = 1 << 62
_SIZE = re.compile(r"\s*([0-9]{1,30}(?:\.[0-9]{1,30})?)\s*([a-z]*)\s*", re.IGNORECASE)

# Standard deviations above the mean that an estimate is raised by: an estimate that is too low
# lets the cache grow past its limit, one that is too high only evicts a little early.
_MARGIN_DEVIATIONS = 2.0
# Files that take so much more than the samples hold rows that those missed.
_FILES_SAY_MORE = 1.25


def parse_bytes(value: int | str, argument: str) -> int:
    """Read a size such as ``33554432``, ``"32mb"`` or ``"1.5 GB"`` (units are powers of 1024).

    Args:
        value: The size.
        argument: Name of the argument, for the error.

    Returns:
        Bytes, at least 1.

    Raises:
        PlanError: Not a size, or less than one byte.
    """
    size: int | Fraction = -1
    if isinstance(value, str):
        match = _SIZE.fullmatch(value)
        if match and match.group(2).lower() in _UNITS:
            size = Fraction(match.group(1)) * _UNITS[match.group(2).lower()]
    elif isinstance(value, int) and not isinstance(value, bool):
        size = value
    if not 1 <= size <= _MAX_BYTES:
        shown = repr(value) if len(str(value)) < 50 else f"{str(value)[:40]}..."
        msg = f"{argument}={shown} is not a size: give bytes (an int) or text such as '32mb'"
        raise PlanError(msg)
    return int(size)


@dataclass(frozen=True, slots=True)
class RowSize:
    """What rows of a selection take in a shard file, as sampled.

    Attributes:
        mean_bytes: Mean bytes of a row.
        deviation_bytes: Standard deviation of the bytes of a row.
        shard_overhead_bytes: Bytes of a shard file without rows.
    """

    mean_bytes: float
    deviation_bytes: float
    shard_overhead_bytes: int

    def shard_bytes(self, num_rows: int) -> int:
        """Bytes to expect of a shard file of so many rows; errs high."""
        spread = _MARGIN_DEVIATIONS * self.deviation_bytes * math.sqrt(num_rows)
        return int(self.shard_overhead_bytes + self.mean_bytes * num_rows + spread) + 1

    def of_files(self, file_bytes: float) -> RowSize:
        """The size, where the table's files are so large that the samples missed large rows.

        Files are compressed: rows take at least what they take there. They are no smaller than
        the samples say by chance, and small ones mostly hold what is not rows.

        Args:
            file_bytes: Mean bytes that a row takes in the table's files; 0 if not known.
        """
        if file_bytes <= _FILES_SAY_MORE * self.mean_bytes:
            return self
        return replace(self, mean_bytes=file_bytes)


def estimate_row_size(runs: Sequence[tuple[int, int]], shard_overhead_bytes: int) -> RowSize:
    """Estimate the size of rows from short sampled runs.

    The deviation of a row is derived from that of the run means (times the square root of the
    run length), which needs no per-row sizes.

    Args:
        runs: ``(rows, bytes)`` of each run; at least one row in all.
        shard_overhead_bytes: Bytes of a shard file without rows.
    """
    rows = sum(r for r, _ in runs)
    mean = sum(b for _, b in runs) / rows
    means = [(b / r, r) for r, b in runs if r]
    deviation = 0.0
    if len(means) > 1:
        variance = sum(r * (m - mean) ** 2 for m, r in means) / (len(means) - 1)
        deviation = math.sqrt(variance)
    return RowSize(mean, deviation, shard_overhead_bytes)


def rows_per_shard(size: RowSize, shard_bytes: int) -> int:
    """Rows whose mean size comes closest to the wanted bytes of a shard; at least 1."""
    return max(1, round(shard_bytes / max(size.mean_bytes, 1e-9)))
