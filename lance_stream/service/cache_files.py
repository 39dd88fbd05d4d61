"""What lies in a cache directory besides shards: indexes, and what the jobs that use it share."""

from __future__ import annotations

import contextlib
import os
import shutil
import time
from collections.abc import Callable

from lance_stream.errors import ShardCorruptError
from lance_stream.planning.index import ShardIndex
from lance_stream.processes import is_alive, this_node, this_writer
from lance_stream.shards.paths import index_name, new_temporary_name
from lance_stream.shards.regular import read_regular

__all__ = [
    "lay_down_index",
    "ledger_owner",
    "ledger_path",
    "remove",
    "sweep_ledgers",
    "sweep_left_behind",
]

# A ledger that is used is written to, if only when an epoch begins.
_FOREIGN_AGE_S = 30 * 86400.0


def lay_down_index(directory: str, index: ShardIndex) -> str:
    """Put an index into a cache directory; returns its path.

    Raises:
        OSError: It cannot be written.
    """
    name = index_name(index.fingerprint)
    path = os.path.join(directory, name)
    data = index.to_bytes()
    if _content(path) != data:
        temporary = os.path.join(directory, new_temporary_name(name, *this_writer()))
        with open(temporary, "wb") as file:
            file.write(data)
        os.rename(temporary, path)
    return path


def _content(path: str) -> bytes | None:
    """What a file holds; None if it is not there, or no plain file."""
    try:
        return read_regular(path)
    except (FileNotFoundError, ShardCorruptError):
        return None


def ledger_path(directory: str, token: str, fingerprint: str) -> str:
    """Path for a ledger that this process makes in a cache directory; names the index, too."""
    pid, started, node = this_writer()
    return os.path.join(directory, f".ledger-{pid}-{started}-n{node}-{token}.{fingerprint}")


def ledger_owner(path: str) -> tuple[int, int] | None:
    """Pid and start time of the process that made a ledger; None if that is of another node."""
    parts = os.path.basename(path).split("-")
    if len(parts) != 5 or parts[3] != f"n{this_node()}":
        return None
    return int(parts[1]), int(parts[2])


def sweep_ledgers(directory: str) -> None:
    """Remove ledgers of jobs that were killed.

    The directory is claimed, but a claim may not reach other nodes that share it: theirs go when
    they are old.
    """
    for name in os.listdir(directory):
        if not name.startswith(".ledger-"):
            continue
        path, parts = os.path.join(directory, name), name.split("-")
        if len(parts) == 5 and parts[3] != f"n{this_node()}":
            with contextlib.suppress(FileNotFoundError):
                if time.time() - os.stat(path).st_mtime > _FOREIGN_AGE_S:
                    remove(path)
        elif len(parts) not in (4, 5) or not is_alive(int(parts[1]), int(parts[2])):
            remove(path)


def sweep_left_behind(directory: str, is_left_behind: Callable[[str], bool]) -> None:
    """Evict shards of earlier windows; their indexes too, but those that datasets still use."""
    names = os.listdir(directory)
    # As long as there is a ledger, a process may have to read the index of its dataset.
    used = {index_name(name.rpartition(".")[2]) for name in names if name.startswith(".ledger-")}
    for name in filter(is_left_behind, names):
        if name not in used:
            remove(os.path.join(directory, name))


def remove(path: str) -> None:
    """Remove a ledger or its boards; nothing if it is gone."""
    if os.path.isdir(path):
        shutil.rmtree(path, ignore_errors=True)
        return
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)
