"""The private directory of one download process: where its socket, lock and log lie.

::

    <root>/                 per user, 0700, owner checked
      <token>/              one job on one node
        socket              0600
        alive               locked by the process while it lives; holds its pid
        starting            locked by whoever starts it
        log, log.1          what it had to say, in lines of JSON, and what came before
        running/            one small file for each fetch in progress: survives a crash
        plans/              indexes on their way to who asked
        counters/           the user's counters, a board for each process
        boards/             a directory for each stream: what its processes count
        status              which streams it serves, for people
"""

from __future__ import annotations

import fcntl
import os
import re
import secrets
import shutil
import stat
import struct
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from lance_stream.errors import DownloadProcessError
from lance_stream.processes import is_alive
from lance_stream.telemetry.board import board_path, read_board

__all__ = [
    "SERVER_BOARD",
    "Endpoint",
    "boards_are_needed",
    "endpoints",
    "lock_holder",
    "lock_is_held",
    "new_endpoint",
    "check_unshared",
    "private_directory",
    "runtime_directory",
    "sweep_stale_endpoints",
]

# sun_path holds 108 bytes with the closing NUL.
_MAX_SOCKET_PATH = 107
# The board of the download process itself, among those of a stream.
SERVER_BOARD = "server"
_STALE_AFTER_S = 120.0
# struct flock of 64-bit Linux: type, whence, start, length, pid.
_FLOCK = struct.Struct("hh4xqqi4x")
# Other things may lie in the same directory, default caches among them.
_TOKEN = re.compile(r"[0-9a-f]{12}")


class _Threads:
    """Locks of files are between processes; these are between threads, one for each path."""

    guard = threading.Lock()
    locks: ClassVar[dict[str, threading.Lock]] = {}

    @classmethod
    def lock(cls, path: str) -> threading.Lock:
        with cls.guard:
            return cls.locks.setdefault(path, threading.Lock())


def _after_fork_in_child() -> None:
    """Threads that are not here may have held them."""
    _Threads.guard = threading.Lock()
    _Threads.locks.clear()


os.register_at_fork(after_in_child=_after_fork_in_child)


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Where one download process is found. Picklable; holds nothing open."""

    directory: str

    @property
    def socket_path(self) -> str:
        """Path of the unix socket."""
        return f"{self.directory}/socket"

    @property
    def alive_path(self) -> str:
        """File that the process keeps locked while it lives."""
        return f"{self.directory}/alive"

    @property
    def starting_path(self) -> str:
        """File that is locked by whoever starts the process."""
        return f"{self.directory}/starting"

    @property
    def log_path(self) -> str:
        """Log of the process."""
        return f"{self.directory}/log"

    @property
    def running_directory(self) -> str:
        """Journal of the fetches in progress."""
        return f"{self.directory}/running"

    @property
    def plans_directory(self) -> str:
        """Indexes on their way to who asked for them."""
        return f"{self.directory}/plans"

    @property
    def counters_directory(self) -> str:
        """Boards of the user's counters, one for each process."""
        return f"{self.directory}/counters"

    def boards_directory(self, stream: str) -> str:
        """Boards of the processes that read a stream, and of this one."""
        return f"{self.directory}/boards/{stream}"

    @property
    def status_path(self) -> str:
        """What the process serves, for ``lance-stream status``."""
        return f"{self.directory}/status"

    @property
    def shared_path(self) -> str:
        """What the shared caches of the job did on this node."""
        return f"{self.directory}/shared"

    def make_directories(self) -> None:
        """Make what is missing, private to the user."""
        for path in (self.directory, self.running_directory, self.plans_directory):
            os.makedirs(path, mode=0o700, exist_ok=True)

    def pid(self) -> int | None:
        """Pid of the live process; None if there is none."""
        if not lock_is_held(self.alive_path):
            return None
        try:
            return int(Path(self.alive_path).read_text())
        except ValueError:
            return None


def private_directory(path: str) -> str:
    """Make a directory that only this user can enter; one that is there is closed to others.

    Raises:
        DownloadProcessError: It belongs to somebody else, is a link, or cannot be made.
    """
    try:
        os.makedirs(path, mode=0o700, exist_ok=True)
        status = os.lstat(path)
    except OSError as error:
        msg = f"cannot make the private directory {path}: {error}"
        raise DownloadProcessError(msg) from error
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid():
        raise DownloadProcessError(_not_ours(path))
    if status.st_mode & 0o077:
        os.chmod(path, 0o700)
    return path


def check_unshared(path: str) -> str:
    """Check that not anybody can change what is in a directory; it is left as it is.

    A group is the user's choice.

    Raises:
        DownloadProcessError: It belongs to somebody else, or anybody can write to it.
    """
    status = os.stat(path)
    if status.st_uid != os.getuid():
        raise DownloadProcessError(_not_ours(path))
    if status.st_mode & stat.S_IWOTH and not status.st_mode & stat.S_ISVTX:
        msg = (
            f"anybody can write to {path}: name another directory, as one in it that is not there "
            "yet, or chmod o-w it"
        )
        raise DownloadProcessError(msg)
    return path


def runtime_directory() -> str:
    """Where the per-user directory for sockets is; not made."""
    chosen = os.environ.get("LANCE_STREAM_RUNTIME_DIR")
    base = "/tmp" if os.path.isdir("/tmp") else tempfile.gettempdir()  # noqa: S108
    return chosen or f"{base}/lance-stream-{os.getuid()}"


def runtime_root() -> str:
    """The per-user directory for sockets.

    ``LANCE_STREAM_RUNTIME_DIR``, or ``lance-stream-<uid>`` in ``/tmp``: not in ``$TMPDIR``, which
    may be long, and may differ between a job and its restart.
    """
    path = private_directory(runtime_directory())
    if len(path.encode()) + 24 > _MAX_SOCKET_PATH:
        msg = (
            f"{path} is too long for a unix socket (at most {_MAX_SOCKET_PATH - 24} bytes): "
            "set LANCE_STREAM_RUNTIME_DIR to a shorter directory"
        )
        raise DownloadProcessError(msg)
    return path


def new_endpoint() -> Endpoint:
    """A place for a download process of this job; nothing is started."""
    endpoint = Endpoint(f"{runtime_root()}/{secrets.token_hex(6)}")
    endpoint.make_directories()
    return endpoint


def endpoints() -> list[Endpoint]:
    """Where download processes of this user were started on this node; makes nothing.

    Raises:
        DownloadProcessError: The directory belongs to somebody else, or cannot be read.
    """
    root = runtime_directory()
    try:
        status = os.lstat(root)
        if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid():
            raise DownloadProcessError(_not_ours(root))
        entries = [entry for entry in os.scandir(root) if _TOKEN.fullmatch(entry.name)]
        own = [e for e in entries if e.is_dir(follow_symlinks=False) and _is_own(e)]
    except FileNotFoundError:
        return []
    except OSError as error:
        msg = f"cannot read the directory of download processes {root}: {error.strerror}"
        raise DownloadProcessError(msg) from error
    return [Endpoint(entry.path) for entry in sorted(own, key=lambda entry: entry.name)]


def _is_own(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.stat(follow_symlinks=False).st_uid == os.getuid()
    except FileNotFoundError:
        return False


def _not_ours(path: str) -> str:
    return f"{path} is not a directory of this user (uid {os.getuid()}); remove or rename it"


def boards_are_needed(endpoint: Endpoint) -> bool:
    """Whether a dataset is there, and its process lives, that counts on the boards.

    It need not be connected: when a download process dies between two requests of the trainer,
    only workers reach the next one, and they leave.
    """
    try:
        streams = os.listdir(endpoint.boards_directory(""))
    except OSError:
        return False
    for stream in streams:
        reading = read_board(board_path(endpoint.boards_directory(stream), SERVER_BOARD))
        owner = reading.labels.get("owner") if reading is not None else None
        if owner and is_alive(*owner):
            return True
    return False


def lock_is_held(path: str) -> bool:
    """Whether another live process holds the lock on a file. Looks without taking it."""
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        if sys.platform == "linux":
            return lock_holder(descriptor) is not None
        fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except (BlockingIOError, PermissionError):
        return True
    finally:
        os.close(descriptor)
    return False


def lock_holder(descriptor: int) -> int | None:
    """Pid of another process that holds a lock on an open file; None if there is none.

    0 where it cannot be told: outside Linux, or in another pid namespace.
    """
    if sys.platform != "linux":
        return 0
    asked = _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
    kind, _, _, _, pid = _FLOCK.unpack(fcntl.fcntl(descriptor, fcntl.F_GETLK, asked))
    return None if kind == fcntl.F_UNLCK else max(0, pid)


@contextmanager
def locked(path: str, timeout_s: float) -> Iterator[None]:
    """Hold the lock on a file, which is made; the kernel frees that of a dead holder.

    Raises:
        DownloadProcessError: It was not free in time.
    """
    deadline = time.monotonic() + timeout_s
    threads = _Threads.lock(path)
    if not threads.acquire(timeout=max(0.0, timeout_s)):
        msg = f"waited {timeout_s:g} s for another thread to release {path}"
        raise DownloadProcessError(msg)
    try:
        descriptor = _locked_descriptor(path, timeout_s, deadline)
        try:
            yield
        finally:
            os.close(descriptor)
    finally:
        threads.release()


def _locked_descriptor(path: str, timeout_s: float, deadline: float) -> int:
    while True:
        os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
        with suppress(FileNotFoundError):
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            if _try_lock(descriptor, path):
                return descriptor
            os.close(descriptor)
        if time.monotonic() > deadline:
            msg = f"waited {timeout_s:g} s for another process to release {path}"
            raise DownloadProcessError(msg)
        time.sleep(0.02)


def _try_lock(descriptor: int, path: str) -> bool:
    """Lock the file, unless another process holds it or has removed it meanwhile.

    Not by flock: a child forked at this moment would hold the lock on.
    """
    try:
        fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return os.path.samestat(os.fstat(descriptor), os.stat(path))
    except (BlockingIOError, PermissionError, FileNotFoundError):
        return False


def sweep_stale_endpoints() -> None:
    """Remove directories of processes that were killed together with their jobs."""
    root = runtime_root()
    for name in os.listdir(root):
        if not _TOKEN.fullmatch(name):
            continue
        endpoint = Endpoint(f"{root}/{name}")
        try:
            age = time.time() - os.stat(endpoint.directory).st_mtime
        except OSError:
            continue
        stale = age > _STALE_AFTER_S and not lock_is_held(endpoint.alive_path)
        if stale and not boards_are_needed(endpoint):
            with suppress(DownloadProcessError), locked(endpoint.starting_path, 0.0):
                shutil.rmtree(endpoint.directory, ignore_errors=True)
