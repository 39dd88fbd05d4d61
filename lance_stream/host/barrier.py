"""A barrier between the workers of a node that forgets those who died in it.

The host's ``SharedBarrier`` counts who came. A worker that is killed while it waits is counted for
ever, and the next workers wait for one who will not come.
"""

from __future__ import annotations

import os
import time

import numpy as np
from filelock import FileLock
from streaming.base.shared import SharedArray

from lance_stream.processes import start_time

__all__ = ["Barrier"]

_MAX_PROCESSES = 4094
_LOOK_EVERY_S = 0.002


class Barrier:
    """Lets processes of one node go on when all have come. Takes the place of the host's."""

    def __init__(self, filelock_path: str, name: str) -> None:
        """Begin, or join, a barrier.

        Args:
            filelock_path: Of the host's barrier.
            name: Of its shared memory.
        """
        self.filelock_path = filelock_path
        # How often it was passed, how many wait, and their pids.
        self._shared = SharedArray(_MAX_PROCESSES + 2, np.int64, name)

    def __call__(self, num_procs: int) -> None:
        """Wait until so many live processes, this one included, have come.

        ``lock`` is made by the host, in each process, before it calls this.
        """
        shared = self._shared
        with self._lock():
            passed, waiting = int(shared[0]), int(shared[1])
            pids = [int(shared[2 + at]) for at in range(waiting)]
            # The dead, and a process that was killed and came again by the same number.
            pids = [pid for pid in pids if pid != os.getpid() and start_time(pid) is not None]
            pids.append(os.getpid())
            if len(pids) >= num_procs:
                shared[1] = 0
                shared[0] = passed + 1
                return
            for at, pid in enumerate(pids):
                shared[2 + at] = pid
            shared[1] = len(pids)
        while int(shared[0]) == passed:
            time.sleep(_LOOK_EVERY_S)

    def _lock(self) -> FileLock:
        lock = self.__dict__.get("lock")
        if lock is None:
            lock = self.__dict__["lock"] = FileLock(self.filelock_path)
        return lock

    def __getstate__(self) -> dict[str, object]:
        return {name: value for name, value in self.__dict__.items() if name != "lock"}
