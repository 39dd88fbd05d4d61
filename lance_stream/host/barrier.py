"""A barrier between the workers of a node that forgets those who died in it.

The host's ``SharedBarrier`` counts who came. A worker that is killed while it waits is counted for
ever, and the next workers wait for one who will not come.
"""

from __future__ import annotations

import logging
import os
import time
from multiprocessing import parent_process

import numpy as np
from filelock import FileLock
from streaming.base.shared import SharedArray

from lance_stream.errors import LanceStreamError
from lance_stream.host.locks import locked
from lance_stream.processes import start_time

__all__ = ["Barrier"]

logger = logging.getLogger(__name__)

_MAX_PROCESSES = 4094
_LOOK_EVERY_S = 0.002
_TELL_EVERY_S = 60.0
_DEADLINE_S = 7200.0


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

        Raises:
            LanceStreamError: Too few have come in two hours (the other ranks of the node may be
                busy with something else between two epochs), or the process that started this
                one is gone.
        """
        shared = self._shared
        with locked(self._lock(), "the barrier at the start of an epoch"):
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
        started, told = time.monotonic(), 0
        # A worker's; a trainer's own parent may be a shell that has long gone.
        parent = parent_process()
        while int(shared[0]) == passed:
            time.sleep(_LOOK_EVERY_S)
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

    def _lock(self) -> FileLock:
        lock = self.__dict__.get("lock")
        if lock is None:
            lock = self.__dict__["lock"] = FileLock(self.filelock_path)
        return lock

    def __getstate__(self) -> dict[str, object]:
        return {name: value for name, value in self.__dict__.items() if name != "lock"}
