"""What can be removed, and what stays and why."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass

__all__ = ["Kept", "Leftover", "age_s", "file_bytes", "remove_file", "tree_bytes"]


@dataclass(frozen=True, slots=True)
class Leftover:
    """Something that no live process uses.

    Attributes:
        kind: What it is.
        path: Where it is.
        num_bytes: What it takes.
        why: Why it can go.
        remove: Removes it, unless it is in use by now; returns why it stays, or None.
    """

    kind: str
    path: str
    num_bytes: int
    why: str
    remove: Callable[[], str | None]


@dataclass(frozen=True, slots=True)
class Kept:
    """Something that stays.

    Attributes:
        path: Where it is.
        why: Why it stays.
    """

    path: str
    why: str


def age_s(paths: Iterable[str], now_s: float) -> float:
    """Seconds since any of some files was last changed; those that are gone do not count."""
    newest = 0.0
    for path in paths:
        try:
            newest = max(newest, os.lstat(path).st_mtime)
        except OSError:
            continue
    return now_s - newest


def file_bytes(path: str) -> int:
    """Bytes of a file; 0 if it is gone."""
    try:
        return os.lstat(path).st_size
    except OSError:
        return 0


def tree_bytes(directory: str) -> int:
    """Bytes of all files in a directory; those that vanish meanwhile do not count."""
    total = 0
    for folder, _, names in os.walk(directory):
        for name in names:
            total += file_bytes(os.path.join(folder, name))
    return total


def remove_file(path: str) -> str | None:
    """Remove a file; returns why it stays, or None. One that is gone is fine."""
    try:
        os.unlink(path)
    except FileNotFoundError:
        return None
    except OSError as error:
        return f"cannot be removed: {error.strerror}"
    return None
