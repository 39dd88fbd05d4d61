"""File locks of the host, waited for with a deadline."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from filelock import FileLock, Timeout

from lance_stream.errors import LanceStreamError

__all__ = ["locked"]

# They are held for milliseconds. The kernel takes one from a process that died.
_DEADLINE_S = 120.0


@contextmanager
def locked(lock: FileLock, what: str) -> Iterator[None]:
    """Hold a lock.

    Args:
        lock: Which.
        what: What it is of, for the error.

    Raises:
        LanceStreamError: Another process has held it for too long.
    """
    try:
        lock.acquire(timeout=_DEADLINE_S)
    except Timeout as error:
        msg = (
            f"{what}: another process of the job has held the lock {lock.lock_file} for "
            f"{_DEADLINE_S:.0f} s; is one of them stopped?"
        )
        raise LanceStreamError(msg) from error
    try:
        yield
    finally:
        lock.release()
