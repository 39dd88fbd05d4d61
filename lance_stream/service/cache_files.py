"""What lies in a cache directory besides shards: indexes, and what the jobs that use it share."""

from __future__ import annotations

import contextlib
import os
import shutil

from lance_stream.planning.index import ShardIndex
from lance_stream.processes import is_alive, this_process
from lance_stream.shards.paths import index_name, new_temporary_name

__all__ = ["lay_down_index", "remove", "sweep_ledgers"]


def lay_down_index(directory: str, index: ShardIndex) -> str:
    """Put an index into a cache directory; returns its path.

    Raises:
        OSError: It cannot be written.
    """
    name = index_name(index.fingerprint)
    path = os.path.join(directory, name)
    data = index.to_bytes()
    if _content(path) != data:
        temporary = os.path.join(directory, new_temporary_name(name, *this_process()))
        with open(temporary, "wb") as file:
            file.write(data)
        os.rename(temporary, path)
    return path


def _content(path: str) -> bytes | None:
    """What a file holds; None if it is not there."""
    try:
        with open(path, "rb") as file:
            return file.read()
    except FileNotFoundError:
        return None


def sweep_ledgers(directory: str) -> None:
    """Remove ledgers of jobs that were killed; the directory is claimed, so none is alive."""
    for name in os.listdir(directory):
        if name.startswith(".ledger-"):
            parts = name.split("-")
            if len(parts) != 4 or not is_alive(int(parts[1]), int(parts[2])):
                remove(os.path.join(directory, name))


def remove(path: str) -> None:
    """Remove a ledger or its boards; nothing if it is gone."""
    if os.path.isdir(path):
        shutil.rmtree(path, ignore_errors=True)
        return
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)
