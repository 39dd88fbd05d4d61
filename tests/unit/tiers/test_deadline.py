from __future__ import annotations

import threading
import time

import pytest

from lance_stream.tiers.deadline import BoundedCalls, TooManyCallsError


def wait_until_running(calls: BoundedCalls, count: int) -> None:
    deadline = time.monotonic() + 5
    while calls.num_running != count:
        assert time.monotonic() < deadline
        time.sleep(0.001)


def test_what_a_call_gives_or_raises_comes_back() -> None:
    calls = BoundedCalls(1)
    assert calls.run(lambda: "result", 5) == "result"
    assert calls.run(lambda: None, 5) is None
    with pytest.raises(ZeroDivisionError, match="division"):
        calls.run(lambda: 1 // 0, 5)
    assert calls.num_running == 0


def test_a_panic_that_is_no_exception_comes_back_too() -> None:
    class PanicError(BaseException):
        pass

    def panic() -> None:
        raise PanicError("rust")

    with pytest.raises(PanicError, match="rust"):
        BoundedCalls(1).run(panic, 5)


def test_a_call_that_hangs_is_abandoned_and_keeps_its_place() -> None:
    calls, gate = BoundedCalls(2), threading.Event()
    started = time.monotonic()
    with pytest.raises(TimeoutError, match=r"no answer within 0\.1 s"):
        calls.run(gate.wait, 0.1)
    assert time.monotonic() - started < 1
    assert calls.num_running == 1
    assert calls.run(lambda: 1, 5) == 1
    with pytest.raises(TimeoutError, match="no answer"):
        calls.run(gate.wait, 0.01)
    started = time.monotonic()
    with pytest.raises(TooManyCallsError, match="2 calls have not returned"):
        calls.run(lambda: 1, 5)
    assert time.monotonic() - started < 0.5
    gate.set()
    wait_until_running(calls, 0)
    assert calls.run(lambda: 1, 5) == 1


def test_the_result_of_an_abandoned_call_is_not_kept() -> None:
    class Result:
        alive = 0

        def __init__(self) -> None:
            Result.alive += 1

        def __del__(self) -> None:
            Result.alive -= 1

    calls, gate = BoundedCalls(1), threading.Event()

    def slow() -> Result:
        gate.wait()
        return Result()

    with pytest.raises(TimeoutError, match="no answer"):
        calls.run(slow, 0.01)
    gate.set()
    wait_until_running(calls, 0)
    deadline = time.monotonic() + 5
    while Result.alive:
        assert time.monotonic() < deadline
        time.sleep(0.001)


def test_a_thread_that_cannot_start_takes_no_place(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(self: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    calls = BoundedCalls(1)
    monkeypatch.setattr(threading.Thread, "start", refuse)
    with pytest.raises(RuntimeError, match="can't start new thread"):
        calls.run(lambda: 1, 5)
    assert calls.num_running == 0
