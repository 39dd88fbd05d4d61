"""Where the processes of a node begin an epoch: all together, whoever died or was let go of.

The host has a barrier that counts who comes. A worker that is killed while it waits is counted
for ever. Where a loader is iterated anew, torch starts the new workers before it ends the old
ones: one of each would pass together. And an epoch begins in several steps: who passed one with a
worker that was replaced since would pass the next with its successor, which is at its first.

Here processes come by name. When all have come, they are the members of one meeting, and only they
take its steps. Where one of them dies, or its rank begins anew, before the last step was reached,
the meeting is over for all, and they begin again with whoever has come instead. Where a rank has
ended for good, nobody can come from there: who waits is told at once.
"""

from __future__ import annotations

import logging
import os
import time
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
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
from lance_stream.processes import is_alive, start_ticks, start_time, this_process

__all__ = ["LAST_STEP", "BeginAgain", "Meeting"]

logger = logging.getLogger(__name__)

# The first is to come.
LAST_STEP = 3

_MAX_PROCESSES = 4094
_LOOK_EVERY_S = 0.002
_LOOK_WHO_LIVES_EVERY_S = 0.1
_TELL_EVERY_S = 60.0
_DEADLINE_S = 7200.0
_LET_GO = "the loader of this worker has begun another iteration, with other workers"

# Where in shared memory: the number of the meeting, whether it is over before its last step, and
# how many wait and are members; then both tables, and pid and start time of each rank's process.
_NUMBER, _OVER, _WAITING, _MEMBERS, _HEAD = range(5)


class BeginAgain(Exception):  # noqa: N818
    """The meeting is over before its last step: come to the next one."""


class _Process(NamedTuple):
    pid: int
    # Who started it, and the iteration of its loader: a number that all its workers have.
    parent: int
    iteration: int
    # In ticks of the kernel; also known when it is dead.
    started: int
    # What it has reached, from 1.
    step: int = 1

    @classmethod
    def this(cls) -> _Process:
        return cls(os.getpid(), os.getppid(), _iteration(), start_ticks())

    def is_followed_by(self, other: _Process) -> bool:
        """Whether the other is a worker of a later iteration of the same loader."""
        if self.parent != other.parent or self.iteration == other.iteration:
            return False
        return (self.started, self.pid) < (other.started, other.pid)


_WIDTH = len(_Process._fields)


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


class Meeting:
    """The meetings of the processes of a node, one for each epoch.

    A process calls `begin`, then `reach` for each further step.
    """

    def __init__(self, filelock_path: str, name: str, rank: int = 0, num_ranks: int = 1) -> None:
        """Join, as the process of a rank, which starts its workers.

        Args:
            filelock_path: Of a lock.
            name: Of the shared memory.
            rank: Which of the ranks of this node.
            num_ranks: How many they are.
        """
        self.filelock_path = filelock_path
        self._num_ranks = num_ranks
        size = _HEAD + 2 * _WIDTH * _MAX_PROCESSES + 2 * num_ranks
        self._shared = SharedArray(size, np.int64, name)
        # The meeting that this process is a member of, and which process has been one of any.
        self._number = 0
        self._has_met = 0
        with self._locked():
            ranks = self._ranks()
            # Of a job that was killed and left its shared memory.
            ranks[[pid != 0 and not is_alive(pid, started) for pid, started in ranks.tolist()]] = 0
            ranks[rank] = this_process()

    def begin(self, num_procs: int) -> None:
        """Wait until so many live processes, this one included, have come.

        Raises:
            LanceStreamError: The process of a rank of this node has ended, so that nobody comes
                from there; or too few have come in two hours (other ranks may be busy with
                something else between two epochs); or the process that started this one is
                gone, or has begun another iteration.
        """
        me = _Process.this()
        with self._locked():
            # Not a process that was killed, also if another came again by its number.
            waiting = [
                other
                for other in self._table(_WAITING)
                if other.pid != me.pid and start_time(other.pid) is not None
            ]
            members = self._table(_MEMBERS)
            # Its rank has begun anew, and met, before it came here for the first time.
            late = self._has_met != me.pid and any(map(me.is_followed_by, members))
            if late or any(map(me.is_followed_by, waiting)):
                raise LanceStreamError(_LET_GO)
            if any(one.pid == me.pid or one.is_followed_by(me) for one in members):
                self._end()
            waiting = [other for other in waiting if not other.is_followed_by(me)]
            waiting.append(me)
            before = self._head(_NUMBER)
            if len(waiting) < num_procs:
                self._write(_WAITING, waiting)
            else:
                self._write(_MEMBERS, waiting)
                self._write(_WAITING, [])
                self._shared[_OVER] = 0
                # Last: who sees it looks who has met.
                self._shared[_NUMBER] = before + 1
        self._wait_for_meeting(me, before, num_procs)
        self._has_met = me.pid

    def reach(self, step: int, at_end: Callable[[], None] | None = None) -> None:
        """Wait until all members have reached a step.

        Args:
            step: From 2 to `LAST_STEP`, one after the other.
            at_end: Called by the member that comes last, before any goes on.

        Raises:
            BeginAgain: A member died, or its rank has begun anew, before that.
            LanceStreamError: As for `begin`.
        """
        pid = os.getpid()
        with self.undisturbed():
            members = [
                one._replace(step=step) if one.pid == pid else one for one in self._table(_MEMBERS)
            ]
            if at_end is not None and _all_reached(members, step):
                at_end()
            self._write(_MEMBERS, members)

        def told() -> str:
            members = self._table(_MEMBERS)
            have = sum(one.step >= step for one in members)
            return (
                f"{have} of {len(members)} processes of this node have taken step {step} of "
                f"{LAST_STEP} to the start of the epoch"
            )

        looked_s = 0.0
        for waited_s in _looks(told):
            number, members = self._head(_NUMBER), self._table(_MEMBERS)
            # Twice: the table may be another meeting's when it is read.
            if _all_reached(members, step) and number == self._number == self._head(_NUMBER):
                return
            died = False
            if waited_s - looked_s >= _LOOK_WHO_LIVES_EVERY_S:
                looked_s = waited_s
                died = any(one.step < step and start_time(one.pid) is None for one in members)
            if died or number != self._number or self._head(_OVER):
                with self.undisturbed():
                    if any(start_time(one.pid) is None for one in self._table(_MEMBERS)):
                        self._end()

    @contextmanager
    def undisturbed(self) -> Iterator[None]:
        """Do something while this process's meeting goes on: it cannot end, nor another begin.

        Raises:
            BeginAgain: It is over.
            LanceStreamError: This process was let go of.
        """
        with self._locked():
            if self._head(_NUMBER) != self._number or self._head(_OVER):
                me = _Process.this()
                if any(map(me.is_followed_by, self._table(_WAITING) + self._table(_MEMBERS))):
                    raise LanceStreamError(_LET_GO)
                raise BeginAgain
            yield

    def _wait_for_meeting(self, me: _Process, before: int, num_procs: int) -> None:
        def told() -> str:
            come = len(self._table(_WAITING))
            return (
                f"{come} of {num_procs} processes of this node have come to the start of the epoch"
            )

        looked_s = 0.0
        for waited_s in _looks(told):
            ended = None
            if waited_s - looked_s >= _LOOK_WHO_LIVES_EVERY_S:
                looked_s = waited_s
                ended = self._ended_rank()
            if self._head(_NUMBER) == before and self._is_in(_WAITING, me) and ended is None:
                continue
            with self._locked():
                before = self._head(_NUMBER)
                if self._is_in(_WAITING, me):
                    if ended is not None:
                        raise LanceStreamError(f"{told()}, and {ended}")
                    continue
                if not self._is_in(_MEMBERS, me):
                    raise LanceStreamError(_LET_GO)
                self._number = before
                return

    def _ended_rank(self) -> str | None:
        for rank, (pid, started) in enumerate(self._ranks().tolist()):
            if pid and not is_alive(pid, started):
                return (
                    f"rank {rank} of this node, process {pid}, has ended: see what it said, and "
                    "start the job again, or let all ranks train for as many epochs"
                )
        return None

    def _end(self) -> None:
        """The meeting is over, unless its members have taken the last step; with the lock."""
        if not _all_reached(self._table(_MEMBERS), LAST_STEP):
            self._shared[_OVER] = 1

    def _is_in(self, which: int, process: _Process) -> bool:
        return any(one[:3] == process[:3] for one in self._table(which))

    def _head(self, which: int) -> int:
        return int(self._shared[which])

    def _rows(self, which: int) -> NDArray[np.int64]:
        tables = self._shared.numpy()[_HEAD : -2 * self._num_ranks]
        return tables.reshape(2, _MAX_PROCESSES, _WIDTH)[which - _WAITING]

    def _ranks(self) -> NDArray[np.int64]:
        return self._shared.numpy()[-2 * self._num_ranks :].reshape(-1, 2)

    def _table(self, which: int) -> list[_Process]:
        return [_Process(*row) for row in self._rows(which)[: self._head(which)].tolist()]

    def _write(self, which: int, processes: Sequence[_Process]) -> None:
        if processes:
            self._rows(which)[: len(processes)] = processes
        self._shared[which] = len(processes)

    @contextmanager
    def _locked(self) -> Iterator[None]:
        # Made where it is used: it cannot be pickled, nor used in a forked child.
        lock = self.__dict__.get("lock")
        if lock is None:
            lock = self.__dict__["lock"] = FileLock(self.filelock_path)
        with locked(lock, "the start of an epoch"):
            yield

    def __getstate__(self) -> dict[str, object]:
        return {name: value for name, value in self.__dict__.items() if name != "lock"}


def _all_reached(members: Sequence[_Process], step: int) -> bool:
    return all(one.step >= step for one in members)


def _looks(told: Callable[[], str]) -> Iterator[float]:
    """Each time to look, as seconds since the first.

    Args:
        told: What is waited for, and how far that has come.

    Raises:
        LanceStreamError: It takes too long, or the process that started this one is gone.
    """
    started, said = time.monotonic(), 0
    # A worker's; a trainer's own parent may be a shell that has long gone.
    parent = parent_process()
    trainer = None if parent is None else parent.pid
    while True:
        waited_s = time.monotonic() - started
        yield waited_s
        # A fork server starts workers for the trainer, whose children they are not.
        if trainer is not None and os.getppid() != trainer and start_time(trainer) is None:
            gone = f"process {trainer}, which started this, is gone"
            raise LanceStreamError(f"{told()} in {waited_s:.0f} s, and {gone}")
        if waited_s > _DEADLINE_S:
            what_to_do = "look what the other ranks and workers of this node do"
            raise LanceStreamError(f"{told()} in {waited_s:.0f} s: {what_to_do}")
        if waited_s > _TELL_EVERY_S * (said + 1):
            said += 1
            logger.warning("%s in %.0f s; waiting for the others", told(), waited_s)
        time.sleep(_LOOK_EVERY_S)
