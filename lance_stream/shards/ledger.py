"""What the cache was told that each shard takes on disk, shared by all processes of a dataset.

The host keeps one number, the cache usage: preparing a shard adds what ``prepare_shard``
returns, evicting subtracts what ``Reader.evict`` returns. The size of a shard is not known before
it was written, so a shard is first *charged* with an estimate and later corrected. The ledger
remembers what was charged, so that the two sides are always the same number, whichever process
asks. It is a small file in the cache directory::

    int64 evictions          how often a shard was released
    int64 held               how many shards are charged
    int64 prepared_ns        when a shard was last prepared, on the machine's monotonic clock
    int64 (charged, releases)[shards]
                             bytes charged for each shard (0: not in the cache, not wanted), and
                             how often it was released: readers drop mappings of older files

It also tells the download process whether a shard is still wanted: an evicted one is not.
"""

from __future__ import annotations

import fcntl
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from lance_stream.errors import ShardUnavailableError
from lance_stream.shards.mapping import map_writable

__all__ = ["Ledger", "create_ledger"]

_WORD = 8
_EVICTIONS, _HELD, _PREPARED_NS, _SHARDS = range(4)


def create_ledger(path: str, num_shards: int) -> None:
    """Make an empty ledger file, atomically.

    Raises:
        OSError: The file cannot be made; the disk is full, for one.
    """
    temporary = f"{path}.new"
    descriptor = os.open(temporary, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o600)
    try:
        # Written, not sparse: a full disk is an error here, instead of a SIGBUS later.
        _fill(descriptor, (_SHARDS + 2 * num_shards) * _WORD)
    finally:
        os.close(descriptor)
    os.rename(temporary, path)


class _Threads:
    """The lock of a file is between processes; this one is between threads, for all ledgers."""

    lock = threading.Lock()


def _after_fork_in_child() -> None:
    """A thread that is not here may have held it."""
    _Threads.lock = threading.Lock()


os.register_at_fork(after_in_child=_after_fork_in_child)


class Ledger:
    """An open ledger. Not picklable and not for use after a fork: open it again by its path."""

    def __init__(self, path: str) -> None:
        """Map the ledger file.

        Raises:
            FileNotFoundError: The dataset that made it is gone.
        """
        self.path = path
        # Closing any descriptor of a file drops the process's lock on it: never meanwhile.
        with _Threads.lock:
            descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
            try:
                view, self._mapping = map_writable(descriptor, os.fstat(descriptor).st_size)
            finally:
                os.close(descriptor)
        self._words = view.cast("q")

    @property
    def evictions(self) -> int:
        """How often any process released a shard."""
        return self._words[_EVICTIONS]

    @property
    def held(self) -> int:
        """How many shards are charged."""
        return self._words[_HELD]

    def charged(self, shard: int) -> int:
        """Bytes charged for the shard; 0 if it is neither in the cache nor wanted."""
        return self._words[_SHARDS + 2 * shard]

    def pause_before_eviction_s(self, now_ns: int, residence_s: float) -> float:
        """How long to wait so that no shard is evicted sooner than it can be noticed. Pure.

        Preparing one shard evicts about one, the one that was used longest ago, so a shard stays
        for as long as it takes to prepare about as many others as the cache holds.

        Args:
            now_ns: Now, on the machine's monotonic clock.
            residence_s: How long a shard must stay.

        Returns:
            Seconds; 0 while nothing was evicted yet, and as good as always in a large cache.
        """
        if not self._words[_EVICTIONS]:
            return 0.0
        spacing_s = residence_s / max(1, self._words[_HELD] - 2)
        return max(0.0, spacing_s - (now_ns - self._words[_PREPARED_NS]) / 1e9)

    def note_prepared(self, now_ns: int) -> None:
        """Remember when a shard was last prepared."""
        self._words[_PREPARED_NS] = now_ns

    def releases(self, shard: int) -> int:
        """How often the shard was released."""
        return self._words[_SHARDS + 2 * shard + 1]

    def charge(self, shard: int, num_bytes: int) -> int:
        """Set the bytes of a shard; returns the change."""
        with self._locked():
            return self._set(shard, num_bytes)

    def correct(self, shard: int, path: str) -> int:
        """Set the bytes of a charged shard to the size of its file, if there; the change."""
        with self._locked():
            if not self._words[_SHARDS + 2 * shard]:
                return 0
            try:
                num_bytes = os.stat(path).st_size
            except FileNotFoundError:
                return 0
            return self._set(shard, num_bytes)

    def release(self, shard: int, path: str) -> int:
        """Remove the shard's file and forget its bytes; returns what was charged.

        The order matters: the download process publishes first and then looks whether the
        shard is still wanted, so one of the two sides removes a file nobody wants.
        """
        with self._locked():
            change = self._set(shard, 0)
            self._words[_EVICTIONS] += 1
            self._words[_SHARDS + 2 * shard + 1] += 1
            try:
                os.unlink(path)
            except FileNotFoundError:
                pass
            return -change

    def _set(self, shard: int, num_bytes: int) -> int:
        before = self._words[_SHARDS + 2 * shard]
        self._words[_SHARDS + 2 * shard] = num_bytes
        self._words[_HELD] += (num_bytes > 0) - (before > 0)
        return num_bytes - before

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """Hold the ledger against threads and processes; the kernel frees a dead holder's lock."""
        with _Threads.lock:
            # Opened for this alone: a dataset of many streams has as many ledgers. Not flock: a
            # child forked at this moment would hold the lock on.
            try:
                descriptor = os.open(self.path, os.O_RDWR | os.O_CLOEXEC)
            except FileNotFoundError as error:
                # Not to be taken for a shard that was evicted.
                msg = (
                    f"{self.path} is gone: the dataset was closed where it was built, or its "
                    "cache directory removed; build it again"
                )
                raise ShardUnavailableError(msg) from error
            try:
                fcntl.lockf(descriptor, fcntl.LOCK_EX)
                yield
            finally:
                os.close(descriptor)


def _fill(descriptor: int, size: int) -> None:
    if hasattr(os, "posix_fallocate"):
        os.posix_fallocate(descriptor, 0, size)
    else:
        os.write(descriptor, bytes(size))
