"""Metrics over HTTP: what they say, who holds the port, and what comes after the holder."""

from __future__ import annotations

import os
import re
import signal
import socket
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from lance_stream.service.environment import METRICS_PORT
from tests.multi.ranks import free_port
from tests.support.forked import run_forked
from tests.support.streams import batches, dataset, endpoint, ids, wait_until


@pytest.fixture
def port(monkeypatch: pytest.MonkeyPatch) -> int:
    """Where metrics are asked for."""
    port = free_port()
    monkeypatch.setenv(METRICS_PORT, str(port))
    return port


def scrape(port: int, path: str = "/metrics") -> str:
    """What is answered."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=5) as answer:
        assert answer.headers.get_content_type() == "text/plain"
        return answer.read().decode()


def rows_read(text: str) -> int:
    """Rows that all workers have read."""
    return sum(int(n) for n in re.findall(r"^lance_stream_rows_total{.*} (\d+)$", text, re.M))


def is_served(port: int) -> bool:
    """Whether anybody answers."""
    try:
        return bool(scrape(port))
    except OSError:
        return False


def test_what_is_served(table_100: str, port: int) -> None:
    """The rows of all workers; other paths and nonsense are refused, and do no harm."""

    def run() -> Any:
        data = dataset(table_100, shard_rows=10)
        assert ids(batches(data, 2)) == ids(batches(data, 0))
        with pytest.raises(urllib.error.HTTPError, match="404"):
            scrape(port, "/secrets")
        for nonsense in (b"\0" * 100_000, b"POST /metrics HTTP/1.1\r\n\r\n", b""):
            with socket.create_connection(("127.0.0.1", port), 5) as client:
                client.sendall(nonsense)
        text = scrape(port)
        assert table_100 in text
        return rows_read(text)

    assert run_forked(run) == 200


def test_a_port_that_is_taken(table_100: str, port: int) -> None:
    """Training goes on; the port is taken over once it is free, and again after kill -9."""

    def run() -> Any:
        with socket.create_server(("127.0.0.1", port)):
            data = dataset(table_100, shard_rows=10)
            assert len(ids(batches(data, 0))) == 100
            log = Path(endpoint(data).log_path)
            wait_until(lambda: "cannot serve metrics" in log.read_text(), 5, "the log to tell")
        wait_until(lambda: is_served(port), 10, "the download process to take the port")
        before = rows_read(scrape(port))
        pid = endpoint(data).pid()
        os.kill(pid, signal.SIGKILL)
        for name in os.listdir(data.streams[0].local):
            if name.endswith(".arrow"):
                os.unlink(os.path.join(data.streams[0].local, name))
        assert len(ids(batches(data, 0))) == 100
        wait_until(lambda: is_served(port), 10, "another process to take the port")
        assert endpoint(data).pid() != pid
        return [before, rows_read(scrape(port))]

    assert run_forked(run) == [100, 200]
