"""Real Redis and memcached servers on free loopback ports, to be killed, paused and filled."""

from __future__ import annotations

import fcntl
import os
import random
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType

from tests.support.processes import kill_group, leashed, tail

_READY_S = 20.0
_POLL_S = 0.01
_INSTALL_S = 300.0
_START_ATTEMPTS = 3
# Below 32768, where Linux begins to hand out ports to outgoing connections, and apart from those
# of the S3 server.
_PORTS = range(22_000, 31_000)
_PACKAGES = {"redis-server": "redis-server", "memcached": "memcached"}


class ServerError(RuntimeError):
    """A server could not be installed or started; says why and shows the end of its log."""


class LoopbackServer:
    """One server process; a context manager.

    The kernel kills it when the thread that started it ends, so start it from the main thread.
    """

    def __init__(
        self, directory: Path, command: Callable[[int], list[str]], greeting: bytes, answer: bytes
    ) -> None:
        """Starts it and waits until it answers.

        Args:
            directory: For its log.
            command: Its command line for a port.
            greeting: What it is asked to see whether it is ready.
            answer: How its answer starts.

        Raises:
            ServerError: It ended early, or did not answer.
        """
        self._log_path = directory / "server.log"
        self._command = command
        self._greeting, self._answer = greeting, answer
        self._process: subprocess.Popen[bytes] | None = None
        for attempts_left in reversed(range(_START_ATTEMPTS)):
            self.port = _free_port()
            try:
                self.start_again()
            except ServerError as error:
                # Somebody took the port after it was found free.
                if "in use" not in str(error) or not attempts_left:
                    raise
            else:
                return

    @property
    def address(self) -> str:
        """Host and port."""
        return f"127.0.0.1:{self.port}"

    def start_again(self) -> None:
        """Starts it at the same port, empty, after ``kill``."""
        with self._log_path.open("ab") as log:
            self._process = subprocess.Popen(
                leashed(self._command(self.port)),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                cwd=self._log_path.parent,
                start_new_session=True,
            )
        deadline_s = time.monotonic() + _READY_S
        while not self._answers():
            status = self._process.poll()
            if status is not None or time.monotonic() > deadline_s:
                self.kill()
                raise ServerError(
                    f"{self._command(self.port)[0]} at port {self.port}: status {status}, no "
                    f"answer\n--- {self._log_path}\n{tail(self._log_path)}"
                )
            time.sleep(_POLL_S)

    def kill(self) -> None:
        """Kills it; may be repeated."""
        if self._process is not None:
            kill_group(self._process.pid)
            self._process.wait(10)
            self._process = None

    def pause(self) -> None:
        """Stops it where it is: the port takes connections, and nobody answers."""
        assert self._process is not None
        kill_group(self._process.pid, signal.SIGSTOP)

    def resume(self) -> None:
        """Lets it go on."""
        if self._process is not None:
            kill_group(self._process.pid, signal.SIGCONT)

    def __enter__(self) -> LoopbackServer:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.kill()

    def _answers(self) -> bool:
        try:
            with socket.create_connection(("127.0.0.1", self.port), timeout=1) as connection:
                if not self._greeting:
                    return True
                connection.sendall(self._greeting)
                return connection.recv(len(self._answer)) == self._answer
        except OSError:
            return False


def start_redis(
    directory: Path, *options: str, tls_directory: Path | None = None
) -> LoopbackServer:
    """Starts a Redis server that keeps nothing on disk.

    Args:
        directory: An existing directory for its log.
        options: Further options of its command line, such as ``--requirepass``, ``secret``.
        tls_directory: Where ``server.pem``, ``server.key`` and ``ca.pem`` are; it then speaks
            only TLS.
    """
    binary = find_server("redis-server")

    def command(port: int) -> list[str]:
        ports = ["--port", str(port)]
        if tls_directory is not None:
            ports = ["--port", "0", "--tls-port", str(port), "--tls-auth-clients", "no"]
            ports += ["--tls-cert-file", str(tls_directory / "server.pem")]
            ports += ["--tls-key-file", str(tls_directory / "server.key")]
            ports += ["--tls-ca-cert-file", str(tls_directory / "ca.pem")]
        fixed = ["--bind", "127.0.0.1", "--save", "", "--appendonly", "no", "--daemonize", "no"]
        return [binary, *fixed, *ports, *options]

    # With a password the answer is an error, which is an answer too.
    plain = tls_directory is None
    protected = "--requirepass" in options
    answer = b"-NOAUTH" if protected else b"+PONG"
    return LoopbackServer(directory, command, b"PING\r\n" if plain else b"", answer)


def start_memcached(directory: Path, *options: str) -> LoopbackServer:
    """Starts a memcached server.

    Args:
        directory: An existing directory for its log.
        options: Further options of its command line, such as ``-m``, ``64``.
    """
    binary = find_server("memcached")
    user = ["-u", "nobody"] if os.getuid() == 0 else []

    def command(port: int) -> list[str]:
        return [binary, "-l", "127.0.0.1", "-p", str(port), "-U", "0", "-t", "2", *user, *options]

    return LoopbackServer(directory, command, b"version\r\n", b"VERSION")


def find_server(name: str) -> str:
    """Path of a server's binary, installed first if it is missing and we may.

    Raises:
        ServerError: It is missing and cannot be installed. Tests must fail then, not skip.
    """
    found = shutil.which(name, path=_search_path())
    if found is None:
        _install(name)
        found = shutil.which(name, path=_search_path())
    if found is None:
        raise ServerError(f"{name} is not on PATH after its package was installed")
    return found


def _search_path() -> str:
    return os.pathsep.join([os.environ.get("PATH", os.defpath), "/usr/sbin", "/usr/bin"])


def _install(name: str) -> None:
    package = _PACKAGES[name]
    apt_get = shutil.which("apt-get", path=_search_path())
    if os.getuid() != 0 or apt_get is None:
        raise ServerError(f"{name} is missing: apt-get install {package}")
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    install = [apt_get, "install", "-y", "--no-install-recommends", package]
    # Two test runs must not both hold apt's own lock.
    with (Path(tempfile.gettempdir()) / "lance-stream-tests-apt.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if shutil.which(name, path=_search_path()):
            return
        for command in ([apt_get, "update"], install):
            done = subprocess.run(
                command, env=environment, capture_output=True, text=True, timeout=_INSTALL_S
            )
        if done.returncode:
            raise ServerError(f"{name} is missing, {' '.join(install)}: {done.stderr[-2000:]}")


def _free_port() -> int:
    # Not seeded: two test runs on one machine must not walk through the same ports.
    for port in random.SystemRandom().sample(_PORTS, 200):
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
    raise ServerError(f"none of 200 random ports in {_PORTS} is free")
