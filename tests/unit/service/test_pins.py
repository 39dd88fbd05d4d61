"""Pins go with their connection, and stay when the process is only replaced."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from lance_stream.service import messages as m
from lance_stream.service.pins import Pins

SECRET = "hidden-key"
OPTIONS = m.Options({"secret_access_key": SECRET})
REQUEST = m.Pin("s3://bucket/t.lance", 3, OPTIONS, timeout_s=10.0, pid=1, started=1)


class Tags:
    """What tags a version, for tests: it only counts."""

    def __init__(self, error: str = "") -> None:
        """None yet."""
        self.live: set[str] = set()
        self.error = error

    def pin(self, request: m.Pin, alive: Any) -> tuple[str, Callable[[], None]]:
        """Make one."""
        if self.error:
            raise OSError(self.error)
        name = f"tag-{request.version}-{len(self.live)}"
        self.live.add(name)
        return name, lambda: self.live.remove(name)


async def pinned(pins: Pins, client: int) -> m.Pinned:
    """Pin, and what the client is told."""
    told: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    pins.make(client, REQUEST, told.set_result)
    return await asyncio.wait_for(told, 10)


def test_removed_with_the_connection() -> None:
    """One client leaves: its pin goes, the other's stays."""
    tags = Tags()

    async def run() -> None:
        pins = Pins(tags.pin)
        first, second = await pinned(pins, 1), await pinned(pins, 2)
        assert tags.live == {first.name, second.name}
        pins.release(1)
        await pins.end(keep=True)
        assert tags.live == {second.name}

    asyncio.run(run())


def test_removed_at_the_end() -> None:
    """The process ends for good."""
    tags = Tags()

    async def run() -> None:
        pins = Pins(tags.pin)
        await pinned(pins, 1)
        await pins.end(keep=False)

    asyncio.run(run())
    assert not tags.live


def test_refused_without_the_secret(caplog: pytest.LogCaptureFixture) -> None:
    """What the client and the log are told names the table, never the key."""

    async def run() -> m.Pinned:
        return await pinned(Pins(Tags(f"denied to {SECRET}").pin), 1)

    told = asyncio.run(run())
    assert not told.name
    assert "denied to" in told.message
    assert "s3://bucket/t.lance version 3" in caplog.text
    assert SECRET not in told.message + caplog.text
