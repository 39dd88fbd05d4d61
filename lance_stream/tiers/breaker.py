"""When to leave a tier alone after failures, and when to try it again. Pure: a state machine."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum

__all__ = ["Breaker", "Permit", "State"]


class State(Enum):
    """What a breaker lets through."""

    CLOSED = "closed"  # everything
    OPEN = "open"  # nothing, until a delay has passed
    PROBING = "probing"  # one call, which decides


@dataclass(frozen=True, slots=True)
class Permit:
    """Leave for one call. Say afterwards how it went: ``good``, ``bad`` or ``withdrawn``.

    Attributes:
        era: Number of state changes before it.
        probe: Whether it decides that an outage is over.
    """

    era: int
    probe: bool


class Breaker:
    """Opens at the first failure, for a delay that doubles as long as probes fail.

    A failure soon after a recovery belongs to the same outage: its delay goes on growing, and it
    is not told again. Not thread-safe: the caller holds a lock.
    """

    def __init__(
        self,
        *,
        first_delay_s: float = 0.5,
        max_delay_s: float = 60.0,
        calm_s: float = 10.0,
        jitter: Callable[[], float] = random.random,
    ) -> None:
        """Closed.

        Args:
            first_delay_s: Mean delay after the first failure.
            max_delay_s: Largest mean delay.
            calm_s: How long a recovery must last, at least, for the outage to be over; as long
                as the last delay in any case.
            jitter: Random numbers in [0, 1): so that nodes do not probe all at once.
        """
        self._first_delay_s = first_delay_s
        self._max_delay_s = max_delay_s
        self._calm_s = calm_s
        self._jitter = jitter
        self._state = State.CLOSED
        self._era = 0
        self._failures = 0  # of this outage
        self._delay_s = 0.0
        self._retry_at = 0.0
        self._calm_until = float("-inf")

    @property
    def state(self) -> State:
        """What is let through."""
        return self._state

    @property
    def is_closed(self) -> bool:
        """Whether everything is let through."""
        return self._state is State.CLOSED

    def ask(self, now: float) -> Permit | None:
        """Leave to make a call; None: leave the tier alone.

        Args:
            now: Seconds on any clock that only goes forward.
        """
        if self._state is State.CLOSED:
            return Permit(self._era, probe=False)
        if self._state is State.OPEN and now >= self._retry_at:
            self._enter(State.PROBING)
            return Permit(self._era, probe=True)
        return None

    def good(self, permit: Permit, now: float) -> bool:
        """The call succeeded; returns whether the tier is reachable again thereby."""
        if permit.era != self._era or not permit.probe:
            return False
        self._enter(State.CLOSED)
        self._calm_until = now + max(self._calm_s, self._delay_s)
        return True

    def bad(self, permit: Permit, now: float) -> bool:
        """The call failed; returns whether an outage begins thereby."""
        if permit.era != self._era:
            # It began before the state changed, and says nothing about now.
            return False
        begins = not permit.probe and now >= self._calm_until
        self._failures = 1 if begins else self._failures + 1
        mean = min(self._max_delay_s, self._first_delay_s * 2 ** min(self._failures - 1, 60))
        self._delay_s = mean * (0.5 + self._jitter())
        self._retry_at = now + self._delay_s
        self._enter(State.OPEN)
        return begins

    def withdrawn(self, permit: Permit) -> None:
        """The call was not made: the next may have its place."""
        if permit.era == self._era and permit.probe:
            self._enter(State.OPEN)

    def _enter(self, state: State) -> None:
        self._state = state
        self._era += 1
