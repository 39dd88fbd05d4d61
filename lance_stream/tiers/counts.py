"""What a tier did, in numbers."""

from __future__ import annotations

import threading
from dataclasses import asdict, dataclass, replace

__all__ = ["Counter", "TierCounts"]


@dataclass(frozen=True, slots=True)
class TierCounts:
    """Numbers of one tier, since it was opened.

    Attributes:
        tier: Its url, without credentials.
        hits: Reads that found the content.
        misses: Reads that found nothing.
        bad: Reads that found something else, or damaged content.
        errors: Calls that failed or missed their deadline.
        skipped: Calls that were not made, as the tier was failing or all calls hung.
        present: Writes that were not needed.
        puts: Writes.
        too_large: Writes of what the tier can never hold.
        outages: How often it began to fail.
        hit_bytes: Bytes that were found.
        put_bytes: Bytes that were written.
        get_seconds: Time in reads, those that failed with them.
        put_seconds: Time in writes, those that failed with them.
    """

    tier: str
    hits: int = 0
    misses: int = 0
    bad: int = 0
    errors: int = 0
    skipped: int = 0
    present: int = 0
    puts: int = 0
    too_large: int = 0
    outages: int = 0
    hit_bytes: int = 0
    put_bytes: int = 0
    get_seconds: float = 0.0
    put_seconds: float = 0.0

    def as_dict(self) -> dict[str, str | int | float]:
        """The numbers by name."""
        return asdict(self)


class Counter:
    """Adds up. Thread-safe."""

    def __init__(self, tier: str) -> None:
        """All zero."""
        self._lock = threading.Lock()
        self._counts = TierCounts(tier)

    def add(self, **numbers: float) -> None:
        """Add to some of the numbers, by name."""
        with self._lock:
            sums = {name: getattr(self._counts, name) + more for name, more in numbers.items()}
            self._counts = replace(self._counts, **sums)

    def snapshot(self) -> TierCounts:
        """The numbers now."""
        with self._lock:
            return self._counts
