"""Counters of the training code: any process of a job adds, the trainer reads the sum."""

from __future__ import annotations

import os
import threading

from lance_stream.processes import this_process
from lance_stream.telemetry.board import Board

__all__ = ["Counters"]


class Counters:
    """The counters of this process. A forked child begins its own."""

    def __init__(self) -> None:
        """Begin with none."""
        self._lock = threading.Lock()
        self._board: Board | None = None
        self._pid = 0

    def add(self, directory: str, name: str, n: int) -> None:
        """Add to a counter.

        Args:
            directory: Of the counters of the job.
            name: Of the counter.
            n: How much; may be negative.

        Raises:
            ValueError: There are too many counters, or their names are too long.
        """
        with self._lock:
            board = self._board
            in_place = board is not None and board.path.startswith(directory + os.sep)
            if board is None or self._pid != os.getpid() or not in_place:
                pid, started = this_process()
                board = self._board = Board(
                    directory, f"{pid}-{started}", {"role": "counters", "pid": pid}, ()
                )
                self._pid = pid
            board.numbers[board.place(name)] += n

    def after_fork(self) -> None:
        """In a forked child: a thread that is not here may hold the lock."""
        self.__init__()  # type: ignore[misc]
