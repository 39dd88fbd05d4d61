"""A tier that cannot do harm: calls never raise, never last past a deadline, and are counted."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import TypeVar

from lance_stream.tiers.breaker import Breaker, Permit
from lance_stream.tiers.counts import Counter, TierCounts
from lance_stream.tiers.deadline import BoundedCalls, TooManyCallsError
from lance_stream.tiers.frame import BadFrameError
from lance_stream.tiers.shard_cache import (
    Check,
    CheckedCache,
    Content,
    Data,
    ValueTooLargeError,
    passes,
)
from lance_stream.tiers.tier_url import TierUrl

__all__ = ["DEFAULT_MAX_CALLS", "GuardedCache"]

logger = logging.getLogger(__name__)

_T = TypeVar("_T")

# Fetches and puts at a time, with room for those that hang.
DEFAULT_MAX_CALLS = 24
# Nobody waits for a put.
_PUT_PATIENCE = 4.0
_CLOSE_S = 2.0


class GuardedCache(CheckedCache):
    """Wraps a checked cache: no method raises, and none lasts longer than the tier's timeout.

    A tier that fails is left alone for a while that grows, told once for each outage, and tried
    again by one call. Reads and writes fail apart: a full server still gives what it has.
    """

    def __init__(
        self,
        cache: CheckedCache,
        url: TierUrl,
        *,
        warn: Callable[[str], None] | None = None,
        new_breaker: Callable[[], Breaker] = Breaker,
        max_calls: int = DEFAULT_MAX_CALLS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Wrap a tier; does no I/O.

        Args:
            cache: The tier.
            url: Says its name, timeout and secrets.
            warn: Told, in words without secrets, when an outage begins; default the log.
            new_breaker: Makes the two breakers.
            max_calls: Most calls at a time, with those that hang.
            clock: Seconds.
        """
        self._cache = cache
        self._url = url
        self._warn = warn or (lambda text: logger.warning("%s", text))
        self._reads, self._writes = new_breaker(), new_breaker()
        self._lock = threading.Lock()
        self._calls = BoundedCalls(max_calls)
        self._clock = clock
        self._counter = Counter(url.shown)
        self._told: set[type] = set()

    def counts(self) -> TierCounts:
        """What it did so far."""
        return self._counter.snapshot()

    @property
    def is_reachable(self) -> bool:
        """Whether neither reads nor writes are failing."""
        with self._lock:
            return self._reads.is_closed and self._writes.is_closed

    def read(
        self,
        key: str,
        *,
        rows: int | None = None,
        check: Check | None = None,
        timeout_s: float | None = None,
    ) -> Content | None:
        """See ``CheckedCache``; None also when the tier fails."""
        limit_s = self._limit(self._url.timeout_s, timeout_s)
        started = self._clock()
        try:
            found = self._guarded(
                self._reads,
                "get",
                lambda: self._cache.read(key, rows=rows, timeout_s=limit_s),
                limit_s,
            )
        except BadFrameError as error:
            self._counter.add(bad=1)
            self._tell_once(error, "it gave wrong content, which is not used")
            return None
        except _NotDoneError:
            return None
        finally:
            self._counter.add(get_seconds=self._clock() - started)
        if found is None:
            self._counter.add(misses=1)
        else:
            self._counter.add(hits=1, hit_bytes=found.data.nbytes)
            # Here, as it is not the tier that takes this time.
            if not passes(check, found.data):
                self.delete(key)
                return None
        return found

    def write(
        self,
        key: str,
        data: Data,
        *,
        rows: int = 0,
        replace: bool = True,
        timeout_s: float | None = None,
    ) -> bool:
        """See ``CheckedCache``; False also when the tier fails."""
        limit_s = self._limit(_PUT_PATIENCE * self._url.timeout_s, timeout_s)
        started = self._clock()
        try:
            written = self._guarded(
                self._writes,
                "put",
                lambda: self._cache.write(
                    key, data, rows=rows, replace=replace, timeout_s=limit_s
                ),
                limit_s,
            )
        except ValueTooLargeError as error:
            self._counter.add(too_large=1)
            self._tell_once(error, "it cannot hold shards of this size, which are left out")
            return False
        except _NotDoneError:
            return False
        finally:
            self._counter.add(put_seconds=self._clock() - started)
        if written:
            self._counter.add(puts=1, put_bytes=memoryview(data).nbytes)
        else:
            self._counter.add(present=1)
        return written

    def __contains__(self, key: object) -> bool:
        """Whether there is something under the key; False also when the tier fails."""
        try:
            return self._guarded(
                self._reads, "look for", lambda: key in self._cache, self._url.timeout_s
            )
        except _NotDoneError:
            return False

    def delete(self, key: str) -> None:
        """Forget the content, if the tier works."""
        try:
            self._guarded(
                self._writes, "delete", lambda: self._cache.delete(key), self._url.timeout_s
            )
        except _NotDoneError:
            pass

    def claim(self, key: str, owner: str, seconds: float) -> bool | None:
        """See ``ShardCache``; None also when the tier fails."""
        with self._lock:
            # Who cannot read cannot wait for what others put. It fails as a write does: a full
            # server takes no claims.
            reads = self._reads.is_closed
        if not reads:
            return None
        try:
            return self._guarded(
                self._writes,
                "claim",
                lambda: self._cache.claim(key, owner, seconds),
                min(self._url.timeout_s, seconds),
            )
        except _NotDoneError:
            return None

    def release(self, key: str, owner: str) -> None:
        """See ``ShardCache``; nothing when the tier fails."""
        try:
            self._guarded(
                self._writes,
                "release",
                lambda: self._cache.release(key, owner),
                self._url.timeout_s,
            )
        except _NotDoneError:
            pass

    def close(self) -> None:
        """Close the tier, or leave it if that hangs."""
        try:
            self._calls.run(self._cache.close, _CLOSE_S)
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # noqa: BLE001
            logger.debug("closing %r: %s", self, self._words(error))

    def __repr__(self) -> str:
        return f"<shared cache {self._url.shown}>"

    def _limit(self, own_s: float, given_s: float | None) -> float:
        return own_s if given_s is None else min(own_s, given_s)

    def _guarded(
        self, breaker: Breaker, action: str, work: Callable[[], _T], timeout_s: float
    ) -> _T:
        """Make a call if the breaker lets it.

        Raises:
            _NotDoneError: It was not made, or failed.
            BadFrameError: The tier works, its content is wrong.
            ValueTooLargeError: The tier works, but not for this.
        """
        with self._lock:
            permit = breaker.ask(self._clock()) if timeout_s > 0 else None
        if permit is None:
            self._counter.add(skipped=1)
            raise _NotDoneError
        try:
            result = self._calls.run(work, timeout_s)
        except (BadFrameError, ValueTooLargeError):
            self._succeeded(breaker, permit)
            raise
        except TooManyCallsError as error:
            with self._lock:
                breaker.withdrawn(permit)
            self._counter.add(skipped=1)
            raise _NotDoneError from error
        except KeyboardInterrupt:
            with self._lock:
                breaker.withdrawn(permit)
            raise
        except BaseException as error:
            # Panics of some libraries are not Exceptions.
            self._failed(breaker, permit, action, error)
            raise _NotDoneError from error
        self._succeeded(breaker, permit)
        return result

    def _succeeded(self, breaker: Breaker, permit: Permit) -> None:
        with self._lock:
            back = breaker.good(permit, self._clock())
            back = back and self._reads.is_closed and self._writes.is_closed
        if back:
            logger.info("shared cache %s: it works again", self._url.shown)

    def _failed(self, breaker: Breaker, permit: Permit, action: str, error: BaseException) -> None:
        with self._lock:
            other = self._writes if breaker is self._reads else self._reads
            begins = breaker.bad(permit, self._clock()) and other.is_closed
        self._counter.add(errors=1, outages=int(begins))
        text = f"shared cache {self._url.shown}: cannot {action}: {self._words(error)}"
        if begins:
            self._warn(
                f"{text}; what it does not give is read from Lance, and it is tried again later, "
                "without another word until it works"
            )
        else:
            logger.debug("%s", text)

    def _tell_once(self, error: Exception, what: str) -> None:
        with self._lock:
            first = type(error) not in self._told
            self._told.add(type(error))
        if first:
            self._warn(
                f"shared cache {self._url.shown}: {what}: {self._words(error)}; "
                "further cases are only counted"
            )

    def _words(self, error: BaseException) -> str:
        text = " ".join(f"{type(error).__name__}: {error}".split())
        return self._url.redact(text)[:600]


class _NotDoneError(Exception):
    """The tier was not asked, or failed; counted and told already."""
