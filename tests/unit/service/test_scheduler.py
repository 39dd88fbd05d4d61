from __future__ import annotations

import random
import time
from dataclasses import replace
from typing import Any, cast

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)

from lance_stream.service.events import (
    Asked,
    Doing,
    Fetched,
    GiveWay,
    Grew,
    Instruction,
    Key,
    Left,
    Lost,
    Missed,
    Policy,
    Postponed,
    Reply,
    Retire,
    Start,
    Tick,
    Unwanted,
)
from lance_stream.service.scheduler import Scheduler
from lance_stream.source.failures import Failure, FailureKind

POLICY = Policy(timeout_s=60.0, attempts=3)
DOWN = Failure(FailureKind.UNAVAILABLE, "503 SlowDown", retryable=True)
DENIED = Failure(FailureKind.CREDENTIALS, "403 Forbidden", retryable=False)
A, B, C, D = (Key("s", shard) for shard in range(4))


def scheduler(**changes: Any) -> Scheduler:
    values: dict[str, Any] = {
        "max_running": 4,
        "max_bytes": 1000,
        "max_deaths": 2,
        "first_delay_s": 1.0,
        "max_delay_s": 10.0,
        "jitter": lambda: 0.5,  # delays are their mean
    }
    return Scheduler(**{**values, **changes})


def ask(
    client: int,
    key: Key,
    *,
    demand: bool = True,
    num_bytes: int = 100,
    policy: Policy = POLICY,
) -> Asked:
    return Asked(client, key, demand, num_bytes, policy)


def start(key: Key, attempt: int = 1, deadline: float = 60.0, deaths: int = 0) -> Start:
    return Start(key, attempt, deadline, deaths)


# --- one shard ---


def test_a_shard_is_started_and_its_end_is_told() -> None:
    s = scheduler()
    assert s.handle(ask(1, A), 5.0) == [Start(A, 1, 65.0, 0)]
    assert (s.num_running, s.num_queued) == (1, 0)
    assert s.handle(Fetched(A, 1, 123), 6.0) == [Reply((1,), A, 123)]
    assert (s.num_running, s.num_queued) == (0, 0)


def test_whoever_asks_one_fetch_serves_all() -> None:
    s = scheduler()
    assert s.handle(ask(1, A), 0.0) == [start(A)]
    assert s.handle(ask(2, A), 1.0) == []
    assert s.handle(ask(2, A), 2.0) == []
    assert s.handle(ask(3, A, demand=False), 3.0) == []
    assert s.handle(Fetched(A, 1, 9), 4.0) == [Reply((1, 2, 3), A, 9)]
    assert s.handle(Fetched(A, 1, 9), 4.0) == []


def test_shards_of_different_streams_are_different() -> None:
    s = scheduler()
    other = Key("t", A.shard)
    assert s.handle(ask(1, A), 0.0) == [start(A)]
    assert s.handle(ask(1, other), 0.0) == [start(other)]
    assert s.handle(Fetched(other, 1, 1), 1.0) == [Reply((1,), other, 1)]
    assert s.num_running == 1


def test_a_shard_that_ended_may_be_asked_for_again() -> None:
    s = scheduler()
    s.handle(ask(1, A), 0.0)
    s.handle(Fetched(A, 1, 9), 1.0)
    assert s.handle(ask(1, A), 10.0) == [start(A, 1, 70.0)]


def test_is_demanded() -> None:
    s = scheduler(max_running=1)
    assert not s.is_demanded(A)
    s.handle(ask(1, A, demand=False), 0.0)
    assert not s.is_demanded(A)
    s.handle(ask(2, A), 0.0)
    assert s.is_demanded(A)
    s.handle(ask(2, A, demand=False), 0.0)
    assert s.is_demanded(A)  # It still waits: asking ahead takes nothing back.
    s.handle(Left(2), 0.0)
    assert not s.is_demanded(A)


# --- whose turn it is ---


def test_no_more_than_max_running_first_come_first_served() -> None:
    s = scheduler(max_running=2)
    assert s.handle(ask(1, C), 0.0) == [start(C)]
    assert s.handle(ask(1, A), 0.0) == [start(A)]
    assert s.handle(ask(1, D), 0.0) == []
    assert s.handle(ask(1, B), 0.0) == []
    assert (s.num_running, s.num_queued) == (2, 2)
    assert s.handle(Fetched(A, 1, 1), 1.0) == [Reply((1,), A, 1), start(D, 1, 61.0)]
    assert s.handle(Fetched(C, 1, 1), 2.0) == [Reply((1,), C, 1), start(B, 1, 62.0)]


def test_what_is_waited_for_goes_first() -> None:
    s = scheduler(max_running=1)
    s.handle(ask(1, A), 0.0)
    s.handle(ask(1, B, demand=False), 0.0)
    s.handle(ask(1, C, demand=False), 0.0)
    s.handle(ask(2, D), 0.0)
    assert s.handle(Fetched(A, 1, 1), 1.0)[1:] == [start(D, 1, 61.0)]
    s.handle(ask(2, C), 1.0)  # Asked for ahead, and now waited for.
    assert s.handle(Fetched(D, 1, 1), 2.0)[1:] == [start(C, 1, 62.0)]
    assert s.handle(Fetched(C, 1, 1), 3.0)[1:] == [start(B, 1, 63.0)]


def test_tens_of_thousands_may_wait() -> None:
    """What an event costs does not grow with them: this took minutes when it did."""
    s = scheduler(max_running=2)
    number, begun_s = 30_000, time.process_time()
    begun: list[Instruction] = []
    for shard in range(number):
        begun += s.handle(ask(1, Key("s", shard), demand=False), 0.0)
    begun += s.handle(ask(2, Key("s", number - 1)), 0.0)
    order = []
    while s.num_running:
        assert s.next_wakeup(0.0) == 60.0
        key = cast("Start", begun[len(order)]).key
        order.append(key.shard)
        told = s.handle(Fetched(key, 1, 9), 0.0)
        begun += [one for one in told if isinstance(one, Start)]
    assert order == [0, 1, number - 1, *range(2, number - 1)]
    assert time.process_time() - begun_s < 30


def test_what_never_comes_up_is_not_kept() -> None:
    """Each shard is asked for ahead, then waited for, and somebody always waits."""
    s = scheduler(max_running=1)
    s.handle(ask(1, Key("s", 0)), 0.0)
    for shard in range(1, 5000):
        s.handle(ask(1, Key("s", shard), demand=False), 0.0)
        s.handle(ask(1, Key("s", shard)), 0.0)
        _, begun = s.handle(Fetched(Key("s", shard - 1), 1, 9), 0.0)
        assert begun == start(Key("s", shard))
    assert len(s._ready) < 1100


def test_running_fetches_are_not_interrupted_by_more_urgent_ones() -> None:
    s = scheduler(max_running=1)
    assert s.handle(ask(1, A, demand=False), 0.0) == [start(A)]
    assert s.handle(ask(1, B), 0.0) == []


def test_expected_bytes_are_bounded() -> None:
    s = scheduler(max_bytes=1000)
    assert s.handle(ask(1, A, num_bytes=600), 0.0) == [start(A)]
    assert s.handle(ask(1, B, num_bytes=401), 0.0) == []
    # One that would fit does not overtake: the larger one would never have its turn.
    assert s.handle(ask(1, C, num_bytes=10), 0.0) == []
    assert s.handle(Fetched(A, 1, 1), 1.0) == [
        Reply((1,), A, 1),
        start(B, 1, 61.0),
        start(C, 1, 61.0),
    ]


def test_exactly_the_budget_is_used() -> None:
    s = scheduler(max_bytes=1000)
    assert s.handle(ask(1, A, num_bytes=600), 0.0) == [start(A)]
    assert s.handle(ask(1, B, num_bytes=400), 0.0) == [start(B)]
    assert s.handle(ask(1, C, num_bytes=1), 0.0) == []


def test_a_shard_larger_than_the_budget_runs_alone() -> None:
    s = scheduler(max_bytes=1000)
    assert s.handle(ask(1, A, num_bytes=1), 0.0) == [start(A)]
    assert s.handle(ask(1, B, num_bytes=5000), 0.0) == []
    assert s.handle(Fetched(A, 1, 1), 1.0) == [Reply((1,), A, 1), start(B, 1, 61.0)]
    assert s.handle(ask(1, C, num_bytes=1), 2.0) == []
    assert s.handle(Fetched(B, 1, 1), 3.0) == [Reply((1,), B, 1), start(C, 1, 63.0)]


# --- failures ---


def test_a_failure_that_may_pass_is_tried_again_after_a_delay() -> None:
    s = scheduler()
    s.handle(ask(1, A), 0.0)
    s.handle(ask(2, A, demand=False), 0.0)
    assert s.handle(Missed(A, 1, DOWN), 10.0) == [Reply((1, 2), A, DOWN, final=False)]
    assert (s.num_running, s.num_queued) == (0, 1)
    assert s.next_wakeup(10.0) == 11.0
    assert s.handle(Tick(), 10.9) == []
    assert s.handle(Tick(), 11.0) == [start(A, 2, 71.0)]
    assert s.handle(Missed(A, 2, DOWN), 20.0) == [Reply((1, 2), A, DOWN, final=False)]
    assert s.next_wakeup(20.0) == 22.0
    assert s.handle(Tick(), 22.0) == [start(A, 3, 82.0)]
    after = Failure(DOWN.kind, "503 SlowDown (after 3 attempts)", retryable=False)
    assert s.handle(Missed(A, 3, DOWN), 30.0) == [Reply((1, 2), A, after)]
    assert (s.num_running, s.num_queued) == (0, 0)
    assert s.next_wakeup(30.0) is None


def test_a_second_attempt_may_succeed() -> None:
    s = scheduler()
    s.handle(ask(1, A), 0.0)
    s.handle(Missed(A, 1, DOWN), 1.0)
    s.handle(Tick(), 2.0)
    assert s.handle(Fetched(A, 2, 7), 3.0) == [Reply((1,), A, 7)]


@pytest.mark.parametrize(("jitter", "factor"), [(0.0, 0.5), (0.5, 1.0), (0.999, 1.499)])
def test_delays_double_up_to_a_limit_and_are_jittered(jitter: float, factor: float) -> None:
    s = scheduler(jitter=lambda: jitter, first_delay_s=1.0, max_delay_s=5.0)
    s.handle(ask(1, A, policy=Policy(60.0, 10)), 0.0)
    delays = []
    for attempt in range(1, 7):
        s.handle(Missed(A, attempt, DOWN), 100.0)
        wakeup = s.next_wakeup(100.0)
        assert wakeup is not None
        delays.append((wakeup - 100.0) / factor)
        assert s.handle(Tick(), wakeup) == [Start(A, attempt + 1, wakeup + 60.0, 0)]
    assert delays == pytest.approx([1.0, 2.0, 4.0, 5.0, 5.0, 5.0])


def test_a_failure_that_cannot_pass_is_final() -> None:
    s = scheduler()
    s.handle(ask(1, A), 0.0)
    s.handle(ask(2, A), 0.0)
    assert s.handle(Missed(A, 1, DENIED), 1.0) == [Reply((1, 2), A, DENIED)]
    assert s.num_queued == 0


def test_a_failure_that_cannot_pass_ends_retrying() -> None:
    s = scheduler()
    s.handle(ask(1, A), 0.0)
    s.handle(Missed(A, 1, DOWN), 1.0)
    s.handle(Tick(), 2.0)
    after = Failure(DENIED.kind, "403 Forbidden (after 2 attempts)", retryable=False)
    assert s.handle(Missed(A, 2, DENIED), 3.0) == [Reply((1,), A, after)]


def test_one_attempt_means_no_second() -> None:
    s = scheduler()
    s.handle(ask(1, A, policy=Policy(60.0, 1)), 0.0)
    assert s.handle(Missed(A, 1, DOWN), 1.0) == [Reply((1,), A, DOWN)]


def test_a_failure_is_forgotten_once_it_was_told() -> None:
    s = scheduler()
    s.handle(ask(1, A, policy=Policy(60.0, 1)), 0.0)
    s.handle(Missed(A, 1, DOWN), 1.0)
    assert s.handle(ask(1, A), 2.0) == [start(A, 1, 62.0)]
    assert s.handle(Missed(A, 1, DOWN), 3.0) == [Reply((1,), A, DOWN, final=False)]


def test_others_use_the_time_of_a_delay() -> None:
    s = scheduler(max_running=1)
    s.handle(ask(1, A), 0.0)
    s.handle(ask(1, B), 0.0)
    assert s.handle(Missed(A, 1, DOWN), 1.0) == [
        Reply((1,), A, DOWN, final=False),
        start(B, 1, 61.0),
    ]
    # The delay has passed, but it is not A's turn.
    assert s.handle(Tick(), 5.0) == []
    assert s.handle(Fetched(B, 1, 1), 6.0) == [Reply((1,), B, 1), start(A, 2, 66.0)]


def test_whoever_asks_during_a_delay_waits_with_the_others() -> None:
    s = scheduler()
    s.handle(ask(1, A), 0.0)
    s.handle(Missed(A, 1, DOWN), 1.0)
    assert s.handle(ask(2, A), 1.5) == []
    assert s.handle(Tick(), 2.0) == [start(A, 2, 62.0)]
    assert s.handle(Fetched(A, 2, 5), 3.0) == [Reply((1, 2), A, 5)]


@pytest.mark.parametrize("late", [Fetched(A, 1, 5), Missed(A, 1, DENIED), Unwanted(A, 1)])
def test_a_late_result_of_an_older_attempt_is_ignored(late: Any) -> None:
    s = scheduler()
    s.handle(ask(1, A), 0.0)
    s.handle(Missed(A, 1, DOWN), 1.0)
    assert s.handle(late, 1.5) == []
    assert s.handle(Tick(), 2.0) == [start(A, 2, 62.0)]
    assert s.handle(late, 2.5) == []
    assert s.num_running == 1
    assert s.handle(Fetched(A, 2, 7), 3.0) == [Reply((1,), A, 7)]


@pytest.mark.parametrize("event", [Fetched(A, 1, 5), Missed(A, 1, DOWN), Unwanted(A, 1), Left(9)])
def test_results_of_what_nobody_started_are_ignored(event: Any) -> None:
    assert scheduler().handle(event, 0.0) == []


# --- clients that leave ---


def test_what_only_a_client_that_left_wanted_is_not_started() -> None:
    s = scheduler(max_running=1)
    s.handle(ask(1, A), 0.0)
    s.handle(ask(2, B), 0.0)
    s.handle(ask(1, C), 0.0)
    assert s.handle(Left(2), 1.0) == []
    assert s.handle(Fetched(A, 1, 1), 2.0) == [Reply((1,), A, 1), start(C, 1, 62.0)]


def test_a_running_fetch_goes_on_without_its_client() -> None:
    s = scheduler(max_running=1)
    s.handle(ask(1, A), 0.0)
    s.handle(Left(1), 1.0)
    assert s.num_running == 1
    # It still counts, and whoever asks now shares it.
    assert s.handle(ask(2, B), 2.0) == []
    assert s.handle(ask(2, A), 2.0) == []
    assert s.handle(Fetched(A, 1, 1), 3.0) == [Reply((2,), A, 1), start(B, 1, 63.0)]


@pytest.mark.parametrize("end", [Fetched(A, 1, 1), Missed(A, 1, DOWN), Unwanted(A, 1)])
def test_the_end_of_a_fetch_that_nobody_waits_for_is_told_to_nobody(end: Any) -> None:
    s = scheduler()
    s.handle(ask(1, A), 0.0)
    s.handle(Left(1), 1.0)
    assert s.handle(end, 2.0) == []
    assert (s.num_running, s.num_queued, s.next_wakeup(2.0)) == (0, 0, None)


def test_a_client_that_left_is_not_told() -> None:
    s = scheduler()
    s.handle(ask(1, A), 0.0)
    s.handle(ask(2, A), 0.0)
    s.handle(Left(1), 1.0)
    assert s.handle(Fetched(A, 1, 1), 2.0) == [Reply((2,), A, 1)]


def test_a_client_may_leave_one_stream() -> None:
    s = scheduler(max_running=1)
    other = Key("t", 0)
    s.handle(ask(1, A), 0.0)
    s.handle(ask(1, B), 0.0)
    s.handle(ask(1, other), 0.0)
    s.handle(Left(1, "s"), 1.0)
    assert s.handle(Fetched(A, 1, 1), 2.0) == [start(other, 1, 62.0)]
    assert s.handle(Fetched(other, 1, 1), 3.0) == [Reply((1,), other, 1)]


def test_a_client_that_leaves_ends_a_delay() -> None:
    s = scheduler()
    s.handle(ask(1, A), 0.0)
    s.handle(Missed(A, 1, DOWN), 1.0)
    s.handle(Left(1), 1.5)
    assert s.next_wakeup(1.5) is None
    assert s.handle(Tick(), 2.0) == []


def test_what_was_waited_for_is_only_asked_for_once_the_waiting_client_left() -> None:
    s = scheduler(max_running=1)
    s.handle(ask(1, A), 0.0)
    s.handle(ask(1, B, demand=False), 0.0)
    s.handle(ask(2, B), 0.0)
    s.handle(ask(1, C), 0.0)
    s.handle(Left(2), 1.0)
    assert s.handle(Fetched(A, 1, 1), 2.0)[1:] == [start(C, 1, 62.0)]


# --- evicted meanwhile ---


def test_who_does_not_wait_is_told_that_it_was_dropped() -> None:
    s = scheduler()
    s.handle(ask(1, A, demand=False), 0.0)
    assert s.handle(Unwanted(A, 1), 1.0) == [Reply((1,), A, None)]
    assert (s.num_running, s.num_queued) == (0, 0)


def test_who_waits_gets_it_after_all() -> None:
    s = scheduler()
    s.handle(ask(1, A, demand=False), 0.0)
    s.handle(ask(2, A), 0.0)
    assert s.handle(Unwanted(A, 1), 1.0) == [Reply((1,), A, None), start(A, 1, 61.0)]
    assert s.handle(Fetched(A, 1, 5), 2.0) == [Reply((2,), A, 5)]


def test_being_evicted_uses_up_no_attempt() -> None:
    s = scheduler()
    s.handle(ask(1, A, policy=Policy(60.0, 2)), 0.0)
    for _ in range(5):
        (again,) = s.handle(Unwanted(A, 1), 1.0)
        assert again == start(A, 1, 61.0)
    assert s.handle(Missed(A, 1, DOWN), 2.0) == [Reply((1,), A, DOWN, final=False)]


# --- hanging ---


def _hung(attempt: int, attempts: int = 3) -> Failure:
    return Failure(
        FailureKind.UNAVAILABLE,
        f"no answer within 60 s (attempt {attempt} of {attempts}); "
        "the store hangs or is too slow for download_timeout",
        retryable=True,
    )


def test_an_attempt_past_its_deadline_retires_the_process() -> None:
    s = scheduler()
    s.handle(ask(1, A), 0.0)
    s.handle(ask(2, B), 10.0)
    assert s.next_wakeup(10.0) == 60.0
    assert s.handle(Tick(), 59.9) == []
    assert s.handle(Tick(), 60.0) == [
        Reply((1,), A, _hung(1), final=False),
        Retire("shard 0 got no answer within 60 s (attempt 1 of 3)", ((A, 1),)),
    ]


def test_all_that_hang_are_carried_over() -> None:
    s = scheduler()
    for client, key in ((1, A), (2, B), (3, C)):
        s.handle(ask(client, key), float(client))
    s.handle(Missed(B, 1, DOWN), 3.0)
    s.handle(Tick(), 4.0)  # B's second attempt, until 64
    assert s.handle(Tick(), 100.0) == [
        Reply((1,), A, _hung(1), final=False),
        Reply((2,), B, _hung(2), final=False),
        Reply((3,), C, _hung(1), final=False),
        Retire("shard 0 got no answer within 60 s (attempt 1 of 3)", ((A, 1), (B, 2), (C, 1))),
    ]


def test_the_last_attempt_that_hangs_is_final_and_not_carried_over() -> None:
    s = scheduler()
    s.handle(ask(1, A, policy=Policy(60.0, 1)), 0.0)
    assert s.handle(Tick(), 60.0) == [
        Reply((1,), A, _hung(1, 1)),
        Retire("shard 0 got no answer within 60 s (attempt 1 of 1)", ()),
    ]


def test_what_hangs_in_a_transform_is_not_the_store() -> None:
    s = scheduler()
    s.handle(ask(1, A), 0.0)
    s.handle(Doing(A, 1, "transform='m:f'"), 12.5)
    reply = s.handle(Tick(), 60.0)[0]
    assert isinstance(reply, Reply)
    assert reply.outcome == Failure(
        FailureKind.TRANSFORM,
        "transform='m:f' was still running after 47.5 s, and download_timeout is 60 s in all "
        "(attempt 1 of 3): raise download_timeout, or give it fewer rows at a time with smaller "
        "shards",
        retryable=True,
    )


def test_a_transform_that_ended_is_not_blamed() -> None:
    s = scheduler()
    s.handle(ask(1, A), 0.0)
    s.handle(Doing(A, 1, "transform='m:f'"), 12.5)
    s.handle(Doing(A, 1, ""), 13.0)
    assert s.handle(Tick(), 60.0)[0] == Reply((1,), A, _hung(1), final=False)


def test_nor_one_of_an_earlier_attempt() -> None:
    s = scheduler()
    s.handle(ask(1, A), 0.0)
    s.handle(Doing(A, 1, "transform='m:f'"), 1.0)
    s.handle(Missed(A, 1, DOWN), 2.0)
    s.handle(Tick(), 3.0)
    s.handle(Doing(A, 1, "transform='m:f'"), 4.0)  # late news
    assert s.handle(Tick(), 63.0)[0] == Reply((1,), A, _hung(2), final=False)


# --- larger than planned ---


def test_what_grows_is_charged_and_nothing_else_starts() -> None:
    s = scheduler(max_bytes=1000)
    s.handle(ask(1, A), 0.0)
    assert s.handle(Grew(A, 1, 950), 1.0) == []
    assert s.handle(ask(1, B), 2.0) == []
    assert s.handle(Fetched(A, 1, 950), 3.0) == [Reply((1,), A, 950), start(B, 1, 63.0)]


def test_the_later_one_gives_way_and_starts_again_when_there_is_room() -> None:
    s = scheduler(max_bytes=1000)
    s.handle(ask(1, A), 0.0)
    s.handle(ask(2, B), 1.0)
    assert s.handle(Grew(A, 1, 900), 2.0) == []  # it was first
    assert s.handle(Grew(B, 1, 300), 3.0) == [GiveWay(B, 1)]
    assert s.handle(Postponed(B, 1), 4.0) == []
    assert (s.num_running, s.num_queued) == (1, 1)
    # No attempt was used up.
    assert s.handle(Fetched(A, 1, 900), 5.0) == [Reply((1,), A, 900), start(B, 1, 65.0)]
    assert s.handle(Grew(B, 1, 5000), 6.0) == []  # alone


def test_it_stays_while_there_is_room() -> None:
    s = scheduler(max_bytes=1000)
    s.handle(ask(1, A), 0.0)
    s.handle(ask(2, B), 1.0)
    assert s.handle(Grew(B, 1, 900), 2.0) == []
    assert s.handle(Grew(B, 1, 901), 2.0) == [GiveWay(B, 1)]


def test_what_gave_way_for_nobody_is_forgotten() -> None:
    s = scheduler()
    s.handle(ask(1, A), 0.0)
    s.handle(Left(1), 1.0)
    assert s.handle(Postponed(A, 1), 2.0) == []
    assert s.num_running == s.num_queued == 0


def test_late_news_of_bytes_is_nothing() -> None:
    s = scheduler()
    assert s.handle(Grew(A, 1, 1 << 40), 0.0) == []
    assert s.handle(Postponed(A, 1), 0.0) == []


def test_a_final_reply_is_given_once() -> None:
    s = scheduler()
    s.handle(ask(1, A, policy=Policy(60.0, 1)), 0.0)
    s.handle(Tick(), 60.0)
    # The call returns after all, before the process has ended.
    assert s.handle(Fetched(A, 1, 5), 60.1) == []


def test_a_retired_process_starts_nothing_more() -> None:
    s = scheduler(max_running=1)
    s.handle(ask(1, A), 0.0)
    s.handle(ask(1, B), 0.0)
    assert isinstance(s.handle(Tick(), 60.0)[-1], Retire)
    assert s.handle(ask(2, C), 60.1) == []
    # What comes back after all is told; nothing takes its place.
    assert s.handle(Fetched(A, 1, 5), 60.2) == [Reply((1,), A, 5)]
    assert s.handle(Tick(), 61.0) == []


def test_a_process_retires_once() -> None:
    s = scheduler()
    s.handle(ask(1, A), 0.0)
    s.handle(ask(1, B), 10.0)
    assert isinstance(s.handle(Tick(), 60.0)[-1], Retire)
    assert s.handle(Tick(), 60.0) == []
    assert s.handle(Tick(), 75.0) == []


def test_a_retired_process_does_not_keep_waking_up() -> None:
    s = scheduler()
    s.handle(ask(1, A), 0.0)
    s.handle(Tick(), 60.0)
    wakeup = s.next_wakeup(60.0)
    assert wakeup is None or wakeup > 60.0


def test_a_fetch_nobody_waits_for_any_more_may_hang_too() -> None:
    s = scheduler()
    s.handle(ask(1, A), 0.0)
    s.handle(Left(1), 1.0)
    out = s.handle(Tick(), 60.0)
    assert isinstance(out[-1], Retire)
    # Nobody is told: a reply without clients is noise.
    assert [i for i in out if isinstance(i, Reply) and i.clients] == []


def test_deadlines_follow_the_policy_of_the_stream() -> None:
    s = scheduler()
    assert s.handle(ask(1, A, policy=Policy(5.0, 1)), 10.0) == [start(A, 1, 15.0)]
    assert s.handle(ask(1, B, policy=Policy(2.0, 1)), 11.0) == [start(B, 1, 13.0)]
    assert s.next_wakeup(11.0) == 13.0


def test_attempts_that_hung_count_in_the_next_process() -> None:
    s = scheduler()
    assert s.handle(Lost(A, attempts=2, deaths=0), 0.0) == []
    assert s.handle(ask(1, A), 0.0) == [start(A, 3)]
    after = Failure(DOWN.kind, "503 SlowDown (after 3 attempts)", retryable=False)
    assert s.handle(Missed(A, 3, DOWN), 1.0) == [Reply((1,), A, after)]


def test_when_every_attempt_hung_the_next_process_says_so() -> None:
    s = scheduler()
    s.handle(Lost(A, attempts=3, deaths=0), 0.0)
    assert s.handle(ask(1, A), 0.0) == [Reply((1,), A, _hung(3))]
    # Told and forgotten.
    assert s.handle(ask(1, A), 1.0) == [start(A, 1, 61.0)]


# --- deaths ---


def test_a_suspect_runs_alone() -> None:
    s = scheduler(max_deaths=3)
    s.handle(Lost(B, attempts=0, deaths=1), 0.0)
    assert s.handle(ask(1, A), 0.0) == [start(A)]
    assert s.handle(ask(1, B), 0.0) == []
    assert s.handle(ask(1, C), 0.0) == []  # Behind the suspect, whose turn it is.
    assert s.handle(Fetched(A, 1, 1), 1.0) == [Reply((1,), A, 1), start(B, 1, 61.0, deaths=1)]
    assert s.handle(ask(1, D), 2.0) == []
    assert s.handle(Fetched(B, 1, 1), 3.0) == [
        Reply((1,), B, 1),
        start(C, 1, 63.0),
        start(D, 1, 63.0),
    ]


def test_suspects_run_one_after_the_other() -> None:
    s = scheduler()
    for key in (A, B):
        s.handle(Lost(key, 0, 1), 0.0)
    assert s.handle(ask(1, A), 0.0) == [start(A, deaths=1)]
    assert s.handle(ask(1, B), 0.0) == []
    assert s.handle(Missed(A, 1, DOWN), 1.0) == [
        Reply((1,), A, DOWN, final=False),
        start(B, 1, 61.0, deaths=1),
    ]
    assert s.handle(Tick(), 2.0) == []
    assert s.handle(Fetched(B, 1, 1), 3.0) == [
        Reply((1,), B, 1),
        start(A, 2, 63.0, deaths=1),
    ]


def test_what_killed_too_often_is_reported_instead() -> None:
    s = scheduler(max_deaths=2)
    s.handle(Lost(A, 0, 2), 0.0)
    (reply,) = s.handle(ask(1, A), 0.0)
    assert isinstance(reply, Reply)
    assert (reply.clients, reply.key, reply.final) == ((1,), A, True)
    assert isinstance(reply.outcome, Failure)
    assert reply.outcome.kind is FailureKind.BROKEN
    assert not reply.outcome.retryable
    assert "died 2 times" in reply.outcome.message
    assert s.num_queued == s.num_running == 0


def test_a_transform_is_a_suspect() -> None:
    s = scheduler(max_deaths=2)
    s.handle(Lost(A, 0, 2), 0.0)
    (reply,) = s.handle(ask(1, A, policy=Policy(60.0, 3, "transform='m:f'")), 0.0)
    assert isinstance(reply, Reply)
    assert isinstance(reply.outcome, Failure)
    assert reply.outcome.kind is FailureKind.TRANSFORM
    assert "died 2 times while it read these rows or ran transform='m:f'" in reply.outcome.message


def test_one_death_less_than_too_often_is_another_chance() -> None:
    s = scheduler(max_deaths=2)
    s.handle(Lost(A, 0, 1), 0.0)
    assert s.handle(ask(1, A), 0.0) == [start(A, deaths=1)]


def test_a_conviction_is_forgotten_once_it_was_told() -> None:
    s = scheduler(max_deaths=2)
    s.handle(Lost(A, 0, 2), 0.0)
    s.handle(ask(1, A), 0.0)
    assert s.handle(ask(1, A), 1.0) == [start(A, 1, 61.0)]


def test_a_suspect_that_succeeds_is_cleared() -> None:
    s = scheduler(max_deaths=2)
    s.handle(Lost(A, 0, 1), 0.0)
    s.handle(ask(1, A), 0.0)
    s.handle(Fetched(A, 1, 1), 1.0)
    assert s.handle(ask(1, A), 2.0) == [start(A, 1, 62.0)]
    assert s.handle(ask(1, B), 2.0) == [start(B, 1, 62.0)]


def test_a_suspect_nobody_asks_for_holds_nobody_up() -> None:
    s = scheduler(max_running=2)
    s.handle(Lost(A, 0, 1), 0.0)
    assert s.handle(ask(1, B), 0.0) == [start(B)]
    assert s.handle(ask(1, C), 0.0) == [start(C)]


# --- time ---


def test_nothing_to_do_is_no_wakeup() -> None:
    s = scheduler()
    assert s.next_wakeup(0.0) is None
    s.handle(Lost(A, 0, 1), 0.0)
    assert s.next_wakeup(0.0) is None


def test_the_next_wakeup_is_the_earliest() -> None:
    s = scheduler()
    s.handle(ask(1, A), 0.0)
    s.handle(ask(1, B, policy=Policy(5.0, 2)), 0.0)
    s.handle(ask(1, C), 0.0)
    assert s.next_wakeup(0.0) == 5.0
    s.handle(Missed(C, 1, DOWN), 1.0)
    assert s.next_wakeup(1.0) == 2.0
    s.handle(Fetched(B, 1, 1), 1.0)
    s.handle(Left(1), 1.0)
    assert s.next_wakeup(1.0) == 60.0


def test_a_delay_that_passed_while_there_was_no_room_does_not_wake_up_again_and_again() -> None:
    s = scheduler(max_running=1)
    s.handle(ask(1, A), 0.0)
    s.handle(ask(1, B), 0.0)
    s.handle(Missed(A, 1, DOWN), 1.0)
    s.handle(Tick(), 2.0)
    assert s.next_wakeup(2.0) == 61.0  # B's deadline; A starts when B ends


# --- anything at any time ---

KEYS = [Key(stream, shard) for stream in ("s", "t") for shard in range(4)]
CLIENTS = st.integers(1, 3)
MAX_RUNNING, MAX_BYTES, MAX_DEATHS = 3, 100, 2


class AnyOrder(RuleBasedStateMachine):
    """Random events, against a model of who waits for what and what runs."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.scheduler = scheduler(
            max_running=MAX_RUNNING,
            max_bytes=MAX_BYTES,
            max_deaths=MAX_DEATHS,
            jitter=random.Random(1).random,
        )
        self.waiting: dict[tuple[int, Key], bool] = {}
        self.running: dict[Key, Start] = {}
        self.bytes: dict[Key, int] = {}
        self.attempts: dict[Key, int] = {}
        self.retired = False

    @initialize(
        lost=st.lists(st.tuples(st.sampled_from(KEYS), st.integers(0, 3), st.integers(0, 2)))
    )
    def begin(self, lost: list[tuple[Key, int, int]]) -> None:
        for key, attempts, deaths in lost:
            self.give(Lost(key, attempts, deaths))

    def give(self, event: Any) -> list[Instruction]:
        out = self.scheduler.handle(event, self.now)
        for instruction in out:
            match instruction:
                case Start():
                    self.on_start(instruction)
                case Reply():
                    self.on_reply(instruction)
                case Retire(hung=hung):
                    assert not self.retired
                    self.retired = True
                    assert hung == () or all(key in self.running for key, _ in hung)
        return out

    def on_start(self, instruction: Start) -> None:
        key = instruction.key
        assert not self.retired
        assert key not in self.running, "two attempts at a time"
        assert any(waited == key for _, waited in self.waiting), "nobody wants it"
        assert 1 <= instruction.attempt <= POLICY.attempts
        assert instruction.deadline == self.now + POLICY.timeout_s
        assert instruction.deaths < MAX_DEATHS
        self.running[key] = instruction
        assert len(self.running) <= MAX_RUNNING
        if len(self.running) > 1:
            assert sum(self.bytes[k] for k in self.running) <= MAX_BYTES
            assert not any(begun.deaths for begun in self.running.values()), "not alone"

    def on_reply(self, instruction: Reply) -> None:
        assert len(set(instruction.clients)) == len(instruction.clients)
        for client in instruction.clients:
            assert (client, instruction.key) in self.waiting, "a reply to who does not wait"
            if instruction.final:
                demand = self.waiting.pop((client, instruction.key))
                if instruction.outcome is None:
                    assert not demand, "dropped although somebody waits"
            else:
                assert isinstance(instruction.outcome, Failure)

    @rule(
        client=CLIENTS,
        key=st.sampled_from(KEYS),
        demand=st.booleans(),
        size=st.sampled_from([1, 40, 100, 1000]),
    )
    def ask(self, client: int, key: Key, demand: bool, size: int) -> None:
        known = any(waited == key for _, waited in self.waiting) or key in self.running
        size = self.bytes[key] if known else size
        self.bytes[key] = size
        before = self.waiting.get((client, key), False)
        self.waiting[client, key] = demand or before
        self.give(Asked(client, key, demand, size, POLICY))

    @rule(client=CLIENTS, stream=st.sampled_from([None, "s", "t"]))
    def leave(self, client: int, stream: str | None) -> None:
        for waited in list(self.waiting):
            if waited[0] == client and stream in (None, waited[1].stream):
                del self.waiting[waited]
        self.give(Left(client, stream))

    @precondition(lambda self: self.running)
    @rule(
        data=st.data(), end=st.sampled_from(["fetched", "fetched", "down", "denied", "unwanted"])
    )
    def answer(self, data: st.DataObject, end: str) -> None:
        key = data.draw(st.sampled_from(sorted(self.running)))
        begun = self.running.pop(key)
        match end:
            case "fetched":
                self.give(Fetched(key, begun.attempt, 5))
            case "down":
                self.give(Missed(key, begun.attempt, DOWN))
            case "denied":
                self.give(Missed(key, begun.attempt, DENIED))
            case _:
                self.give(Unwanted(key, begun.attempt))

    @rule(key=st.sampled_from(KEYS), attempt=st.integers(0, 4), end=st.integers(0, 2))
    def answer_something_else(self, key: Key, attempt: int, end: int) -> None:
        if key in self.running and self.running[key].attempt == attempt:
            return
        event = (Fetched(key, attempt, 1), Missed(key, attempt, DOWN), Unwanted(key, attempt))[end]
        assert [i for i in self.give(event) if not isinstance(i, Start)] == []

    @rule(seconds=st.sampled_from([0.0, 0.1, 1.0, 5.0]))
    def wait(self, seconds: float) -> None:
        self.now += seconds
        if all(begun.deadline > self.now for begun in self.running.values()):
            self.give(Tick())

    @rule()
    def wait_for_the_next_wakeup(self) -> None:
        wakeup = self.scheduler.next_wakeup(self.now)
        if wakeup is not None and all(b.deadline > wakeup for b in self.running.values()):
            self.now = max(self.now, wakeup)
            self.give(Tick())

    @precondition(lambda self: self.running and not self.retired)
    @rule()
    def hang(self) -> None:
        self.now = max(self.now, *(begun.deadline for begun in self.running.values()))
        self.give(Tick())
        assert self.retired

    @invariant()
    def counts(self) -> None:
        assert self.scheduler.num_running == len(self.running)
        for key in KEYS:
            demanded = any(d for (_, waited), d in self.waiting.items() if waited == key)
            if not self.retired:
                assert self.scheduler.is_demanded(key) is demanded

    @invariant()
    def wakes_up_to_some_purpose(self) -> None:
        if self.retired:
            return
        wakeup = self.scheduler.next_wakeup(self.now)
        if wakeup is not None and wakeup <= self.now:
            # Only a deadline that nobody has looked at yet.
            assert any(begun.deadline == wakeup for begun in self.running.values())

    def teardown(self) -> None:
        """When the environment answers, everybody who waits is told, exactly once."""
        for _ in range(10_000):
            if self.retired or not (self.waiting or self.running):
                break
            if self.running:
                key = min(self.running)
                begun = self.running.pop(key)
                self.give(Fetched(key, begun.attempt, 1))
                continue
            wakeup = self.scheduler.next_wakeup(self.now)
            assert wakeup is not None, f"{self.waiting} would wait for ever"
            self.now = max(self.now, wakeup)
            self.give(Tick())
        if not self.retired:
            assert not self.waiting
            assert self.scheduler.num_queued == self.scheduler.num_running == 0
            assert self.scheduler.next_wakeup(self.now) is None


AnyOrder.TestCase.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
TestAnyOrder = AnyOrder.TestCase


def test_nobody_waits_for_ever_with_a_failing_store() -> None:
    # Long, with many clients and shards, and failures of every kind: each waiting client gets
    # exactly one final reply for each time it asked.
    chosen = random.Random(7)
    s = scheduler(max_running=5, max_bytes=500, jitter=chosen.random)
    now, running, waiting, told = 0.0, {}, set(), 0
    for step in range(20_000):
        now += chosen.random() * 0.1
        pick = chosen.random()
        if pick < 0.5 and step < 15_000:
            client, key = chosen.randrange(10), Key("s", chosen.randrange(200))
            event: Any = replace(ask(client, key), expected_bytes=chosen.choice([1, 100, 900]))
            waiting.add((client, key))
        elif running:
            key = chosen.choice(sorted(running))
            attempt = running.pop(key)
            end = chosen.random()
            event = Fetched(key, attempt, 1)
            if end < 0.3:
                event = Missed(key, attempt, DOWN if end < 0.2 else DENIED)
        else:
            event = Tick()
        for instruction in s.handle(event, now):
            if isinstance(instruction, Start):
                assert instruction.key not in running
                running[instruction.key] = instruction.attempt
            elif isinstance(instruction, Reply) and instruction.final:
                for client in instruction.clients:
                    waiting.remove((client, instruction.key))
                    told += 1
        assert s.num_running == len(running) <= 5
    assert not waiting
    assert told > 5_000
