from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lance_stream.tiers.breaker import Breaker, Permit, State


def breaker(**options: float) -> Breaker:
    """Without jitter: delays are their means."""
    return Breaker(
        **{"first_delay_s": 1.0, "max_delay_s": 8.0, "calm_s": 5.0, **options},  # type: ignore[arg-type]
        jitter=lambda: 0.5,
    )


def permit(one: Breaker, now: float) -> Permit:
    given_ = one.ask(now)
    assert given_ is not None
    return given_


def test_as_long_as_calls_succeed_all_are_let_through() -> None:
    one = breaker()
    for now in range(5):
        assert one.good(permit(one, now), now) is False
    assert one.is_closed


def test_the_first_failure_begins_an_outage() -> None:
    one = breaker()
    assert one.bad(permit(one, 0), 0) is True
    assert one.state is State.OPEN
    assert one.ask(0.99) is None


def test_one_probe_at_a_time_after_a_delay_that_doubles() -> None:
    one = breaker()
    one.bad(permit(one, 0), 0)
    now, delays = 0.0, []
    for delay in (1, 2, 4, 8, 8):
        assert one.ask(now + delay - 0.01) is None
        now += delay
        probe = permit(one, now)
        assert probe.probe
        assert one.ask(now) is None, "a second while the first decides"
        assert one.bad(probe, now) is False, "the same outage"
        delays.append(delay)
    probe = permit(one, now + 8)
    assert one.good(probe, now + 8) is True
    assert one.is_closed


def test_failures_of_calls_that_began_before_count_once() -> None:
    one = breaker()
    calls = [permit(one, 0) for _ in range(16)]
    told = [one.bad(call, 0.1) for call in calls]
    assert told == [True] + [False] * 15
    assert one.ask(1.0) is None
    assert one.ask(1.1) is not None, "not a longer delay for the other fifteen"


def test_late_results_say_nothing() -> None:
    one = breaker()
    slow = [permit(one, 0) for _ in range(3)]
    one.bad(permit(one, 0), 0)
    assert one.good(slow[0], 0.5) is False
    assert one.state is State.OPEN
    one.good(permit(one, 1), 1)
    assert one.bad(slow[1], 1.5) is False
    assert one.is_closed


def test_a_failure_soon_after_the_recovery_is_the_same_outage() -> None:
    one = breaker()
    one.bad(permit(one, 0), 0)
    one.good(permit(one, 1), 1)
    assert one.bad(permit(one, 5.9), 5.9) is False
    assert one.ask(7.8) is None, "and the delay goes on growing"
    assert one.good(permit(one, 7.9), 7.9) is True
    assert one.bad(permit(one, 12.9), 12.9) is True
    assert one.ask(13.9) is not None


def test_the_recovery_must_last_as_long_as_the_last_delay() -> None:
    one = breaker(calm_s=0.0)
    one.bad(permit(one, 0), 0)
    one.bad(permit(one, 1), 1)
    one.bad(permit(one, 3), 3)
    one.good(permit(one, 7), 7)
    assert one.bad(permit(one, 10.9), 10.9) is False


def test_a_probe_that_was_not_made_leaves_its_place() -> None:
    one = breaker()
    one.bad(permit(one, 0), 0)
    one.withdrawn(permit(one, 1))
    assert permit(one, 1).probe
    closed = breaker()
    closed.withdrawn(permit(closed, 0))
    assert closed.is_closed


@pytest.mark.parametrize(("jitter", "delay"), [(0.0, 0.5), (0.5, 1.0), (0.999, 1.499)])
def test_delays_are_spread(jitter: float, delay: float) -> None:
    one = Breaker(first_delay_s=1.0, jitter=lambda: jitter)
    one.bad(permit(one, 0), 0)
    assert one.ask(delay - 0.001) is None
    assert one.ask(delay + 0.001) is not None


@given(st.lists(st.tuples(st.sampled_from(["ask", "good", "bad", "withdrawn"]), st.floats(0, 3))))
def test_it_is_never_stuck_and_probes_singly(steps: list[tuple[str, float]]) -> None:
    one, now, held = breaker(), 0.0, []
    for action, wait in steps:
        now += wait
        if action == "ask":
            given_ = one.ask(now)
            held += [given_] if given_ else []
        elif held:
            method = getattr(one, action)
            method(held.pop(0), *([] if action == "withdrawn" else [now]))
        probes = [call for call in held if call.probe and call.era == one._era]
        assert len(probes) == (one.state is State.PROBING)
    # Whoever answers all calls and waits long enough is let through.
    for call in held:
        one.bad(call, now)
    assert one.ask(now + 12.1) is not None
