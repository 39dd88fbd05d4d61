"""Counters of the training code: any process of a job adds, the trainer reads the sum."""

from __future__ import annotations

import os
import threading

from lance_stream.processes import is_alive, this_process
from lance_stream.telemetry.board import Board, board_path, read_board, take_over

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
                board, self._pid = _begin(directory), os.getpid()
            elif board.is_lost and os.path.isdir(os.path.dirname(directory)):
                # It went with a download process that had no more to do; there is another now.
                before, board = board, _begin(directory)
                for other in before.names:
                    board.numbers[board.place(other)] += before.numbers[before.place(other)]
            self._board = board
            board.numbers[board.place(name)] += n

    def after_fork(self) -> None:
        """In a forked child: a thread that is not here may hold the lock."""
        self.__init__()  # type: ignore[misc]


def _begin(directory: str) -> Board:
    """The board of this process; it goes on with that of one that is gone."""
    pid, started = this_process()
    name = take_over(directory, "counters", (pid, started), is_alive)
    before = read_board(board_path(directory, name))
    names = () if before is None else tuple(before.numbers)
    return Board(directory, name, {"role": "counters", "pid": pid}, names)
