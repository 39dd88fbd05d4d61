"""A barrier between the workers of a node that forgets those who died in it, or are let go of.

The host's ``SharedBarrier`` counts who came. A worker that is killed while it waits is counted for
ever, and the next workers wait for one who will not come. And where a loader is iterated anew,
torch starts the new workers before it ends the old ones: one of each would pass together. An epoch
begins with several barriers in a row; where one rank begins anew in between, so do the others.
"""

from __future__ import annotations

import logging
import os
import time
import zlib
from multiprocessing import current_process, parent_process
from multiprocessing.synchronize import Event
from typing import Any, NamedTuple, cast

import numpy as np
from filelock import FileLock
from numpy.typing import NDArray
from streaming.base.shared import SharedArray
from torch.utils.data import get_worker_info

from lance_stream.errors import LanceStreamError
from lance_stream.host.locks import locked
from lance_stream.processes import start_time

__all__ = ["Barrier", "BeginAgain"]

logger = logging.getLogger(__name__)

_MAX_PROCESSES = 4094
_NUMBERS = 4
_LOOK_EVERY_S = 0.002
_TELL_EVERY_S = 60.0
_DEADLINE_S = 7200.0
_LET_GO = "the loader of this worker has begun another iteration, with other workers"


# Step of a process that was told to begin again.
_AGAIN = 0


class BeginAgain(Exception):  # noqa: N818
    """Another process of this node has begun the epoch anew: so must this one."""


class _Waiting(NamedTuple):
    pid: int
    # Who started it, and the iteration of its loader: a number that all its workers have.
    parent: int
    iteration: int
    # Which of an epoch's barriers it has come to, from 1.
    step: int

    def is_followed_by(self, other: _Waiting) -> bool:
        """Whether the other is a worker of a later iteration of the same loader."""
        if self.parent != other.parent or self.iteration == other.iteration:
            return False
        return (start_time(self.pid) or 0, self.pid) < (start_time(other.pid) or 0, other.pid)


def _iteration() -> int:
    """What the workers of one iteration of a loader have in common; 0: this is no worker."""
    worker = get_worker_info()
    if worker is None:
        return 0
    # Torch's seed is the same again where its generator was seeded again. The event by which it
    # ends the workers is one for each iteration: by name, or where they are forked by address.
    arguments = getattr(current_process(), "_args", ())
    locks = [cast("Any", one)._flag._semlock for one in arguments if type(one) is Event]
    names = [lock.name or lock.handle for lock in locks]
    return zlib.crc32(repr((worker.seed - worker.id, *names)).encode())


class Barrier:
    """Lets processes of one node go on when all have come. Takes the place of the host's."""

    def __init__(self, filelock_path: str, name: str) -> None:
        """Begin, or join, a barrier.

        Args:
            filelock_path: Of the host's barrier.
            name: Of its shared memory.
        """
        self.filelock_path = filelock_path
        # How often it was passed; how many wait, or have passed last, in each of two tables; then
        # the tables, which take turns: whoever looks late still finds who passed with it.
        self._shared = SharedArray(3 + 2 * _MAX_PROCESSES * _NUMBERS, np.int64, name)
        self._step = 0

    def begin(self) -> None:
        """Say that this process begins an epoch: the barrier it comes to next is the first."""
        self._step = 0

    def __call__(self, num_procs: int) -> None:
        """Wait until so many live processes, this one included, have come to the same step.

        ``lock`` is made by the host, in each process, before it calls this.

        Raises:
            BeginAgain: Another process is at an earlier step: the one that it takes the place of
                may have passed with this one.
            LanceStreamError: Too few have come in two hours (the other ranks of the node may be
                busy with something else between two epochs), or the process that started this
                one is gone, or has begun another iteration.
        """
        shared = self._shared.numpy()
        tables = shared[3:].reshape(2, _MAX_PROCESSES, _NUMBERS)
        me = _Waiting(os.getpid(), os.getppid(), _iteration(), self._step + 1)
        with locked(self._lock(), "the barrier at the start of an epoch"):
            passed = int(shared[0])
            at = passed % 2
            others = [
                _Waiting(*map(int, row))
                for row in tables[at, : int(shared[1 + at])]
                # Not a process that was killed, also if another came again by its number.
                if row[0] != me.pid and start_time(int(row[0])) is not None
            ]
            if any(me.is_followed_by(other) for other in others):
                raise LanceStreamError(_LET_GO)
            come = [other for other in others if not other.is_followed_by(me)]
            if any(_AGAIN < other.step < me.step for other in come):
                raise BeginAgain
            # Who is further than this one is told, and looks.
            come = [one if one.step == me.step else one._replace(step=_AGAIN) for one in come]
            come.append(me)
            here = [one for one in come if one.step == me.step]
            has_passed = len(here) >= num_procs
            if has_passed:
                come = here
            if has_passed:
                shared[2 - at] = 0
            tables[at, : len(come)] = come
            shared[1 + at] = len(come)
            # Last: who sees it looks who passed.
            shared[0] = passed + has_passed
        if not has_passed:
            self._wait(me, passed, num_procs)
        self._step = me.step

    def _wait(self, me: _Waiting, passed: int, num_procs: int) -> None:
        shared = self._shared.numpy()
        at = passed % 2
        table = shared[3:].reshape(2, _MAX_PROCESSES, _NUMBERS)[at]
        started, told = time.monotonic(), 0
        # A worker's; a trainer's own parent may be a shell that has long gone.
        parent = parent_process()
        while True:
            # In this order: who passed is known once it was passed.
            has_passed = int(shared[0]) != passed
            step = self._step_of(table, at, me)
            if step is None:
                raise LanceStreamError(_LET_GO)
            if step == _AGAIN:
                raise BeginAgain
            if has_passed:
                return
            time.sleep(_LOOK_EVERY_S)
            waited_s = time.monotonic() - started
            come = (
                f"{int(shared[1 + at])} of {num_procs} processes of this node have come to the "
                f"start of the epoch in {waited_s:.0f} s"
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

    def _step_of(self, table: NDArray[np.int64], at: int, me: _Waiting) -> int | None:
        """The step in this process's row; None: left out by workers of a later iteration."""
        shared = self._shared.numpy()
        rows = table[: int(shared[1 + at])]
        if me in (_Waiting(*map(int, row)) for row in rows[rows[:, 0] == me.pid]):
            return me.step
        # Told something, or looked at while somebody wrote?
        with locked(self._lock(), "the barrier at the start of an epoch"):
            rows = table[: int(shared[1 + at])]
            steps = rows[rows[:, 0] == me.pid, 3]
            return int(steps[0]) if len(steps) else None

    def _lock(self) -> FileLock:
        lock = self.__dict__.get("lock")
        if lock is None:
            lock = self.__dict__["lock"] = FileLock(self.filelock_path)
        return lock

    def __getstate__(self) -> dict[str, object]:
        return {name: value for name, value in self.__dict__.items() if name != "lock"}
