"""A lock for what is also used by finalizers, which run in the middle of anything."""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable

__all__ = ["PostponingLock"]

logger = logging.getLogger(__name__)


class PostponingLock:
    """A lock, not reentrant, with what is to be done once nobody holds it.

    The garbage collector may run a finalizer in a thread that holds the lock, between any two
    objects that it makes. There it can neither wait for the lock nor do anything without it.
    """

    def __init__(self) -> None:
        """Free."""
        self._lock = threading.Lock()
        self._postponed: deque[Callable[[], None]] = deque()

    def __enter__(self) -> None:
        """Wait for the lock."""
        self._lock.acquire()

    def __exit__(self, *error: object) -> None:
        """Release it, and do what was postponed."""
        self._lock.release()
        self._do_postponed()

    def do(self, work: Callable[[], None]) -> None:
        """Do something with the lock held: now, or when whoever holds it releases it."""
        self._postponed.append(work)
        self._do_postponed()

    def _do_postponed(self) -> None:
        # Looked at again after each release: nothing is left that was added meanwhile.
        while self._postponed and self._lock.acquire(blocking=False):
            try:
                while self._postponed:
                    self._postponed.popleft()()
            except Exception:
                logger.exception("what was postponed failed")
            finally:
                self._lock.release()
