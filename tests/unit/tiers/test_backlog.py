from __future__ import annotations

import logging
import threading
import time

import pytest

from lance_stream.tiers.backlog import Backlog
from tests.support.new_threads import NewThreads


def test_jobs_are_done_in_order() -> None:
    done: list[int] = []
    backlog = Backlog("test", threads=1, max_jobs=100)
    assert all(backlog.offer(f"{n}", lambda n=n: done.append(n)) for n in range(50))
    assert backlog.wait(5)
    assert done == list(range(50))
    assert backlog.close(1) == 0


def test_no_thread_before_the_first_job_and_no_more_than_wanted() -> None:
    started, gate = NewThreads(), threading.Event()
    backlog = Backlog("test", threads=3, max_jobs=100)
    assert len(started) == 0
    for number in range(10):
        backlog.offer(f"{number}", gate.wait)
    assert len(started) == 3
    assert backlog.num_jobs == 10
    gate.set()
    assert backlog.close(5) == 0
    deadline = time.monotonic() + 5
    while len(started):
        assert time.monotonic() < deadline
        time.sleep(0.001)


def test_what_does_not_fit_is_refused_at_once() -> None:
    gate = threading.Event()
    backlog = Backlog("test", threads=1, max_jobs=3)
    assert [backlog.offer(f"{n}", gate.wait) for n in range(5)] == [True] * 3 + [False] * 2
    gate.set()
    assert backlog.wait(5)
    assert backlog.offer("9", gate.wait)
    assert backlog.close(5) == 0
    assert backlog.offer("10", gate.wait) is False


def test_bytes_are_bounded_but_one_job_always_fits() -> None:
    gate = threading.Event()
    backlog = Backlog("test", threads=2, max_jobs=10, max_bytes=100)
    assert backlog.offer("large", gate.wait, 500)
    assert not backlog.offer("small", gate.wait, 1)
    gate.set()
    assert backlog.wait(5)
    gate.clear()
    assert [backlog.offer(f"{n}", gate.wait, 40) for n in range(3)] == [True, True, False]
    gate.set()
    assert backlog.close(5) == 0


def test_a_key_is_worked_on_once_at_a_time() -> None:
    gate, done = threading.Event(), []
    backlog = Backlog("test", threads=2, max_jobs=10)

    def job() -> None:
        gate.wait()
        done.append(1)

    for _ in range(3):
        assert backlog.offer("same", job)
    gate.set()
    assert backlog.wait(5)
    assert done == [1]
    assert backlog.offer("same", job)
    assert backlog.close(5) == 0
    assert done == [1, 1]


def test_a_job_that_fails_does_not_stop_the_others(caplog: pytest.LogCaptureFixture) -> None:
    done: list[int] = []
    backlog = Backlog("publish", threads=1, max_jobs=10)
    backlog.offer("bad", lambda: 1 // 0)
    backlog.offer("good", lambda: done.append(1))
    assert backlog.close(5) == 0
    assert done == [1]
    assert "publish: a job failed" in caplog.records[0].getMessage()
    assert caplog.records[0].levelno == logging.ERROR


def test_closing_waits_no_longer_than_said() -> None:
    gate, done = threading.Event(), []
    backlog = Backlog("test", threads=1, max_jobs=10)
    backlog.offer("hangs", gate.wait)
    backlog.offer("waits", lambda: done.append(1))
    started = time.monotonic()
    assert backlog.wait(0.05) is False
    assert backlog.close(0.1) == 2
    assert time.monotonic() - started < 1
    gate.set()
    time.sleep(0.05)
    assert done == [], "what was dropped is not done later"
    assert backlog.close(1) == 0
