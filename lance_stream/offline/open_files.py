"""Who has a file open or mapped, so that nothing is removed that a live process uses. Linux.

Two proofs: a scan of /proc, which names the processes, but sees only those of this container; and
a write lease, which the kernel gives only where nobody else on the machine has the file open or
mapped for writing, whatever container he is in.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import signal
import stat
import threading
from collections import defaultdict
from collections.abc import Iterable, Iterator

__all__ = ["OpenFiles", "unused"]

_PROC = "/proc"
_DELETED = " (deleted)"


class OpenFiles:
    """Files that live processes had open or mapped at the moment of the scan.

    Attributes:
        unseen: Processes of this user that could not be looked at; this one is left out.
    """

    def __init__(self, folder: str = _PROC) -> None:
        """Scan; processes that may not be looked at are those of others, as a rule.

        Args:
            folder: Where the kernel tells of processes.
        """
        self.unseen: set[int] = set()
        self._by_file: dict[tuple[int, int], set[int]] = defaultdict(set)
        self._by_path: dict[str, set[int]] = defaultdict(set)
        self._folder = folder
        for name in os.listdir(folder) if os.path.isdir(folder) else ():
            if name.isdigit() and int(name) != os.getpid():
                self._look_at(int(name))

    def users(self, path: str) -> set[int]:
        """Pids of the processes that use a file; empty if it is gone."""
        try:
            status = os.stat(path)
        except OSError:
            return set()
        named = self._by_path.get(os.path.realpath(path), set())
        return self._by_file.get((status.st_dev, status.st_ino), set()) | named

    def users_below(self, directory: str) -> set[int]:
        """Pids of the processes that use any file in a directory."""
        found: set[int] = set()
        for folder, _, names in os.walk(directory):
            for name in names:
                found |= self.users(os.path.join(folder, name))
        return found

    def _look_at(self, pid: int) -> None:
        try:
            for file, path in self._files(pid):
                self._by_file[file].add(pid)
                self._by_path[path].add(pid)
        except (FileNotFoundError, ProcessLookupError):
            return
        except PermissionError:
            with contextlib.suppress(OSError):
                if _real_user(f"{self._folder}/{pid}/status") == os.getuid():
                    self.unseen.add(pid)

    def _files(self, pid: int) -> Iterator[tuple[tuple[int, int], str]]:
        folder = f"{self._folder}/{pid}/fd"
        for name in os.listdir(folder):
            with contextlib.suppress(FileNotFoundError):
                status = os.stat(f"{folder}/{name}")
                if stat.S_ISREG(status.st_mode):
                    yield (status.st_dev, status.st_ino), os.readlink(f"{folder}/{name}")
        with open(f"{self._folder}/{pid}/maps", encoding="utf-8", errors="replace") as maps:
            for line in maps:
                # address perms offset major:minor inode path
                fields = line.rstrip("\n").split(maxsplit=5)
                if len(fields) == 6 and fields[4] != "0":
                    major, minor = fields[3].split(":")
                    device = os.makedev(int(major, 16), int(minor, 16))
                    yield (device, int(fields[4])), fields[5].removesuffix(_DELETED)


def _real_user(path: str) -> int:
    with open(path, encoding="utf-8") as file:
        for line in file:
            if line.startswith("Uid:"):
                return int(line.split()[1])
    return -1


@contextlib.contextmanager
def unused(paths: Iterable[str], files: OpenFiles) -> Iterator[str | None]:
    """Prove that no live process has any of some files open or mapped.

    Where the kernel gives leases, nobody can open them until the block ends.

    Args:
        paths: Files of this user.
        files: A scan, made since the files were found.

    Yields:
        None if nobody has; else who, or why it cannot be told.
    """
    with contextlib.ExitStack() as stack:
        stack.enter_context(_no_notice())
        yield next(filter(None, (_use(path, files, stack) for path in paths)), None)


def _use(path: str, files: OpenFiles, stack: contextlib.ExitStack) -> str | None:
    pids = files.users(path)
    if pids:
        return f"in use by {_processes(pids)}"
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    except FileNotFoundError:
        return None
    except OSError as error:
        return f"cannot be opened: {error.strerror}"
    stack.callback(os.close, descriptor)
    try:
        fcntl.fcntl(descriptor, fcntl.F_SETLEASE, fcntl.F_WRLCK)
    except OSError as error:
        if error.errno in (errno.EAGAIN, errno.EBUSY):
            return "in use by a process that cannot be seen from here"
        # No leases on this file system: the scan must do.
        if files.unseen:
            return f"perhaps in use by {_processes(files.unseen)}, which may not be looked at"
    return None


def _processes(pids: set[int]) -> str:
    shown = ", ".join(map(str, sorted(pids)[:5]))
    return f"process {shown}" if len(pids) == 1 else f"processes {shown}"


@contextlib.contextmanager
def _no_notice() -> Iterator[None]:
    """Whoever opens a leased file makes the kernel tell its holder, by a signal that ends him."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGIO, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGIO, before)
