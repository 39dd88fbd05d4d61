"""States of training: the host's, of all ranks, and those of one process alone."""

from __future__ import annotations

import logging
import os
from typing import Any

import numpy as np
from numpy.typing import NDArray
from streaming.base.batching import generate_work
from torch.utils.data import get_worker_info

from lance_stream.errors import PlanError, StateMismatchError
from lance_stream.host import checkpoints
from lance_stream.host.course import Course
from lance_stream.host.meeting import BeginAgain
from lance_stream.host.preparing import PreparingDataset

__all__ = ["ResumableDataset"]

logger = logging.getLogger(__name__)

_OWN_SAMPLES = "own_samples"
# Ranks, and workers of each, whose parts of an epoch these are.
_OWN_OF = "own_of"
# In a state that a process saved when it had come to the end of its part of an epoch.
_OVER = "over"


class ResumableDataset(PreparingDataset):
    """A dataset whose states name the data, and may be those of one worker.

    ``StreamingDataLoader`` counts samples in the trainer and asks there for a state of all ranks.
    ``StatefulDataLoader`` asks each worker how far it has come, and gives each its own state back.
    """

    def __init__(self, **arguments: Any) -> None:
        """Take the arguments of ``streaming.StreamingDataset``."""
        # The epoch in progress in this process, and where it was begun.
        self._course: Course | None = None
        self._begun: tuple[int, int] | None = None
        # Epoch, where it was begun, and how many samples this process gave out of it.
        self._own: tuple[int, int, int] | None = None
        # Whether the epoch was given out to its end here.
        self._over = False
        # In a worker: the process in which its own state was loaded, and the epoch not begun yet.
        self._loaded_in: int | None = None
        self._own_of: list[int] | None = None
        super().__init__(**arguments)

    def state_dict(
        self, num_samples: int | None = None, from_beginning: bool = True
    ) -> dict[str, Any]:
        """The state of training, as in the stock class, and what data it is of.

        Args:
            num_samples: Samples of this epoch that were used, over all ranks, as
                ``StreamingDataLoader`` counts them. None: how far the iteration in this very
                process has come, for a ``StatefulDataLoader``, which asks in its workers. A
                trainer whose workers iterate knows nothing of that: there it is the next epoch.
            from_beginning: Whether they are counted from the start of the epoch, or from where
                this run began in it.

        Returns:
            JSON values.
        """
        if num_samples is None:
            state = self._own_state()
        else:
            state = super().state_dict(num_samples, from_beginning)
        return {**state, checkpoints.KEY: checkpoints.describe(self.streams)}

    def load_state_dict(self, obj: dict[str, Any]) -> None:
        """Go on from a state at the next epoch that begins.

        As in the stock class not from one of an epoch that this dataset has begun: a warning says
        so. To go back to an earlier state, build the dataset again.

        Raises:
            StateMismatchError: It is a state of other data; names both sides. As an epoch begins:
                it is that of one process, of more or fewer than there are.
        """
        checkpoints.check(self.streams, obj)
        state = {name: value for name, value in obj.items() if name != checkpoints.KEY}
        given_out, over = state.pop(_OWN_SAMPLES, None), state.pop(_OVER, False)
        self._own_of = state.pop(_OWN_OF, None)
        in_worker = get_worker_info() is not None and given_out is not None
        if over and not in_worker:
            state["epoch"], state["sample_in_epoch"], given_out = state["epoch"] + 1, 0, 0
        super().load_state_dict(state)
        self._own = (state["epoch"], state["sample_in_epoch"], given_out or 0)
        self._loaded_in = os.getpid() if in_worker else None
        if in_worker:
            # At once: ``StatefulDataLoader`` may let these workers go for those of the next epoch.
            self.next_epoch = max(self.next_epoch, state["epoch"] + 1)
        elif get_worker_info() is None and 0 <= state["epoch"] < self.next_epoch:
            logger.warning(
                "the state of epoch %d is not gone on with, since this dataset has begun epoch "
                "%d: build it again to go back",
                state["epoch"],
                self.next_epoch - 1,
            )
        # What is in progress goes on, but is not what will be gone on with.
        self._begun = None

    def _own_state(self) -> dict[str, Any]:
        course, begun = self._course, self._begun
        if course is None or begun is None:
            # Not the host's epoch, which is the one before until another begins.
            next_epoch = self.next_epoch
            resumed = self._resume(self._parallel_rank_world, next_epoch)
            state, own = super().state_dict(0, True), self._own
            inherited = get_worker_info() is not None and self._loaded_in != os.getpid()
            if own is None or (inherited and own[0] < next_epoch):
                own = (*resumed, 0)
            state["epoch"], state["sample_in_epoch"], state[_OWN_SAMPLES] = own
            if own[2] and self._own_of is not None:
                state[_OWN_OF] = self._own_of
            return state
        state = super().state_dict(0, True)
        state["epoch"], state["sample_in_epoch"] = begun
        state[_OWN_SAMPLES] = course.given_out
        state[_OWN_OF] = self._processes()
        return {**state, _OVER: True} if self._over else state

    def _processes(self) -> list[int]:
        world = self._parallel_worker_world
        return [world.num_ranks, world.workers_per_rank]

    def _begin_epoch(self) -> tuple[int, NDArray[np.int64], int]:
        """Begin the epoch that is next, or goes on.

        Returns:
            The epoch; the samples of this rank or worker, int64 array, -1 for none; and how many
            of these were given out before.
        """
        self._over = False
        if self._own is not None and self._loaded_in == os.getpid():
            (epoch, sample_in_epoch, skip), self._own = self._own, None
            ids = self._own_work(epoch, sample_in_epoch)
        else:
            epoch, sample_in_epoch, ids = self._shared_work()
            skip, self._own = self._given_out_before((epoch, sample_in_epoch)), None
        if skip and self._own_of not in (None, self._processes()):
            ranks, workers = self._own_of
            here = self._processes()
            msg = (
                f"the state was saved by one of {workers or 1} workers on each of {ranks} ranks, "
                f"and here are {here[1] or 1} on each of {here[0]}: go on with as many, or save "
                "states with StreamingDataLoader, or state_dict(num_samples=...)"
            )
            raise StateMismatchError(msg)
        self._begun = (epoch, sample_in_epoch)
        return epoch, ids, skip

    def _shared_work(self) -> tuple[int, int, NDArray[np.int64]]:
        """The epoch that all processes of the node begin, from where, and this one's part.

        Raises:
            PlanError: There is no ``batch_size``, by which an epoch is divided.
        """
        if self.batch_size is None:
            raise PlanError("batch_size=None: give the dataset the batch_size of its DataLoader")
        while True:
            try:
                epoch, sample_in_epoch = self._resume_incr_epoch()
                return epoch, sample_in_epoch, self._get_work(epoch, sample_in_epoch)
            except BeginAgain:
                logger.info("the epoch is begun again, with workers that came later")

    def _own_work(self, epoch: int, sample_in_epoch: int) -> NDArray[np.int64]:
        """This worker's part of an epoch that it goes on with by a state of its own.

        Worked out without the others. They may not come: of an epoch that is over nearly
        everywhere ``StatefulDataLoader`` keeps states of either kind, and it begins an epoch that
        is over only to let go of it.
        """
        world = self._parallel_worker_world
        # For the settings of the state; the epoch is that of this worker's own.
        self._resume(world, epoch)
        work = generate_work(self.batching_method, self, world, epoch, sample_in_epoch)
        return work[world.node, world.rank_of_node, world.worker_of_rank].flatten()

    def _given_out_before(self, begun: tuple[int, int]) -> int:
        """Samples that this process gave out before the state was saved that it goes on from.

        Args:
            begun: Epoch, and where it was begun. A state of an epoch that is over is not gone on
                with, as in the stock class.
        """
        return self._own[2] if self._own is not None and self._own[:2] == begun else 0
