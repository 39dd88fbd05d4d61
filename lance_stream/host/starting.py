"""Two steps of the host's start, made safe: joining the ranks, and naming the shared memory.

The host waits half an hour for ranks that an environment variable has promised, and says nothing.
And it looks for free names of shared memory first and takes them later: of two jobs that begin on
one machine at the same time, one fails. Written against mosaicml-streaming 0.13, whose range is
pinned.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
import sys
import tempfile
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any

from streaming.base import dataset
from streaming.base.constant import LOCALS, SHM_TO_CLEAN
from streaming.base.shared import SharedMemory
from streaming.base.shared.prefix import (
    _check_and_find_retrying,
    _check_self,
    _get_path,
    _pack_locals,
)
from streaming.base.world import World
from torch import distributed as dist

from lance_stream.errors import CacheInUseError, LanceStreamError, PlanError
from lance_stream.host.ranks import Ranks

__all__ = ["join_ranks", "start_safely", "take_prefix"]

logger = logging.getLogger(__name__)

# Its functions are replaced by name, of which a type checker knows nothing.
_host: Any = dataset

# Where Linux shows shared memory, and the names of the host and of ours in it; those of the host's
# lock files, in the temporary directory, are alike.
_SEGMENTS = "/dev/shm"  # noqa: S108
_NAME = re.compile(r"([0-9]{6,})_")

_NEEDED = ("RANK", "MASTER_ADDR", "MASTER_PORT")
_TELL_AFTER_S = 15.0
_MAX_TAKEN = 100


def start_safely(ours: type) -> None:
    """Have the host start datasets that have a stream of ours by the functions below.

    All ranks of a job have the same streams, so that all of them start alike.

    Args:
        ours: The class of streams that are ours.
    """
    if getattr(_host.get_shm_prefix, "is_ours", False):
        return
    their_prefix, their_joining = _host.get_shm_prefix, _host.maybe_init_dist

    def get_shm_prefix(
        streams_local: list[str], streams_remote: list[str | None], world: World, retry: int = 100
    ) -> tuple[int, SharedMemory]:
        take = take_prefix if _has(sys._getframe(1), ours) else their_prefix
        return take(streams_local, streams_remote, world, retry)

    def maybe_init_dist() -> bool:
        return join_ranks(their_joining) if _has(sys._getframe(1), ours) else their_joining()

    get_shm_prefix.is_ours = True  # type: ignore[attr-defined]
    _host.get_shm_prefix = get_shm_prefix
    _host.maybe_init_dist = maybe_init_dist


def join_ranks(join: Callable[[], bool]) -> bool:
    """Join the process group that the environment promises, if it is not up.

    Args:
        join: The host's way; returns whether it did.

    Raises:
        PlanError: The environment promises more ranks and does not say how they meet.
        LanceStreamError: They did not meet.
    """
    size = os.environ.get("WORLD_SIZE", "1")
    if size == "1" or not dist.is_available() or dist.is_initialized():
        return join()
    advice = "start the ranks with torchrun, or unset WORLD_SIZE where there is one process"
    missing = [name for name in _NEEDED if not os.environ.get(name)]
    if missing:
        msg = (
            f"WORLD_SIZE={size} promises as many ranks, but there is no process group and "
            f"{', '.join(missing)} of the environment are not set: {advice}"
        )
        raise PlanError(msg)
    where = f"{os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}"
    waiting = threading.Timer(
        _TELL_AFTER_S,
        logger.warning,
        ("still waiting for the %s ranks of WORLD_SIZE to meet at %s; %s", size, where, advice),
    )
    waiting.daemon = True
    waiting.start()
    try:
        return join()
    except (RuntimeError, ValueError) as error:
        msg = f"the {size} ranks of WORLD_SIZE did not meet at {where}: {error}; {advice}"
        raise LanceStreamError(msg) from error
    finally:
        waiting.cancel()


def take_prefix(
    streams_local: list[str], streams_remote: list[str | None], world: World, retry: int
) -> tuple[int, SharedMemory]:
    """Take a number that names the shared memory of a dataset on this node.

    The first rank of the node looks for a free one and takes it in one step, the others are told.

    Args:
        streams_local: Cache directory of each stream.
        streams_remote: As the host has them.
        world: The host's view of the ranks.
        retry: How often the host looks again where directories overlap.

    Returns:
        The number, and the memory that marks it as taken.
    """
    ranks = Ranks.of(world)
    taken: list[tuple[int, SharedMemory]] = []

    def take() -> dict[str, Any] | None:
        if not ranks.is_local_leader:
            return None
        _check_self(streams_local)
        for _ in range(_MAX_TAKEN):
            prefix = max(
                _check_and_find_retrying(streams_local, streams_remote, name, retry)
                for name in SHM_TO_CLEAN
            )
            # The host finds the first number that each name is free under; one job needs them all,
            # and of one that was killed any may be left.
            used = _used_prefixes()
            while prefix in used:
                prefix += 1
            data = _pack_locals(streams_local, prefix)
            try:
                memory = SharedMemory(_get_path(prefix, LOCALS), True, len(data))
            except FileExistsError:
                # Another job begins at this moment.
                continue
            memory.buf[: len(data)] = data
            taken.append((prefix, memory))
            return {"prefix": prefix}
        msg = (
            f"{_MAX_TAKEN} times another job took the name in /dev/shm that was free a moment "
            "before: are there so many that begin at this time?"
        )
        raise CacheInUseError(msg)

    told = ranks.each(take)[ranks.local_leader] or {}
    if taken:
        return taken[0]
    return told["prefix"], SharedMemory(_get_path(told["prefix"], LOCALS), False)


def _used_prefixes() -> set[int]:
    """Numbers under which something has a name on this machine; none where it does not tell."""
    used = set()
    for folder in (_SEGMENTS, tempfile.gettempdir()):
        with contextlib.suppress(OSError):
            used |= {int(match[1]) for match in map(_NAME.match, os.listdir(folder)) if match}
    return used


def _has(frame: FrameType, ours: type) -> bool:
    """Whether the dataset that is built in a frame has a stream of ours."""
    return any(isinstance(one, ours) for one in frame.f_locals.get("streams") or ())
