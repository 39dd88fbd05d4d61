"""Which shards a cache that is too small for an epoch keeps.

The host evicts the shard whose last use is longest ago. Where an epoch uses each shard once, in a
new order, that is the wrong one: what was used longest ago is what this epoch has not come to yet.
The best choice is the one whose next use is farthest (L. A. Belady, "A study of replacement
algorithms for a virtual-storage computer", IBM Systems Journal 5(2), 1966). A worker knows its own
course to the end of the epoch: what it still needs has a nearer use than what nobody needs before
the next epoch, so that is kept, and of two shards that are needed, the one that is needed sooner.

The host looks for the smallest time of access among the shards that are there. So nothing but
those times is changed: a shard that is still needed has one far in the future.
"""

from __future__ import annotations

import time

import numpy as np
from numpy.typing import NDArray

from lance_stream.host.course import Course, last_uses

__all__ = ["POLICIES", "Kept"]

POLICIES = ("lru", "epoch")

# Later than any time of day, and before the host's "never": 36 years, in ns.
_FAR_NS = 1 << 60
_RENEW_NS = 100_000_000


class Kept:
    """Keeps what the rest of a worker's course needs ahead of everything else."""

    def __init__(self, course: Course, access_times: NDArray[np.int64]) -> None:
        """Nothing is kept before the first ``renew``.

        Args:
            course: Of this worker, at its start.
            access_times: int64 array (shards,), ns; the host's own, shared by all processes.
        """
        self._times = access_times
        # Position in the course at which a shard comes for the last time; -1: never.
        self._last = last_uses(course, len(access_times))
        shards = np.flatnonzero(self._last >= 0)
        self._needed = shards[np.argsort(self._last[shards])]
        self._done = 0
        self._renewed_ns = 0

    def time_of(self, shard: int) -> int:
        """The time of access that a shard should have, in ns."""
        last = int(self._last[shard])
        return time.time_ns() + (_FAR_NS - last if last >= self._done else 0)

    def renew(self, done: int) -> None:
        """Say again what is needed; seldom does anything.

        Args:
            done: Samples of the course that were given out, or are about to be.
        """
        now, self._done = time.time_ns(), done
        over = int(np.searchsorted(self._last[self._needed], done))
        if over:
            # Another worker that still needs one of them says so itself, a moment later.
            self._times[self._needed[:over]] = now
            self._needed = self._needed[over:]
        if over or now - self._renewed_ns > _RENEW_NS:
            self._times[self._needed] = now + _FAR_NS - self._last[self._needed]
            self._renewed_ns = now
