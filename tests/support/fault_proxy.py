r"""An HTTP proxy in a process of its own that counts requests and damages them on demand.

    with FaultProxy.start(server.port) as proxy:
        proxy.set(Fault(method="GET", path=r"\.lance$", action="body_reset", action_next=1))
        ...  # read through proxy.endpoint
        assert [record.fault for record in proxy.log()] == ["body_reset", None]

Requests are forwarded with all their headers. So Host still names the proxy, as the client signed
it, and SeaweedFS, which checks the S3 signature against that header, accepts.
"""

from __future__ import annotations

import json
import socket
from types import TracebackType
from typing import Any

from tests.support.faults import Action, Fault, ProxyStats, RequestRecord
from tests.support.scripts import RunningScript, start_script

__all__ = [
    "Action",
    "Fault",
    "FaultProxy",
    "FaultProxyError",
    "ProxyControl",
    "ProxyStats",
    "RequestRecord",
]

_READY_S = 20.0
_CONTROL_S = 20.0
_SERVER = "from tests.support.proxy_server import main\nmain()\n"


class FaultProxyError(RuntimeError):
    """The proxy did not do what it was told; says why."""


class ProxyControl:
    """Commands to a running proxy, from any process or thread: each has its own connection."""

    def __init__(self, control_port: int) -> None:
        self.control_port = control_port

    def set(self, *faults: Fault) -> None:
        """Replaces the faults; a request is subject to the first that matches it.

        Requests that have arrived before keep the fault that they met, so a hang goes on.
        """
        self._send("set", [fault.to_json() for fault in faults])

    def clear(self) -> None:
        """From now on requests pass unharmed. The log stays."""
        self.set()

    def log(self) -> list[RequestRecord]:
        """The requests that arrived since the last call, in order; also those still in flight."""
        return [RequestRecord(**record) for record in self._send("log")]

    def stats(self) -> ProxyStats:
        """The counts so far."""
        return ProxyStats(**self._send("stats"))

    def reset_stats(self) -> None:
        """Starts the counts anew; what is in flight stays counted."""
        self._send("reset_stats")

    def _send(self, command: str, argument: Any = None) -> Any:
        line = json.dumps({"command": command, "argument": argument}).encode() + b"\n"
        address = ("127.0.0.1", self.control_port)
        try:
            with (
                socket.create_connection(address, timeout=_CONTROL_S) as connection,
                connection.makefile("rb") as answers,
            ):
                connection.sendall(line)
                answer = json.loads(answers.readline())
        except (OSError, ValueError) as error:
            raise FaultProxyError(
                f"no answer to {command!r} from the proxy's control port {self.control_port}:"
                f" {error}{self._diagnosis()}"
            ) from error
        if "error" in answer:
            raise FaultProxyError(f"the proxy refused {command!r}: {answer['error']}")
        return answer["result"]

    def _diagnosis(self) -> str:
        return ""


class FaultProxy(ProxyControl):
    """A proxy process in front of one server on 127.0.0.1; made by `start`, a context manager."""

    def __init__(self, script: RunningScript, port: int, control_port: int) -> None:
        super().__init__(control_port)
        self._script = script
        self.port = port

    @classmethod
    def start(cls, upstream_port: int, *, port: int = 0) -> FaultProxy:
        """Starts a proxy and returns when it listens (0.2 s).

        The server need not be there yet. The proxy dies with the thread that starts it.

        Args:
            upstream_port: The server's port on 127.0.0.1.
            port: The proxy's own, to replace one that was stopped; default a free one.

        Raises:
            AssertionError: It ended or was not ready in 20 s; shows its output.
        """
        script = start_script(_SERVER, upstream_port, port)
        try:
            match = script.wait_for_line(r"^ready port=(\d+) control_port=(\d+)$", _READY_S)
        except BaseException:
            script.close()
            raise
        return cls(script, int(match[1]), int(match[2]))

    @property
    def endpoint(self) -> str:
        """The URL to use in place of the server's."""
        return f"http://127.0.0.1:{self.port}"

    @property
    def pid(self) -> int:
        """The process id of the proxy."""
        return self._script.pid

    def stop(self) -> None:
        """Kills the proxy: its connections are reset, new ones refused. May be repeated."""
        self._script.close()

    def __enter__(self) -> FaultProxy:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.stop()

    def _diagnosis(self) -> str:
        status = self._script.poll()
        state = "it runs" if status is None else f"it ended with status {status}"
        return f" ({state})\n{self._script.stderr()[-4000:]}"
