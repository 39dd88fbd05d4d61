"""Hold a version of a table with a tag while it is trained on, so that cleanup leaves it alone.

A pin is a tag whose name tells its owner:
``lance_stream.pin.<machine>.<boot>.<pids>.<pid>.<start>.<token>``, with hashes of what names the
machine, its start and its space of pids (its container). One is stale, and removed by the next
pin on the same table, if its owner is gone from the same space, or if the machine was started
again since. Of another machine or container nobody here can tell; and a container does not know
its machine, since its name and id are those of an image.
"""

from __future__ import annotations

import logging
import os
import secrets
import socket
from collections.abc import Callable
from typing import Any

from lance_stream.planning.fingerprint import digest

__all__ = ["pin_version", "unpin"]

logger = logging.getLogger(__name__)

_PREFIX = "lance_stream.pin."
# The first space of pids, which no container has (PROC_PID_INIT_INO of Linux).
_OUTSIDE = "pid:[4026531836]"


def pin_version(
    dataset: Any,
    version: int,
    owner: tuple[int, int],
    is_alive: Callable[[int, int], bool],
) -> str:
    """Tag a version, and remove the stale pins of this host.

    Args:
        dataset: Open table.
        version: Which version.
        owner: Pid and start time of the process that trains.
        is_alive: Tells from pid and start time whether a process still runs.

    Returns:
        Name of the tag.

    Raises:
        BaseException: Whatever Lance raises, where tags cannot be written for one.
    """
    host = _host()
    name = f"{_PREFIX}{'.'.join(host)}.{owner[0]}.{owner[1]}.{secrets.token_hex(4)}"
    dataset.tags.create(name, version)
    try:
        for tag in dataset.tags.list():
            if _is_stale(tag, host, is_alive):
                unpin(dataset, tag)
    except (ValueError, OSError) as error:
        # The version is held all the same.
        logger.warning("stale pins cannot be removed: %s", error)
    return name


def _is_stale(tag: str, host: tuple[str, str, str], is_alive: Callable[[int, int], bool]) -> bool:
    """Whether a tag is a pin whose owner is known to be gone."""
    parts = tag.removeprefix(_PREFIX).split(".")
    if not tag.startswith(_PREFIX) or len(parts) != 6:
        return False
    machine, boot, pids, pid, started, _ = parts
    if machine != host[0] or not (pid.isdigit() and started.isdigit()):
        return False
    if boot != host[1]:
        # Nothing lives longer than the machine runs.
        return pids == host[2]
    return pids == host[2] and not is_alive(int(pid), int(started))


def unpin(dataset: Any, name: str) -> None:
    """Remove a pin; nothing if it is gone."""
    try:
        dataset.tags.delete(name)
    except (ValueError, OSError):
        if name in dataset.tags.list():
            raise


def _host() -> tuple[str, str, str]:
    """This machine, its start, and the container on it: where a pid means something."""
    boot = _first_line("/proc/sys/kernel/random/boot_id")
    try:
        pids = os.readlink("/proc/self/ns/pid")
    except OSError:
        pids = ""
    # Without an id of its own a machine is no more than its start.
    machine = boot
    if pids == _OUTSIDE:
        machine = _first_line("/etc/machine-id") or boot
    name = socket.gethostname()
    return (
        digest({"name": name, "machine": machine}, 12),
        digest({"boot": boot}, 12),
        digest({"pids": pids}, 12),
    )


def _first_line(path: str) -> str:
    """Of a file; empty if it cannot be read."""
    try:
        with open(path) as file:
            return file.readline().strip()
    except OSError:
        return ""
