"""Names of the files in a cache directory. Pure, but for the sweep of leftovers."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Iterator

__all__ = [
    "index_name",
    "is_index_name",
    "is_leftover_name",
    "is_shard_name",
    "new_temporary_name",
    "shard_name",
    "sweep_temporary_files",
]

# Enough of the fingerprint that two can never meet in one directory, short enough to read.
_FINGERPRINT_CHARS = 20
_SHARD = re.compile(r"[0-9a-f]{20}\.[0-9]{8,}\.(?:arrow|mds)")
_INDEX = re.compile(r"[0-9a-f]{20}\.index\.arrow")
_TEMPORARY = re.compile(r"\.tmp-([0-9]+)-([0-9]+)-(?:n([0-9a-f]{12})-)?.*")
# A file that a process of another node writes is touched more often: a fetch has a deadline.
_FOREIGN_AGE_S = 86400.0
_LEFTOVER = re.compile(r"\.(?:tmp|ledger)-[0-9]+-[0-9]+-.*")


def shard_name(fingerprint: str, shard: int, cache_format: str = "arrow") -> str:
    """File name of a shard: content-addressed, so it can never stand for other rows."""
    return f"{fingerprint[:_FINGERPRINT_CHARS]}.{shard:08d}.{cache_format}"


def is_shard_name(name: str) -> bool:
    """Whether a file name is one that ``shard_name`` gives (for any fingerprint)."""
    return _SHARD.fullmatch(name) is not None


def index_name(fingerprint: str) -> str:
    """File name of the index."""
    return f"{fingerprint[:_FINGERPRINT_CHARS]}.index.arrow"


def is_index_name(name: str) -> bool:
    """Whether a file name is one that ``index_name`` gives (for any fingerprint)."""
    return _INDEX.fullmatch(name) is not None


def new_temporary_name(name: str, pid: int, started: int, node: str = "") -> str:
    """Name for a file until it is published; names its writer, so leftovers can be told.

    Args:
        name: Unique for the writer.
        pid: Of the writer.
        started: When it started.
        node: Where it runs, 12 hex characters: nodes may share the directory.
    """
    return f".tmp-{pid}-{started}-" + (f"n{node}-" if node else "") + name


def is_leftover_name(name: str) -> bool:
    """Whether a file name is one of a writer that did not finish, or of a job's ledger."""
    return _LEFTOVER.fullmatch(name) is not None


def sweep_temporary_files(
    directory: str, is_alive: Callable[[int, int], bool], node: str = ""
) -> Iterator[str]:
    """Remove what dead writers left behind; yields the names removed. Touches files.

    A writer on another node cannot be looked for: its file goes when it is a day old.

    Args:
        directory: Cache directory.
        is_alive: Tells from pid and start time whether a writer still runs.
        node: This node.
    """
    for name in os.listdir(directory):
        match = _TEMPORARY.fullmatch(name)
        if not match:
            continue
        path = os.path.join(directory, name)
        try:
            if match.group(3) in (None, node):
                gone = not is_alive(int(match.group(1)), int(match.group(2)))
            else:
                gone = time.time() - os.stat(path).st_mtime > _FOREIGN_AGE_S
            if gone:
                os.unlink(path)
                yield name
        except FileNotFoundError:
            continue
