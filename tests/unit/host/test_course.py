"""The way of a worker through an epoch: what is given out, what is counted, at every moment."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lance_stream.host.course import Course, Part, first_uses

# Shards of 3, 1, 4 and 2 samples.
STOPS = np.cumsum([3, 1, 4, 2])


def course(ids: list[int], done: int = 0) -> Course:
    """A course over some samples."""
    return Course(np.array(ids, np.int64), STOPS, done)


def pairs(part: Part) -> list[tuple[int, int]]:
    """``(shard, row)`` of each sample."""
    return list(zip(part.shards.tolist(), part.rows.tolist(), strict=True))


def test_samples_are_found_in_their_shards() -> None:
    """At both ends of each shard; padding is left out, wherever it is."""
    one = course([0, 2, -1, 3, 4, -1, 7, 8, 9, -1])
    assert one.total == 7
    assert pairs(one.peek(100)) == [(0, 0), (0, 2), (1, 0), (2, 0), (2, 3), (3, 0), (3, 1)]
    assert pairs(one.peek(2)) == [(0, 0), (0, 2)]


@pytest.mark.parametrize("ids", [[], [-1, -1]])
def test_an_empty_course(ids: list[int]) -> None:
    """It is over at once."""
    one = course(ids)
    assert one.is_over
    assert len(one.peek(5)) == len(one.ahead(5)) == len(one.uncounted()) == 0
    one.end()
    assert one.given_out == 0


@pytest.mark.parametrize("done", [0, 3, 10, 12])
def test_it_begins_behind_what_was_given_out_before(done: int) -> None:
    """What was given out before is neither asked for nor counted; more than all is over."""
    one = course(list(range(10)), done)
    assert one.is_over == (done >= 10)
    assert len(one.peek(100)) == max(0, 10 - done)
    assert one.given_out == done
    assert len(one.uncounted()) == 0
    assert set(one.ahead(100).tolist()) == {0: {0, 1, 2, 3}, 3: {1, 2, 3}}.get(done, set())


def test_each_sample_is_asked_for_once() -> None:
    """Shards come in order of use, and only of samples that have come into reach."""
    one = course([9, 0, 8, 1, 4])
    assert one.ahead(2).tolist() == [3, 0]
    assert one.ahead(2).tolist() == []
    for _ in one.give_out(one.peek(1)):
        pass
    assert one.ahead(2).tolist() == [3]
    assert one.ahead(100).tolist() == [0, 2]
    assert one.ahead(100).tolist() == []


def test_given_out_one_by_one() -> None:
    """While a part is given out, before, between and after."""
    one = course(list(range(6)))
    seen = [one.given_out]
    seen += [one.given_out for _ in one.give_out(one.peek(4))]
    assert seen == [0, 1, 2, 3, 4]
    assert one.done == one.given_out == 4


def test_an_end_in_the_middle_of_a_part() -> None:
    """No further row comes, what was given out stays, and ending again changes nothing."""
    one = course(list(range(6)))
    rows = one.give_out(one.peek(4))
    assert [next(rows), next(rows)] == [0, 1]
    one.end()
    assert list(rows) == []
    assert one.is_over
    assert one.given_out == one.done == 2
    assert one.uncounted().tolist() == [0, 0]
    one.end()
    assert one.given_out == 2
    assert len(one.uncounted()) == 0


def test_what_another_thread_sees_is_never_counted_twice() -> None:
    """Between the steps of ``give_out`` fewer samples seem to be given out than were before."""
    one = course(list(range(10)))
    for _ in one.give_out(one.peek(4)):
        pass
    assert len(one.uncounted()) == 4
    # As in the middle of give_out: the rows of the next part are there, ``done`` is not raised.
    one._left = iter([0, 0, 1])
    assert one.given_out == 1
    assert len(one.uncounted()) == 0
    one._left = iter([])
    assert len(one.uncounted()) == 0


@given(
    ids=st.lists(st.integers(-1, 9), max_size=30),
    parts=st.lists(st.integers(1, 7), min_size=1),
    done=st.integers(0, 5),
)
def test_everything_is_counted_once(ids: list[int], parts: list[int], done: int) -> None:
    """However large the parts, and whenever it is asked: each sample once, in order."""
    one = course(ids, done)
    wanted = [i for i in ids if i >= 0][done:]
    seen: list[tuple[int, int]] = []
    counted: list[int] = []
    asked: list[int] = []
    for number in range(len(wanted) + 1):
        if one.is_over:
            break
        asked += one.ahead(3).tolist()
        part = one.peek(parts[number % len(parts)])
        for at, row in enumerate(one.give_out(part)):
            seen.append((int(part.shards[at]), row))
            if at % 2:
                counted += one.uncounted().tolist()
    one.end()
    counted += one.uncounted().tolist()
    places = [(int(np.searchsorted(STOPS, i, side="right")), i) for i in wanted]
    assert [shard for shard, _ in seen] == [shard for shard, _ in places] == counted
    assert [int(STOPS[shard - 1]) * (shard > 0) + row for shard, row in seen] == wanted
    reached = {shard for shard, _ in places}
    # A part that is larger than what was looked at is not asked for ahead.
    assert set(asked) == reached if max(parts) <= 3 else set(asked) <= reached


def test_first_uses() -> None:
    """Positions at which each shard comes for the first time."""
    assert first_uses(np.array([5, 5, 2, 5, 9, 2])).tolist() == [0, 2, 4]
    assert first_uses(np.array([], np.int64)).tolist() == []
