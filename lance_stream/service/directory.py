"""Cache directories: where they are by default, and who may use one."""

from __future__ import annotations

import fcntl
import logging
import os
import socket
import tempfile
import time
from dataclasses import dataclass

from lance_stream.errors import CacheInUseError, PlanError
from lance_stream.processes import start_time, this_node, this_writer
from lance_stream.service.runtime import check_unshared, lock_holder, private_directory

__all__ = [
    "LOCK_NAME",
    "DirectoryClaim",
    "claim_default_directory",
    "claim_directory",
    "claim_if_free",
    "default_directories",
    "default_root",
    "join_directory",
    "make_default_root",
]

logger = logging.getLogger(__name__)

# Locked by every process that uses the directory.
LOCK_NAME = ".lance_stream.lock"
_DEAD_HOLDER_GRACE_S = 15.0
_OTHER_RANK_LOOKS_S = 1.0
_MAX_SLOTS = 64


@dataclass(slots=True)
class _Held:
    descriptor: int
    claims: int


_HELD: dict[str, _Held] = {}


class DirectoryClaim:
    """This process's part in the right to use a cache directory, until closed or it ends.

    The ranks of a job share the directory, and several datasets of one process may; another job
    may not: each would evict what the other counts on. The lock of the directory is taken
    exclusively and then shared, so that the ranks can join and it lasts as long as any of them.
    """

    def __init__(self, path: str) -> None:
        """Note the claim; made by the functions below."""
        self.path = path
        self._pid = os.getpid()
        self._open = True

    def close(self) -> bool:
        """Give the directory up. Does nothing in a forked child.

        Returns:
            Whether no other process has a part in it any more.
        """
        held = _HELD.get(self.path)
        if not self._open or held is None or self._pid != os.getpid():
            return False
        self._open = False
        held.claims -= 1
        if held.claims:
            alone = _lock_alone(held.descriptor)
            if alone:
                fcntl.lockf(held.descriptor, fcntl.LOCK_SH)
            return alone
        del _HELD[self.path]
        # Let go of before it is looked: of ranks that end at once, one finds itself alone.
        fcntl.lockf(held.descriptor, fcntl.LOCK_UN)
        alone = _lock_alone(held.descriptor)
        os.close(held.descriptor)
        return alone


def _lock_alone(descriptor: int) -> bool:
    try:
        fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def claim_directory(path: str) -> DirectoryClaim:
    """Claim a directory for this process; it is made if need be.

    Raises:
        CacheInUseError: A live process uses it: names its pid.
        PlanError: It cannot be made or written.
    """
    try:
        os.makedirs(path, exist_ok=True)
        path = os.path.realpath(path)
        deadline = time.monotonic() + _DEAD_HOLDER_GRACE_S
        while True:
            holder = _try_claim(path)
            if holder is None:
                return DirectoryClaim(path)
            # A process that is being killed lets go in a moment.
            if (holder and start_time(holder) is not None) or time.monotonic() > deadline:
                msg = (
                    f"local={path!r} is in use by process {_who(path, holder)}: wait for it to "
                    "end, or give another local= (without one, each job gets a directory of its "
                    "own)"
                )
                raise CacheInUseError(msg)
            time.sleep(0.1)
    except OSError as error:
        msg = f"local={path!r} cannot be used as a cache directory: {error}"
        raise PlanError(msg) from error


def default_root() -> str:
    """Where the default cache directories of the user lie; not made."""
    return os.environ.get("LANCE_STREAM_CACHE_DIR") or os.path.join(
        tempfile.gettempdir(), f"lance-stream-{os.getuid()}", "cache"
    )


def default_directories() -> tuple[str, ...]:
    """The default cache directories of the user that are there."""
    root = default_root()
    try:
        if os.stat(root).st_uid != os.getuid():
            return ()
        with os.scandir(root) as entries:
            return tuple(sorted(e.path for e in entries if e.is_dir(follow_symlinks=False)))
    except OSError:
        return ()


def claim_default_directory(
    fingerprint: str, first_slot: int = 0, *, again: bool = False
) -> DirectoryClaim:
    """Claim the first free directory among those kept for a fingerprint.

    They lie in ``LANCE_STREAM_CACHE_DIR``, or in a private directory of the user in the temporary
    directory. A later run finds what an earlier one cached; jobs that run at the same time get
    one each.

    Args:
        fingerprint: Of what is cached.
        first_slot: Which directory to try first. Nodes that share them take different ones, also
            where the locks of one node do not reach the others.
        again: Whether one that this process holds already will do, and comes first.

    Raises:
        CacheInUseError: Too many jobs at the same time.
    """
    root = os.path.realpath(make_default_root())
    slots = range(first_slot, first_slot + _MAX_SLOTS)
    names = [fingerprint[:20] + (f".{slot}" if slot else "") for slot in slots]
    if again:
        # What was cached there is of use, also when one with a lower number is free by now.
        names.sort(key=lambda name: os.path.join(root, name) not in _HELD)
    for name in names:
        path = os.path.realpath(private_directory(os.path.join(root, name)))
        # Also not one of our own: two datasets with a cache limit would evict each other's.
        if (again or path not in _HELD) and _try_claim(path) is None:
            return DirectoryClaim(path)
    msg = f"{_MAX_SLOTS} jobs already use the default cache directories in {root}: give local="
    raise CacheInUseError(msg)


def make_default_root() -> str:
    """Where the default cache directories of the user lie; made, and private.

    One that the user has chosen, and that is there, stays as it is: what is made in it is private.

    Raises:
        DownloadProcessError: It belongs to somebody else, anybody can write to it, or it cannot be
            made.
    """
    root = default_root()
    if "LANCE_STREAM_CACHE_DIR" not in os.environ:
        private_directory(os.path.dirname(root))
    elif os.path.isdir(root):
        return check_unshared(os.path.realpath(root))
    return private_directory(root)


def claim_if_free(path: str) -> DirectoryClaim | None:
    """Claim a directory that is there; None if any process uses it, this one among them.

    Raises:
        OSError: It cannot be looked at.
    """
    path = os.path.realpath(path)
    if path in _HELD or _try_claim(path) is not None:
        return None
    return DirectoryClaim(path)


def join_directory(path: str) -> DirectoryClaim:
    """Take part in the claim of another rank of the same job, which holds it.

    Raises:
        CacheInUseError: Another job has it meanwhile.
    """
    held = _HELD.get(path)
    if held is not None:
        held.claims += 1
        return DirectoryClaim(path)
    descriptor = os.open(os.path.join(path, LOCK_NAME), os.O_RDWR | os.O_CLOEXEC)
    deadline = time.monotonic() + _OTHER_RANK_LOOKS_S
    while True:
        try:
            fcntl.lockf(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
            break
        except (BlockingIOError, PermissionError) as error:
            # Another rank that gives up a claim takes the lock for a moment, to see who is left.
            if time.monotonic() < deadline:
                time.sleep(0.01)
                continue
            os.close(descriptor)
            msg = f"local={path!r} was taken by another job: give another local="
            raise CacheInUseError(msg) from error
    _HELD[path] = _Held(descriptor, 1)
    return DirectoryClaim(path)


def _try_claim(path: str) -> int | None:
    """Claim the directory, or tell the pid of who has it (0 if that cannot be told)."""
    held = _HELD.get(path)
    if held is not None:
        held.claims += 1
        return None
    lock = os.path.join(path, LOCK_NAME)
    while True:
        descriptor = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            # Not flock: a child forked at this moment would hold the claim on.
            fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            fcntl.lockf(descriptor, fcntl.LOCK_SH)
        except (BlockingIOError, PermissionError):
            holder = lock_holder(descriptor)
            os.close(descriptor)
            return holder
        if _is_at(descriptor, lock):
            break
        # ``lance-stream clean`` removed the directory since it was opened.
        os.close(descriptor)
        os.makedirs(path, mode=0o700, exist_ok=True)
    # For people, and other nodes; the kernel knows who holds the lock.
    os.ftruncate(descriptor, 0)
    pid, started, node = this_writer()
    os.pwrite(descriptor, f"{pid} {started} {node} {socket.gethostname()}".encode(), 0)
    _HELD[path] = _Held(descriptor, 1)
    return None


def _who(path: str, holder: int) -> str:
    """Words for the holder of a directory, which may be a process of another node."""
    try:
        with open(os.path.join(path, LOCK_NAME)) as file:
            pid, _, node, host = file.read().split()
    except (OSError, ValueError):
        return str(holder)
    return str(holder) if node == this_node() else f"{pid} of another node ({host})"


def _is_at(descriptor: int, path: str) -> bool:
    """Whether an open file is the one at a path."""
    try:
        return os.path.samestat(os.fstat(descriptor), os.stat(path))
    except FileNotFoundError:
        return False


def _after_fork_in_child() -> None:
    """A child, or a worker that outlives a killed trainer, must not hold the claim."""
    for held in _HELD.values():
        os.close(held.descriptor)
    _HELD.clear()


os.register_at_fork(after_in_child=_after_fork_in_child)
