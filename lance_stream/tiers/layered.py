"""Several tiers as one, the fast and small before the slow and large."""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable, Sequence

from lance_stream.tiers.backlog import Backlog
from lance_stream.tiers.shard_cache import Check, CheckedCache, Content, Data, passes

__all__ = ["LayeredCache"]

logger = logging.getLogger(__name__)

# What is on its way from a slow tier to the fast ones.
_MAX_PROMOTIONS = 8
_MAX_PROMOTION_BYTES = 128 << 20


class LayeredCache(CheckedCache):
    """Asks one tier after the other; what a slow one has is put into the faster, in background.

    A write goes to all of them. The tiers must not raise (see ``GuardedCache``).
    """

    def __init__(
        self,
        tiers: Sequence[CheckedCache],
        *,
        close_s: float = 5.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Compose.

        Args:
            tiers: From fast to slow.
            close_s: Longest wait of ``close`` for what is on its way to the faster tiers.
            clock: Seconds.
        """
        self.tiers = tuple(tiers)
        self._close_s = close_s
        self._clock = clock
        self._promotions = Backlog(
            "lance-stream-promote",
            threads=1,
            max_jobs=_MAX_PROMOTIONS,
            max_bytes=_MAX_PROMOTION_BYTES,
        )

    def read(
        self,
        key: str,
        *,
        rows: int | None = None,
        check: Check | None = None,
        timeout_s: float | None = None,
    ) -> Content | None:
        """See ``CheckedCache``; ``timeout_s`` is for all tiers together."""
        deadline = None if timeout_s is None else self._clock() + timeout_s
        refused: list[CheckedCache] = []
        for number, tier in enumerate(self.tiers):

            def is_right(content: memoryview, tier: CheckedCache = tier) -> bool:
                if passes(check, content):
                    return True
                refused.append(tier)
                return False

            left = None if deadline is None else deadline - self._clock()
            found = tier.read(key, rows=rows, check=is_right, timeout_s=left)
            if found is not None:
                if number:
                    self._promote(self.tiers[:number], refused, key, found)
                return found
        return None

    def write(
        self,
        key: str,
        data: Data,
        *,
        rows: int = 0,
        replace: bool = True,
        timeout_s: float | None = None,
    ) -> bool:
        """See ``CheckedCache``; returns whether any tier wrote it."""
        deadline = None if timeout_s is None else self._clock() + timeout_s
        written = False
        for tier in self.tiers:
            left = None if deadline is None else deadline - self._clock()
            written |= tier.write(key, data, rows=rows, replace=replace, timeout_s=left)
        return written

    def __contains__(self, key: object) -> bool:
        """Whether any tier has something under the key."""
        return any(key in tier for tier in self.tiers)

    def delete(self, key: str) -> None:
        """Forget the content in all tiers."""
        for tier in self.tiers:
            tier.delete(key)

    def claim(self, key: str, owner: str, seconds: float) -> bool | None:
        """See ``ShardCache``; by the first tier that has claims and works."""
        for tier in self.tiers:
            claimed = tier.claim(key, owner, seconds)
            if claimed is not None:
                return claimed
        return None

    def release(self, key: str, owner: str) -> None:
        """See ``ShardCache``."""
        for tier in self.tiers:
            tier.release(key, owner)

    def settle(self, timeout_s: float) -> bool:
        """Wait until nothing is on its way to a faster tier; returns whether that is so."""
        return self._promotions.wait(timeout_s)

    def close(self) -> None:
        """Close all tiers."""
        self._promotions.close(self._close_s)
        with contextlib.ExitStack() as stack:
            for tier in self.tiers:
                stack.callback(tier.close)

    def __repr__(self) -> str:
        return f"<shared caches {', '.join(repr(tier) for tier in self.tiers)}>"

    def _promote(
        self,
        tiers: Sequence[CheckedCache],
        refused: Sequence[CheckedCache],
        key: str,
        found: Content,
    ) -> None:
        def put() -> None:
            for tier in tiers:
                # What was refused may be there still, where nothing can be deleted.
                tier.write(key, found.data, rows=found.rows, replace=tier in refused)

        if not self._promotions.offer(key, put, found.data.nbytes):
            logger.debug("%r: too busy to put a shard into the faster tiers", self)
