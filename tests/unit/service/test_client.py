from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from lance_stream.errors import DownloadProcessError, UnsupportedTypeError
from lance_stream.service import client
from lance_stream.service import messages as m


class FakeEndpoint:
    """As much of an endpoint as an error text needs."""

    log_path = "/run/log"

    def pid(self) -> int:
        return 4711


# The client waits 15 s longer than the process may: here half a second.
REQUEST = m.Plan("/t.lance", None, None, None, False, 1, 1, m.Options(), -14.5, 1)


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[socket.socket]:
    """The other end of the connection that the client gets."""
    here, there = socket.socketpair()
    monkeypatch.setattr(client, "connect", lambda _endpoint: here)
    with here, there:
        yield there


def answer(server: socket.socket, *messages: m.FromServer, pause_s: float = 0.0) -> None:
    def run() -> None:
        for message in messages:
            time.sleep(pause_s)
            server.sendall(m.encode(message))

    threading.Thread(target=run, daemon=True).start()


def plan() -> Any:
    endpoint: Any = FakeEndpoint()
    return client.plan(endpoint, REQUEST)


def test_planning_may_take_as_long_as_there_is_news(server: socket.socket) -> None:
    failed = m.PlanFailed("UnsupportedTypeError", "at the end")
    answer(server, *[m.Planning()] * 5, failed, pause_s=0.2)
    started = time.monotonic()
    with pytest.raises(UnsupportedTypeError, match=r"^at the end$"):
        plan()
    assert time.monotonic() - started > 1.0


@pytest.mark.parametrize("news", [0, 1])
def test_a_process_that_says_nothing_is_not_waited_for(server: socket.socket, news: int) -> None:
    answer(server, *[m.Planning()] * news)
    words = r"download process \(pid 4711\) did not answer within 0.5 s .* plan /t.lance; its log"
    with pytest.raises(DownloadProcessError, match=words):
        plan()


def test_another_answer_is_an_error(server: socket.socket) -> None:
    answer(server, m.Planning(), m.Dropped("s", 1))
    with pytest.raises(DownloadProcessError, match="answered Dropped when asked to plan"):
        plan()


def test_a_process_that_ends_is_an_error(server: socket.socket) -> None:
    answer(server, m.Planning())
    time.sleep(0.1)
    server.shutdown(socket.SHUT_WR)
    with pytest.raises(DownloadProcessError, match=r"ended while it planned /t\.lance"):
        plan()
