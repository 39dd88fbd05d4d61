"""What a small cache keeps for the rest of an epoch: times of access that the host compares."""

from __future__ import annotations

import time

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lance_stream.host import course as course_module
from lance_stream.host.course import Course, last_uses
from lance_stream.host.keeping import Kept

# Shards of 2 samples each.
STOPS = np.arange(2, 22, 2)
SHARDS = len(STOPS)


def course(ids: list[int], done: int = 0) -> Course:
    """A course over some samples."""
    return Course(np.array(ids, np.int64), STOPS, done)


@given(st.lists(st.integers(0, 2 * SHARDS - 1)), st.integers(0, 30), st.integers(1, 5))
def test_last_uses(ids: list[int], done: int, looked_at: int) -> None:
    """As a dict that is filled in order says, however many samples are looked at at a time."""
    expected = dict.fromkeys(range(SHARDS), -1)
    for at, sample in enumerate(ids):
        if at >= done:
            expected[sample // 2] = at
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(course_module, "_LOOKED_AT", looked_at)
        assert last_uses(course(ids, done), SHARDS).tolist() == list(expected.values())


def test_the_coldest_is_never_needed_while_another_is_not() -> None:
    """Of shards that are over, or never come, one goes first; then the one needed last."""
    times = np.full(SHARDS, time.time_ns())
    kept = Kept(course([0, 1, 4, 5, 8, 9, 4, 2]), times)
    kept.renew(0)
    # Shards 0, 2, 4 and 1 come, in this order; 2 comes again.
    assert set(np.argsort(times)[-4:].tolist()) == {0, 1, 2, 4}
    assert [int(shard) for shard in np.argsort(times)[-4:]] == [1, 2, 4, 0]
    kept.renew(2)
    assert [int(shard) for shard in np.argsort(times)[-3:]] == [1, 2, 4]
    kept.renew(6)
    assert [int(shard) for shard in np.argsort(times)[-2:]] == [1, 2]
    assert times[4] <= time.time_ns()
    kept.renew(8)
    assert times.max() <= time.time_ns()


def test_a_shard_that_has_just_come_is_kept() -> None:
    """The time for one that was prepared says whether it is still needed."""
    kept = Kept(course([0, 4]), np.zeros(SHARDS, np.int64))
    kept.renew(1)
    now = time.time_ns()
    assert kept.time_of(2) > now + (1 << 59)
    for over_or_never in (0, 7):
        assert now <= kept.time_of(over_or_never) <= time.time_ns()


def test_it_never_reaches_what_the_host_takes_for_never() -> None:
    """The largest int64 means that a shard is not there."""
    times = np.zeros(SHARDS, np.int64)
    Kept(course([0]), times).renew(0)
    assert 0 < times[0] < np.iinfo(np.int64).max // 2


def test_what_comes_between_two_looks_is_said_again() -> None:
    """The host wrote another time, as for a shard that came: renewed after a moment."""
    times = np.zeros(SHARDS, np.int64)
    kept = Kept(course([0, 4]), times)
    kept.renew(0)
    times[2] = time.time_ns()
    time.sleep(0.15)
    kept.renew(0)
    assert times[2] > time.time_ns() + (1 << 59)
