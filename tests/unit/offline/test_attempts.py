from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from lance_stream.offline import attempts
from lance_stream.offline.attempts import CallFailedError, Policy, Pulse, StoppedError, attempt
from lance_stream.source.failures import Failure, FailureKind


@pytest.fixture(autouse=True)
def short_delays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attempts, "_FIRST_DELAY_S", 0.001)


def policy(number: int = 3, timeout_s: float = 10.0) -> Policy:
    return Policy(number, timeout_s, threading.Event())


def failing(times: int, *, retryable: bool = True) -> tuple[Callable[[], str], list[int]]:
    """A call that fails so many times first, and the list of its calls."""
    calls: list[int] = []

    def call() -> str:
        calls.append(len(calls) + 1)
        if len(calls) <= times:
            message = f"failure {len(calls)}"
            raise CallFailedError(Failure(FailureKind.UNAVAILABLE, message, retryable=retryable))
        return "done"

    return call, calls


def test_the_result() -> None:
    assert attempt(lambda: 5, policy(1), "x") == 5
    assert attempt(lambda: None, policy(1), "x") is None


@pytest.mark.parametrize("times", [1, 2])
def test_what_may_pass_is_tried_again(times: int) -> None:
    call, calls = failing(times)
    assert attempt(call, policy(3), "x") == "done"
    assert len(calls) == times + 1


def test_the_last_failure_is_raised() -> None:
    call, calls = failing(9)
    with pytest.raises(CallFailedError, match="failure 3"):
        attempt(call, policy(3), "x")
    assert len(calls) == 3


def test_what_stays_is_not_tried_again() -> None:
    call, calls = failing(9, retryable=False)
    with pytest.raises(CallFailedError, match="failure 1"):
        attempt(call, policy(3), "x")
    assert len(calls) == 1


@pytest.mark.parametrize("error", [ValueError("x"), KeyboardInterrupt(), OSError(28, "full")])
def test_other_errors_are_raised_at_once(error: BaseException) -> None:
    def call() -> Any:
        raise error

    with pytest.raises(type(error)):
        attempt(call, policy(3), "x")


def test_a_call_that_hangs_is_left_alone() -> None:
    release, calls = threading.Event(), []

    def call() -> str:
        calls.append(1)
        if len(calls) == 1:
            release.wait(20)
            return "too late"
        return "done"

    try:
        assert attempt(call, policy(2, 0.05), "x") == "done"
        calls.clear()
        with pytest.raises(CallFailedError, match=r"no answer within 0\.05 s"):
            attempt(call, policy(1, 0.05), "x")
        calls.clear()
        with pytest.raises(CallFailedError, match=r"no answer within 0\.25 s"):
            attempt(call, policy(1, 0.05), "x", more_s=0.2)
    finally:
        release.set()


@pytest.mark.parametrize("moment", ["while it runs", "between attempts"])
def test_stopped(moment: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attempts, "_FIRST_DELAY_S", 60.0)
    limits, release = policy(3, 60.0), threading.Event()
    hanging = moment == "while it runs"
    call = (lambda: release.wait(20)) if hanging else failing(9)[0]
    threading.Timer(0.1, limits.stop.set).start()
    started = time.monotonic()
    try:
        with pytest.raises(StoppedError):
            attempt(call, limits, "x")
    finally:
        release.set()
    assert time.monotonic() - started < 5


def test_a_pulse_keeps_a_long_call() -> None:
    pulse = Pulse()

    def call() -> str:
        for _ in range(20):
            time.sleep(0.02)
            pulse.beat()
        return "done"

    assert attempt(call, policy(1, 0.2), "x", pulse=pulse) == "done"
    ended = threading.Event()
    with pytest.raises(CallFailedError, match=r"no answer within 0\.1 s"):
        attempt(ended.wait, policy(1, 0.1), "x", pulse=Pulse())
    # What hangs is left alone in its thread.
    ended.set()
