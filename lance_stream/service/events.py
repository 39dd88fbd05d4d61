"""What the scheduler is told, and what it tells the server to do. Values only."""

from __future__ import annotations

from dataclasses import dataclass

from lance_stream.source.failures import Failure

__all__ = [
    "Asked",
    "Doing",
    "Event",
    "Fetched",
    "GiveWay",
    "Grew",
    "Instruction",
    "Key",
    "Left",
    "Lost",
    "Missed",
    "Policy",
    "Postponed",
    "Reply",
    "Retire",
    "Start",
    "Tick",
    "Unwanted",
]


@dataclass(frozen=True, slots=True, order=True)
class Key:
    """One shard of one stream."""

    stream: str
    shard: int


@dataclass(frozen=True, slots=True)
class Policy:
    """How a stream's shards are fetched.

    Attributes:
        timeout_s: Longest time of one attempt.
        attempts: Attempts before a failure is final, at least 1.
        transform: The user's function over the rows, in words; empty if there is none.
    """

    timeout_s: float
    attempts: int
    transform: str = ""


@dataclass(frozen=True, slots=True)
class Asked:
    """A client asks for a shard. ``demand``: it waits for it now."""

    client: int
    key: Key
    demand: bool
    expected_bytes: int
    policy: Policy


@dataclass(frozen=True, slots=True)
class Left:
    """A client is gone, or gave up a stream (None: all of them)."""

    client: int
    stream: str | None = None


@dataclass(frozen=True, slots=True)
class Fetched:
    """An attempt published the shard."""

    key: Key
    attempt: int
    num_bytes: int


@dataclass(frozen=True, slots=True)
class Unwanted:
    """The shard was evicted meanwhile: it was not fetched, or its file was removed again."""

    key: Key
    attempt: int


@dataclass(frozen=True, slots=True)
class Missed:
    """An attempt failed."""

    key: Key
    attempt: int
    failure: Failure


@dataclass(frozen=True, slots=True)
class Grew:
    """A running attempt has more bytes in memory than were expected."""

    key: Key
    attempt: int
    num_bytes: int


@dataclass(frozen=True, slots=True)
class Postponed:
    """An attempt gave way, as ``GiveWay`` told it."""

    key: Key
    attempt: int


@dataclass(frozen=True, slots=True)
class Doing:
    """A running attempt has done with reading, and does something else: in words."""

    key: Key
    attempt: int
    what: str


@dataclass(frozen=True, slots=True)
class Lost:
    """An earlier process ended while it fetched the shard.

    Attributes:
        attempts: Attempts that were used up by hanging.
        deaths: How many processes died over it.
    """

    key: Key
    attempts: int
    deaths: int


@dataclass(frozen=True, slots=True)
class Tick:
    """Time has passed."""


Event = Asked | Left | Fetched | Unwanted | Missed | Grew | Postponed | Doing | Lost | Tick


@dataclass(frozen=True, slots=True)
class Start:
    """Begin an attempt; its result comes back as Fetched, Unwanted or Missed with its number."""

    key: Key
    attempt: int
    deadline: float
    deaths: int


@dataclass(frozen=True, slots=True)
class Reply:
    """Tell clients how a shard ended; ``outcome`` None means it was dropped as unwanted.

    ``final`` False: only news, a failed attempt that is tried again.
    """

    clients: tuple[int, ...]
    key: Key
    outcome: int | Failure | None
    final: bool = True


@dataclass(frozen=True, slots=True)
class GiveWay:
    """Have an attempt end before it reads more; it comes back as Postponed, or is done anyway."""

    key: Key
    attempt: int


@dataclass(frozen=True, slots=True)
class Retire:
    """A call hangs and cannot be interrupted: end the process so that a fresh one takes over."""

    reason: str
    hung: tuple[tuple[Key, int], ...]


Instruction = Start | Reply | GiveWay | Retire
