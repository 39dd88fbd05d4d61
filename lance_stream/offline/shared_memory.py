"""Shared memory and lock files that dead jobs of mosaicml-streaming left behind.

A job has a number, and names like ``000003_locals`` for its segments in /dev/shm and
``000003_barrier_filelock`` for its lock files in the temporary directory. A process of a live job
always has its segments mapped; a lock file it opens only now and then. So what a number names
belongs together: it goes when nobody uses any of it.
"""

from __future__ import annotations

import os
import re
import tempfile
import time
from collections import defaultdict

from lance_stream.offline.leftover import Kept, Leftover, age_s, remove_file
from lance_stream.offline.open_files import OpenFiles, unused

__all__ = ["find_shared_memory"]

# Where the kernel shows shared memory.
SHARED_MEMORY = "/dev/shm"  # noqa: S108
_SCAN_LASTS_S = 0.5
_SEGMENT = re.compile(
    r"([0-9]{6,})_(locals|barrier|next_epoch|cache_usage|shard_states|shard_access_times|resume"
    r"|epoch_shape|epoch_data|lance_stream_[a-z_0-9]+)"
)
_LOCK = re.compile(r"([0-9]{6,})_(barrier|cache)_filelock")


def find_shared_memory(
    files: OpenFiles, older_than_s: float, folder: str = SHARED_MEMORY
) -> tuple[list[Leftover], list[Kept]]:
    """Segments and lock files of this user; those of dead jobs, and those that stay.

    Args:
        files: Who uses what.
        older_than_s: Least age of lock files whose job has no segment here: it may run in a
            container that has its own.
        folder: Where the segments are.
    """
    segments, locks = _listed(folder, _SEGMENT), _listed(tempfile.gettempdir(), _LOCK)
    found: list[Leftover] = []
    kept: list[Kept] = []
    scan = _Scan()
    for job in sorted({*segments, *locks}):
        paths = [*segments.get(job, ()), *locks.get(job, ())]
        why = _foreign(paths)
        if why is None and job not in segments and age_s(paths, time.time()) < older_than_s:
            why = "of a job that may run in another container"
        if why is None:
            with unused(paths, files) as why:
                pass
        if why is not None:
            kept += [Kept(path, why) for path in paths]
            continue
        for path in paths:
            kind = "lock file" if path in locks.get(job, ()) else "shared memory"
            found.append(
                Leftover(
                    kind=kind,
                    path=path,
                    num_bytes=os.stat(path).st_size,
                    why="no live process uses it",
                    remove=lambda path=path, paths=tuple(paths): _remove(path, paths, scan),
                )
            )
    return found, kept


def _listed(folder: str, pattern: re.Pattern[str]) -> dict[str, list[str]]:
    """Files by the number of their job."""
    found: dict[str, list[str]] = defaultdict(list)
    try:
        names = sorted(os.listdir(folder))
    except OSError:
        return found
    for name in names:
        match = pattern.fullmatch(name)
        if match:
            found[match.group(1)].append(os.path.join(folder, name))
    return found


def _foreign(paths: list[str]) -> str | None:
    for path in paths:
        try:
            status = os.lstat(path)
        except FileNotFoundError:
            return "it was just removed"
        if status.st_uid != os.getuid():
            return f"of another user (uid {status.st_uid})"
    return None


class _Scan:
    """A scan that is made anew when it is old: thousands of files may be removed in a row."""

    def __init__(self) -> None:
        self._files: OpenFiles | None = None
        self._made_s = 0.0

    def recent(self) -> OpenFiles:
        now_s = time.monotonic()
        if self._files is None or now_s - self._made_s > _SCAN_LASTS_S:
            self._files, self._made_s = OpenFiles(), now_s
        return self._files


def _remove(path: str, paths: tuple[str, ...], scan: _Scan) -> str | None:
    # Looked at anew: somebody may have begun to use it since it was listed.
    there = [other for other in paths if os.path.exists(other)]
    with unused(there, scan.recent()) as why:
        return why or remove_file(path)
