"""Metrics of the download process over HTTP on loopback, for Prometheus; off by default."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from lance_stream.service.runtime import Endpoint
from lance_stream.telemetry.board import read_boards
from lance_stream.telemetry.shared_counts import read_shared
from lance_stream.telemetry.stats import StreamStats, add_up

__all__ = ["serve_metrics", "stats_of"]

logger = logging.getLogger(__name__)

_MAX_REQUEST_BYTES = 8192
_REQUEST_S = 5.0
_TRY_EVERY_S = 2.0


def stats_of(streams: Sequence[dict[str, Any]], endpoint: Endpoint) -> list[StreamStats]:
    """Stats of each stream that a download process says it serves (see ``tallies``)."""
    found = []
    counters = read_boards(endpoint.counters_directory)
    shared = read_shared(endpoint.shared_path)
    for stream in streams:
        mean = float(stream["mean_row_bytes"])
        boards = [(reading, mean) for reading in read_boards(stream["stats"])]
        stats = add_up(stream["uri"], int(stream["shards"]), boards, counters)
        found.append(replace(stats, stream=stream["stream"], shared_caches=shared))
    return found


async def serve_metrics(port: int, text: Callable[[], str]) -> None:
    """Answer ``GET /metrics`` on 127.0.0.1 until cancelled.

    A port that is taken, as by another job of the node or by the process that this one takes over
    from, is told once and tried again.

    Args:
        port: Where to listen.
        text: Called for each request; gives the text.
    """

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        # A request that is too long is a ValueError.
        with (
            contextlib.suppress(OSError, asyncio.TimeoutError, ValueError),
            contextlib.closing(writer),
        ):
            request = await asyncio.wait_for(reader.readline(), _REQUEST_S)
            method, _, rest = request.partition(b" ")
            found = method == b"GET" and rest.split(b" ")[0] in (b"/metrics", b"/")
            body = text().encode() if found else b"not found\n"
            head = (
                f"HTTP/1.1 {'200 OK' if found else '404 Not Found'}\r\n"
                "Content-Type: text/plain; version=0.0.4; charset=utf-8\r\n"
                f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n"
            )
            writer.write(head.encode() + body)
            await asyncio.wait_for(writer.drain(), _REQUEST_S)

    told = False
    while True:
        try:
            server = await asyncio.start_server(
                answer, "127.0.0.1", port, limit=_MAX_REQUEST_BYTES
            )
            break
        except OSError as error:
            if not told:
                told = True
                words = "LANCE_STREAM_METRICS_PORT=%d: cannot serve metrics yet: %s"
                logger.warning(words, port, error)
        await asyncio.sleep(_TRY_EVERY_S)
    async with server:
        await server.serve_forever()
