"""What the cache was told that each shard takes on disk, shared by all processes of a dataset.

The host keeps one number, the cache usage: preparing a shard adds what ``prepare_shard``
returns, evicting subtracts what ``Reader.evict`` returns. The size of a shard is not known before
it was written, so a shard is first *charged* with an estimate and later corrected. The ledger
remembers what was charged, so that the two sides are always the same number, whichever process
asks. It is a small file in the cache directory::

    int64 evictions                   how often a shard was released: readers drop stale mappings
    int64 charged[shards]             bytes charged for each shard; 0: not in the cache, not wanted

It also tells the download process whether a shard is still wanted: an evicted one is not.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["Ledger", "create_ledger"]

_WORD = 8


def create_ledger(path: str, num_shards: int) -> None:
    """Make an empty ledger file, atomically.

    Raises:
        OSError: The file cannot be made; the disk is full, for one.
    """
    temporary = f"{path}.new"
    descriptor = os.open(temporary, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o600)
    try:
        # Allocated, not sparse: a full disk is an error here, instead of a SIGBUS later.
        os.posix_fallocate(descriptor, 0, (1 + num_shards) * _WORD)
    finally:
        os.close(descriptor)
    os.rename(temporary, path)


class Ledger:
    """An open ledger. Not picklable and not for use after a fork: open it again by its path."""

    def __init__(self, path: str) -> None:
        """Map the ledger file.

        Raises:
            FileNotFoundError: The dataset that made it is gone.
        """
        self.path = path
        self._descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        self._mapped = mmap.mmap(self._descriptor, 0)
        self._words = memoryview(self._mapped).cast("q")
        self._lock = threading.Lock()

    def close(self) -> None:
        """Unmap the file; the ledger must not be used afterwards."""
        self._words.release()
        self._mapped.close()
        os.close(self._descriptor)

    @property
    def evictions(self) -> int:
        """How often any process released a shard."""
        return self._words[0]

    def charged(self, shard: int) -> int:
        """Bytes charged for the shard; 0 if it is neither in the cache nor wanted."""
        return self._words[1 + shard]

    def charge(self, shard: int, num_bytes: int) -> int:
        """Set the bytes of a shard; returns the change."""
        with self._locked():
            return self._set(shard, num_bytes)

    def correct(self, shard: int, path: str) -> int:
        """Set the bytes of a charged shard to the size of its file, if there; the change."""
        with self._locked():
            if not self._words[1 + shard]:
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
            self._words[0] += 1
            try:
                os.unlink(path)
            except FileNotFoundError:
                pass
            return -change

    def _set(self, shard: int, num_bytes: int) -> int:
        change = num_bytes - self._words[1 + shard]
        self._words[1 + shard] = num_bytes
        return change

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """Hold the ledger against threads and processes; the kernel frees a dead holder's lock."""
        with self._lock:
            fcntl.lockf(self._descriptor, fcntl.LOCK_EX)
            try:
                yield
            finally:
                fcntl.lockf(self._descriptor, fcntl.LOCK_UN)
