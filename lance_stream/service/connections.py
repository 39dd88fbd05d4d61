"""Connections of this process to download processes, which forked children must not keep open.

A download process ends soon after its last connection is closed: a copy in a child would hold it.
"""

from __future__ import annotations

import contextlib
import os
import socket

__all__ = ["close", "keep_from_children"]

_INHERITED: list[socket.socket] = []


def keep_from_children(connection: socket.socket) -> None:
    """Have children that are forked from now on close their copies."""
    _INHERITED.append(connection)


def close(connection: socket.socket) -> None:
    """Close a connection of this process."""
    connection.close()
    with contextlib.suppress(ValueError):
        _INHERITED.remove(connection)


def _after_fork_in_child() -> None:
    for connection in _INHERITED:
        connection.close()
    _INHERITED.clear()


os.register_at_fork(after_in_child=_after_fork_in_child)
