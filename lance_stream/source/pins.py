"""Hold a version of a table with a tag while it is trained on, so that cleanup leaves it alone.

A pin is a tag whose name tells its owner: ``lance_stream.pin.<host>.<pid>.<start>.<token>``. One
whose owner is gone from this host is stale, and removed by the next pin on the same table.
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
    name = f"{_PREFIX}{host}.{owner[0]}.{owner[1]}.{secrets.token_hex(4)}"
    dataset.tags.create(name, version)
    try:
        for tag in dataset.tags.list():
            theirs = _owner(tag, host)
            if theirs is not None and not is_alive(*theirs):
                unpin(dataset, tag)
    except (ValueError, OSError) as error:
        # The version is held all the same.
        logger.warning("stale pins cannot be removed: %s", error)
    return name


def _owner(tag: str, host: str) -> tuple[int, int] | None:
    """Pid and start time of who made a pin on this host; None if it is none."""
    parts = tag.removeprefix(_PREFIX).split(".")
    if not tag.startswith(_PREFIX) or len(parts) != 4 or parts[0] != host:
        return None
    return (int(parts[1]), int(parts[2])) if parts[1].isdigit() and parts[2].isdigit() else None


def unpin(dataset: Any, name: str) -> None:
    """Remove a pin; nothing if it is gone."""
    try:
        dataset.tags.delete(name)
    except (ValueError, OSError):
        if name in dataset.tags.list():
            raise


def _host() -> str:
    """This machine since its start, and the container on it: where a pid means something."""
    parts = {"name": socket.gethostname()}
    for key, path in (("boot", "/proc/sys/kernel/random/boot_id"), ("pids", "/proc/self/ns/pid")):
        try:
            if key == "boot":
                with open(path) as file:
                    parts[key] = file.read().strip()
            else:
                parts[key] = os.readlink(path)
        except OSError:
            continue
    return digest(parts, 12)
