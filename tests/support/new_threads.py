"""Which threads a test has started: those of tests before it may end at any moment."""

from __future__ import annotations

import threading

__all__ = ["NewThreads"]


class NewThreads:
    """Counts live threads that were not there when this was made."""

    def __init__(self) -> None:
        self._before = set(threading.enumerate())

    def __len__(self) -> int:
        return len(set(threading.enumerate()) - self._before)
