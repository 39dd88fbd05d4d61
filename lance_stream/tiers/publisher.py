"""Puts shard files into the shared cache, in the background."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace

from lance_stream.tiers.backlog import Backlog
from lance_stream.tiers.shard_cache import CheckedCache

__all__ = ["Check", "Publisher", "PublisherCounts"]

logger = logging.getLogger(__name__)

# Whether the bytes of a shard file are whole and the right ones.
Check = Callable[[memoryview], bool]


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


class Publisher:
    """A bounded queue of paths. A file is opened only in its turn and read at once. Thread-safe.

    So an evicted file is never kept, on disk or in memory, by waiting here.
    """

    def __init__(self, cache: CheckedCache, *, threads: int = 2, max_queued: int = 512) -> None:
        """Nothing to do yet.

        Args:
            cache: Where files go. Must not raise (see ``GuardedCache``).
            threads: Files published at a time; each is in memory twice meanwhile.
            max_queued: Most files that wait.
        """
        self._cache = cache
        self._backlog = Backlog("lance-stream-publish", threads=threads, max_jobs=max_queued)
        self._lock = threading.Lock()
        self._counts = PublisherCounts()

    def offer(self, key: str, path: str, rows: int, check: Check | None = None) -> bool:
        """Queue a file, without waiting and without a look at it.

        Args:
            key: Under which it is put, unless there is something already.
            path: The file. It may be gone when its turn comes.
            rows: Rows that it holds.
            check: Tells whether the content is right; what is not is not published.

        Returns:
            Whether it is queued; False: dropped, as the queue is full or closed.
        """
        queued = self._backlog.offer(key, lambda: self._publish(key, path, rows, check))
        if not queued:
            self._count(dropped=1)
        return queued

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

    def _publish(self, key: str, path: str, rows: int, check: Check | None) -> None:
        try:
            with open(path, "rb") as file:
                content = file.read()
        except FileNotFoundError:
            self._count(gone=1)
            return
        except OSError as error:
            logger.debug("cannot publish %s: %s", path, error)
            self._count(damaged=1)
            return
        if check is not None and not check(memoryview(content)):
            logger.warning("%s is damaged and is not put into the shared cache", path)
            self._count(damaged=1)
            return
        if self._cache.write(key, content, rows=rows, replace=False):
            self._count(published=1)
        else:
            self._count(unneeded=1)

    def _count(self, **numbers: int) -> None:
        with self._lock:
            sums = {name: getattr(self._counts, name) + more for name, more in numbers.items()}
            self._counts = replace(self._counts, **sums)
