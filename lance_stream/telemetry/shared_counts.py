"""What the shared caches of a job did on this node: a file that the download process writes."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Sequence

from lance_stream.tiers.counts import SharedTierCounts

__all__ = ["read_shared", "write_private", "write_shared"]


def write_shared(path: str, caches: Sequence[SharedTierCounts]) -> None:
    """Write the numbers of each shared cache; nothing where the disk is full."""
    write_private(path, [one.as_dict() for one in caches])


def read_shared(path: str) -> tuple[SharedTierCounts, ...]:
    """The numbers of each shared cache; none if there is no such file."""
    try:
        with open(path, "rb") as file:
            return tuple(SharedTierCounts.from_dict(one) for one in json.load(file))
    except (OSError, ValueError, KeyError, TypeError):
        return ()


def write_private(path: str, content: object) -> None:
    """Put JSON into a file of this user; a full disk stops what is shown, not what is done."""
    temporary = f"{path}.new"
    with contextlib.suppress(OSError):
        with open(temporary, "w", opener=_private) as file:
            json.dump(content, file)
        os.replace(temporary, path)


def _private(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_CLOEXEC, 0o600)
