"""Which shards are asked for ahead of use, and how many."""

from __future__ import annotations

import threading
import time

import numpy as np
import pytest
from numpy.typing import NDArray

from lance_stream.host.ahead import Ahead
from lance_stream.host.course import Course


class Recorder:
    """Takes what is asked; shards from 100 on are slow."""

    def __init__(self) -> None:
        self.asked: list[int] = []
        self.present: set[int] = set()
        self.fails: set[int] = set()
        self.threads: set[str] = set()

    def missing(self, shards: NDArray[np.int64]) -> list[int]:
        return [shard for shard in shards.tolist() if shard not in self.present]

    def is_quick(self, shard_id: int) -> bool:
        return shard_id < 100

    def prepare_shard(self, shard_id: int, blocking: bool = True) -> None:
        assert not blocking
        self.asked.append(shard_id)
        self.threads.add(threading.current_thread().name)
        if shard_id in self.fails:
            raise OSError(f"shard {shard_id} cannot be had")


def ahead(
    recorder: Recorder, shards: list[int], samples: int, max_shards: int | None
) -> tuple[Ahead, Course]:
    """Over a course with one sample per shard."""
    course = Course(np.array(shards, np.int64), np.arange(1, 201))
    return Ahead(recorder, course, samples, max_shards), course


def advance(course: Course, count: int) -> list[int]:
    """Give out so many samples; their shards."""
    part = course.peek(count)
    list(course.give_out(part))
    return part.shards.tolist()


def test_up_to_some_samples_ahead() -> None:
    """In order of use, each once, without those that are there."""
    recorder = Recorder()
    recorder.present = {4}
    one, course = ahead(recorder, [3, 4, 3, 5, 6, 7], 4, None)
    one.ask()
    assert recorder.asked == [3, 5]
    one.ask()
    assert recorder.asked == [3, 5]
    one.used(advance(course, 2))
    one.ask()
    assert recorder.asked == [3, 5, 6, 7]


@pytest.mark.parametrize("at_once", [1, 2, 3])
def test_up_to_some_shards(at_once: int) -> None:
    """However many are used at a time, the bound is on those that are not used yet."""
    recorder = Recorder()
    one, course = ahead(recorder, list(range(30)), 30, 2)
    unused: set[int] = set()
    while not course.is_over:
        before = len(recorder.asked)
        one.ask()
        unused |= set(recorder.asked[before:])
        # One that was passed is not asked for any more: it would never be used.
        assert all(shard >= course.done for shard in unused)
        assert len(unused) == min(2, course.total - course.done)
        used = advance(course, at_once)
        one.used(used)
        unused -= set(used)


def test_none_at_all() -> None:
    """A bound of 0 asks for nothing; what comes is asked for by whoever waits for it."""
    recorder = Recorder()
    one, course = ahead(recorder, [1, 2, 3], 10, 0)
    while not course.is_over:
        one.ask()
        one.used(advance(course, 1))
    assert recorder.asked == []


def test_slow_ones_are_asked_for_in_a_thread() -> None:
    """One that fails is left to who needs it, and the next ones are downloaded."""
    recorder = Recorder()
    recorder.fails = {100}
    one, _ = ahead(recorder, [100, 1, 101], 10, None)
    one.ask()
    for _ in range(500):
        if sorted(recorder.asked) == [1, 100, 101]:
            break
        time.sleep(0.01)
    assert sorted(recorder.asked) == [1, 100, 101]
    assert "lance_stream ahead" in recorder.threads
    one.close()


def test_nothing_after_the_end() -> None:
    """Slow shards that are queued when the course ends are not downloaded."""
    recorder = Recorder()
    one, course = ahead(recorder, [100, 101], 10, None)
    course.end()
    one._ask(100)
    one.close()
    for thread in threading.enumerate():
        if thread.name == "lance_stream ahead":
            thread.join(5)
    assert recorder.asked == []


def test_what_raises_here_reaches_the_caller() -> None:
    """A quick shard is asked for in the caller's thread, with its error."""
    recorder = Recorder()
    recorder.fails = {1}
    one, _ = ahead(recorder, [1], 10, None)
    with pytest.raises(OSError, match="shard 1 cannot be had"):
        one.ask()
