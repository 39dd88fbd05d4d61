"""Ask the download process of this job for shards, from any thread of any process of the job.

Each process has one client per endpoint, made on first use and never shared over a fork. A client
has one thread, started with its first request, which receives answers and, when the download
process is gone, reaches a fresh one and asks again for all that is outstanding: every request is
idempotent.
"""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import msgspec

from lance_stream.errors import DownloadProcessError, LanceStreamError, error_from_name
from lance_stream.planning.index import ShardIndex
from lance_stream.service import messages as m
from lance_stream.service.connections import close, keep_from_children
from lance_stream.service.launcher import connect
from lance_stream.service.postponing import PostponingLock
from lance_stream.service.runtime import Endpoint

__all__ = ["ShardClient", "client_for", "plan", "poll"]

logger = logging.getLogger(__name__)

# How often somebody who waits is told that it still does.
_NEWS_EVERY_S = 30.0
# Connections lost in a row without one answer, before the process is given up.
_MAX_FRUITLESS = 6
# On top of the time that the attempts themselves may take: starts, queueing, delays.
_WAIT_MARGIN_S = 60.0
_LONG_FILTER = 10_000
_SEND_TIMEOUT = struct.pack("ll", 10, 0)


def plan(
    endpoint: Endpoint, request: m.Plan, news: Callable[[m.Planning], None] | None = None
) -> ShardIndex | None:
    """Have the index of a table made by the download process.

    Args:
        endpoint: Where it is.
        request: Table and arguments.
        news: Told of progress, where rows are read.

    Returns:
        The index; None if the request only asks whether one is of the table.

    Raises:
        LanceStreamError: As the download process says, or it does not answer in time.
    """
    last: LanceStreamError | None = None
    for attempt in range(request.attempts):
        if attempt:
            logger.warning(
                "%s; trying again (attempt %d of %d)", last, attempt + 1, request.attempts
            )
            time.sleep(min(5.0, 0.25 * 2**attempt))
        try:
            return _plan_once(endpoint, request, news)
        except ConnectionError as error:
            if isinstance(error, LanceStreamError):
                last = error  # SourceUnavailableError: the store may come back.
            else:
                msg = (
                    f"the download process ended while it planned {request.uri}; its log is "
                    f"{endpoint.log_path}"
                )
                if len(request.filter or "") > _LONG_FILTER:
                    msg += (
                        f"; the filter of {len(request.filter or '')} characters may be nested "
                        "too deeply: write 'x in (...)' instead of many 'or'"
                    )
                last = DownloadProcessError(msg)
    if last is None:
        msg = f"planning {request.uri}: attempts must be at least 1"
        raise DownloadProcessError(msg)
    raise last


def poll(endpoint: Endpoint, request: m.Poll) -> m.Polled:
    """Have the download process look whether a table has grown.

    Raises:
        LanceStreamError: As the download process says, or it does not answer in time.
        ConnectionError: It ended meanwhile: ask again.
    """
    for answer in _answers(endpoint, request, f"look at {request.uri}"):
        if isinstance(answer, m.Polled):
            return answer
        if not isinstance(answer, m.Planning):
            raise _unexpected(answer, "poll")
    raise ConnectionResetError("connection closed")


def _plan_once(
    endpoint: Endpoint, request: m.Plan, news: Callable[[m.Planning], None] | None
) -> ShardIndex | None:
    for answer in _answers(endpoint, request, f"plan {request.uri}"):
        if isinstance(answer, m.Planned):
            if not answer.path:
                return None
            index = ShardIndex.load(answer.path)
            os.unlink(answer.path)
            return index
        if not isinstance(answer, m.Planning):
            raise _unexpected(answer, "plan")
        if news is not None:
            news(answer)
    raise ConnectionResetError("connection closed")


def _answers(endpoint: Endpoint, request: m.Plan | m.Poll, asked: str) -> Iterator[m.FromServer]:
    """What the download process says to a request, until the connection ends."""
    timeout_s = request.timeout_s + 15.0
    with connect(endpoint) as connection:
        connection.settimeout(timeout_s)
        connection.sendall(m.encode(request))
        while True:
            try:
                payload = m.receive_frame(connection)
            except TimeoutError as error:
                msg = (
                    f"the download process (pid {endpoint.pid()}) did not answer within "
                    f"{timeout_s:g} s when asked to {asked}; its log is {endpoint.log_path}"
                )
                raise DownloadProcessError(msg) from error
            if payload is None:
                return
            yield m.decode_server(payload)


def _unexpected(answer: m.FromServer, asked: str) -> LanceStreamError:
    if isinstance(answer, m.PlanFailed):
        return error_from_name(answer.error, answer.message)
    msg = f"the download process answered {type(answer).__name__} when asked to {asked}"
    return DownloadProcessError(msg)


@dataclass(slots=True)
class _Pending:
    """A shard that was asked for."""

    demand: bool
    ended: threading.Event = field(default_factory=threading.Event)
    outcome: m.Done | m.Dropped | m.Failed | LanceStreamError | None = None
    news: str = ""


class ShardClient:
    """Requests of one process to one download process. Thread-safe."""

    def __init__(self, endpoint: Endpoint) -> None:
        """Prepare; nothing is connected before the first request."""
        self.endpoint = endpoint
        self._lock = PostponingLock()
        self._streams: dict[str, m.Register] = {}
        self._arrivals: dict[str, Callable[[int], None]] = {}
        self._pending: dict[tuple[str, int], _Pending] = {}
        # Failed when asked for ahead of use: only somebody who waits asks for them again.
        self._refused: set[tuple[str, int]] = set()
        self._connection: socket.socket | None = None
        self._thread: threading.Thread | None = None
        self._fruitless = 0
        self._was_connected = False

    def add_stream(self, register: m.Register, on_arrival: Callable[[int], None]) -> None:
        """Announce a stream.

        Args:
            register: What its shards are.
            on_arrival: Called from the client's thread with each shard that arrived.
        """
        with self._lock:
            if register.stream not in self._streams:
                self._streams[register.stream] = register
                self._arrivals[register.stream] = on_arrival
                self._send(m.encode(register))

    def remove_stream(self, stream: str) -> None:
        """Forget a stream and what was asked for of it; for finalizers too."""
        self._lock.do(lambda: self._remove(stream))

    def _remove(self, stream: str) -> None:
        if self._streams.pop(stream, None) is None:
            return
        self._arrivals.pop(stream, None)
        self._refused = {key for key in self._refused if key[0] != stream}
        self._send(m.encode(m.Forget(stream)))
        for key in [key for key in self._pending if key[0] == stream]:
            pending = self._pending.pop(key)
            pending.outcome = DownloadProcessError("the stream was closed")
            pending.ended.set()
        if not self._streams:
            self._disconnect()

    def request(self, stream: str, shard: int, *, demand: bool = False) -> None:
        """Ask for a shard ahead of use; returns at once."""
        with self._lock:
            if demand or (stream, shard) not in self._refused:
                self._ask(stream, shard, demand=demand)

    def wait(self, stream: str, shard: int, subject: str) -> bool:
        """Ask for a shard and wait for it.

        Args:
            stream: Key of an announced stream.
            shard: Which.
            subject: The shard in words, for log and errors.

        Returns:
            Whether it arrived; False means that it was evicted meanwhile: ask again.

        Raises:
            LanceStreamError: It cannot be had; or no answer came in the time that all attempts
                may take together.
        """
        with self._lock:
            register = self._streams[stream]
            pending = self._ask(stream, shard, demand=True)
        started = time.monotonic()
        limit_s = register.attempts * (register.timeout_s + 10.0) + _WAIT_MARGIN_S
        next_news = _NEWS_EVERY_S
        while not pending.ended.wait(min(1.0, limit_s)):
            waited = time.monotonic() - started
            if waited > limit_s:
                with self._lock:
                    self._pending.pop((stream, shard), None)
                msg = (
                    f"{subject}: waited {waited:.0f} s for the download process "
                    f"(pid {self.endpoint.pid()}); its log is {self.endpoint.log_path}"
                )
                raise DownloadProcessError(msg)
            if waited > next_news:
                next_news += _NEWS_EVERY_S
                logger.warning("still waiting for %s, %.0f s%s", subject, waited, pending.news)
        outcome = pending.outcome
        if isinstance(outcome, m.Failed):
            raise error_from_name(outcome.error, outcome.message)
        if isinstance(outcome, LanceStreamError):
            raise outcome
        return isinstance(outcome, m.Done)

    def close(self) -> None:
        """Let go of the process; waits under way fail."""
        with self._lock:
            self._streams.clear()
            self._disconnect()

    def _ask(self, stream: str, shard: int, *, demand: bool) -> _Pending:
        key = (stream, shard)
        pending = self._pending.get(key)
        if pending is not None and (pending.demand or not demand):
            return pending
        if demand:
            self._refused.discard(key)
        if pending is None:
            pending = self._pending[key] = _Pending(demand)
        pending.demand = demand
        self._send(m.encode(m.Fetch(stream, shard, demand)))
        if self._thread is None:
            self._thread = threading.Thread(
                target=self._receive, name="lance_stream client", daemon=True
            )
            self._thread.start()
        return pending

    def _send(self, data: bytes) -> None:
        """Send if connected; the thread sends everything again on a fresh connection."""
        if self._connection is not None:
            try:
                self._connection.sendall(data)
            except OSError:
                self._drop_connection()

    def _receive(self) -> None:
        """The thread: take answers; reach the process again while something is outstanding."""
        while True:
            connection = self._connection
            if connection is None:
                if not self._reconnect():
                    return
                continue
            try:
                payload = m.receive_frame(connection)
                if payload is not None:
                    self._on_answer(m.decode_server(payload))
                    continue
            except (OSError, msgspec.DecodeError) as error:
                logger.debug("lost the download process: %r", error)
            with self._lock:
                if self._connection is connection:
                    self._drop_connection()

    def _reconnect(self) -> bool:
        """Reach the process and ask again; False ends the thread."""
        with self._lock:
            if not self._pending or not self._streams:
                self._thread = None
                return False
            self._fruitless += 1
            fruitless = self._fruitless
        if self._was_connected:
            logger.warning("the download process ended; reaching a fresh one")
            time.sleep(min(2.0, 0.05 * 2**fruitless))
        try:
            if fruitless > _MAX_FRUITLESS:
                msg = (
                    f"the download process ended {fruitless - 1} times in a row without an "
                    f"answer; its log is {self.endpoint.log_path}"
                )
                raise DownloadProcessError(msg)
            connection = connect(self.endpoint)
        except (LanceStreamError, OSError) as error:
            self._fail_all(error)
            return True
        connection.settimeout(None)
        # A stopped process must not hold whoever asks: a send that cannot proceed fails.
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, _SEND_TIMEOUT)
        with self._lock:
            self._was_connected = True
            self._connection = connection
            keep_from_children(connection)
            for register in self._streams.values():
                self._send(m.encode(register))
            for (stream, shard), pending in self._pending.items():
                self._send(m.encode(m.Fetch(stream, shard, pending.demand)))
        return True

    def _on_answer(self, answer: m.FromServer) -> None:
        if isinstance(answer, m.Planning | m.Planned | m.Polled | m.PlanFailed | m.Pinned):
            return
        if isinstance(answer, m.Warned):
            logger.warning("%s", answer.message)
            return
        with self._lock:
            self._fruitless = 0
            key = (answer.stream, answer.shard)
            if isinstance(answer, m.Retry):
                if key in self._pending:
                    self._pending[key].news = f" ({answer.message})"
                    logger.warning("%s; trying again", answer.message)
                return
            pending = self._pending.pop(key, None)
            arrived = self._arrivals.get(answer.stream)
            if isinstance(answer, m.Failed) and pending is not None and not pending.demand:
                self._refused.add(key)
        if pending is None:
            return
        if isinstance(answer, m.Done) and arrived is not None:
            arrived(answer.shard)
        pending.outcome = answer
        pending.ended.set()

    def _fail_all(self, error: Exception) -> None:
        failure = (
            error if isinstance(error, LanceStreamError) else DownloadProcessError(str(error))
        )
        with self._lock:
            self._fruitless = 0
            pending, self._pending = list(self._pending.values()), {}
        for each in pending:
            each.outcome = failure
            each.ended.set()

    def _drop_connection(self) -> None:
        if self._connection is not None:
            close(self._connection)
            self._connection = None

    def _disconnect(self) -> None:
        """Wake the thread so that it sees there is nothing left to do."""
        self._was_connected = False
        if self._connection is not None:
            with contextlib.suppress(OSError):
                self._connection.shutdown(socket.SHUT_RDWR)


# One for each endpoint that this process uses.
_CLIENTS: dict[Endpoint, ShardClient] = {}


def client_for(endpoint: Endpoint) -> ShardClient:
    """This process's client of an endpoint."""
    # Two threads may both make one, which costs nothing: both get the first.
    return _CLIENTS.get(endpoint) or _CLIENTS.setdefault(endpoint, ShardClient(endpoint))


def _after_fork_in_child() -> None:
    """Forget the parent's clients: their threads are not here, their sockets are not ours."""
    _CLIENTS.clear()


os.register_at_fork(after_in_child=_after_fork_in_child)
