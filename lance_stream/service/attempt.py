"""One attempt at a shard: what its thread and the event loop tell each other."""

from __future__ import annotations

import threading
from collections.abc import Callable

from lance_stream.source.failures import Failure

__all__ = ["Attempt", "AttemptError", "PostponedError"]

# Below that, what was planned too small does no harm.
_TOLD_ABOVE = 2.0
# The loop is never busy for long; if it has ended, nobody waits for the shard.
_ANSWER_S = 1.0


class AttemptError(Exception):
    """One attempt failed in a way that the scheduler understands."""

    def __init__(self, failure: Failure) -> None:
        """Keep the failure."""
        super().__init__(failure.message)
        self.failure = failure


class PostponedError(Exception):
    """The attempt gave way, since the shards that are read together take too much memory."""


class Attempt:
    """Made on the loop, which calls ``give_way`` and ``answer``; the thread calls the rest.

    Attributes:
        doing: What is being done that is not reading.
        tier_ns: Time spent asking the shared cache and waiting for it, in vain too.
    """

    def __init__(
        self,
        expected_bytes: int = 0,
        grew: Callable[[int], None] | None = None,
        begins: Callable[[str], None] | None = None,
    ) -> None:
        """Take where news goes.

        Args:
            expected_bytes: What the shard was planned to take.
            grew: Told of bytes in memory, where they are many more than that.
            begins: Told of what is being done that is not reading.
        """
        self.doing = ""
        self.tier_ns = 0
        self._expected_bytes = expected_bytes
        self._grew, self._begins = grew, begins
        self._gives_way, self._answered = threading.Event(), threading.Event()

    def give_way(self) -> None:
        """Have the attempt end before it reads more."""
        self._gives_way.set()

    def answer(self) -> None:
        """The news of its bytes was looked at."""
        self._answered.set()

    def read(self, num_bytes: int, more: bool) -> None:
        """So many bytes are in memory, and whether that is not yet all.

        Raises:
            PostponedError: There is no room for more.
        """
        if self._grew is not None and num_bytes > _TOLD_ABOVE * self._expected_bytes:
            self._answered.clear()
            self._grew(num_bytes)
            # What is read meanwhile is what there may be no room for.
            self._answered.wait(_ANSWER_S)
        if more and self._gives_way.is_set():
            raise PostponedError

    def read_part(self, before: int, is_last: bool, num_bytes: int, more: bool) -> None:
        """As ``read``, of a part of a shard: ``before`` bytes of other parts are there as well."""
        self.read(before + num_bytes, more or not is_last)

    def begin(self, what: str) -> None:
        """Something begins that is not reading."""
        self.doing = what
        if self._begins is not None:
            self._begins(what)
