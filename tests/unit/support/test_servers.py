from __future__ import annotations

import socket
from pathlib import Path

import pytest

from tests.support import servers
from tests.support.processes import group_pids
from tests.support.servers import (
    LoopbackServer,
    ServerError,
    find_server,
    start_memcached,
    start_redis,
)


def answer(server: LoopbackServer, question: bytes, timeout_s: float = 5.0) -> bytes:
    with socket.create_connection(("127.0.0.1", server.port), timeout=timeout_s) as connection:
        connection.sendall(question)
        return connection.recv(100)


def test_a_server_is_killed_paused_and_started_again(tmp_path: Path) -> None:
    with start_memcached(tmp_path) as server:
        assert answer(server, b"version\r\n").startswith(b"VERSION")
        server.pause()
        with pytest.raises(TimeoutError, match="timed out"):
            answer(server, b"version\r\n", 0.1)
        server.resume()
        assert answer(server, b"version\r\n").startswith(b"VERSION")
        port = server.port
        server.kill()
        server.kill()
        with pytest.raises(ConnectionRefusedError, match="refused"):
            answer(server, b"version\r\n")
        server.start_again()
        assert server.port == port
        assert server.address == f"127.0.0.1:{port}"
        assert answer(server, b"version\r\n").startswith(b"VERSION")
        assert server._process is not None
        group = server._process.pid
    assert group_pids(group) == []


def test_a_paused_server_can_be_killed(tmp_path: Path) -> None:
    with start_redis(tmp_path) as server:
        assert answer(server, b"PING\r\n") == b"+PONG\r\n"
        server.pause()


def test_a_server_that_ends_shows_its_log(tmp_path: Path) -> None:
    with pytest.raises(ServerError, match=r"(?s)status 1, no answer.*FATAL CONFIG FILE ERROR"):
        start_redis(tmp_path, "--no-such-option", "x")


def test_a_missing_binary_fails_the_test(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(servers, "_search_path", lambda: "/nonexistent")
    with pytest.raises(ServerError, match="memcached is missing: apt-get install memcached"):
        find_server("memcached")
