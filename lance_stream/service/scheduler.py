"""Which shard is fetched when, by whom it is awaited, and what a failure leads to.

A pure state machine: ``handle`` takes an event and the time and returns instructions for the
server, which does all I/O. Nothing here waits, reads a clock or opens anything, so every rule has
a test that compares instruction lists.

Rules:

- one fetch of a shard at a time, whoever asks (single flight);
- what somebody waits for goes before what is only asked for ahead of use, first come first
  served within each;
- at most ``max_running`` fetches, and together at most ``max_bytes`` expected bytes, except that
  one fetch may always run (a shard larger than the budget runs alone);
- a shard that turns out larger than planned is charged what it takes; where that is too much, all
  but the one that was begun first give way, and start again when there is room;
- a failure that may pass is tried again after an exponential, jittered delay, up to the stream's
  ``attempts``; other failures are final;
- an attempt that runs past its deadline counts as failed. The call cannot be interrupted, so the
  process must be retired: the server starts no more work and a fresh process takes over;
- a shard that was being fetched when the process died is suspect. It runs alone, so that the next
  death convicts it, and after ``max_deaths`` it is reported instead of tried again;
- a failure is told to all who asked and then forgotten: the next request starts afresh.
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from lance_stream.service.events import (
    Asked,
    Doing,
    Event,
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
from lance_stream.source.failures import Failure, FailureKind

__all__ = ["Scheduler"]


@dataclass(slots=True)
class _Fetch:
    key: Key
    order: int
    expected_bytes: int
    policy: Policy
    waiting: dict[int, bool] = field(default_factory=dict)  # client -> whether it demands
    attempts: int = 0
    deaths: int = 0
    deadline: float = 0.0
    not_before: float = 0.0
    doing: str = ""
    doing_since: float = 0.0

    @property
    def demanded(self) -> bool:
        return any(self.waiting.values())


class Scheduler:
    """State of all fetches of one download process."""

    def __init__(
        self,
        *,
        max_running: int,
        max_bytes: int,
        max_deaths: int,
        first_delay_s: float,
        max_delay_s: float,
        jitter: Callable[[], float] = random.random,
    ) -> None:
        """Set the limits.

        Args:
            max_running: Fetches at a time.
            max_bytes: Expected bytes of all running fetches together.
            max_deaths: Deaths of a process over one shard before it is reported.
            first_delay_s: Mean delay before the second attempt; doubles from there.
            max_delay_s: Largest mean delay.
            jitter: Random number in [0, 1); delays are 0.5 to 1.5 of their mean.
        """
        self._max_running = max_running
        self._max_bytes = max_bytes
        self._max_deaths = max_deaths
        self._first_delay_s = first_delay_s
        self._max_delay_s = max_delay_s
        self._jitter = jitter
        self._fetches: dict[Key, _Fetch] = {}
        # Those of them that are in progress, in the order of their starts.
        self._running: dict[Key, _Fetch] = {}
        # Those that wait for their turn, the next one first, and those that wait for a delay to
        # pass, by its end. Thousands may: what is not true any more is left where it is, and
        # passed over when it comes up.
        self._ready: list[tuple[bool, int, Key]] = []
        self._delayed: list[tuple[float, int, Key]] = []
        self._lost: dict[Key, Lost] = {}
        self._asked = 0
        self._retired = False

    @property
    def num_running(self) -> int:
        """Fetches in progress."""
        return len(self._running)

    @property
    def num_queued(self) -> int:
        """Fetches that wait for their turn or for a delay to pass."""
        return len(self._fetches) - len(self._running)

    def loads(self) -> dict[str, tuple[int, int]]:
        """Of each stream: fetches that wait, and fetches in progress."""
        found: dict[str, tuple[int, int]] = {}
        for key in self._fetches:
            waiting, running = found.get(key.stream, (0, 0))
            one = (waiting, running + 1) if key in self._running else (waiting + 1, running)
            found[key.stream] = one
        return found

    def is_demanded(self, key: Key) -> bool:
        """Whether somebody waits for the shard now."""
        fetch = self._fetches.get(key)
        return fetch is not None and fetch.demanded

    def handle(self, event: Event, now: float) -> list[Instruction]:
        """Take one event; returns what the server must do, in order.

        Args:
            event: What happened.
            now: Seconds on any clock that only goes forward.
        """
        out: list[Instruction] = []
        match event:
            case Asked():
                self._on_asked(event, out)
            case Left():
                self._on_left(event)
            case Fetched(key, attempt, num_bytes):
                self._end(key, attempt, num_bytes, out)
            case Unwanted(key, attempt):
                self._on_unwanted(key, attempt, out)
            case Missed(key, attempt, failure):
                self._on_missed(key, attempt, failure, now, out)
            case Grew(key, attempt, num_bytes):
                self._on_grew(key, attempt, num_bytes, out)
            case Postponed(key, attempt):
                self._on_postponed(key, attempt)
            case Doing(key, attempt, what):
                fetch = self._current(key, attempt)
                if fetch is not None:
                    fetch.doing, fetch.doing_since = what, now
            case Lost():
                self._lost[event.key] = event
            case Tick():
                self._on_tick(now, out)
        if not self._retired:
            self._start_ready(now, out)
        return out

    def next_wakeup(self, now: float) -> float | None:
        """When the next ``Tick`` is due: a deadline or the end of a delay; None if none is."""
        if self._retired:
            return None
        self._end_delays(now)
        times = [fetch.deadline for fetch in self._running.values()]
        if self._delayed:
            times.append(self._delayed[0][0])
        return min(times, default=None)

    def _on_asked(self, event: Asked, out: list[Instruction]) -> None:
        fetch = self._fetches.get(event.key)
        if fetch is None:
            lost = self._lost.pop(event.key, None)
            deaths = lost.deaths if lost else 0
            if deaths >= self._max_deaths:
                failure = _deadly(event.policy, deaths)
                out.append(Reply((event.client,), event.key, failure))
                return
            attempts = lost.attempts if lost else 0
            if attempts >= event.policy.attempts:
                failure = _hung(event.policy, attempts, "", 0.0)
                out.append(Reply((event.client,), event.key, failure))
                return
            self._asked += 1
            fetch = _Fetch(event.key, self._asked, event.expected_bytes, event.policy)
            fetch.attempts, fetch.deaths = attempts, deaths
            self._fetches[event.key] = fetch
        before = fetch.waiting.get(event.client)
        fetch.waiting[event.client] = event.demand or bool(before)
        if before != fetch.waiting[event.client]:
            self._queue(fetch)

    def _on_left(self, event: Left) -> None:
        for key, fetch in list(self._fetches.items()):
            if event.stream is None or event.stream == key.stream:
                left = fetch.waiting.pop(event.client, None) is not None
                if not fetch.waiting and key not in self._running:
                    self._forget(key)
                elif left:
                    self._queue(fetch)

    def _on_unwanted(self, key: Key, attempt: int, out: list[Instruction]) -> None:
        fetch = self._current(key, attempt)
        if fetch is None:
            return
        del self._running[key]
        clients = tuple(c for c, demand in fetch.waiting.items() if not demand)
        if clients:
            out.append(Reply(clients, key, None))
        # Somebody may have begun to wait while the file was thrown away: fetch it for them.
        fetch.waiting = {c: True for c, demand in fetch.waiting.items() if demand}
        fetch.attempts -= 1
        if fetch.waiting:
            self._queue(fetch)
        else:
            self._forget(key)

    def _on_missed(
        self, key: Key, attempt: int, failure: Failure, now: float, out: list[Instruction]
    ) -> None:
        fetch = self._current(key, attempt)
        if fetch is None:
            return
        if not fetch.waiting:
            self._forget(key)
        elif failure.retryable and fetch.attempts < fetch.policy.attempts:
            del self._running[key]
            mean = min(self._max_delay_s, self._first_delay_s * 2 ** (fetch.attempts - 1))
            fetch.not_before = now + mean * (0.5 + self._jitter())
            heapq.heappush(self._delayed, (fetch.not_before, fetch.order, key))
            out.append(Reply(tuple(fetch.waiting), key, failure, final=False))
        else:
            self._end(key, attempt, _after(failure, fetch.attempts), out)

    def _on_grew(self, key: Key, attempt: int, num_bytes: int, out: list[Instruction]) -> None:
        fetch = self._current(key, attempt)
        if fetch is None:
            return
        fetch.expected_bytes = max(fetch.expected_bytes, num_bytes)
        running = self._running.values()
        is_first = fetch is next(iter(running))
        if not is_first and sum(each.expected_bytes for each in running) > self._max_bytes:
            out.append(GiveWay(key, attempt))

    def _on_postponed(self, key: Key, attempt: int) -> None:
        fetch = self._current(key, attempt)
        if fetch is None:
            return
        del self._running[key]
        fetch.attempts -= 1
        if fetch.waiting:
            self._queue(fetch)
        else:
            self._forget(key)

    def _on_tick(self, now: float, out: list[Instruction]) -> None:
        hung = [fetch for fetch in self._running.values() if fetch.deadline <= now]
        hung.sort(key=lambda fetch: fetch.order)
        if not hung or self._retired:
            return
        self._retired = True
        for fetch in hung:
            failure = _hung(fetch.policy, fetch.attempts, fetch.doing, now - fetch.doing_since)
            final = fetch.attempts >= fetch.policy.attempts
            out.append(Reply(tuple(fetch.waiting), fetch.key, failure, final=final))
            if final:
                self._forget(fetch.key)
        first = hung[0]
        reason = (
            f"shard {first.key.shard} got no answer within {first.policy.timeout_s:g} s "
            f"(attempt {first.attempts} of {first.policy.attempts})"
        )
        left = [f for f in hung if f.attempts < f.policy.attempts]
        out.append(Retire(reason, tuple((f.key, f.attempts) for f in left)))

    def _end(self, key: Key, attempt: int, outcome: int | Failure, out: list[Instruction]) -> None:
        fetch = self._current(key, attempt)
        if fetch is not None:
            self._forget(key)
            if fetch.waiting:
                out.append(Reply(tuple(fetch.waiting), key, outcome))

    def _forget(self, key: Key) -> None:
        del self._fetches[key]
        self._running.pop(key, None)

    def _current(self, key: Key, attempt: int) -> _Fetch | None:
        """The fetch whose running attempt this is; None for a late result of an older one."""
        fetch = self._running.get(key)
        return fetch if fetch and fetch.attempts == attempt else None

    def _queue(self, fetch: _Fetch) -> None:
        """Put a fetch where it is due; again where that has changed."""
        if fetch.key not in self._running:
            heapq.heappush(self._ready, (not fetch.demanded, fetch.order, fetch.key))
        if len(self._ready) > 1000 + 4 * len(self._fetches):
            # Where somebody always waits, what was asked for ahead never comes up.
            queued = [each for key, each in self._fetches.items() if key not in self._running]
            self._ready = [(not each.demanded, each.order, each.key) for each in queued]
            heapq.heapify(self._ready)

    def _end_delays(self, now: float) -> None:
        """Queue those whose delay has passed."""
        while self._delayed:
            not_before, order, key = self._delayed[0]
            fetch = self._fetches.get(key)
            holds = fetch is not None and (fetch.order, fetch.not_before) == (order, not_before)
            if holds and not_before > now:
                return
            heapq.heappop(self._delayed)
            if holds and fetch is not None:
                self._queue(fetch)

    def _next_ready(self, now: float) -> _Fetch | None:
        """The fetch whose turn it is; it stays queued."""
        while self._ready:
            ahead, order, key = self._ready[0]
            fetch = self._fetches.get(key)
            if (
                fetch is not None
                and (not fetch.demanded, fetch.order) == (ahead, order)
                and key not in self._running
                and fetch.not_before <= now
            ):
                return fetch
            heapq.heappop(self._ready)
        return None

    def _start_ready(self, now: float, out: list[Instruction]) -> None:
        self._end_delays(now)
        running = self._running
        if any(fetch.deaths for fetch in running.values()):
            return
        num_bytes = sum(fetch.expected_bytes for fetch in running.values())
        while len(running) < self._max_running or not running:
            fetch = self._next_ready(now)
            if fetch is None:
                return
            alone = fetch.deaths > 0
            over = num_bytes + fetch.expected_bytes > self._max_bytes
            if running and (alone or over):
                return
            heapq.heappop(self._ready)
            num_bytes += fetch.expected_bytes
            running[fetch.key] = fetch
            fetch.attempts += 1
            fetch.deadline = now + fetch.policy.timeout_s
            fetch.doing = ""
            out.append(Start(fetch.key, fetch.attempts, fetch.deadline, fetch.deaths))
            if alone:
                return


def _hung(policy: Policy, attempts: int, doing: str, doing_s: float) -> Failure:
    attempt = f"(attempt {attempts} of {policy.attempts})"
    if doing:
        text = (
            f"{doing} was still running after {doing_s:.1f} s, and download_timeout is "
            f"{policy.timeout_s:g} s in all {attempt}: raise download_timeout, or give it fewer "
            "rows at a time with smaller shards"
        )
        return Failure(FailureKind.TRANSFORM, text, retryable=True)
    return Failure(
        FailureKind.UNAVAILABLE,
        f"no answer within {policy.timeout_s:g} s {attempt}; "
        "the store hangs or is too slow for download_timeout",
        retryable=True,
    )


def _deadly(policy: Policy, deaths: int) -> Failure:
    text = f"the download process died {deaths} times while it read these rows"
    if not policy.transform:
        return Failure(FailureKind.BROKEN, text, retryable=False)
    text += (
        f" or ran {policy.transform} on them, which is the first suspect: a crash, an exit or "
        "too much memory there ends the process"
    )
    return Failure(FailureKind.TRANSFORM, text, retryable=False)


def _after(failure: Failure, attempts: int) -> Failure:
    if attempts <= 1:
        return failure
    message = f"{failure.message} (after {attempts} attempts)"
    return replace(failure, message=message, retryable=False)
