"""What lies in the local caches when a dataset is built."""

from __future__ import annotations

import contextlib
import logging
import os
import weakref

import numpy as np
from numpy.typing import NDArray

from lance_stream.errors import PlanError
from lance_stream.host.cache import StreamCache
from lance_stream.processes import is_alive, this_node
from lance_stream.shards.paths import is_shard_name, sweep_temporary_files

__all__ = ["check_only_copies", "find_shards"]

logger = logging.getLogger(__name__)

# Of this process.
_CACHES: weakref.WeakSet[StreamCache] = weakref.WeakSet()


def find_shards(cache: StreamCache, usage: NDArray[np.int64]) -> None:
    """Find which shards are in a cache; remove what dead jobs left behind.

    Under a cache limit, shards of other data are removed too: the limit would not count them. Not
    those of another stream that this process has: its own limit counts them.

    Args:
        cache: Of one stream.
        usage: int64 array (shards,), filled with bytes; 0: not there.
    """
    directory = cache.address.directory
    others = [other for other in _CACHES if other.address.directory == directory]
    _CACHES.add(cache)
    for name in sweep_temporary_files(directory, is_alive, this_node()):
        logger.info("removed %s, left behind by a process that is gone", name)
    with os.scandir(directory) as entries:
        for entry in entries:
            if not is_shard_name(entry.name):
                continue
            shard = cache.names.find(entry.name)
            if shard is not None:
                if not entry.is_file(follow_symlinks=False):
                    continue  # What was planted there; the shard takes its place.
                # A job whose locks do not reach this node may evict meanwhile.
                with contextlib.suppress(FileNotFoundError):
                    size = entry.stat(follow_symlinks=False).st_size
                    usage[shard] = size
                    cache.ledger.charge(shard, size)
            elif cache.limited and all(other.names.find(entry.name) is None for other in others):
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(entry.path)


def check_only_copies(dataset: object, ours: type) -> None:
    """Refuse a cache limit under which the host would evict the only copy of another stream.

    Args:
        dataset: Who asks for shards: the dataset that is being built, if it is one.
        ours: The class of streams that can fetch any shard again.

    Raises:
        PlanError: Names the directory.
    """
    if not getattr(dataset, "cache_limit", None):
        return
    for stream in getattr(dataset, "streams", None) or ():
        fetched = isinstance(stream, ours) or getattr(stream, "remote", None) not in (
            None,
            stream.local,
        )
        if not fetched:
            msg = (
                f"cache_limit evicts shards of every stream, and {stream.local!r} has no other "
                "copy to fetch them from again: give that stream a remote=, or no cache_limit"
            )
            raise PlanError(msg)
