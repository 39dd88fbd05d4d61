"""The process behind `FaultProxy`: an asyncio HTTP/1.1 proxy with a control port.

A process of its own, so that neither the GIL of a busy test nor the proxy's own work disturbs the
measured latency of the other.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import json
import re
import socket
import struct
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.support.faults import BODY_ACTIONS, ArmedFault, Fault, ProxyStats, RequestRecord

_CHUNK_BYTES = 1 << 18
_LINE_LIMIT_BYTES = 1 << 20
_BACKLOG = 512

_Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class _InjectedEnd(Exception):  # noqa: N818 - it is the wanted end of a connection, no error
    """The fault has ended the client's connection."""


@dataclass(frozen=True)
class _Head:
    """The first line and the headers of a request or response, raw and parsed."""

    raw: bytes
    first_line: str
    headers: dict[str, str]

    @classmethod
    async def read(cls, reader: asyncio.StreamReader) -> _Head:
        raw = await reader.readuntil(b"\r\n\r\n")
        first_line, *lines = raw.decode("latin1").rstrip("\r\n").split("\r\n")
        pairs = (line.partition(":") for line in lines)
        return cls(
            raw, first_line, {name.strip().lower(): value.strip() for name, _, value in pairs}
        )

    @property
    def length_bytes(self) -> int | None:
        value = self.headers.get("content-length")
        return None if value is None else int(value)

    @property
    def chunked(self) -> bool:
        return "chunked" in self.headers.get("transfer-encoding", "").lower()

    @property
    def closes(self) -> bool:
        return self.headers.get("connection", "").lower() == "close"


@dataclass
class _Exchange:
    """One request and how far its answer has come."""

    head: _Head
    method: str
    path: str
    armed: ArmedFault
    started_s: float = field(default_factory=time.monotonic)
    status: int | None = None
    sent_bytes: int = 0
    ended_s: float | None = None
    fault_name: str | None = None
    error: str | None = None

    @property
    def fault(self) -> Fault:
        return self.armed.fault

    def record(self) -> RequestRecord:
        ms = None if self.ended_s is None else round((self.ended_s - self.started_s) * 1000, 3)
        return RequestRecord(
            method=self.method,
            path=self.path,
            range=self.head.headers.get("range"),
            status=self.status,
            bytes=self.sent_bytes,
            ms=ms,
            fault=self.fault_name,
            started_s=self.started_s,
            error=self.error,
        )


class _Upstream:
    """The one connection to the server that belongs to one client connection; opened on demand."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._streams: _Streams | None = None

    async def send(self, head: _Head, body: bytes) -> tuple[_Head, asyncio.StreamReader]:
        """Sends a request; gives the head of the response and the reader of its body."""
        reader, writer = await self._connected()
        # The client's Expect was answered by the proxy.
        writer.write(re.sub(rb"(?i)\r\nexpect:[^\r]*", b"", head.raw) + body)
        await writer.drain()
        return await _Head.read(reader), reader

    async def _connected(self) -> _Streams:
        # The server may have closed it since the last request: that is no fault to pass on.
        if self._streams is not None and self._streams[0].at_eof():
            self.close()
        if self._streams is None:
            self._streams = await asyncio.open_connection(
                "127.0.0.1", self._port, limit=_LINE_LIMIT_BYTES
            )
        return self._streams

    def close(self) -> None:
        if self._streams is not None:
            self._streams[1].close()
            self._streams = None


class _ClientConnection:
    """Serves the requests of one client connection, one after the other."""

    def __init__(
        self, proxy: Proxy, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        self._proxy = proxy
        self._reader = reader
        self._writer = writer
        self._upstream = _Upstream(proxy.upstream_port)
        # drain() then waits until the kernel has all: what was counted as sent is on its way.
        writer.transport.set_write_buffer_limits(high=0)

    async def serve(self) -> None:
        try:
            while True:
                try:
                    head = await _Head.read(self._reader)
                except (asyncio.IncompleteReadError, ConnectionError):
                    return  # the client has no further request
                with self._proxy.exchange(head) as exchange:
                    try:
                        goes_on = await self._serve(exchange)
                    except _InjectedEnd:
                        return
                    except (asyncio.IncompleteReadError, OSError) as error:
                        exchange.error = repr(error)
                        # An answer that stops short must not look complete.
                        self._reset()
                        return
                if not goes_on:
                    return
        finally:
            self._upstream.close()
            self._writer.close()

    async def _serve(self, exchange: _Exchange) -> bool:
        """Answers one request; returns whether the connection can serve another."""
        head, fault = exchange.head, exchange.fault
        body = await self._read_request_body(head)
        if fault.latency_ms:
            await asyncio.sleep(fault.latency_ms / 1000)
        if exchange.armed.fails():
            await self._send_error(exchange)
            return True
        if fault.action in ("hang", "reset") and exchange.armed.acts():
            exchange.fault_name = fault.action
            if fault.action == "hang":
                await self._hang(fault.hang_s)
            self._end_by_reset()
        response, reader = await self._upstream.send(head, body)
        if fault.action == "resp_reset" and exchange.armed.acts():
            exchange.fault_name = fault.action
            # To the last byte: the server has then really done its work.
            async for _ in _body_pieces(response, reader, exchange.method, _CHUNK_BYTES):
                pass
            self._end_by_reset()
        await self._relay(exchange, response, reader)
        delimited = response.chunked or response.length_bytes is not None
        return not response.closes and (delimited or _has_no_body(response, exchange.method))

    async def _read_request_body(self, head: _Head) -> bytes:
        if head.headers.get("expect", "").lower() == "100-continue":
            self._writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
            await self._writer.drain()
        if head.chunked:
            return b"".join([piece async for piece in _chunked_pieces(self._reader)])
        return await self._reader.readexactly(head.length_bytes or 0)

    async def _send_error(self, exchange: _Exchange) -> None:
        fault = exchange.fault
        body = (
            '<?xml version="1.0" encoding="UTF-8"?>'
            f"<Error><Code>{fault.fail_code}</Code><Message>injected by a test</Message></Error>"
        ).encode()
        lines = [
            f"HTTP/1.1 {fault.fail_status} {fault.fail_code}",
            "Content-Type: application/xml",
            f"Content-Length: {len(body)}",
        ]
        if fault.retry_after is not None:
            lines.append(f"Retry-After: {fault.retry_after}")
        exchange.status = fault.fail_status
        exchange.fault_name = "fail"
        self._writer.write("\r\n".join([*lines, "", ""]).encode())
        if exchange.method != "HEAD":
            await self._send(exchange, body)
        await self._writer.drain()

    async def _relay(
        self, exchange: _Exchange, response: _Head, reader: asyncio.StreamReader
    ) -> None:
        fault = exchange.fault
        exchange.status = int(response.first_line.split(" ")[1])
        pace = fault.bandwidth_bytes_per_s
        piece_bytes = _CHUNK_BYTES if pace is None else max(1, min(_CHUNK_BYTES, int(pace / 20)))
        pieces = _body_pieces(response, reader, exchange.method, piece_bytes)
        damage_at = None
        if fault.action in BODY_ACTIONS and 200 <= exchange.status < 300:
            length = response.length_bytes
            if response.chunked:
                # Only then is its length known. Such bodies are listings: small.
                body = b"".join([piece async for piece in pieces])
                length, pieces = len(body), _single_piece(body)
            if length and not _has_no_body(response, exchange.method) and exchange.armed.acts():
                exchange.fault_name = fault.action
                damage_at = fault.cut_at(length)
        self._writer.write(response.raw)
        started_s = time.monotonic()
        offset = 0
        async for piece in pieces:
            if pace is not None:
                due_s = started_s + (offset + len(piece)) / pace
                await asyncio.sleep(max(0.0, due_s - time.monotonic()))
            if damage_at is not None and offset <= damage_at < offset + len(piece):
                await self._damage(exchange, piece, damage_at - offset)
            else:
                await self._send(exchange, piece)
            offset += len(piece)
        await self._writer.drain()

    async def _damage(self, exchange: _Exchange, piece: bytes, at: int) -> None:
        fault = exchange.fault
        if fault.action == "corrupt":
            await self._send(exchange, piece[:at] + bytes([piece[at] ^ 0xFF]) + piece[at + 1 :])
            return
        await self._send(exchange, piece[:at])
        if fault.action == "body_close":
            raise _InjectedEnd  # serve() closes
        if fault.action == "body_hang":
            await self._hang(fault.hang_s)
        self._end_by_reset()

    async def _send(self, exchange: _Exchange, data: bytes) -> None:
        self._writer.write(data)
        exchange.sent_bytes += len(data)
        await self._writer.drain()

    async def _hang(self, seconds: float) -> None:
        # Ends when the client gives up, which shows as the end of what it sends.
        with contextlib.suppress(asyncio.TimeoutError, ConnectionError):
            await asyncio.wait_for(self._reader.read(1), seconds)

    def _end_by_reset(self) -> None:
        self._reset()
        raise _InjectedEnd

    def _reset(self) -> None:
        connection = self._writer.get_extra_info("socket")
        # Closing with a linger time of 0 sends RST.
        with contextlib.suppress(OSError):
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self._writer.transport.abort()


class Proxy:
    """The state that all connections and the control port share; lives in one event loop."""

    def __init__(self, upstream_port: int) -> None:
        self.upstream_port = upstream_port
        self._faults: list[ArmedFault] = []
        self._log: list[_Exchange] = []
        self._in_flight = 0
        self._max_in_flight = 0
        self._connections = 0
        self._requests = 0

    async def serve_client(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        """Serves a client connection to its end."""
        self._connections += 1
        await _ClientConnection(self, reader, writer).serve()

    async def serve_control(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        """Answers one command: a line of JSON each way."""
        commands: dict[str, Callable[[Any], Any]] = {
            "set": self._set,
            "log": self._take_log,
            "stats": self._stats,
            "reset_stats": self._reset_stats,
        }
        try:
            message = json.loads(await reader.readline())
            answer = {"result": commands[message["command"]](message["argument"])}
        except (KeyError, TypeError, ValueError, re.error) as error:
            answer = {"error": repr(error)}
        writer.write(json.dumps(answer).encode() + b"\n")
        with contextlib.suppress(ConnectionError):
            await writer.drain()
        writer.close()

    @contextlib.contextmanager
    def exchange(self, head: _Head) -> Iterator[_Exchange]:
        """Counts and records a request from its arrival to its end."""
        method, path, _ = head.first_line.split(" ", 2)
        exchange = _Exchange(head, method, path, self._armed_for(method, path, head))
        self._log.append(exchange)
        self._requests += 1
        self._in_flight += 1
        self._max_in_flight = max(self._max_in_flight, self._in_flight)
        try:
            if exchange.fault.on_match_touch is not None:
                with Path(exchange.fault.on_match_touch).open("a") as file:
                    file.write(f"{method} {path}\n")
            yield exchange
        finally:
            self._in_flight -= 1
            exchange.ended_s = time.monotonic()

    def _armed_for(self, method: str, path: str, head: _Head) -> ArmedFault:
        # "AWS4-HMAC-SHA256 Credential=KEY/20260101/us-east-1/s3/aws4_request, ..."
        signed = re.search(r"Credential=([^/]*)/", head.headers.get("authorization", ""))
        request = (method, path, signed.group(1) if signed else "", time.time())
        matching = (armed for armed in self._faults if armed.fault.matches(*request))
        return next(matching, ArmedFault(Fault()))

    def _set(self, faults: list[dict[str, Any]]) -> None:
        self._faults = [ArmedFault(Fault(**fields)) for fields in faults]

    def _take_log(self, _: None) -> list[dict[str, Any]]:
        log, self._log = self._log, []
        return [dataclasses.asdict(exchange.record()) for exchange in log]

    def _stats(self, _: None) -> dict[str, Any]:
        return dataclasses.asdict(
            ProxyStats(self._in_flight, self._max_in_flight, self._connections, self._requests)
        )

    def _reset_stats(self, _: None) -> None:
        self._max_in_flight = self._in_flight
        self._connections = 0
        self._requests = 0


def _has_no_body(response: _Head, method: str) -> bool:
    return method == "HEAD" or response.first_line.split(" ")[1] in ("204", "304")


async def _body_pieces(
    response: _Head, reader: asyncio.StreamReader, method: str, piece_bytes: int
) -> AsyncIterator[bytes]:
    """The body as it is on the wire (chunk headers included), in pieces."""
    if _has_no_body(response, method):
        return
    if response.chunked:
        async for piece in _chunked_pieces(reader):
            yield piece
        return
    left = response.length_bytes
    while left is None or left > 0:
        piece = await reader.read(piece_bytes if left is None else min(left, piece_bytes))
        if not piece:
            if left is None:
                return
            raise ConnectionError(f"the server closed {left} bytes before the end of the body")
        if left is not None:
            left -= len(piece)
        yield piece


async def _single_piece(body: bytes) -> AsyncIterator[bytes]:
    yield body


async def _chunked_pieces(reader: asyncio.StreamReader) -> AsyncIterator[bytes]:
    """The chunks of a chunked body with their framing, to the last."""
    while True:
        line = await reader.readuntil(b"\r\n")
        yield line
        size = int(line.split(b";")[0], 16)
        if size == 0:
            break
        yield await reader.readexactly(size + 2)
    # Trailers end with an empty line.
    while (line := await reader.readuntil(b"\r\n")) != b"\r\n":
        yield line
    yield b"\r\n"


async def _run(upstream_port: int, port: int) -> None:
    proxy = Proxy(upstream_port)
    server = await asyncio.start_server(
        proxy.serve_client, "127.0.0.1", port, limit=_LINE_LIMIT_BYTES, backlog=_BACKLOG
    )
    control = await asyncio.start_server(
        proxy.serve_control, "127.0.0.1", 0, limit=_LINE_LIMIT_BYTES
    )
    ports = [each.sockets[0].getsockname()[1] for each in (server, control)]
    sys.stdout.write(f"ready port={ports[0]} control_port={ports[1]}\n")
    sys.stdout.flush()
    async with server, control:
        await asyncio.gather(server.serve_forever(), control.serve_forever())


def main() -> None:
    """Runs a proxy until it is killed. Arguments: the server's port, the proxy's own (0: any)."""
    asyncio.run(_run(int(sys.argv[1]), int(sys.argv[2])))
