"""Agreement between the ranks of a job: everybody gets what each rank has to say.

The host brings up ``torch.distributed`` before it asks a stream for its shards. A rank that fails
says so in the same exchange, so that nobody waits for it.
"""

from __future__ import annotations

import json
import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from streaming.base.world import World
from torch import distributed as dist

from lance_stream.errors import (
    LanceStreamError,
    PlanError,
    StateMismatchError,
    error_from_name,
)

__all__ = ["Ranks", "order_of"]

logger = logging.getLogger(__name__)

# While a rank works, all say so to each other this often: however long it takes, no collective
# waits for longer, whatever the timeout of the process group.
_BEAT_S = 2.0
_TELL_EVERY_S = 60.0
# What decides, besides the streams, which samples a rank gets.
_ORDER = (
    "num_streams",
    "batch_size",
    "shuffle",
    "shuffle_algo",
    "shuffle_seed",
    "shuffle_block_size",
    "num_canonical_nodes",
    "partition_algo",
    "sampling_method",
    "sampling_granularity",
    "batching_method",
    "replication",
)


def order_of(dataset: object) -> dict[str, Any]:
    """Arguments of a dataset that all ranks must have been given alike, in JSON values.

    Args:
        dataset: The ``StreamingDataset`` that is being built, if it is one.
    """
    found = {name: getattr(dataset, name, None) for name in _ORDER}
    plain = (str, int, float, type(None))
    return {n: value if isinstance(value, plain) else repr(value) for n, value in found.items()}


@dataclass(frozen=True, slots=True)
class Ranks:
    """The ranks of this job and our place among them."""

    rank: int
    num_ranks: int
    ranks_per_node: int

    @classmethod
    def of(cls, world: World) -> Ranks:
        """The ranks that take part.

        Raises:
            PlanError: The environment and the process group tell different numbers of ranks: the
                host, which goes by the environment, would give out rows twice or not at all.
        """
        is_up = dist.is_available() and dist.is_initialized()
        rank, num_ranks = (dist.get_rank(), dist.get_world_size()) if is_up else (0, 1)
        if (rank, num_ranks) != (world.rank, world.num_ranks):
            up = f"is up with {num_ranks} ranks, this being {rank}" if is_up else "is not up"
            msg = (
                f"WORLD_SIZE and RANK of the environment say that this is rank {world.rank} of "
                f"{world.num_ranks}, and torch.distributed {up}: start the ranks with torchrun, "
                "or unset WORLD_SIZE and RANK where there is one process"
            )
            raise PlanError(msg)
        return cls(rank, num_ranks, world.ranks_per_node if num_ranks > 1 else 1)

    @property
    def num_nodes(self) -> int:
        """How many nodes the ranks are on."""
        return self.num_ranks // self.ranks_per_node

    @property
    def node(self) -> int:
        """Number of this rank's node."""
        return self.rank // self.ranks_per_node

    @property
    def is_local_leader(self) -> bool:
        """Whether this is the first rank of its node."""
        return self.rank % self.ranks_per_node == 0

    @property
    def local_leader(self) -> int:
        """Rank of the first rank of this node."""
        return self.rank - self.rank % self.ranks_per_node

    def require_equal(self, arguments: dict[str, Any]) -> None:
        """Check that every rank gave the same arguments.

        Args:
            arguments: JSON values, without secrets.

        Raises:
            StateMismatchError: Names a rank, the argument and both values; on every rank.
        """
        everybody = self._exchange(arguments)
        for rank, theirs in enumerate(everybody):
            for name in everybody[0]:
                if theirs[name] != everybody[0][name]:
                    msg = (
                        f"ranks were given different arguments: {name}={everybody[0][name]!r} on "
                        f"rank 0, {theirs[name]!r} on rank {rank}"
                    )
                    raise StateMismatchError(msg)

    def each(self, work: Callable[[], dict[str, Any] | None]) -> list[dict[str, Any] | None]:
        """Do work on every rank and exchange the results. The others wait for a slow one.

        Args:
            work: Gives JSON values, or None on ranks with nothing to do.

        Returns:
            The result of each rank.

        Raises:
            LanceStreamError: What failed on any rank, raised on all of them.
            Exception: What else failed on this rank.
        """
        done = _Work(work, alone=self.num_ranks == 1)
        started, told = time.monotonic(), 0
        while True:
            everybody = self._exchange(done.said(_BEAT_S))
            busy = [rank for rank, theirs in enumerate(everybody) if "busy" in theirs]
            if not busy:
                break
            waited_s = time.monotonic() - started
            if waited_s > _TELL_EVERY_S * (told + 1):
                told += 1
                logger.warning(
                    "ranks %s have been planning the stream for %.0f s; the others wait",
                    busy,
                    waited_s,
                )
        failure, done.failure = done.failure, None
        if failure is not None:
            try:
                raise failure
            finally:
                # Or the error's own traceback would keep it, and the streams of all its frames.
                del failure
        for rank, theirs in enumerate(everybody):
            if "error" in theirs:
                raise error_from_name(theirs["error"], f"rank {rank}: {theirs['message']}")
        return [theirs["result"] for theirs in everybody]

    def _exchange(self, value: dict[str, Any]) -> list[dict[str, Any]]:
        if self.num_ranks == 1:
            return [value]
        texts: list[Any] = [None] * self.num_ranks
        try:
            dist.all_gather_object(texts, json.dumps(value))
        except RuntimeError as error:
            msg = (
                f"rank {self.rank} of {self.num_ranks} lost another rank while the dataset was "
                f"built, or waited too long for it: {_first_line(error)}; look at the log of the "
                "rank that ended first"
            )
            raise LanceStreamError(msg) from error
        return [json.loads(text) for text in texts]


class _Work:
    """Work of this rank, in a thread of its own where others are told meanwhile."""

    def __init__(self, work: Callable[[], dict[str, Any] | None], *, alone: bool) -> None:
        self.failure: Exception | None = None
        self._work = work
        self._said: dict[str, Any] = {}
        self._ended = threading.Event()
        if alone:
            self._run()
        else:
            threading.Thread(target=self._run, name="lance_stream start", daemon=True).start()

    def said(self, timeout_s: float) -> dict[str, Any]:
        """The result or error as JSON values; that it is busy, if it does not end in time."""
        return self._said if self._ended.wait(timeout_s) else {"busy": True}

    def _run(self) -> None:
        try:
            self._said = {"result": self._work()}
        except Exception as error:  # noqa: BLE001
            self.failure = error
            self._said = {"error": type(error).__name__, "message": str(error)}
        finally:
            self._ended.set()


def _first_line(error: Exception) -> str:
    return (str(error) or type(error).__name__).splitlines()[0]
