"""Calls that may hang or fail: bounded in time, tried again where that can help."""

from __future__ import annotations

import logging
import random
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from lance_stream.source.failures import Failure, FailureKind

__all__ = ["CallFailedError", "Policy", "Pulse", "StoppedError", "attempt"]

logger = logging.getLogger(__name__)

_T = TypeVar("_T")
_FIRST_DELAY_S = 0.25
_MAX_DELAY_S = 5.0
_POLL_S = 0.1


class CallFailedError(Exception):
    """One attempt failed, in a way that is understood."""

    def __init__(self, failure: Failure) -> None:
        """Keep the failure."""
        super().__init__(failure.message)
        self.failure = failure


class StoppedError(Exception):
    """The work ends, and this call is not wanted any more."""


@dataclass(frozen=True, slots=True)
class Policy:
    """How long and how often to try.

    Attributes:
        attempts: At most so many, at least 1.
        timeout_s: Longest time of one attempt, or of its silence where it has a pulse.
        stop: Set when nothing is wanted any more.
    """

    attempts: int
    timeout_s: float
    stop: threading.Event


class Pulse:
    """When a long call last showed that it goes on. Beaten in one thread, read in another."""

    def __init__(self) -> None:
        """Begin now."""
        self.at_s = time.monotonic()

    def beat(self) -> None:
        """Something was done."""
        self.at_s = time.monotonic()


def attempt(
    call: Callable[[], _T],
    policy: Policy,
    what: str,
    more_s: float = 0.0,
    pulse: Pulse | None = None,
) -> _T:
    """Call until it succeeds, fails for good, or was tried often enough.

    A call that takes too long is left alone in its thread.

    Args:
        call: Raises CallFailedError for a failure that is understood.
        policy: How long and how often.
        what: What is attempted, for the log.
        more_s: Time on top of the policy's.
        pulse: Of a call that may take as long as it likes while it goes on.

    Raises:
        CallFailedError: The last failure.
        StoppedError: Nothing is wanted any more.
        BaseException: Whatever else the call raises, at once.
    """
    for number in range(1, policy.attempts + 1):
        try:
            return _bounded(call, policy, policy.timeout_s + more_s, pulse or Pulse())
        except CallFailedError as error:
            if not error.failure.retryable or number == policy.attempts:
                raise
            mean_s = min(_MAX_DELAY_S, _FIRST_DELAY_S * 2 ** (number - 1))
            logger.info("%s: %s; trying again", what, error)
            if policy.stop.wait(mean_s * (0.5 + random.random())):
                raise StoppedError from error
    msg = f"{what}: {policy.attempts} attempts"
    raise ValueError(msg)


def _bounded(call: Callable[[], _T], policy: Policy, timeout_s: float, pulse: Pulse) -> _T:
    """The result of a call in a thread of its own, waited for no longer than that."""
    pulse.beat()
    outcome: list[_T] = []
    failure: list[BaseException] = []
    ended = threading.Event()

    def run() -> None:
        try:
            outcome.append(call())
        except BaseException as error:  # noqa: BLE001 - raised where it is waited for
            failure.append(error)
        finally:
            ended.set()

    # A daemon: one that hangs must not keep the process.
    threading.Thread(target=run, name="lance-stream-attempt", daemon=True).start()
    while not ended.wait(min(_POLL_S, timeout_s)):
        if policy.stop.is_set():
            raise StoppedError
        if time.monotonic() > pulse.at_s + timeout_s:
            message = f"no answer within {timeout_s:g} s"
            raise CallFailedError(Failure(FailureKind.UNAVAILABLE, message, retryable=True))
    if failure:
        raise failure[0]
    return outcome[0]
