"""Versions that the download process holds with tags, each as long as a connection lasts."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

from lance_stream.processes import is_alive
from lance_stream.service import messages as m
from lance_stream.service.threads import in_thread
from lance_stream.source.location import redact

__all__ = ["Pins"]

logger = logging.getLogger(__name__)

# How long the process stays to remove the pins of clients that are gone.
_REMOVE_S = 15.0
_LOOK_EVERY_S = 0.02

PinVersion: TypeAlias = Callable[
    [m.Pin, Callable[[int, int], bool]], tuple[str, Callable[[], None]]
]


@dataclass(frozen=True, slots=True)
class _Pin:
    """A tag that was made."""

    request: m.Pin
    name: str
    remove: Callable[[], None]


class Pins:
    """The pins of all connections. Used on the event loop only."""

    def __init__(self, pin: PinVersion) -> None:
        """Begin with none.

        Args:
            pin: Tags a version; told which processes are alive, it removes the tags of others.
                Gives the tag's name and what removes it.
        """
        self._pin = pin
        self._held: dict[int, list[_Pin]] = {}
        self._gone: set[int] = set()
        self._removing = 0

    def make(self, client: int, request: m.Pin, send: Callable[[m.FromServer], None]) -> None:
        """Tag a version; the tag goes with the connection.

        Args:
            client: Number of the connection.
            request: Which version of which table.
            send: Tells the client how it went.
        """

        def done(result: tuple[str, Callable[[], None]] | BaseException) -> None:
            if isinstance(result, BaseException):
                text = redact(str(result), request.options.values)
                logger.warning("cannot pin %s: %s", _words(request), text)
                send(m.Pinned("", text))
                return
            pin = _Pin(request, *result)
            if client in self._gone:
                self._remove(pin)
            else:
                self._held.setdefault(client, []).append(pin)
                send(m.Pinned(pin.name))

        in_thread(lambda: self._pin(request, is_alive), done)

    def release(self, client: int) -> None:
        """A connection is closed: remove its pins."""
        self._gone.add(client)
        for pin in self._held.pop(client, ()):
            self._remove(pin)

    async def end(self, *, keep: bool) -> None:
        """The process ends.

        Args:
            keep: Leave the pins of live connections: their jobs go on. The next pin on the table
                removes them once those are gone.
        """
        if keep:
            self._held.clear()
        for client in list(self._held):
            self.release(client)
        loop = asyncio.get_running_loop()
        deadline = loop.time() + _REMOVE_S
        while self._removing and loop.time() < deadline:
            await asyncio.sleep(_LOOK_EVERY_S)

    def _remove(self, pin: _Pin) -> None:
        self._removing += 1

        def done(result: BaseException | None) -> None:
            self._removing -= 1
            if result is not None:
                text = redact(str(result), pin.request.options.values)
                logger.warning(
                    "cannot remove the tag %s of %s: %s", pin.name, _words(pin.request), text
                )

        in_thread(pin.remove, done)


def _words(request: m.Pin) -> str:
    return f"{redact(request.uri)} version {request.version}"
