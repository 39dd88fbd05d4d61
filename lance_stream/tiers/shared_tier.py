"""The shared cache as the download process uses it: take a shard file from it, offer it one.

::

    tier = SharedTier(urls)                       # once per process and url list
    key = shard_key(fingerprint, shard, cache_format)
    num_bytes = tier.take(key, temporary_path, rows, check=check, timeout_s=timeout_s)
    if num_bytes is None:
        ...                                       # read from Lance, publish locally, and then
        tier.offer(key, published_path, rows, check=check)
    tier.close(timeout_s)                         # at the end of the process

Nothing a tier does, or fails to do, raises here; only the local disk can.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace

from lance_stream.tiers.counts import SharedTierCounts
from lance_stream.tiers.opening import open_tiers
from lance_stream.tiers.publisher import Publisher
from lance_stream.tiers.shard_cache import Check, passes

__all__ = ["Check", "SharedTier", "shard_key"]

# For looks, deletes and promotions, and for some that hang.
_SPARE_CALLS = 8
# Longer than Lance takes for a shard, much shorter than a download's timeout.
MAX_WAIT_S = 10.0
_FIRST_PAUSE_S = 0.02
_MAX_REFUSED = 10_000
_MAX_PAUSE_S = 0.25


def shard_key(fingerprint: str, shard: int, cache_format: str) -> str:
    """Key of a shard file in the shared cache: whoever has the same key has the same rows. Pure.

    Args:
        fingerprint: Of the content, in full (see ``planning.fingerprint.content_fingerprint``).
        shard: Number in the index.
        cache_format: ``"arrow"`` or ``"mds"``.
    """
    return f"{fingerprint}/{shard:08d}.{cache_format}"


class SharedTier:
    """One or several shared caches, for shard files. Thread-safe; not to be used across a fork."""

    def __init__(
        self,
        urls: str | Sequence[str],
        *,
        warn: Callable[[str], None] | None = None,
        threads: int = 2,
        max_queued: int = 512,
        max_takes: int = 16,
        max_wait_s: float = MAX_WAIT_S,
    ) -> None:
        """Load what the urls need; connects to nothing.

        Args:
            urls: A url, or several from fast to slow (see ``tier_url.checked_urls``).
            warn: Told of each outage once, and of the first wrong content; default the log.
            threads: Files published at a time.
            max_queued: Most files that wait to be published.
            max_takes: Most calls of ``take`` at a time. Where calls hang, the threads of a tier
                are never more than these, those that publish, and a few.
            max_wait_s: Longest wait for a shard that another node is reading from Lance. Then it
                is read here too, so it is also how long the claim of a node that died is obeyed.

        Raises:
            PlanError: A url is wrong, or its library is not installed.
        """
        max_calls = max_takes + threads + _SPARE_CALLS
        self._cache, self._tiers = open_tiers(urls, warn=warn, max_calls=max_calls)
        self._publisher = Publisher(self._cache, threads=threads, max_queued=max_queued)
        self._max_wait_s = max_wait_s
        self._lock = threading.Lock()
        self._counts = SharedTierCounts()
        # Which of them are to be released.
        self._claimed: dict[str, str] = {}
        # Under these lies something wrong, perhaps where nothing can be deleted.
        self._refused: set[str] = set()

    def take(
        self,
        key: str,
        path: str,
        rows: int,
        *,
        check: Check | None = None,
        timeout_s: float | None = None,
    ) -> int | None:
        """Write the content of a key to a file.

        Args:
            key: From ``shard_key``.
            path: The file, not yet published: overwritten, and complete only after the return.
            rows: Rows that it must have.
            check: Tells from the bytes whether they are the shard file that is wanted. What is
                not is removed from the tiers.
            timeout_s: Longest wait for all tiers together; each also has its own timeout. Give
                a part of what the attempt may take, so that there is time left to read Lance.

        Returns:
            Bytes of the file; None: no tier has it whole, and there is no file.

        Raises:
            OSError: The file cannot be written; there is none then.
        """
        started = time.monotonic()
        taken = refused = num_bytes = 0

        def is_right(content: memoryview) -> bool:
            nonlocal refused
            if passes(check, content):
                return True
            refused = 1
            with self._lock:
                if len(self._refused) < _MAX_REFUSED:
                    self._refused.add(key)
            return False

        try:
            found = self._cache.read(key, rows=rows, check=is_right, timeout_s=timeout_s)
            if found is None:
                return None
            _write(path, found.data)
            taken, num_bytes = 1, found.data.nbytes
            return num_bytes
        finally:
            self._count(
                taken=taken,
                not_taken=1 - taken,
                refused=refused,
                taken_bytes=num_bytes,
                take_seconds=time.monotonic() - started,
            )

    def take_or_claim(
        self,
        key: str,
        path: str,
        rows: int,
        *,
        owner: str,
        check: Check | None = None,
        timeout_s: float,
    ) -> int | None:
        """As ``take``; a shard that another node reads from Lance now is waited for.

        So that nodes which want a shard in the same moment do not all read it. With None it is
        the caller's to read, and to ``offer``, or ``release`` if that fails.

        Args:
            key: As in ``take``.
            path: As in ``take``.
            rows: As in ``take``.
            owner: Who asks: the same for a process and for who takes over from it.
            check: As in ``take``.
            timeout_s: Longest wait for all together.
        """
        started = time.monotonic()
        deadline = started + min(timeout_s, self._max_wait_s)
        num_bytes = self.take(key, path, rows, check=check, timeout_s=timeout_s)
        pause_s, waited = _FIRST_PAUSE_S, False
        while num_bytes is None:
            claimed = self._cache.claim(key, owner, self._max_wait_s)
            if claimed is None:
                # No tier has claims, or none works.
                break
            # It may have been evicted here while it is being published: then it comes at once.
            if claimed and not self._publisher.is_publishing(key):
                with self._lock:
                    self._claimed[key] = owner
                # It may have been put, and its claim given up, since the last look.
                if key in self._cache:
                    left_s = max(deadline - time.monotonic(), _FIRST_PAUSE_S)
                    num_bytes = self.take(key, path, rows, check=check, timeout_s=left_s)
                    if num_bytes is not None:
                        self.release(key)
                break
            waited = True
            left_s = deadline - time.monotonic()
            if left_s <= 0:
                break
            time.sleep(min(pause_s, left_s))
            pause_s = min(pause_s * 1.5, _MAX_PAUSE_S)
            left_s = max(deadline - time.monotonic(), _FIRST_PAUSE_S)
            num_bytes = self.take(key, path, rows, check=check, timeout_s=left_s)
        if waited:
            spent = time.monotonic() - started
            found = num_bytes is not None
            self._count(waits=1, waits_in_vain=1 - found, wait_seconds=spent)
        return num_bytes

    def release(self, key: str) -> None:
        """Give up a claim that is held, in the background."""
        with self._lock:
            owner = self._claimed.pop(key, None)
        if owner is not None:
            self._publisher.do(f"release {key}", lambda: self._cache.release(key, owner))

    def offer(self, key: str, path: str, rows: int, *, check: Check | None = None) -> bool:
        """Have a published shard file put into the tiers that lack it, in the background.

        Returns at once, and reads nothing. A file that is gone in its turn is left out.

        Args:
            key: From ``shard_key``.
            path: The file in the cache directory.
            rows: Rows that it has.
            check: As in ``take``; a file that fails is not published.

        Returns:
            Whether it is queued; False: the queue is full, or this is closed.
        """
        with self._lock:
            owner = self._claimed.pop(key, None)
            overwrite = key in self._refused
            self._refused.discard(key)
        ended = None if owner is None else lambda: self._cache.release(key, owner)
        queued = self._publisher.offer(key, path, rows, check, ended, replace=overwrite)
        if ended is not None and not queued:
            # Other nodes wait for what will not come.
            self._publisher.do(f"release {key}", ended)
        return queued

    def counts(self) -> SharedTierCounts:
        """What it did so far."""
        with self._lock:
            counts = self._counts
        return replace(
            counts,
            tiers=tuple(tier.counts() for tier in self._tiers),
            publisher=self._publisher.counts(),
        )

    def wait(self, timeout_s: float) -> bool:
        """Wait until all that was offered is published; returns whether it is."""
        return self._publisher.wait(timeout_s)

    def close(self, timeout_s: float = 10.0) -> int:
        """Publish what is queued, within a time, and let go of the tiers.

        Returns:
            Files that were dropped.
        """
        dropped = self._publisher.close(timeout_s)
        self._cache.close()
        return dropped

    def __repr__(self) -> str:
        return f"SharedTier({self._cache!r})"

    def _count(self, **numbers: float) -> None:
        with self._lock:
            sums = {name: getattr(self._counts, name) + more for name, more in numbers.items()}
            self._counts = replace(self._counts, **sums)


def _write(path: str, content: memoryview) -> None:
    try:
        with open(path, "wb") as file:
            file.write(content)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(path)
        raise
