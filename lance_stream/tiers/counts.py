"""What a tier did, and a shared cache of several, in numbers."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

__all__ = ["Counter", "PublisherCounts", "SharedTierCounts", "TierCounts"]


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


@dataclass(frozen=True, slots=True)
class PublisherCounts:
    """Numbers of a publisher.

    Attributes:
        published: Files that were written into a tier.
        unneeded: Files that every tier had already, or that none would take.
        gone: Files that were evicted before their turn.
        damaged: Files that were not what they should be, or could not be read.
        dropped: Files for which there was no room in the queue, or no time at the end.
    """

    published: int = 0
    unneeded: int = 0
    gone: int = 0
    damaged: int = 0
    dropped: int = 0

    def as_dict(self) -> dict[str, int]:
        """The numbers by name."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class SharedTierCounts:
    """What a shared tier did.

    Attributes:
        taken: Shards that were taken from it.
        not_taken: Shards that it did not give.
        refused: Shards that it gave whole, but that were not what the caller's check wants.
        taken_bytes: Bytes of the shards that were taken.
        take_seconds: Time in ``take``.
        waits: Shards that another node was reading from Lance.
        waits_in_vain: Of these, how many had to be read here too.
        wait_seconds: Time spent waiting for them.
        tiers: Of each tier, from fast to slow.
        publisher: Of what was offered.
    """

    taken: int = 0
    not_taken: int = 0
    refused: int = 0
    taken_bytes: int = 0
    take_seconds: float = 0.0
    waits: int = 0
    waits_in_vain: int = 0
    wait_seconds: float = 0.0
    tiers: tuple[TierCounts, ...] = ()
    publisher: PublisherCounts = field(default_factory=PublisherCounts)

    def as_dict(self) -> dict[str, Any]:
        """The numbers by name, without credentials."""
        return asdict(self)

    @property
    def tier(self) -> str:
        """Names of its tiers, joined by commas."""
        return ",".join(tier.tier for tier in self.tiers)

    @classmethod
    def from_dict(cls, numbers: Mapping[str, Any]) -> SharedTierCounts:
        """What ``as_dict`` gave."""
        parts = {
            "tiers": tuple(TierCounts(**tier) for tier in numbers["tiers"]),
            "publisher": PublisherCounts(**numbers["publisher"]),
        }
        return cls(**{**numbers, **parts})


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
