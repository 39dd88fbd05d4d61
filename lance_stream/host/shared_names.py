"""Release the host's shared memory with the dataset that it is of.

The host keeps each piece of shared memory, its file descriptor and its name until the process
ends, by an exit handler that refers to it; it also keeps those that it only looked at to find a
free name. A process that builds hundreds of datasets would run out of descriptors. With
``release_with_datasets`` an exit handler becomes a finalizer: it runs when the piece is collected,
and at the end of the process for what is left. Written against mosaicml-streaming 0.13.

Where ranks share a node, a name may be removed only when no rank has its dataset any more, and at
a moment when none looks for free names: when the next window is built (``release_dead``).
"""

from __future__ import annotations

import atexit
import contextlib
import os
import re
import tempfile
import weakref
from collections.abc import Callable
from typing import Any

from streaming.base import distributed as host_ranks
from streaming.base.constant import BARRIER_FILELOCK, CACHE_FILELOCK, LOCALS
from streaming.base.shared import memory
from streaming.base.shared.memory import SharedMemory

from lance_stream.host.ranks import Ranks

__all__ = ["release_dead", "release_with_datasets"]

_NAME = re.compile(r"/?([0-9]{6})_(\w+)")


class _ExitHandlers:
    """Takes the place of ``atexit`` in the host's module."""

    def __init__(self) -> None:
        self.live: weakref.WeakSet[SharedMemory] = weakref.WeakSet()
        # Made by this process, and not in use here any more.
        self.dead: list[Any] = []
        self.ending = False
        atexit.register(self._end)

    def register(self, cleanup: Callable[..., Any]) -> Callable[..., Any]:
        owner = getattr(cleanup, "__self__", None)
        if isinstance(owner, SharedMemory):
            self.live.add(owner)
            weakref.finalize(
                owner, self._finish, owner.created_shms, owner.opened_shms, os.getpid()
            )
        else:
            atexit.register(cleanup)
        return cleanup

    def _finish(self, created: list[Any], opened: list[Any], pid: int) -> None:
        if os.getpid() != pid:
            return
        for piece in [*created, *opened]:
            # An array may still look at it: then it is unmapped with that.
            with contextlib.suppress(BufferError):
                piece.close()
        self.dead += created
        if self.ending or host_ranks.get_local_world_size() == 1:
            self.remove(set())

    def remove(self, in_use: set[str]) -> None:
        """Remove the names of what is dead, but for those of some prefixes."""
        kept = []
        for piece in self.dead:
            prefix, name = _parts(piece)
            if prefix in in_use:
                kept.append(piece)
                continue
            with contextlib.suppress(FileNotFoundError):
                piece.unlink()
            if name == LOCALS:
                for lock in (BARRIER_FILELOCK, CACHE_FILELOCK):
                    with contextlib.suppress(FileNotFoundError):
                        os.unlink(os.path.join(tempfile.gettempdir(), f"{prefix}_{lock}"))
        self.dead = kept

    def prefixes(self) -> list[str]:
        """Of the datasets that this process has."""
        found = {_parts(owner.shm)[0] for owner in list(self.live) if owner.shm is not None}
        return sorted(found)

    def _end(self) -> None:
        self.ending = True
        self.remove(set())


class _Installed:
    handlers: _ExitHandlers | None = None


def release_with_datasets() -> None:
    """From now on, release shared memory of the host with the dataset that it is of."""
    if _Installed.handlers is None:
        _Installed.handlers = _ExitHandlers()
        memory.atexit = _Installed.handlers  # type: ignore[assignment]


def release_dead(ranks: Ranks) -> None:
    """On every rank at once: remove the names of datasets that no rank of the node has left."""
    handlers = _Installed.handlers
    if ranks.num_ranks == 1:
        return
    everybody = ranks.each(lambda: {"prefixes": [] if handlers is None else handlers.prefixes()})
    node = everybody[ranks.local_leader : ranks.local_leader + ranks.ranks_per_node]
    if handlers is not None:
        handlers.remove({prefix for theirs in node for prefix in (theirs or {})["prefixes"]})


def _parts(piece: Any) -> tuple[str, str]:
    """Prefix and rest of a name."""
    match = _NAME.fullmatch(piece.name)
    return (match.group(1), match.group(2)) if match else ("", piece.name)
