"""The proxy's HTTP, against a server that does what SeaweedFS seldom does."""

from __future__ import annotations

import http.client
import socket
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from tests.support.fault_proxy import Fault, FaultProxy

BODY = b"0123456789" * 1000


class _Server(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        self.send_response(200)
        if self.path == "/chunked":
            self.send_header("Transfer-Encoding", "chunked")
            self.end_headers()
            for start in range(0, len(BODY), 4000):
                piece = BODY[start : start + 4000]
                self.wfile.write(b"%x\r\n%b\r\n" % (len(piece), piece))
            self.wfile.write(b"0\r\n\r\n")
        elif self.path == "/until-close":
            self.end_headers()
            self.wfile.write(BODY)
            self.close_connection = True
        elif self.path == "/stops-short":
            self.send_header("Content-Length", str(len(BODY)))
            self.end_headers()
            self.wfile.write(BODY[:100])
            self.close_connection = True
        else:  # an orderly answer, then a close that was not announced
            self.send_header("Content-Length", str(len(BODY)))
            self.end_headers()
            self.wfile.write(BODY)
            self.close_connection = self.path == "/then-close"

    def do_HEAD(self) -> None:
        self.send_response(200)
        self.send_header("Content-Length", str(len(BODY)))
        self.end_headers()

    def do_PUT(self) -> None:
        body = b""
        while size := int(self.rfile.readline(), 16):
            body += self.rfile.read(size + 2)[:-2]
        self.rfile.readline()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        """Says nothing."""


@pytest.fixture
def proxy() -> Iterator[FaultProxy]:
    with ThreadingHTTPServer(("127.0.0.1", 0), _Server) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            with FaultProxy.start(server.server_port) as proxy:
                yield proxy
        finally:
            server.shutdown()
            thread.join(10)


@pytest.fixture
def connection(proxy: FaultProxy) -> Iterator[http.client.HTTPConnection]:
    connection = http.client.HTTPConnection("127.0.0.1", proxy.port, timeout=10)
    yield connection
    connection.close()


def get(connection: http.client.HTTPConnection, path: str) -> bytes:
    connection.request("GET", path)
    return connection.getresponse().read()


def test_every_kind_of_body_passes(
    proxy: FaultProxy, connection: http.client.HTTPConnection
) -> None:
    paths = ["/", "/chunked", "/then-close", "/", "/until-close"]
    assert [get(connection, path) == BODY for path in paths] == [True] * 5
    assert proxy.stats().connections == 1  # a close by the server is not passed on
    assert {record.error for record in proxy.log()} == {None}


def test_a_head_has_a_length_and_no_body(connection: http.client.HTTPConnection) -> None:
    connection.request("HEAD", "/")
    answer = connection.getresponse()
    assert answer.getheader("Content-Length") == str(len(BODY))
    assert answer.read() == b""
    assert get(connection, "/") == BODY


def test_an_error_answer_to_a_head_has_no_body(proxy: FaultProxy) -> None:
    proxy.set(Fault(fail_rate=1))
    with socket.create_connection(("127.0.0.1", proxy.port), timeout=10) as connection:
        connection.sendall(b"HEAD / HTTP/1.1\r\nHost: h\r\n\r\n")
        connection.shutdown(socket.SHUT_WR)  # then the proxy closes after its answer
        with connection.makefile("rb") as answer:
            head, _, body = answer.read().partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 503 SlowDown\r\n")
    assert body == b""


def test_a_chunked_request_passes(connection: http.client.HTTPConnection) -> None:
    connection.request("PUT", "/", body=iter([b"abc", BODY]), encode_chunked=True)
    assert connection.getresponse().read() == b"abc" + BODY


def test_a_chunked_body_is_cut_too(
    proxy: FaultProxy, connection: http.client.HTTPConnection
) -> None:
    proxy.set(Fault(action="body_close", cut_fraction=0.5))
    with pytest.raises(http.client.IncompleteRead, match=r"bytes read"):
        get(connection, "/chunked")
    [record] = proxy.log()
    assert record.fault == "body_close"
    assert len(BODY) // 2 <= record.bytes < len(BODY) // 2 + 50  # half of it with its framing


def test_a_body_that_the_server_cuts_is_no_fault_of_ours(
    proxy: FaultProxy, connection: http.client.HTTPConnection
) -> None:
    with pytest.raises((http.client.IncompleteRead, ConnectionResetError), match=r"."):
        get(connection, "/stops-short")
    [record] = proxy.log()
    assert (record.fault, record.bytes) == (None, 100)
    assert "before the end of the body" in str(record.error)
