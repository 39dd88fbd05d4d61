"""Prepare shards by the stock class's shared state, without ever waiting for a dead process."""

from __future__ import annotations

import contextlib
import importlib
import logging
import os
import time
import weakref
from typing import Any

import numpy as np
from filelock import FileLock
from numpy.typing import NDArray
from streaming import StreamingDataset
from streaming.base.batching import generate_work
from streaming.base.constant import CACHE_FILELOCK, EPOCH_DATA, EPOCH_SHAPE
from streaming.base.dataset import _ShardState
from streaming.base.shared import SharedArray, SharedMemory, _get_path

from lance_stream.errors import ShardUnavailableError
from lance_stream.host.locks import locked
from lance_stream.host.meeting import LAST_STEP, Meeting
from lance_stream.host.reader import LanceReader
from lance_stream.processes import start_time

__all__ = ["PreparingDataset"]

logger = logging.getLogger(__name__)

# Python's own, without the tracker of resources, which would complain of what it did not see made.
_shared_memory: Any = importlib.import_module("_posixshmem")

# How long a live process may prepare a shard, beyond what downloading it may take.
_MARGIN_S = 60.0
_LOOK_EVERY_S = 0.005


class PreparingDataset(StreamingDataset):
    """A ``StreamingDataset`` that notes who prepares a shard, and takes over from the dead."""

    def __init__(self, **arguments: Any) -> None:
        """Take the arguments of ``streaming.StreamingDataset``."""
        super().__init__(**arguments)
        self._preparers = SharedArray(
            self.num_shards,
            np.int64,
            _get_path(self._shm_prefix_int, f"lance_stream_preparers_{self.num_shards}"),
        )
        self._meeting = Meeting(
            self._shared_barrier.filelock_path,
            _get_path(self._shm_prefix_int, "lance_stream_meeting"),
            self._unique_rank_world.rank_of_node,
            self._unique_rank_world.ranks_per_node,
        )
        _DATASETS.add(self)

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != CACHE_FILELOCK}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        _DATASETS.add(self)

    def after_fork(self) -> None:
        """In a forked child: file locks made before are the parent's."""
        self.__dict__.pop(CACHE_FILELOCK, None)
        self._meeting.__dict__.pop("lock", None)

    def _resume_incr_epoch(self) -> tuple[int, int]:
        # The next epoch is another only when all have begun this one: what dies meanwhile must not
        # cost the others an epoch, or what they resume.
        self._meeting.begin(self._unique_worker_world.workers_per_node)
        return self._resume(self._parallel_worker_world, self.next_epoch)

    def _get_work(self, epoch: int, sample_in_epoch: int) -> NDArray[np.int64]:
        world = self._parallel_worker_world
        if self._unique_worker_world.is_local_leader:
            if (self.replication or 1) > 1 and not world.worker_of_rank:
                logger.warning(
                    "replication=%d: samples that are counted for state_dict(num_samples) count "
                    "once for all ranks that have the same ones",
                    self.replication,
                )
            work = generate_work(self.batching_method, self, world, epoch, sample_in_epoch)
            with self._meeting.undisturbed():
                shared = self._share_work(work)
            self._meeting.reach(2)
        else:
            self._meeting.reach(2)
            with self._meeting.undisturbed():
                work, *shared = self._attach_work()
        mine = work[world.node, world.rank_of_node, world.worker_of_rank].flatten()
        del work

        def all_begin() -> None:
            self.next_epoch = epoch + 1

        self._meeting.reach(LAST_STEP, all_begin)
        with self._meeting.undisturbed():
            for memory in shared:
                if memory is not None:
                    memory.cleanup()
        return mine

    def _share_work(
        self, sample_ids: NDArray[np.int64]
    ) -> tuple[SharedMemory, SharedMemory | None]:
        # A worker that was killed while it shared an epoch has left it; the host would fail on it
        # in every later epoch.
        for name in (EPOCH_SHAPE, EPOCH_DATA):
            with contextlib.suppress(FileNotFoundError):
                _shared_memory.shm_unlink(f"/{_get_path(self._shm_prefix_int, name)}")
        return super()._share_work(sample_ids)

    def missing(self, shards: NDArray[np.int64]) -> list[int]:
        """Those of some shards that are not in the cache, in the same order."""
        if not len(shards):
            return []
        return shards[self._shard_states.numpy()[shards] != _ShardState.LOCAL].tolist()

    def is_quick(self, shard_id: int) -> bool:
        """Whether asking for a shard returns at once."""
        return isinstance(self.shards[shard_id], LanceReader)

    def _is_present(self, shard_id: int) -> bool:
        """Whether a shard can be read without waiting."""
        reader = self.shards[shard_id]
        if isinstance(reader, LanceReader):
            return reader.cache.is_present(reader.shard)
        return os.path.isfile(self._raw_path(shard_id))

    def _raw_path(self, shard_id: int) -> str:
        stream = self.streams[self.stream_per_shard[shard_id]]
        raw, _ = self.shards[shard_id].file_pairs[0]
        return os.path.join(stream.local, stream.split or "", raw.basename)

    def prepare_shard(self, shard_id: int, blocking: bool = True) -> None:
        """Download a shard, or ask for it; as in the stock class, but never waits for the dead.

        Args:
            shard_id: Shard of the dataset.
            blocking: Whether to wait while another process prepares it.

        Raises:
            ShardUnavailableError: The other process takes longer than any download may.
        """
        stream = self.streams[self.stream_per_shard[shard_id]]
        shard = self.shards[shard_id]
        deadline: float | None = None
        while True:
            with locked(self._lock(), f"shard {shard_id}"):
                state = int(self._shard_states[shard_id])
                if state == _ShardState.PREPARING and not self._is_in_preparation(shard_id):
                    logger.warning("shard %d was left half prepared by a dead process", shard_id)
                    state = _ShardState.REMOTE
                if state != _ShardState.PREPARING:
                    self._shard_access_times[shard_id] = self.access_time(shard_id)
                    if state == _ShardState.LOCAL and os.path.isfile(self._raw_path(shard_id)):
                        return
                    if state == _ShardState.REMOTE and self.cache_limit:
                        self._make_room(shard.get_max_size())
                    self._preparers[shard_id] = os.getpid()
                    self._shard_states[shard_id] = _ShardState.PREPARING
                    break
            if not blocking:
                return
            if deadline is None:
                tries = 1 + int(getattr(stream, "download_retry", 2) or 0)
                each = float(getattr(stream, "download_timeout", 60.0) or 60.0)
                deadline = time.monotonic() + tries * each + _MARGIN_S
            if time.monotonic() > deadline:
                msg = (
                    f"shard {shard_id}: process {int(self._preparers[shard_id])} has been "
                    "preparing it for longer than download_timeout and download_retry allow"
                )
                raise ShardUnavailableError(msg)
            time.sleep(_LOOK_EVERY_S)
        try:
            change = stream.prepare_shard(shard)
        except BaseException:
            # As it was, and counted so: whoever comes next tries again, and gets the error itself.
            with locked(self._lock(), f"shard {shard_id}"):
                self._shard_states[shard_id] = state
            raise
        with locked(self._lock(), f"shard {shard_id}"):
            self.cache_usage += change
            self._shard_access_times[shard_id] = self.access_time(shard_id)
            self._shard_states[shard_id] = _ShardState.LOCAL

    def access_time(self, shard_id: int) -> int:  # noqa: ARG002
        """What the host's record of accesses gets for a shard that is used, or prepared, now."""
        return time.time_ns()

    def _is_in_preparation(self, shard_id: int) -> bool:
        # A killed worker is a zombie until the trainer, which may be busy, takes note.
        pid = int(self._preparers[shard_id])
        return pid != 0 and start_time(pid) is not None

    def _make_room(self, num_bytes: int) -> None:
        """Evict until so many bytes fit; the caller holds the lock."""
        while self.cache_usage + num_bytes > int(self.cache_limit or 0):
            self._evict_coldest_shard()

    def _lock(self) -> FileLock:
        # Made where it is used: it cannot be pickled, nor used in a forked child.
        if not hasattr(self, CACHE_FILELOCK):
            setattr(self, CACHE_FILELOCK, FileLock(self._cache_filelock_path))
        return getattr(self, CACHE_FILELOCK)


_DATASETS: weakref.WeakSet[PreparingDataset] = weakref.WeakSet()


def _after_fork_in_child() -> None:
    for dataset in list(_DATASETS):
        dataset.after_fork()


os.register_at_fork(after_in_child=_after_fork_in_child)
