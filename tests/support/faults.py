"""What a fault proxy does to requests, and what it tells about them: plain values."""

from __future__ import annotations

import dataclasses
import random
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

Action = Literal[
    "hang",  # no answer for hang_s, then a reset; the server never sees the request
    "reset",  # reset at once; the server never sees the request
    "resp_reset",  # the server does the work, then reset before the first byte of its answer
    "body_reset",  # part of the body, then reset
    "body_close",  # part of the body, then an orderly close
    "body_hang",  # part of the body, then nothing for hang_s, then a reset
    "corrupt",  # one byte of the body inverted, everything else as it should be
]
ACTIONS: frozenset[str] = frozenset(get_args(Action))
BODY_ACTIONS = frozenset({"body_reset", "body_close", "body_hang", "corrupt"})


@dataclass(frozen=True)
class Fault:
    """What happens to the requests that match: latency, then an error answer, then an action.

    Args:
        method: Regular expression for the whole method (``"GET|HEAD"``); empty matches all.
        path: Regular expression searched in the path with its query, as sent (percent-encoded).
        access_key: Only requests that are signed with this key; empty matches all.
        from_unix_s: Only requests that arrive after this time.
        latency_ms: Waited before anything else is done.
        fail_rate: Probability of an error answer in place of the server's.
        fail_next: The next n requests get an error answer for certain.
        fail_status: Its HTTP status.
        fail_code: Its S3 error code.
        retry_after: Its Retry-After header, in seconds.
        action: See `Action`. Those on bodies concern successful (2xx) answers with a body only;
            other answers pass and do not use up ``action_next``.
        action_rate: Probability of the action.
        action_next: Only for the next n requests; None is without end.
        cut_bytes: Where a body is cut, or which of its bytes is inverted: an offset in the body as
            it is on the wire, clamped to its last byte.
        cut_fraction: The same as a fraction of the body; a half unless one of the two is given.
        hang_s: How long the hanging actions hang; they end sooner when the client goes away.
        bandwidth_bytes_per_s: Pace of each response body (not of all together).
        on_match_touch: A file that gets a line "METHOD PATH" when a matching request arrives.
        seed: Of the generator behind the two rates.
    """

    method: str = ""
    path: str = ""
    access_key: str = ""
    from_unix_s: float = 0
    latency_ms: float = 0
    fail_rate: float = 0
    fail_next: int = 0
    fail_status: int = 503
    fail_code: str = "SlowDown"
    retry_after: int | None = None
    action: Action | None = None
    action_rate: float = 1
    action_next: int | None = None
    cut_bytes: int | None = None
    cut_fraction: float | None = None
    hang_s: float = 3600
    bandwidth_bytes_per_s: float | None = None
    on_match_touch: str | Path | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        """Checks what would otherwise only show as a fault that never happens."""
        re.compile(self.method)
        re.compile(self.path)
        if self.action is not None and self.action not in ACTIONS:
            raise ValueError(f"action {self.action!r} is none of {sorted(ACTIONS)}")
        if self.cut_bytes is not None and self.cut_fraction is not None:
            raise ValueError("cut_bytes and cut_fraction exclude each other")
        for name in ("fail_rate", "action_rate", "cut_fraction"):
            value = getattr(self, name)
            if value is not None and not 0 <= value <= 1:
                raise ValueError(f"{name} {value} is not in [0, 1]")
        for name in ("latency_ms", "fail_next", "action_next", "cut_bytes", "hang_s"):
            value = getattr(self, name)
            if value is not None and value < 0:
                raise ValueError(f"{name} {value} is negative")
        if self.bandwidth_bytes_per_s is not None and self.bandwidth_bytes_per_s <= 0:
            raise ValueError(f"bandwidth_bytes_per_s {self.bandwidth_bytes_per_s} is not positive")

    def matches(self, method: str, path: str, access_key: str = "", unix_s: float = 0) -> bool:
        """Whether a request with these is concerned. Pure."""
        return (
            (not self.method or re.fullmatch(self.method, method) is not None)
            and re.search(self.path, path) is not None
            and self.access_key in ("", access_key)
            and unix_s >= self.from_unix_s
        )

    def cut_at(self, length_bytes: int) -> int:
        """The offset of the cut, or of the inverted byte, in a body of this length (> 0). Pure."""
        if self.cut_bytes is not None:
            offset = self.cut_bytes
        else:
            offset = int(length_bytes * (0.5 if self.cut_fraction is None else self.cut_fraction))
        return min(offset, length_bytes - 1)

    def to_json(self) -> dict[str, Any]:
        """Its fields, as JSON can carry them."""
        fields = dataclasses.asdict(self)
        if self.on_match_touch is not None:
            # The proxy has another working directory.
            fields["on_match_touch"] = str(Path(self.on_match_touch).absolute())
        return fields


class ArmedFault:
    """A fault in use: counts down what is limited and draws what is random."""

    def __init__(self, fault: Fault) -> None:
        self.fault = fault
        self._fails_left = fault.fail_next
        self._actions_left = fault.action_next
        self._random = random.Random(fault.seed)

    def fails(self) -> bool:
        """Whether this request gets an error answer; counts it."""
        if self._fails_left > 0:
            self._fails_left -= 1
            return True
        return self._random.random() < self.fault.fail_rate

    def acts(self) -> bool:
        """Whether the action is done to this request; counts it."""
        if self._actions_left == 0 or self._random.random() >= self.fault.action_rate:
            return False
        if self._actions_left is not None:
            self._actions_left -= 1
        return True


@dataclass(frozen=True)
class RequestRecord:
    """One request, recorded when it arrived.

    Attributes:
        method: The HTTP method.
        path: Path and query, as sent.
        range: The Range header.
        status: The status sent to the client; None if none was (yet).
        bytes: Body bytes sent to the client so far.
        ms: From the request's head to the end of its answer; None while it is in flight.
        fault: The action done to it, or "fail" for an error answer; latency and pace are not told.
        started_s: ``time.monotonic()`` at its arrival, which all processes of a machine share.
        error: What ended it before its time, if not a fault: the client left, or the server did.
    """

    method: str
    path: str
    range: str | None
    status: int | None
    bytes: int
    ms: float | None
    fault: str | None
    started_s: float
    error: str | None


@dataclass(frozen=True)
class ProxyStats:
    """Counts since the start of the proxy or the last ``reset_stats``.

    Attributes:
        in_flight: Requests without a complete answer at this moment.
        max_in_flight: The most there were.
        connections: Client connections that were accepted.
        requests: Requests that arrived.
    """

    in_flight: int
    max_in_flight: int
    connections: int
    requests: int
