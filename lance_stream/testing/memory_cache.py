"""A shard cache in a dict, that fails, hangs, forgets and lies as a test wants."""

from __future__ import annotations

import threading
import time
from collections import Counter

from lance_stream.tiers.shard_cache import ShardCache, ValueTooLargeError

__all__ = ["MemoryShardCache"]


class MemoryShardCache(ShardCache):
    """A fake tier.

    Attributes:
        values: What it holds; tests may damage it.
        calls: How often each method was called.
        error: Raised by every call, if set.
        put_error: Raised by ``put``, if set.
        loses_puts: Whether ``put`` reports success and keeps nothing.
        gate: Calls wait for this event; cleared, they hang.
    """

    def __init__(
        self,
        values: dict[str, bytes] | None = None,
        *,
        max_value_bytes: int | None = None,
        claims: dict[str, tuple[str, float]] | None = None,
    ) -> None:
        """A working cache.

        Args:
            values: What it holds; one dict may be given to several, as one server to many nodes.
            max_value_bytes: Largest value that it takes; None: any.
            claims: Who claims what until when, by ``time.monotonic``; shared like the values.
        """
        self.values: dict[str, bytes] = {} if values is None else values
        self.calls: Counter[str] = Counter()
        self.error: BaseException | None = None
        self.put_error: BaseException | None = None
        self.loses_puts = False
        self.claims: dict[str, tuple[str, float]] = {} if claims is None else claims
        self.gate = threading.Event()
        self.gate.set()
        self.is_closed = False
        self._max_value_bytes = max_value_bytes
        self._lock = threading.Lock()

    def max_value_bytes(self) -> int | None:
        """See ``ShardCache``."""
        return self._max_value_bytes

    def get(self, key: str) -> bytes | None:
        """See ``ShardCache``."""
        self._enter("get")
        return self.values.get(key)

    def put(self, key: str, data: bytes) -> None:
        """See ``ShardCache``."""
        self._enter("put")
        if self.put_error is not None:
            raise self.put_error
        if self._max_value_bytes is not None and len(data) > self._max_value_bytes:
            msg = f"{len(data)} bytes are more than {self._max_value_bytes}"
            raise ValueTooLargeError(msg)
        if not self.loses_puts:
            self.values[key] = bytes(data)

    def __contains__(self, key: object) -> bool:
        """See ``ShardCache``."""
        self._enter("contains")
        return key in self.values

    def delete(self, key: str) -> None:
        """See ``ShardCache``."""
        self._enter("delete")
        self.values.pop(key, None)

    def claim(self, key: str, owner: str, seconds: float) -> bool:
        """See ``ShardCache``."""
        self._enter("claim")
        now = time.monotonic()
        with self._lock:
            holder, until = self.claims.get(key, (owner, now))
            if holder != owner and until > now:
                return False
            self.claims[key] = (owner, now + seconds)
            return True

    def release(self, key: str, owner: str) -> None:
        """See ``ShardCache``."""
        self._enter("release")
        with self._lock:
            if self.claims.get(key, ("", 0.0))[0] == owner:
                del self.claims[key]

    def close(self) -> None:
        """See ``ShardCache``."""
        self._enter("close")
        self.is_closed = True

    def __repr__(self) -> str:
        return f"MemoryShardCache({len(self.values)} values)"

    def _enter(self, method: str) -> None:
        with self._lock:
            self.calls[method] += 1
        self.gate.wait()
        if self.error is not None:
            raise self.error
