"""The download process: sockets, threads and files around the pure scheduler.

One event loop owns all state; each Lance call runs in a thread of its own, so that one that hangs
can be abandoned. The process ends by itself soon after the last client is gone.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import shutil
import signal
import socket
import stat
import struct
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from lance_stream.errors import LanceStreamError
from lance_stream.service import events
from lance_stream.service import messages as m
from lance_stream.service.attempt import Attempt, AttemptError, PostponedError
from lance_stream.service.fetching import Fetched, Fetcher, cache_failure
from lance_stream.service.journal import Journal
from lance_stream.service.launcher import peer_uid
from lance_stream.service.metrics import serve_metrics, stats_of
from lance_stream.service.pins import Pins
from lance_stream.service.plans import Plans
from lance_stream.service.runtime import Endpoint, boards_are_needed
from lance_stream.service.scheduler import Scheduler
from lance_stream.service.stream_source import StreamSource
from lance_stream.service.tallies import Tallies
from lance_stream.service.threads import in_thread
from lance_stream.shards.ledger import Ledger
from lance_stream.source.failures import classify, explain_shard
from lance_stream.source.location import redact
from lance_stream.telemetry.stats import prometheus

__all__ = ["Limits", "Server"]

logger = logging.getLogger(__name__)

_SHOW_EVERY_S = 0.05
_SHOW_SHARED_EVERY_S = 1.0
# How long it stays to put what it fetched into shared caches.
_SHARE_S = 10.0
_MAX_UNTOLD = 16


@dataclass(frozen=True, slots=True)
class Limits:
    """What the process may use and how long it lingers; set by the environment in ``daemon``."""

    max_running: int = 16
    max_bytes: int = 512 << 20
    max_deaths: int = 3
    first_delay_s: float = 0.25
    max_delay_s: float = 10.0
    first_client_s: float = 6.0
    linger_s: float = 1.0
    metrics_port: int = 0


@dataclass(slots=True, eq=False)
class _Client:
    """One connection."""

    number: int
    writer: asyncio.StreamWriter
    pid: int = 0
    streams: set[str] = field(default_factory=set)


class Server:
    """State of the process. Everything but the threads runs on the event loop."""

    def __init__(self, endpoint: Endpoint, limits: Limits, fetcher: Fetcher | None = None) -> None:
        """Prepare; ``run`` serves.

        Args:
            endpoint: Where it is found.
            limits: What it may use.
            fetcher: Does the work; None for one of its own.
        """
        self._endpoint = endpoint
        self._limits = limits
        self._fetcher = fetcher or Fetcher(limits.max_running)
        self._journal = Journal(endpoint.running_directory)
        self._scheduler = Scheduler(
            max_running=limits.max_running,
            max_bytes=limits.max_bytes,
            max_deaths=limits.max_deaths,
            first_delay_s=limits.first_delay_s,
            max_delay_s=limits.max_delay_s,
        )
        self._sources: dict[str, StreamSource] = {}
        self._ledgers: dict[str, Ledger] = {}
        # Streams that could not be registered, and why.
        self._refused: dict[str, str] = {}
        self._tallies = Tallies(endpoint.status_path, endpoint.shared_path)
        self._showing: asyncio.TimerHandle | None = None
        self._clients: dict[int, _Client] = {}
        self._attempts: dict[events.Key, Attempt] = {}
        self._untold: deque[str] = deque(maxlen=_MAX_UNTOLD)
        self._connections = 0
        self._retired = False
        self._loop = asyncio.get_running_loop()
        self._plans = Plans(self._fetcher, endpoint.plans_directory, self._retire)
        self._pins = Pins(self._fetcher.pin)
        self._fetcher.shared.on_warning = self._warn_from_thread
        self.ended = asyncio.Event()
        self._timer: asyncio.TimerHandle | None = None
        self._idle: asyncio.TimerHandle | None = None

    async def run(self) -> bool:
        """Serve until nobody needs it, or the process is told to end or retires itself.

        Returns:
            Whether there are clients or datasets still, who will ask for a fresh process.
        """
        for lost in self._journal.take_over():
            self._scheduler.handle(lost, self._loop.time())
        for number in (signal.SIGTERM, signal.SIGHUP):
            self._loop.add_signal_handler(number, self.ended.set)
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self._endpoint.socket_path)
        server = await asyncio.start_unix_server(self._serve, self._endpoint.socket_path)
        os.chmod(self._endpoint.socket_path, 0o600)
        self._end_unless_used(self._limits.first_client_s)
        metrics = None
        if self._limits.metrics_port:
            served = serve_metrics(self._limits.metrics_port, self._metrics)
            metrics = self._loop.create_task(served)
        self._keep_showing()
        await self.ended.wait()
        server.close()
        if metrics is not None:
            # Free for the process that takes over.
            metrics.cancel()
        # A fresh process takes over from one that retires: versions stay held.
        await self._pins.end(keep=self._retired)
        if not self._clients:
            await self._end_sharing()
        # What is still in the buffers of the sockets is sent before they close.
        for client in list(self._clients.values()):
            with contextlib.suppress(OSError, asyncio.TimeoutError):
                await asyncio.wait_for(client.writer.drain(), 1.0)
        return bool(self._clients) or boards_are_needed(self._endpoint)

    async def _end_sharing(self) -> None:
        """Put what waits into shared caches; not for ever, whatever hangs."""
        closed = asyncio.Event()
        # A thread of the loop's own pool would be waited for when the loop ends.
        in_thread(lambda: self._fetcher.shared.close(_SHARE_S), lambda _: closed.set())
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(closed.wait(), 2 * _SHARE_S)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        # So that ``drain`` means sent, not merely below a mark.
        writer.transport.set_write_buffer_limits(high=0)
        peer: socket.socket = writer.get_extra_info("socket")
        if not _same_user(peer):
            writer.close()
            return
        self._connections += 1
        client = _Client(self._connections, writer)
        self._clients[client.number] = client
        if self._idle:
            self._idle.cancel()
        try:
            while True:
                (length,) = struct.unpack(">I", await reader.readexactly(4))
                if length > m.MAX_FRAME_BYTES:
                    break
                self._on_message(client, m.decode_client(await reader.readexactly(length)))
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        except asyncio.CancelledError:
            # The loop ends. asyncio of Python 3.11 would log that as a fault.
            pass
        except Exception:
            logger.exception("closing the connection of process %s", client.pid)
        finally:
            writer.close()
            self._on_gone(client)

    def _on_message(self, client: _Client, message: m.FromClient) -> None:
        match message:
            case m.Hello(pid=pid):
                client.pid = pid
            case m.Plan():
                self._plans.answer(message, lambda answer: self._send(client, answer))
            case m.Poll():
                self._plans.poll(message, lambda answer: self._send(client, answer))
            case m.Pin():
                self._pins.make(client.number, message, lambda answer: self._send(client, answer))
            case m.Register():
                self._register(client, message)
            case m.Forget(stream=stream):
                self._forget(client, stream)
            case m.Fetch(stream=stream, shard=shard, demand=demand):
                source = self._sources.get(stream)
                if source is None:
                    text = self._unknown(stream)
                    self._send(client, m.Failed(stream, shard, "DownloadProcessError", text))
                    return
                self._tallies.add(stream, "requested")
                found = _size(source.path(shard))
                if found is not None:
                    self._tallies.add(stream, "in_cache")
                    self._send(client, m.Done(stream, shard, found))
                    return
                expected = source.expected_bytes(shard)
                function = source.index.selection.transform
                policy = events.Policy(
                    source.register.timeout_s,
                    source.register.attempts,
                    f"transform={function!r}" if function else "",
                )
                key = events.Key(stream, shard)
                self._handle(events.Asked(client.number, key, demand, expected, policy))

    def _unknown(self, stream: str) -> str:
        refused = self._refused.get(stream)
        if refused is None:
            return "the stream is not known to the download process"
        return (
            f"the download process cannot serve the stream of {refused}; what it keeps in its "
            "cache directory must stay there while a dataset uses it: build the dataset again"
        )

    def _register(self, client: _Client, message: m.Register) -> None:
        if message.stream not in self._sources:
            try:
                source, ledger = StreamSource.load(message), Ledger(message.ledger_path)
                self._tallies.open(message, source.index)
            except (OSError, LanceStreamError) as error:
                # Other streams of the process are not concerned; who asks for this one is told.
                table = f"{redact(message.uri)} version {message.version}"
                self._refused[message.stream] = f"{table}: {type(error).__name__}: {error}"
                logger.warning("cannot serve %s", self._refused[message.stream])
                return
            self._sources[message.stream], self._ledgers[message.stream] = source, ledger
            self._refused.pop(message.stream, None)
        client.streams.add(message.stream)
        while self._untold:
            self._send(client, m.Warned(self._untold.popleft()))

    def _forget(self, client: _Client, stream: str) -> None:
        client.streams.discard(stream)
        self._refused.pop(stream, None)
        self._handle(events.Left(client.number, stream))
        if not any(stream in other.streams for other in self._clients.values()):
            source = self._sources.pop(stream, None)
            if source is not None:
                self._fetcher.forget(source)
            self._ledgers.pop(stream, None)
            self._tallies.close(stream)

    def _on_gone(self, client: _Client) -> None:
        self._clients.pop(client.number, None)
        try:
            self._pins.release(client.number)
            self._handle(events.Left(client.number))
            for stream in list(client.streams):
                self._forget(client, stream)
        finally:
            # Whatever is wrong with what one leaves, the process must not outlive its clients.
            if not self._clients:
                self._end_unless_used(self._limits.linger_s)

    def _end_unless_used(self, after_s: float) -> None:
        if self._idle:
            self._idle.cancel()

        def end() -> None:
            if self._clients:
                return
            # The trainer of a dataset may have been connected only to one that died before.
            if boards_are_needed(self._endpoint):
                self._end_unless_used(self._limits.linger_s)
            else:
                self.ended.set()

        self._idle = self._loop.call_later(after_s, end)

    def _handle(self, event: events.Event) -> None:
        """Give an event to the scheduler and do what it says."""
        # One moment for all: a delay that ends in between would be neither started nor waited for.
        now = self._loop.time()
        for instruction in self._scheduler.handle(event, now):
            match instruction:
                case events.Start(key=key, attempt=attempt, deaths=deaths):
                    self._journal.begin(key, attempt, deaths)
                    self._start(key, attempt)
                case events.Reply():
                    self._reply(instruction)
                case events.GiveWay(key=key):
                    if key in self._attempts:
                        self._attempts[key].give_way()
                case events.Retire(reason=reason, hung=hung):
                    self._retire(reason, hung)
        if self._showing is None:
            self._showing = self._loop.call_later(_SHOW_EVERY_S, self._show)
        if self._timer:
            self._timer.cancel()
            self._timer = None
        wakeup = self._scheduler.next_wakeup(now)
        if wakeup is not None:
            self._timer = self._loop.call_at(wakeup + 0.001, self._handle, events.Tick())

    def _metrics(self) -> str:
        self._show_shared()
        return prometheus(stats_of(self._tallies.streams, self._endpoint))

    def _show(self) -> None:
        """Put what waits and runs on the boards; soon after a change, but not at every one."""
        self._showing = None
        self._tallies.show(self._scheduler.loads())
        self._show_shared()

    def _show_shared(self) -> None:
        self._tallies.show_shared(self._fetcher.shared.counts())

    def _keep_showing(self) -> None:
        """What is put into shared caches in the background is no event."""
        self._show_shared()
        self._loop.call_later(_SHOW_SHARED_EVERY_S, self._keep_showing)

    def _warn_from_thread(self, text: str) -> None:
        """Have one process of the job log it too; the log of this one is seldom read."""

        def send() -> None:
            client = next((each for each in self._clients.values() if each.streams), None)
            if client is not None:
                self._send(client, m.Warned(text))
            else:
                # Between two epochs, say. It is told once, so whoever comes next hears of it.
                self._untold.append(text)

        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(send)

    def _start(self, key: events.Key, attempt: int) -> None:
        """Run an attempt in a thread of its own."""
        source = self._sources.get(key.stream)
        if source is None or not self._is_wanted(key):
            # Not from inside _handle: its instructions are still being carried out.
            self._loop.call_soon(self._unwanted, key, attempt)
            return

        started_ns = time.monotonic_ns()

        def done(result: Fetched | BaseException) -> None:
            from_tier = isinstance(result, Fetched) and result.from_tier
            spent_ns = time.monotonic_ns() - started_ns
            tier_ns = spent_ns if from_tier else running.tier_ns
            self._tallies.add(key.stream, "tier_ns", tier_ns)
            self._tallies.add(key.stream, "lance_ns", spent_ns - tier_ns)
            self._attempts.pop(key, None)
            if isinstance(result, PostponedError):
                self._journal.end(key)
                self._handle(events.Postponed(key, attempt))
            elif isinstance(result, AttemptError):
                self._journal.end(key)
                self._handle(events.Missed(key, attempt, result.failure))
            elif isinstance(result, BaseException):
                self._journal.end(key)
                logger.error("fetching shard %s failed", key.shard, exc_info=result)
                self._handle(events.Missed(key, attempt, classify(result, while_opening=False)))
            else:
                self._publish(key, attempt, source, result)

        rows = len(source.index.shard_rows(key.shard))
        running = self._attempts[key] = Attempt(
            source.index.row_size.shard_bytes(rows),
            grew=lambda num_bytes: self._tell(
                events.Grew(key, attempt, num_bytes), running.answer
            ),
            begins=lambda what: self._tell(events.Doing(key, attempt, what)),
        )
        in_thread(lambda: self._fetcher.fetch(source, key.shard, running), done)

    def _tell(self, event: events.Event, then: Callable[[], None] | None = None) -> None:
        """Give an event to the scheduler from another thread; nothing once the loop has ended."""

        def handle() -> None:
            self._handle(event)
            if then is not None:
                then()

        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(handle)

    def _publish(
        self, key: events.Key, attempt: int, source: StreamSource, fetched: Fetched
    ) -> None:
        """Rename the file into place, then look whether anybody still wants it."""
        self._journal.end(key)
        path, num_bytes, final = fetched.path, fetched.num_bytes, source.path(key.shard)
        try:
            if not self._is_wanted(key):
                os.unlink(path)
                self._fetcher.keep_to_itself(source, key.shard)
                self._handle(events.Unwanted(key, attempt))
                return
            os.rename(path, final)
            # An eviction sets the charge to zero before it removes the file, so one of the two
            # sides sees the other: no file stays that the cache does not count.
            if not self._is_wanted(key):
                os.unlink(final)
                self._fetcher.keep_to_itself(source, key.shard)
                self._handle(events.Unwanted(key, attempt))
                return
        except OSError as error:
            failure = cache_failure(error, source.register.directory, num_bytes)
            self._fetcher.keep_to_itself(source, key.shard)
            self._handle(events.Missed(key, attempt, failure))
            return
        kind = "tier" if fetched.from_tier else "lance"
        self._tallies.add(key.stream, f"from_{kind}")
        self._tallies.add(key.stream, f"{kind}_bytes", num_bytes)
        self._handle(events.Fetched(key, attempt, num_bytes))
        # After those who wait were told. Only tiers that lack it are written.
        self._fetcher.share(source, key.shard)

    def _unwanted(self, key: events.Key, attempt: int) -> None:
        self._journal.end(key)
        self._tallies.add(key.stream, "evicted_before_fetch")
        self._handle(events.Unwanted(key, attempt))

    def _is_wanted(self, key: events.Key) -> bool:
        ledger = self._ledgers.get(key.stream)
        if ledger is None:
            return False
        return self._scheduler.is_demanded(key) or ledger.charged(key.shard) > 0

    def _reply(self, reply: events.Reply) -> None:
        key, outcome = reply.key, reply.outcome
        source = self._sources.get(key.stream)
        if source is None:
            return
        message: m.FromServer
        if outcome is None:
            message = m.Dropped(key.stream, key.shard)
        elif isinstance(outcome, int):
            message = m.Done(key.stream, key.shard, outcome)
        else:
            register, rows = source.register, source.index.describe_rows(key.shard)
            where = (
                f"shard {key.shard} ({rows}) of {redact(register.uri)} version {register.version}"
            )
            secret = register.options.values
            cause, detail = redact(outcome.message, secret), redact(outcome.detail, secret)
            name, text = explain_shard(outcome, where, cause, detail)
            self._tallies.add(key.stream, "failures" if reply.final else "retries")
            if reply.final:
                message = m.Failed(key.stream, key.shard, name, text)
            else:
                message = m.Retry(key.stream, key.shard, text)
            about = {"stream": key.stream, "shard": key.shard, "error": outcome.kind.value}
            told = text if reply.final else f"{text}; trying again"
            logger.warning("%s", told, extra={"about": about})
        for number in reply.clients:
            client = self._clients.get(number)
            if client is not None:
                self._send(client, message)

    def _send(self, client: _Client, message: m.FromServer) -> None:
        if not client.writer.is_closing():
            client.writer.write(m.encode(message))

    def _retire(self, reason: str, hung: tuple[tuple[events.Key, int], ...] = ()) -> None:
        """End the process although a call hangs in it; clients come back to a fresh one."""
        logger.warning("%s: retiring this process, a fresh one takes over", reason)
        self._retired = True
        self.ended.set()
        shutil.rmtree(self._endpoint.running_directory, ignore_errors=True)
        for key, attempts in hung:
            self._journal.hung(key, attempts)


def _same_user(peer: socket.socket) -> bool:
    return peer_uid(peer) == os.getuid()


def _size(path: str) -> int | None:
    try:
        status = os.lstat(path)
    except FileNotFoundError:
        return None
    # What was planted there is no shard; publishing one takes its place.
    return status.st_size if stat.S_ISREG(status.st_mode) else None
