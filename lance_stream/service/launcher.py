"""Start the download process of a job, or reach the one that runs. The only place that does."""

from __future__ import annotations

import logging
import os
import socket
import struct
import subprocess
import sys
import time

from lance_stream.errors import DownloadProcessError
from lance_stream.service.environment import check_environment
from lance_stream.service.messages import Hello, encode
from lance_stream.service.runtime import (
    Endpoint,
    lock_is_held,
    locked,
    sweep_stale_endpoints,
)

__all__ = ["connect", "peer_uid"]

logger = logging.getLogger(__name__)

_START_TIMEOUT_S = 60.0
# One that is killed while it starts is started again.
_MAX_STARTS = 3
_SEND_TIMEOUT_S = 30.0
_LOG_TAIL_BYTES = 2000


def connect(endpoint: Endpoint) -> socket.socket:
    """Connect to the download process, starting it if it is not there; says hello.

    Any process of the job may call this at any time: a lock makes one of them the starter.

    Returns:
        A blocking socket whose other end is a process of this user.

    Raises:
        DownloadProcessError: It could not be started in time: gives the end of its log.
    """
    connection = _try_connect(endpoint)
    if connection is None:
        with locked(endpoint.starting_path, _START_TIMEOUT_S):
            connection = _try_connect(endpoint) or _start(endpoint)
    connection.sendall(encode(Hello(os.getpid())))
    return connection


def peer_uid(connection: socket.socket) -> int:
    """User id of the process at the other end of a unix socket."""
    if hasattr(socket, "SO_PEERCRED"):
        size = struct.calcsize("3i")
        raw = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size)
        return int(struct.unpack("3i", raw)[1])
    # Elsewhere the 0700 directory is the guard.
    return os.getuid()


def _try_connect(endpoint: Endpoint) -> socket.socket | None:
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        connection.settimeout(_SEND_TIMEOUT_S)
        connection.connect(endpoint.socket_path)
        if peer_uid(connection) != os.getuid():
            msg = f"{endpoint.socket_path} is served by another user (uid {peer_uid(connection)})"
            raise DownloadProcessError(msg)
    except OSError:
        connection.close()
        return None
    return connection


def _start(endpoint: Endpoint) -> socket.socket:
    """Start the process and connect to it; the caller holds the starting lock."""
    check_environment()
    sweep_stale_endpoints()
    endpoint.make_directories()
    deadline = time.monotonic() + _START_TIMEOUT_S
    started = 0
    while time.monotonic() < deadline:
        connection = _try_connect(endpoint)
        if connection is not None:
            if started:
                logger.info("started download process %s", endpoint.pid())
            return connection
        if not lock_is_held(endpoint.alive_path):
            if started >= _MAX_STARTS:
                break
            started += 1
            _spawn(endpoint)
        time.sleep(0.01)
    msg = (
        f"the download process did not start within {_START_TIMEOUT_S:g} s, or ended at once "
        f"({started} times); "
        f"the end of its log {endpoint.log_path}: {_log_tail(endpoint)}"
    )
    raise DownloadProcessError(msg)


def _spawn(endpoint: Endpoint) -> None:
    """Run the server module detached; returns when it has taken its ``alive`` lock, or failed.

    Its own session keeps Ctrl-C and a dying terminal away from it. It forks before it does
    anything, so that it is nobody's child and leaves no zombie in a trainer.
    """
    package_parent = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    search = [package_parent, *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(search)}
    log = os.open(endpoint.log_path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    try:
        starter = subprocess.Popen(
            [sys.executable, "-m", "lance_stream.service.daemon", endpoint.directory],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            # An empty directory of ours: no module of the user's can shadow one of ours.
            cwd=endpoint.plans_directory,
            env=environment,
            start_new_session=True,
            close_fds=True,
        )
    finally:
        os.close(log)
    try:
        starter.wait(_START_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        starter.kill()
        starter.wait()


def _log_tail(endpoint: Endpoint) -> str:
    try:
        with open(endpoint.log_path, "rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - _LOG_TAIL_BYTES))
            return file.read().decode(errors="replace").strip() or "(empty)"
    except OSError:
        return "(no log)"
