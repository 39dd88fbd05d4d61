from __future__ import annotations

import gc
import threading
import weakref

import pytest

from lance_stream.service.postponing import PostponingLock


class _Cycle:
    def __init__(self) -> None:
        self.me = self


def test_work_is_done_at_once_where_the_lock_is_free() -> None:
    lock, done = PostponingLock(), list[int]()
    lock.do(lambda: done.append(1))
    assert done == [1]


def test_a_finalizer_in_a_thread_that_holds_the_lock_is_postponed() -> None:
    """The garbage collector runs it there, wherever an object is made."""
    lock, done = PostponingLock(), list[str]()
    one = _Cycle()
    weakref.finalize(one, lambda: lock.do(lambda: done.append("finalized")))
    with lock:
        del one
        gc.collect()
        done.append("held")
    assert done == ["held", "finalized"]


def test_what_is_postponed_is_done_by_whoever_holds_the_lock() -> None:
    lock, done = PostponingLock(), list[int]()
    with lock:
        thread = threading.Thread(target=lambda: lock.do(lambda: done.append(1)))
        thread.start()
        thread.join(5)
        assert not thread.is_alive()
        assert done == []
    assert done == [1]


def test_nothing_gets_lost_among_threads() -> None:
    lock, counted = PostponingLock(), [0]

    def add() -> None:
        counted[0] += 1

    def work() -> None:
        for _ in range(2000):
            lock.do(add)
            with lock:
                add()

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert counted == [16_000]


def test_what_fails_is_told_and_the_rest_is_done(caplog: pytest.LogCaptureFixture) -> None:
    lock, done = PostponingLock(), list[int]()
    with lock:
        lock.do(lambda: done.append(1 // 0))
        lock.do(lambda: done.append(2))
    assert done == [2]
    assert "what was postponed failed" in caplog.text
    with lock:
        pass
