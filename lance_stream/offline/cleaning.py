"""Find and remove what dead jobs left on this machine: what ``lance-stream clean`` does."""

from __future__ import annotations

import os
import re
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from lance_stream.errors import DownloadProcessError, PlanError
from lance_stream.offline.index_file import PARTIAL_DIRECTORY, user_directory
from lance_stream.offline.leftover import (
    Kept,
    Leftover,
    age_s,
    file_bytes,
    remove_file,
    tree_bytes,
)
from lance_stream.offline.open_files import OpenFiles
from lance_stream.offline.shared_memory import find_shared_memory
from lance_stream.processes import is_alive, this_node
from lance_stream.service.directory import LOCK_NAME, claim_if_free, default_root
from lance_stream.service.runtime import Endpoint, lock_is_held, locked, runtime_directory

__all__ = ["CleanRequest", "find_leftovers"]

_TOKEN = re.compile(r"[0-9a-f]{12}")
_CACHE = re.compile(r"[0-9a-f]{20}(\.[0-9]+)?")
_TEMPORARY = re.compile(r"\.(?:tmp|ledger)-([0-9]+)-([0-9]+)-(?:n([0-9a-f]{12})-)?.*")
# A job makes the directory a moment before it starts the process...
_NOT_STARTED_S = 120.0
# ... and starts another at once if one dies while it is needed.
_ENDED_S = 10.0


@dataclass(frozen=True, slots=True)
class CleanRequest:
    """What to look at.

    Attributes:
        older_than_s: Default caches that were used since stay.
        locals: Cache directories that were given as ``local``; only leftovers of jobs in them go.
    """

    older_than_s: float
    locals: Sequence[str] = ()


def find_leftovers(request: CleanRequest) -> tuple[list[Leftover], list[Kept]]:
    """Look for what can go; changes nothing.

    Args:
        request: What to look at.

    Returns:
        What no live process uses, and what was looked at and stays.

    Raises:
        PlanError: There is no such cache directory.
    """
    files = OpenFiles()
    found: list[Leftover] = []
    kept: list[Kept] = []
    for part in (
        _runtime_directories(files),
        _default_caches(files, request.older_than_s),
        _partial_scans(request.older_than_s),
    ):
        for item in part:
            (found if isinstance(item, Leftover) else kept).append(item)  # type: ignore[arg-type]
    for directory in request.locals:
        if not os.path.isdir(directory):
            raise PlanError(f"--local {directory}: there is no such directory")
        found += _unfinished(os.path.abspath(directory))
    segments, used = find_shared_memory(files, request.older_than_s)
    return [*found, *segments], [*kept, *used]


def _own_directories(root: str, pattern: re.Pattern[str]) -> Iterator[str]:
    """Directories of this user with names of that kind, in a directory of this user."""
    try:
        if os.lstat(root).st_uid != os.getuid():
            return
        names = sorted(os.listdir(root))
    except OSError:
        return
    for name in names:
        path = os.path.join(root, name)
        if pattern.fullmatch(name) and not os.path.islink(path) and os.path.isdir(path):
            yield path


def _runtime_directories(files: OpenFiles) -> Iterator[Leftover | Kept]:
    for path in _own_directories(runtime_directory(), _TOKEN):
        why = _endpoint_use(path, files)
        if why is not None:
            yield Kept(path, why)
            continue
        yield Leftover(
            kind="socket",
            path=path,
            num_bytes=tree_bytes(path),
            why="its download process is gone",
            remove=lambda path=path: _remove_endpoint(path),
        )


def _endpoint_use(path: str, files: OpenFiles) -> str | None:
    endpoint = Endpoint(path)
    if lock_is_held(endpoint.alive_path) or lock_is_held(endpoint.starting_path):
        return f"of the download process {endpoint.pid() or 'that starts'}"
    pids = files.users_below(path)
    if pids:
        return f"in use by process {min(pids)}"
    ended = os.path.exists(endpoint.alive_path)
    inside = (path, endpoint.alive_path, endpoint.log_path, endpoint.running_directory)
    if age_s(inside, time.time()) < (_ENDED_S if ended else _NOT_STARTED_S):
        return "a moment ago it was in use"
    return None


def _remove_endpoint(path: str) -> str | None:
    endpoint = Endpoint(path)
    try:
        # Nobody starts a process in a directory that is going away.
        with locked(endpoint.starting_path, 0.0):
            if lock_is_held(endpoint.alive_path):
                return "its download process was started again"
            return _remove_tree(path)
    except DownloadProcessError:
        return "its download process is being started"


def _default_caches(files: OpenFiles, older_than_s: float) -> Iterator[Leftover | Kept]:
    for path in _own_directories(default_root(), _CACHE):
        lock = os.path.join(path, LOCK_NAME)
        # Claiming it writes into the lock, a shard that comes or goes into the directory.
        age = age_s((path, lock), time.time())
        if lock_is_held(lock):
            yield Kept(path, "in use by a job")
        elif pids := files.users_below(path):
            yield Kept(path, f"in use by process {min(pids)}")
        elif age < older_than_s:
            yield Kept(path, f"used {_ago(age)} ago")
            yield from _unfinished(path)
        else:
            yield Leftover(
                kind="cache",
                path=path,
                num_bytes=tree_bytes(path),
                why=f"not used for {_ago(age)}",
                remove=lambda path=path: _claimed(path, lambda: _remove_tree(path)),
            )


def _unfinished(directory: str) -> list[Leftover]:
    """Files in a cache directory whose writer, or job, is gone."""
    found = []
    for name in sorted(os.listdir(directory)):
        match = _TEMPORARY.fullmatch(name)
        path = os.path.join(directory, name)
        # What a process of another node writes there is for that node to remove.
        if match is None or match.group(3) not in (None, this_node()):
            continue
        pid = int(match.group(1))
        if is_alive(pid, int(match.group(2))):
            continue
        remove = _remove_tree if os.path.isdir(path) else remove_file
        found.append(
            Leftover(
                kind="ledger" if name.startswith(".ledger") else "temporary file",
                path=path,
                num_bytes=tree_bytes(path) if os.path.isdir(path) else file_bytes(path),
                why=f"process {pid} is gone",
                remove=lambda path=path, remove=remove: _claimed(directory, lambda: remove(path)),
            )
        )
    return found


def _claimed(directory: str, remove: Callable[[], str | None]) -> str | None:
    """Remove something while no job can use the directory."""
    try:
        claim = claim_if_free(directory)
    except FileNotFoundError:
        return None
    except OSError as error:
        return f"cannot be removed: {error.strerror}"
    if claim is None:
        return "a job uses the directory"
    try:
        return remove()
    finally:
        claim.close()


def _partial_scans(older_than_s: float) -> Iterator[Leftover]:
    folder = os.path.join(user_directory(), PARTIAL_DIRECTORY)
    try:
        entries = [entry for entry in os.scandir(folder) if entry.is_file(follow_symlinks=False)]
    except OSError:
        return
    for entry in entries:
        age = age_s((entry.path,), time.time())
        if age >= older_than_s:
            yield Leftover(
                kind="unfinished index",
                path=entry.path,
                num_bytes=entry.stat(follow_symlinks=False).st_size,
                why=f"not gone on with for {_ago(age)}",
                remove=lambda path=entry.path: remove_file(path),
            )


def _remove_tree(path: str) -> str | None:
    try:
        shutil.rmtree(path)
    except FileNotFoundError:
        return None
    except OSError as error:
        return f"cannot be removed: {error.strerror}"
    return None


def _ago(seconds: float) -> str:
    for unit, length in (("days", 86400.0), ("hours", 3600.0), ("minutes", 60.0)):
        if seconds >= 2 * length:
            return f"{seconds / length:.0f} {unit}"
    return f"{max(0.0, seconds):.0f} s"
