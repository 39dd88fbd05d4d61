"""Calls that may hang, waited for no longer than a deadline."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Generic, TypeVar

__all__ = ["BoundedCalls", "TooManyCallsError"]

_T = TypeVar("_T")


class TooManyCallsError(Exception):
    """All places are taken by calls that have not returned."""


class _Call(Generic[_T]):
    """One call: what it gave, unless nobody waits for that any more."""

    __slots__ = ("_lock", "abandoned", "error", "result", "returned")

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.returned = threading.Event()
        self.abandoned = False
        self.result: _T | None = None
        self.error: BaseException | None = None

    def end(self, result: _T | None, error: BaseException | None) -> None:
        with self._lock:
            if not self.abandoned:
                self.result, self.error = result, error
            self.returned.set()

    def abandon(self) -> bool:
        """Stop waiting; False if it has just returned."""
        with self._lock:
            self.abandoned = not self.returned.is_set()
            return self.abandoned


class BoundedCalls:
    """Runs each call in a thread of its own, so many at a time. Thread-safe.

    A call that misses its deadline is abandoned: its thread goes on, its result is dropped, and
    its place stays taken until it returns. So the threads are bounded even if none ever does.
    """

    def __init__(self, max_calls: int) -> None:
        """No call runs yet.

        Args:
            max_calls: How many may run, the abandoned ones with them.
        """
        self._max_calls = max_calls
        self._lock = threading.Lock()
        self._running = 0

    @property
    def num_running(self) -> int:
        """Calls that have not returned, the abandoned ones with them."""
        with self._lock:
            return self._running

    def run(self, work: Callable[[], _T], timeout_s: float) -> _T:
        """Call and wait.

        Args:
            work: What to call.
            timeout_s: How long to wait.

        Returns:
            What it returns.

        Raises:
            TooManyCallsError: No place was free; nothing was called.
            TimeoutError: It did not return in time.
            Exception: What it raised.
        """
        with self._lock:
            if self._running >= self._max_calls:
                msg = f"{self._running} calls have not returned"
                raise TooManyCallsError(msg)
            self._running += 1
        call: _Call[_T] = _Call()
        thread = threading.Thread(
            target=self._call, args=(call, work), name="lance-stream-tier", daemon=True
        )
        try:
            thread.start()
        except BaseException:
            self._leave()
            raise
        if not call.returned.wait(timeout_s) and call.abandon():
            msg = f"no answer within {timeout_s:g} s"
            raise TimeoutError(msg)
        if call.error is not None:
            raise call.error
        return call.result  # type: ignore[return-value]

    def _call(self, call: _Call[_T], work: Callable[[], _T]) -> None:
        try:
            result = work()
        except BaseException as error:  # noqa: BLE001
            self._leave()
            call.end(None, error)
        else:
            self._leave()
            call.end(result, None)

    def _leave(self) -> None:
        with self._lock:
            self._running -= 1
