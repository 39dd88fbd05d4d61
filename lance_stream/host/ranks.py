"""Agreement between the ranks of a job: everybody gets what each rank has to say.

The host brings up ``torch.distributed`` before it asks a stream for its shards. A rank that fails
says so in the same exchange, so that nobody waits for it.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from streaming.base.world import World
from torch import distributed as dist

from lance_stream.errors import LanceStreamError, StateMismatchError, error_from_name

__all__ = ["Ranks"]


@dataclass(frozen=True, slots=True)
class Ranks:
    """The ranks of this job and our place among them."""

    rank: int
    num_ranks: int
    ranks_per_node: int

    @classmethod
    def of(cls, world: World) -> Ranks:
        """The ranks that take part; one if ``torch.distributed`` is not up."""
        if world.num_ranks > 1 and dist.is_available() and dist.is_initialized():
            return cls(world.rank, world.num_ranks, world.ranks_per_node)
        return cls(0, 1, 1)

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
                        f"ranks were given different streams: {name}={everybody[0][name]!r} on "
                        f"rank 0, {theirs[name]!r} on rank {rank}"
                    )
                    raise StateMismatchError(msg)

    def each(self, work: Callable[[], dict[str, Any] | None]) -> list[dict[str, Any] | None]:
        """Do work on every rank and exchange the results.

        Args:
            work: Gives JSON values, or None on ranks with nothing to do.

        Returns:
            The result of each rank.

        Raises:
            LanceStreamError: What failed on any rank, raised on all of them.
            Exception: What else failed on this rank.
        """
        failure: Exception | None = None
        said: dict[str, Any] = {}
        try:
            said = {"result": work()}
        except LanceStreamError as error:
            failure, said = error, {"error": type(error).__name__, "message": str(error)}
        except Exception as error:  # noqa: BLE001
            failure, said = error, {"error": type(error).__name__, "message": str(error)}
        everybody = self._exchange(said)
        if failure is not None:
            raise failure
        for rank, theirs in enumerate(everybody):
            if "error" in theirs:
                raise error_from_name(theirs["error"], f"rank {rank}: {theirs['message']}")
        return [theirs["result"] for theirs in everybody]

    def _exchange(self, value: dict[str, Any]) -> list[dict[str, Any]]:
        if self.num_ranks == 1:
            return [value]
        texts: list[Any] = [None] * self.num_ranks
        dist.all_gather_object(texts, json.dumps(value))
        return [json.loads(text) for text in texts]
