"""Free the host's loops from two waits that nobody else ends.

The stock class waits for the state of a shard by looking at it every 7 ms, without a deadline:

- a shard that was prepared and evicted again between two looks is REMOTE, and its waiter, which
  expects LOCAL, asks nobody for it: with a cache limit of a few shards that happens;
- a shard whose worker was killed while it prepared it is PREPARING for ever.

One thread per process looks at the shard that the host waits for. It needs the dataset, which the
host does not give to its streams: it is the caller of ``prepare_shard``. Written against
mosaicml-streaming 0.13, whose range is pinned.
"""

from __future__ import annotations

import atexit
import logging
import os
import threading
import time
import weakref
from types import FrameType

from streaming import StreamingDataset
from streaming.base.dataset import _IterState, _ShardState

from lance_stream.host.cache import StreamCache

__all__ = ["watch", "watch_caller"]

logger = logging.getLogger(__name__)

_LOOK_EVERY_S = 0.1
# With a cache limit, what others evict is unmapped this often.
_UNMAP_EVERY_S = 0.02
# Our own part of preparing takes well under a millisecond, the host's two file locks little more.
_ABANDONED_AFTER_S = 3.0

# How long the end of the interpreter waits for a thread that looks.
_END_S = 5.0

_WATCHED: weakref.WeakSet[StreamingDataset] = weakref.WeakSet()
_THREADS: weakref.WeakSet[threading.Thread] = weakref.WeakSet()
_ENDING = threading.Event()


def watch_caller(frame: FrameType | None) -> None:
    """Begin to watch the dataset whose method runs in a frame, if it is one; once per process.

    Args:
        frame: The frame that called the stream or a reader.
    """
    dataset = frame.f_locals.get("self") if frame else None
    if isinstance(dataset, StreamingDataset):
        watch(dataset)


def watch(dataset: StreamingDataset) -> None:
    """Begin to watch a dataset; once per process."""
    if dataset not in _WATCHED:
        _WATCHED.add(dataset)
        look = _Watch(weakref.ref(dataset))
        thread = threading.Thread(target=look.run, name="lance_stream watch", daemon=True)
        _THREADS.add(thread)
        thread.start()


class _Watch:
    """What the host's loops of one dataset wait for in this process."""

    def __init__(self, dataset: weakref.ref[StreamingDataset]) -> None:
        self._dataset = dataset
        self._seen: tuple[int, int, int] | None = None
        self._since = 0.0
        self._next_look = 0.0

    def run(self) -> None:
        pause_s: float | None = _LOOK_EVERY_S
        while pause_s is not None and not _ENDING.wait(pause_s):
            pause_s = self._turn()

    def _turn(self) -> float | None:
        """Look once; seconds until the next time, None if there is nothing to watch any more.

        Nothing of the dataset is held between two turns: it would live on by it.
        """
        dataset = self._dataset()
        if dataset is None:
            return None
        try:
            if time.monotonic() >= self._next_look:
                self._look(dataset)
                self._next_look = time.monotonic() + _LOOK_EVERY_S * 0.9
            note_progress = getattr(dataset, "note_progress", None)
            if note_progress is not None:
                note_progress()
            caches = [getattr(stream, "cache", None) for stream in dataset.streams]
            limited = [c for c in caches if isinstance(c, StreamCache) and c.limited]
            # A worker that waits must not hold the disk space of what others evict.
            for cache in limited:
                cache.drop_evicted()
        except Exception:
            logger.exception("stopped watching %r", dataset)
            return None
        return _UNMAP_EVERY_S if limited else _LOOK_EVERY_S

    def _look(self, dataset: StreamingDataset) -> None:
        waited_for = _waited_for(dataset)
        if waited_for is None or waited_for != self._seen:
            self._seen, self._since = waited_for, time.monotonic()
            return
        _, shard, state = waited_for
        if state == _ShardState.REMOTE:
            logger.debug("shard %d was evicted while the host waited for it: preparing it", shard)
            dataset.prepare_shard(shard, False)
        elif time.monotonic() - self._since > _ABANDONED_AFTER_S:
            logger.warning("shard %d was left half prepared by a process that is gone", shard)
            dataset._shard_states[shard] = _ShardState.REMOTE
            self._seen = None


def _waited_for(dataset: StreamingDataset) -> tuple[int, int, int] | None:
    """Position, shard and state of what a loop of the host waits for; None if it does not."""
    iterator = getattr(dataset, "_iterator", None)
    if iterator is None or iterator._state != _IterState.ITERATING:
        return None
    # The ready thread waits for any state but LOCAL to pass, reading a sample for PREPARING only.
    for position, waits_for in (
        (iterator.ready_index, (_ShardState.REMOTE, _ShardState.PREPARING)),
        (iterator.yield_index, (_ShardState.PREPARING,)),
    ):
        if position >= iterator.total or iterator.sample_ids[position] == -1:
            continue
        shard, _ = dataset.spanner[int(iterator.sample_ids[position])]
        state = int(dataset._shard_states[shard])
        ours = isinstance(getattr(dataset.shards[shard], "cache", None), StreamCache)
        if ours and state in waits_for:
            return position, int(shard), state
    return None


def _after_fork_in_child() -> None:
    global _ENDING  # noqa: PLW0603
    _WATCHED.clear()
    _THREADS.clear()
    # A thread that is not here may have held its lock.
    _ENDING = threading.Event()


def _end() -> None:
    """Before the interpreter ends, let the threads end.

    One that drops the last reference to a dataset meanwhile, and with it mapped files, would be
    stopped by Python 3.11 inside a destructor of Arrow, which ends the process with SIGABRT.
    """
    _ENDING.set()
    for thread in list(_THREADS):
        thread.join(_END_S)


os.register_at_fork(after_in_child=_after_fork_in_child)
atexit.register(_end)
