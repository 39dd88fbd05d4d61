"""Holds of a trainer on its download process, and on a version of a table: connections."""

from __future__ import annotations

import logging
import os
import select
import socket
from typing import ClassVar

import msgspec

from lance_stream.service import messages as m
from lance_stream.service.connections import close, keep_from_children
from lance_stream.service.launcher import connect
from lance_stream.service.postponing import PostponingLock
from lance_stream.service.runtime import Endpoint
from lance_stream.source.location import redact

__all__ = ["Lease", "PinnedVersion"]

logger = logging.getLogger(__name__)

_WARNED: set[str] = set()


class PinnedVersion:
    """A hold on a version of a table: a tag, until closed or the process ends."""

    def __init__(self, endpoint: Endpoint, request: m.Pin) -> None:
        """Have the tag made; a warning is logged where that is not possible."""
        self._pid = os.getpid()
        self.name = ""
        self._connection = connect(endpoint)
        keep_from_children(self._connection)
        message = "the download process ended"
        try:
            self._connection.settimeout(request.timeout_s + 15.0)
            self._connection.sendall(m.encode(request))
            payload = m.receive_frame(self._connection)
            answer = None if payload is None else m.decode_server(payload)
            if isinstance(answer, m.Pinned):
                self.name, message = answer.name, answer.message
        except (OSError, msgspec.DecodeError) as error:
            message = str(error)
        # Once for a table: a dataset may have hundreds of streams of it.
        if not self.name and request.uri not in _WARNED:
            _WARNED.add(request.uri)
            logger.warning(
                "pin=True: version %d of %s is not held with a tag, a cleanup may remove it while "
                "it is trained on: %s",
                request.version,
                redact(request.uri),
                message,
            )

    def close(self) -> None:
        """Let go of the version."""
        if os.getpid() == self._pid:
            close(self._connection)


class _Leases:
    """Of this process: how many there are for each endpoint, and their one connection."""

    lock = PostponingLock()
    by_endpoint: ClassVar[dict[Endpoint, tuple[int, socket.socket]]] = {}


class Lease:
    """A hold on the download process: it lives at least as long. One connection for all."""

    def __init__(self, endpoint: Endpoint) -> None:
        """Take hold, starting the process if need be."""
        self._endpoint = endpoint
        self._pid = os.getpid()
        self._hold(1)

    def renew(self) -> None:
        """Take hold of a fresh process, if that which was held is gone.

        Raises:
            DownloadProcessError: It cannot be started.
        """
        self._hold(0)

    def _hold(self, more: int) -> None:
        with _Leases.lock:
            count, connection = _Leases.by_endpoint.get(self._endpoint, (0, None))
            if connection is not None and not _is_open(connection):
                close(connection)
                connection = None
            if connection is None:
                connection = connect(self._endpoint)
                keep_from_children(connection)
            _Leases.by_endpoint[self._endpoint] = (count + more, connection)

    def close(self) -> None:
        """Let go of the process."""
        # By a finalizer, as a rule.
        if os.getpid() == self._pid:
            _Leases.lock.do(self._let_go)

    def _let_go(self) -> None:
        count, connection = _Leases.by_endpoint.pop(self._endpoint)
        if count > 1:
            _Leases.by_endpoint[self._endpoint] = (count - 1, connection)
        else:
            close(connection)


def _is_open(connection: socket.socket) -> bool:
    """Whether the other side is there; nothing is ever sent on a lease's connection."""
    if connection.fileno() < 0:
        return False
    poll = select.poll()
    poll.register(connection, select.POLLIN)
    return not poll.poll(0)


def _after_fork_in_child() -> None:
    # The lock may have been held by a thread that is not here.
    _Leases.lock = PostponingLock()
    _Leases.by_endpoint.clear()


os.register_at_fork(after_in_child=_after_fork_in_child)
