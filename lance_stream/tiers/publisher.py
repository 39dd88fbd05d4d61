"""Puts shard files into the shared cache, in the background."""

from __future__ import annotations

import dataclasses
import logging
import os
import threading
from collections.abc import Callable

from lance_stream.tiers.backlog import Backlog
from lance_stream.tiers.counts import PublisherCounts
from lance_stream.tiers.shard_cache import Check, CheckedCache, passes

__all__ = ["Publisher"]

logger = logging.getLogger(__name__)

_MAX_HELD_BYTES = 64 << 20


class _Opened:
    """A file that an eviction does not take away; closed with the last reference to it."""

    def __init__(self, path: str, on_close: Callable[[int], None]) -> None:
        self._on_close = on_close
        self._descriptor = _open_plainly(path, os.O_RDONLY | os.O_CLOEXEC)
        self.num_bytes = os.fstat(self._descriptor).st_size

    def read(self) -> bytes:
        with open(self._descriptor, "rb", closefd=False) as file:
            return file.read()

    def __del__(self) -> None:
        if hasattr(self, "num_bytes"):
            os.close(self._descriptor)
            self._on_close(self.num_bytes)


class Publisher:
    """A bounded queue of files, each read in its turn. Thread-safe.

    Of what waits, ``max_held_bytes`` are open, so that a shard which a small cache evicts at once
    is published all the same. That much disk stays in use a moment longer. What is over that is
    opened in its turn: evicted, it is left out.
    """

    def __init__(
        self,
        cache: CheckedCache,
        *,
        threads: int = 2,
        max_queued: int = 512,
        max_held_bytes: int = _MAX_HELD_BYTES,
    ) -> None:
        """Nothing to do yet.

        Args:
            cache: Where files go. Must not raise (see ``GuardedCache``).
            threads: Files published at a time; each is in memory twice meanwhile.
            max_queued: Most files that wait.
            max_held_bytes: Most bytes of those that are open while they wait.
        """
        self._cache = cache
        self._backlog = Backlog("lance-stream-publish", threads=threads, max_jobs=max_queued)
        # Reentrant: a file may be closed wherever memory is given back.
        self._lock = threading.RLock()
        self._counts = PublisherCounts()
        self._max_held_bytes = max_held_bytes
        self._held_bytes = 0

    def offer(
        self,
        key: str,
        path: str,
        rows: int,
        check: Check | None = None,
        ended: Callable[[], None] | None = None,
        *,
        replace: bool = False,
    ) -> bool:
        """Queue a file, without waiting and without reading it.

        Args:
            key: Under which it is put.
            path: The file. It may be gone when its turn comes, if too many wait.
            rows: Rows that it holds.
            check: Tells whether the content is right; what is not is not published.
            ended: Called when it was published, or was not.
            replace: Whether it is put also if there is something already, which is wrong.

        Returns:
            Whether it is queued; False: dropped, as the queue is full or closed.
        """
        opened = [self._open(path)]

        def publish() -> None:
            try:
                self._publish(key, path, opened.pop(), rows, check, replace)
            finally:
                if ended is not None:
                    ended()

        queued = self._backlog.offer(key, publish)
        if not queued:
            self._count(dropped=1)
        return queued

    def is_publishing(self, key: str) -> bool:
        """Whether a file is queued for a key, or being published."""
        return key in self._backlog

    def do(self, key: str, work: Callable[[], None]) -> None:
        """Do something small in one of the threads, before what waits."""
        self._backlog.offer(key, work, first=True)

    def counts(self) -> PublisherCounts:
        """What it did so far."""
        with self._lock:
            return self._counts

    @property
    def num_queued(self) -> int:
        """Files that wait, or are being published."""
        return self._backlog.num_jobs

    def wait(self, timeout_s: float) -> bool:
        """Wait until everything is published; returns whether it is."""
        return self._backlog.wait(timeout_s)

    def close(self, timeout_s: float) -> int:
        """Publish what is queued, within a time; returns how many files were dropped."""
        left = self._backlog.close(timeout_s)
        self._count(dropped=left)
        return left

    def _open(self, path: str) -> _Opened | None:
        """Keep a file from eviction, if there is room; what is wrong with it shows in its turn."""
        try:
            opened = _Opened(path, self._let_go)
        except OSError:
            return None
        with self._lock:
            self._held_bytes += opened.num_bytes
            fits = self._held_bytes <= self._max_held_bytes
        return opened if fits else None

    def _let_go(self, num_bytes: int) -> None:
        with self._lock:
            self._held_bytes -= num_bytes

    def _publish(
        self,
        key: str,
        path: str,
        opened: _Opened | None,
        rows: int,
        check: Check | None,
        replace: bool,
    ) -> None:
        try:
            if opened is not None:
                content = opened.read()
            else:
                with open(path, "rb", opener=_open_plainly) as file:
                    content = file.read()
        except FileNotFoundError:
            self._count(gone=1)
            return
        except OSError as error:
            logger.debug("cannot publish %s: %s", path, error)
            self._count(damaged=1)
            return
        finally:
            del opened
        if not passes(check, memoryview(content)):
            logger.warning("%s is damaged and is not put into the shared cache", path)
            self._count(damaged=1)
            return
        if self._cache.write(key, content, rows=rows, replace=replace):
            self._count(published=1)
        else:
            self._count(unneeded=1)

    def _count(self, **numbers: int) -> None:
        with self._lock:
            sums = {name: getattr(self._counts, name) + more for name, more in numbers.items()}
            self._counts = dataclasses.replace(self._counts, **sums)


def _open_plainly(path: str, flags: int) -> int:
    """Neither wait for a pipe nor follow a link that was planted in a cache directory."""
    return os.open(path, flags | os.O_NONBLOCK | os.O_NOFOLLOW)
