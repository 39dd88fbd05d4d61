"""A tier whose content is framed: only what was put under a key ever comes back."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable

from lance_stream.tiers.frame import (
    HEADER_BYTES,
    BadFrameError,
    join_parts,
    make_frame,
    open_value,
    stored_name,
)
from lance_stream.tiers.shard_cache import (
    Check,
    CheckedCache,
    Content,
    Data,
    ShardCache,
    ValueTooLargeError,
    passes,
)

__all__ = ["FramedCache"]


class FramedCache(CheckedCache):
    """Frames, verifies and cuts into parts. Raises what the tier raises."""

    def __init__(
        self,
        cache: ShardCache,
        *,
        max_bytes: int | None = None,
        max_value_bytes: int | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Wrap a tier.

        Args:
            cache: The tier.
            max_bytes: Content that is larger is refused; None: the tier has no limit in all.
            max_value_bytes: Largest value, where it is less than the tier's own limit.
            clock: Seconds.
        """
        self._cache = cache
        self._max_bytes = max_bytes
        self._max_value_bytes = max_value_bytes
        self._clock = clock

    def read(
        self,
        key: str,
        *,
        rows: int | None = None,
        check: Check | None = None,
        timeout_s: float | None = None,
    ) -> Content | None:
        """See ``CheckedCache``.

        Raises:
            BadFrameError: There is something else; it is gone now.
            TimeoutError: The time passed between two parts.
        """
        late = self._lateness(timeout_s)
        name = stored_name(key)
        try:
            value = self._cache.get(name)
            if value is None:
                return None
            frame, content = open_value(value, name=name, rows=rows)
            if content is None:
                late()
                parts = [part for part in self._cache.get_many(frame.part_names()) if part]
                if len(parts) < frame.num_parts:
                    # The tier has lost some. Without the header the rest is never asked for.
                    self._forget(name)
                    return None
                content = join_parts(frame, parts)
        except BadFrameError:
            self._forget(name)
            raise
        if not passes(check, content):
            self._forget(name)
            return None
        return Content(content, frame.rows)

    def write(
        self,
        key: str,
        data: Data,
        *,
        rows: int = 0,
        replace: bool = True,
        timeout_s: float | None = None,
    ) -> bool:
        """See ``CheckedCache``.

        Raises:
            ValueTooLargeError: The tier can never hold it.
            TimeoutError: The time passed between two parts.
        """
        late = self._lateness(timeout_s)
        name = stored_name(key)
        size = memoryview(data).nbytes
        if self._max_bytes is not None and HEADER_BYTES + size > self._max_bytes:
            msg = f"{size} bytes are more than max_bytes={self._max_bytes}"
            raise ValueTooLargeError(msg)
        if not replace and name in self._cache:
            return False
        frame = make_frame(name, data, rows=rows, max_value_bytes=self._limit())
        # The header last: who sees it finds the parts.
        for part_name, part in zip(frame.part_names(), frame.parts(data), strict=True):
            late()
            self._cache.put(part_name, bytes(part))
        self._cache.put(name, frame.value(data))
        return True

    def __contains__(self, key: object) -> bool:
        """Whether there is something under the key; ``read`` tells whether it is right."""
        return isinstance(key, str) and stored_name(key) in self._cache

    def delete(self, key: str) -> None:
        """Forget the content, and its parts if there may be any."""
        name = stored_name(key)
        parts: list[str] = []
        with contextlib.suppress(BadFrameError):
            value = None if self._limit() is None else self._cache.get(name)
            parts = [] if value is None else open_value(value, name=name)[0].part_names()
        self._cache.delete(name)
        for part in parts:
            self._cache.delete(part)

    def claim(self, key: str, owner: str, seconds: float) -> bool | None:
        """See ``ShardCache``."""
        return self._cache.claim(stored_name(key), owner, seconds)

    def release(self, key: str, owner: str) -> None:
        """See ``ShardCache``."""
        self._cache.release(stored_name(key), owner)

    def close(self) -> None:
        """Close the tier."""
        self._cache.close()

    def __repr__(self) -> str:
        return f"FramedCache({self._cache!r})"

    def _forget(self, name: str) -> None:
        """Delete where that is allowed, so that the right content can be put."""
        with contextlib.suppress(Exception):
            self._cache.delete(name)

    def _limit(self) -> int | None:
        limits = [self._cache.max_value_bytes(), self._max_value_bytes]
        return min((limit for limit in limits if limit is not None), default=None)

    def _lateness(self, timeout_s: float | None) -> Callable[[], None]:
        """What raises when the time has passed."""
        started = self._clock()

        def late() -> None:
            if timeout_s is not None and self._clock() - started > timeout_s:
                msg = f"not all parts within {timeout_s:g} s"
                raise TimeoutError(msg)

        return late
