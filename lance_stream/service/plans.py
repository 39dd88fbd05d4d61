"""Answers to who asks for an index: made in a thread, given up when it is silent for too long."""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import Callable
from typing import TypeVar

from lance_stream.errors import LanceStreamError
from lance_stream.planning.index import ShardIndex
from lance_stream.service import messages as m
from lance_stream.service.fetching import Fetcher
from lance_stream.service.indexing import News
from lance_stream.service.threads import in_thread
from lance_stream.source.location import redact

__all__ = ["Plans"]

logger = logging.getLogger(__name__)

_NEWS_EVERY_S = 0.2
_T = TypeVar("_T")


class Plans:
    """Planning of the download process. Used on the event loop only."""

    def __init__(self, fetcher: Fetcher, directory: str, retire: Callable[[str], None]) -> None:
        """Begin with none.

        Args:
            fetcher: Does the work.
            directory: Where indexes are put for who asked.
            retire: Ends the process, since a call hangs in it; takes the reason.
        """
        self._fetcher = fetcher
        self._directory = directory
        self._retire = retire
        self._count = 0

    def answer(self, request: m.Plan, send: Callable[[m.FromServer], None]) -> None:
        """Plan, and tell who asked; returns at once.

        Args:
            request: What is asked for. Without a word of progress for its time it is given up.
            send: Tells the client.
        """
        self._count += 1
        path = os.path.join(self._directory, str(self._count))

        def made(index: ShardIndex | None) -> m.FromServer:
            return m.Planned("") if index is None else _written(index, path)

        self._run(request, lambda news: self._fetcher.plan(request, news), made, send)

    def poll(self, request: m.Poll, send: Callable[[m.FromServer], None]) -> None:
        """Look whether a table has grown, and tell who asked; returns at once."""

        def made(found: m.Polled) -> m.FromServer:
            return found

        self._run(request, lambda news: self._fetcher.poll(request, news), made, send)

    def _run(
        self,
        request: m.Plan | m.Poll,
        work: Callable[[News], _T],
        made: Callable[[_T], m.FromServer],
        send: Callable[[m.FromServer], None],
    ) -> None:
        loop, uri = asyncio.get_running_loop(), redact(request.uri)
        answered = False

        def answer(message: m.FromServer) -> None:
            nonlocal answered
            if not answered:
                answered = True
                send(message)

        def done(result: _T | BaseException) -> None:
            timer.cancel()
            if isinstance(result, LanceStreamError):
                answer(m.PlanFailed(type(result).__name__, str(result)))
            elif isinstance(result, BaseException):
                logger.error("planning %s failed", uri, exc_info=result)
                text = redact(f"{type(result).__name__}: {result}", request.options.values)
                answer(m.PlanFailed("PlanError", f"planning {uri} failed: {text}"))
            else:
                answer(made(result))

        doing, doing_since = "", time.monotonic()

        def too_late() -> None:
            if "transform=" in doing:
                text = (
                    f"planning {uri}: {doing} was still running after "
                    f"{time.monotonic() - doing_since:.1f} s, longer than "
                    f"download_timeout={request.timeout_s:g} s: raise download_timeout"
                )
                answer(m.PlanFailed("TransformError", text))
                self._retire(text)
                return
            text = (
                f"{uri} got no answer within download_timeout={request.timeout_s:g} s; "
                "check endpoint and network, or raise download_timeout"
            )
            answer(m.PlanFailed("SourceUnavailableError", text))
            self._retire(text)

        timer = loop.call_later(request.timeout_s, too_late)

        def goes_on(message: m.Planning) -> None:
            nonlocal timer
            if not answered:
                timer.cancel()
                timer = loop.call_later(request.timeout_s, too_late)
                send(message)

        told_at = 0.0

        def news(what: str, done: int, total: int) -> None:
            nonlocal told_at, doing, doing_since
            now = time.monotonic()
            is_new = what != doing
            if is_new:
                doing, doing_since = what, now
            if is_new or now - told_at > _NEWS_EVERY_S:
                told_at = now
                loop.call_soon_threadsafe(goes_on, m.Planning(what, done, total))

        in_thread(lambda: work(news), done)


def _written(index: ShardIndex, path: str) -> m.FromServer:
    """Lay an index down for who asked."""
    try:
        with open(path, "wb") as file:
            file.write(index.to_bytes())
    except OSError as error:
        text = f"the index of {redact(index.uri)} cannot be written to {path}: {error}"
        return m.PlanFailed("DownloadProcessError", f"{text}; free space there")
    return m.Planned(path)
