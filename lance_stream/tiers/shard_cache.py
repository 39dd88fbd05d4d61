"""The contract of a shared cache tier, and what lance_stream makes of one."""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass

__all__ = [
    "Check",
    "CheckedCache",
    "Content",
    "Data",
    "ShardCache",
    "ValueTooLargeError",
    "passes",
]

logger = logging.getLogger(__name__)

Data = bytes | bytearray | memoryview

# Whether the bytes of a shard file are whole and the right ones.
Check = Callable[[memoryview], bool]


def passes(check: Check | None, content: memoryview) -> bool:
    """Whether content is right; not if it is so odd that the check itself fails."""
    try:
        return check is None or check(content)
    except Exception as error:  # noqa: BLE001
        logger.debug("content that cannot even be checked: %r", error)
        return False


class ValueTooLargeError(ValueError):
    """A tier can never hold a value of this size. It works well for others."""


class ShardCache(ABC):
    """Where shards are kept for other nodes: bytes by key.

    A third party implements this and names a callable that takes the url and returns one in the
    entry-point group ``lance_stream.shard_caches``; the entry point's name is the url's scheme.
    ``lance_stream.testing.ShardCacheContract`` tests an implementation. lance_stream puts itself
    around it: content is framed and verified, calls have a deadline, failures are counted. So:

    - Keys are 40 lower-case hex characters, values are opaque and of any size up to
      ``max_value_bytes()``.
    - Every method may be called from several threads at once, and must not rely on the thread.
    - A method that cannot do its work raises, whatever it likes. It must not report success for
      what it did not do, nor absence for what it could not look up.
    - A method should give up after the ``timeout`` of the url. One that hangs is abandoned: its
      thread stays until it returns. When some twenty have not, the tier is not called any more.
    - Losing a value at any time is allowed: this is a cache.
    - Making one does no I/O: what a server refuses is raised by the first method.
    """

    @abstractmethod
    def get(self, key: str) -> bytes | None:
        """The value of a key; None when there is none."""

    @abstractmethod
    def put(self, key: str, data: bytes) -> None:
        """Keep a value, in place of any before. Who reads at the same time gets one of the two.

        Raises:
            ValueTooLargeError: It can never be kept, others can.
        """

    @abstractmethod
    def __contains__(self, key: object) -> bool:
        """Whether there is a value."""

    @abstractmethod
    def delete(self, key: str) -> None:
        """Forget a value; a key without one is fine."""

    @abstractmethod
    def close(self) -> None:
        """Let go of connections. May be repeated; nothing else is called afterwards."""

    def max_value_bytes(self) -> int | None:
        """Bytes of the largest value, at least some hundred; None: no limit.

        Larger content is cut into parts. May ask the server.
        """
        return None

    def claim(self, key: str, owner: str, seconds: float) -> bool | None:
        """Say that the caller is about to make the value of a key, so that others may wait for it.

        Optional: only saves work, decides nothing. A claim that is lost is no fault.

        Args:
            key: The key; a claim is not its value.
            owner: Who claims, 32 hex characters.
            seconds: When the claim lapses by itself, at least 1.

        Returns:
            Whether the caller has it; False: somebody else does. None: there are no claims here.
        """
        del key, owner, seconds
        return None

    def release(self, key: str, owner: str) -> None:
        """Give up a claim, if the caller has it."""
        del key, owner

    def get_many(self, keys: Sequence[str]) -> list[bytes | None]:
        """The values of several keys, in their order; None for one that has none.

        After the first None the others may be None too: the parts of a value are of use only
        together.
        """
        values: list[bytes | None] = [None] * len(keys)
        for number, key in enumerate(keys):
            values[number] = self.get(key)
            if values[number] is None:
                break
        return values


@dataclass(frozen=True, slots=True)
class Content:
    """What a cache holds for a key.

    Attributes:
        data: The bytes, read-only.
        rows: Rows that they hold; 0: whoever put them did not say.
    """

    data: memoryview
    rows: int


class CheckedCache(ShardCache):
    """A cache that gives only what was put under that very key, whole.

    Keys are any text; values of any size. What ``open_shard_cache`` returns.
    """

    @abstractmethod
    def read(
        self,
        key: str,
        *,
        rows: int | None = None,
        check: Check | None = None,
        timeout_s: float | None = None,
    ) -> Content | None:
        """What is kept for a key; None when there is nothing, or nothing that is right.

        Args:
            key: Any text.
            rows: Rows that the content must have; None: any.
            check: Tells whether the content is the right one; None: any is. What is not is
                forgotten, and goes nowhere else.
            timeout_s: Longest wait, where it is less than the tier's own.
        """

    @abstractmethod
    def write(
        self,
        key: str,
        data: Data,
        *,
        rows: int = 0,
        replace: bool = True,
        timeout_s: float | None = None,
    ) -> bool:
        """Keep content.

        Args:
            key: Any text.
            data: The content.
            rows: Rows that it holds; 0: not said.
            replace: False: only if there is nothing under the key.
            timeout_s: Longest wait, where it is less than the tier's own.

        Returns:
            Whether it was written.
        """

    def get(self, key: str) -> bytes | None:
        """The content of a key; None when there is none, or none that is right."""
        found = self.read(key)
        return None if found is None else bytes(found.data)

    def put(self, key: str, data: Data) -> None:
        """Keep content under a key, in place of any before."""
        self.write(key, data)
