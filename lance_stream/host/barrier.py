"""A barrier between the workers of a node that forgets those who died in it, or are let go of.

The host's ``SharedBarrier`` counts who came. A worker that is killed while it waits is counted for
ever, and the next workers wait for one who will not come. And where a loader is iterated anew,
torch starts the new workers before it ends the old ones: one of each would pass together.
"""

from __future__ import annotations

import logging
import os
import time
from multiprocessing import parent_process
from typing import NamedTuple

import numpy as np
from filelock import FileLock
from numpy.typing import NDArray
from streaming.base.shared import SharedArray
from torch.utils.data import get_worker_info

from lance_stream.errors import LanceStreamError
from lance_stream.host.locks import locked
from lance_stream.processes import start_time

__all__ = ["Barrier"]

logger = logging.getLogger(__name__)

_MAX_PROCESSES = 4094
_LOOK_EVERY_S = 0.002
_TELL_EVERY_S = 60.0
_DEADLINE_S = 7200.0
_LET_GO = "the loader of this worker has begun another iteration, with other workers"


class _Waiting(NamedTuple):
    pid: int
    # Who started it, and the iteration of its loader: a number of torch's for all its workers.
    parent: int
    iteration: int

    def is_followed_by(self, other: _Waiting) -> bool:
        """Whether the other is a worker of a later iteration of the same loader."""
        if self.parent != other.parent or self.iteration == other.iteration:
            return False
        return (start_time(self.pid) or 0, self.pid) < (start_time(other.pid) or 0, other.pid)


def _me() -> _Waiting:
    worker = get_worker_info()
    iteration = 0 if worker is None else worker.seed - worker.id
    return _Waiting(os.getpid(), os.getppid(), iteration)


class Barrier:
    """Lets processes of one node go on when all have come. Takes the place of the host's."""

    def __init__(self, filelock_path: str, name: str) -> None:
        """Begin, or join, a barrier.

        Args:
            filelock_path: Of the host's barrier.
            name: Of its shared memory.
        """
        self.filelock_path = filelock_path
        # How often it was passed and how many wait; then of each its pid, and its loader's.
        self._shared = SharedArray(2 + 3 * _MAX_PROCESSES, np.int64, name)

    def __call__(self, num_procs: int) -> None:
        """Wait until so many live processes, this one included, have come.

        ``lock`` is made by the host, in each process, before it calls this.

        Raises:
            LanceStreamError: Too few have come in two hours (the other ranks of the node may be
                busy with something else between two epochs), or the process that started this
                one is gone, or has begun another iteration.
        """
        shared, me = self._shared.numpy(), _me()
        waiting = shared[2:].reshape(_MAX_PROCESSES, 3)
        with locked(self._lock(), "the barrier at the start of an epoch"):
            passed = int(shared[0])
            others = [
                _Waiting(*map(int, row))
                for row in waiting[: int(shared[1])]
                # Not a process that was killed, also if another came again by its number.
                if row[0] != me.pid and start_time(int(row[0])) is not None
            ]
            if any(me.is_followed_by(other) for other in others):
                raise LanceStreamError(_LET_GO)
            come = [other for other in others if not other.is_followed_by(me)]
            come.append(me)
            if len(come) >= num_procs:
                shared[1] = 0
                shared[0] = passed + 1
                return
            waiting[: len(come)] = come
            shared[1] = len(come)
        started, told = time.monotonic(), 0
        # A worker's; a trainer's own parent may be a shell that has long gone.
        parent = parent_process()
        while int(shared[0]) == passed:
            time.sleep(_LOOK_EVERY_S)
            if self._is_left_out(waiting, passed, me):
                raise LanceStreamError(_LET_GO)
            waited_s = time.monotonic() - started
            come = (
                f"{int(shared[1])} of {num_procs} processes of this node have come to the start "
                f"of the epoch in {waited_s:.0f} s"
            )
            if parent is not None and os.getppid() != parent.pid:
                raise LanceStreamError(
                    f"{come}, and process {parent.pid}, which started this, is gone"
                )
            if waited_s > _DEADLINE_S:
                msg = f"{come}: look what the other ranks and workers of this node do"
                raise LanceStreamError(msg)
            if waited_s > _TELL_EVERY_S * (told + 1):
                told += 1
                logger.warning("%s; waiting for the others", come)

    def _is_left_out(self, waiting: NDArray[np.int64], passed: int, me: _Waiting) -> bool:
        """Whether workers of a later iteration came, which do not wait for this one."""
        shared = self._shared.numpy()
        if me.pid in waiting[: int(shared[1]), 0] or int(shared[0]) != passed:
            return False
        # Looked at while somebody wrote?
        with locked(self._lock(), "the barrier at the start of an epoch"):
            return me.pid not in waiting[: int(shared[1]), 0] and int(shared[0]) == passed

    def _lock(self) -> FileLock:
        lock = self.__dict__.get("lock")
        if lock is None:
            lock = self.__dict__["lock"] = FileLock(self.filelock_path)
        return lock

    def __getstate__(self) -> dict[str, object]:
        return {name: value for name, value in self.__dict__.items() if name != "lock"}
