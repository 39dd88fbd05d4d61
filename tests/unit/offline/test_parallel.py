from __future__ import annotations

import contextlib
import threading
import time

import pytest

from lance_stream.offline.parallel import in_parallel


def test_every_number_once() -> None:
    results = dict(in_parallel(lambda number: number * number, range(50), 4, threading.Event()))
    assert results == {number: number * number for number in range(50)}
    assert list(in_parallel(str, [], 4, threading.Event())) == []


def test_so_many_at_a_time() -> None:
    running, most, lock = 0, 0, threading.Lock()

    def work(_number: int) -> None:
        nonlocal running, most
        with lock:
            running += 1
            most = max(most, running)
        time.sleep(0.005)
        with lock:
            running -= 1

    list(in_parallel(work, range(20), 3, threading.Event()))
    assert most == 3


def test_the_first_error_ends_it() -> None:
    stop, begun = threading.Event(), []

    def work(number: int) -> None:
        begun.append(number)
        if number == 3:
            raise ValueError("three")
        stop.wait(0.01)

    with pytest.raises(ValueError, match="three"):
        list(in_parallel(work, range(1000), 2, stop))
    assert stop.is_set()
    assert len(begun) < 100
    assert not [t for t in threading.enumerate() if t.name == "lance-stream-work"]


def test_closed_early_it_stops() -> None:
    stop = threading.Event()
    with contextlib.closing(
        in_parallel(lambda _n: stop.wait(0.002), range(1000), 2, stop)
    ) as found:
        next(found)
    assert stop.is_set()
    assert not [t for t in threading.enumerate() if t.name == "lance-stream-work"]
