"""Work that may wait, and may be lost: a bounded queue and a few threads."""

from __future__ import annotations

import logging
import threading
from collections import OrderedDict
from collections.abc import Callable

__all__ = ["Backlog"]

logger = logging.getLogger(__name__)


class Backlog:
    """Does jobs in the background, oldest first, each key once at a time. Thread-safe.

    There are threads only while there are jobs. They are daemons: one that hangs holds up no
    one's end.
    """

    def __init__(
        self, name: str, *, threads: int, max_jobs: int, max_bytes: int | None = None
    ) -> None:
        """Empty.

        Args:
            name: Of the threads.
            threads: Jobs done at a time.
            max_jobs: Most jobs that wait or run.
            max_bytes: Most bytes that waiting and running jobs hold; None: they hold none.
        """
        self._name = name
        self._max_threads = threads
        self._max_jobs = max_jobs
        self._max_bytes = max_bytes
        self._changed = threading.Condition()
        self._waiting: OrderedDict[str, tuple[int, Callable[[], None]]] = OrderedDict()
        self._running: set[str] = set()
        self._num_bytes = 0
        self._num_threads = 0
        self._closed = False

    def offer(
        self, key: str, job: Callable[[], None], num_bytes: int = 0, *, first: bool = False
    ) -> bool:
        """Add a job, without waiting.

        Args:
            key: What it is about.
            job: Called in one of the threads.
            num_bytes: Memory that it holds until it is done.
            first: Whether it goes before those that wait, however many these are: it is small.

        Returns:
            Whether it will be done; False: there is no room, or it is closed. True also if there
            is a job for the key already, which then stands for this one.
        """
        with self._changed:
            if key in self._waiting or key in self._running:
                return not self._closed
            over = (
                self._max_bytes is not None
                and self._num_bytes + num_bytes > self._max_bytes
                and self._num_bytes > 0
            )
            full = over or self._num_jobs() >= self._max_jobs
            if self._closed or (full and not first):
                return False
            self._waiting[key] = (num_bytes, job)
            if first:
                self._waiting.move_to_end(key, last=False)
            self._num_bytes += num_bytes
            if self._num_threads < min(self._max_threads, self._num_jobs()):
                threading.Thread(target=self._work, name=self._name, daemon=True).start()
                self._num_threads += 1
        return True

    def __contains__(self, key: object) -> bool:
        """Whether a job for the key waits or runs."""
        with self._changed:
            return key in self._waiting or key in self._running

    @property
    def num_jobs(self) -> int:
        """Jobs that wait or run."""
        with self._changed:
            return self._num_jobs()

    def wait(self, timeout_s: float) -> bool:
        """Wait until everything is done; returns whether it is."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._num_jobs(), timeout_s)

    def close(self, timeout_s: float) -> int:
        """Take no more, wait for what is there, drop what is left then.

        Returns:
            Jobs that were dropped, or still run.
        """
        with self._changed:
            self._closed = True
            self._changed.wait_for(lambda: not self._num_jobs(), timeout_s)
            left = self._num_jobs()
            self._waiting.clear()
            return left

    def _num_jobs(self) -> int:
        return len(self._waiting) + len(self._running)

    def _work(self) -> None:
        while True:
            with self._changed:
                if not self._waiting:
                    self._num_threads -= 1
                    return
                key, (num_bytes, job) = self._waiting.popitem(last=False)
                self._running.add(key)
            try:
                job()
            except Exception:
                logger.exception("%s: a job failed", self._name)
            finally:
                # Before the next, so that its memory is free.
                del job
                with self._changed:
                    self._running.discard(key)
                    self._num_bytes -= num_bytes
                    self._changed.notify_all()
