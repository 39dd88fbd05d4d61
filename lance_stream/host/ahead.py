"""Ask ahead for the shards that a worker's course comes to."""

from __future__ import annotations

import logging
import queue
import threading
from collections import deque
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from lance_stream.host.course import Course

__all__ = ["Ahead", "Asker"]

logger = logging.getLogger(__name__)


class Asker(Protocol):
    """What can be asked for shards: the dataset."""

    def missing(self, shards: NDArray[np.int64]) -> list[int]:
        """Those of some shards that are not in the cache, in the same order."""
        ...

    def is_quick(self, shard_id: int) -> bool:
        """Whether asking for a shard returns at once."""
        ...

    def prepare_shard(self, shard_id: int, blocking: bool = True) -> None:
        """Ask for a shard."""
        ...


class Ahead:
    """Asks for shards up to some samples ahead, and up to some shards that are not used yet.

    Shards of a ``LanceStream`` are asked for in the caller's thread, which takes no time: the
    download process fetches them. Others are downloaded in a thread, one after the other.
    """

    def __init__(self, asker: Asker, course: Course, samples: int, max_shards: int | None) -> None:
        """Begin at the start of a course; asks for nothing yet.

        Args:
            asker: Whom to ask.
            course: Where shards are needed.
            samples: How far ahead.
            max_shards: Most shards that are asked for and not used yet; None: no bound.
        """
        self._asker = asker
        self._course = course
        self._samples = samples
        self._max_shards = max_shards
        self._waiting: deque[int] = deque()
        self._asked: set[int] = set()
        self._slow: queue.SimpleQueue[int | None] | None = None

    def ask(self) -> None:
        """Ask for what has come into reach."""
        self._waiting.extend(self._asker.missing(self._course.ahead(self._samples)))
        while self._waiting:
            if self._max_shards is not None and len(self._asked) >= self._max_shards:
                return
            shard = self._waiting.popleft()
            if shard not in self._asked:
                self._asked.add(shard)
                self._ask(shard)

    def used(self, shards: list[int]) -> None:
        """Note that shards were reached."""
        self._asked.difference_update(shards)
        if self._max_shards is not None and self._waiting:
            # Asked for now, they would stay among those that are not used yet.
            used = set(shards)
            self._waiting = deque(shard for shard in self._waiting if shard not in used)

    def close(self) -> None:
        """Ask no more."""
        self._waiting.clear()
        if self._slow is not None:
            self._slow.put(None)

    def _ask(self, shard: int) -> None:
        if self._asker.is_quick(shard):
            self._asker.prepare_shard(shard, False)
            return
        if self._slow is None:
            self._slow = queue.SimpleQueue()
            threading.Thread(
                target=self._download, args=(self._slow,), name="lance_stream ahead", daemon=True
            ).start()
        self._slow.put(shard)

    def _download(self, shards: queue.SimpleQueue[int | None]) -> None:
        while (shard := shards.get()) is not None:
            try:
                if not self._course.ended:
                    self._asker.prepare_shard(shard, False)
            except Exception as error:  # noqa: BLE001
                # Whoever comes to the shard downloads it in its own thread, and raises there.
                logger.debug("could not download shard %d ahead of use: %r", shard, error)
