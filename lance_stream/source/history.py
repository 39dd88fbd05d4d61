"""What there is of a table besides the version at hand: its other versions, tags and branches."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

__all__ = ["History", "read_history"]


@dataclass(frozen=True, slots=True)
class History:
    """Versions of a table, or of the branch that was opened.

    Attributes:
        versions: Numbers that are still there, ascending.
        written: When the latest of them was written, in ISO 8601.
        tags: Name of each tag, and the version that it stands for.
        branches: Names of the table's branches.
    """

    versions: tuple[int, ...]
    written: str | None
    tags: dict[str, int]
    branches: tuple[str, ...]


def read_history(dataset: Any) -> History:
    """Look at the versions, tags and branches of an open table; reads a manifest for each version.

    Raises:
        BaseException: Whatever Lance raises.
    """
    found = sorted(dataset.versions(), key=lambda version: version["version"])
    written = found[-1]["timestamp"] if found else None
    tags = {name: int(tag["version"]) for name, tag in dataset.tags.list().items()}
    return History(
        versions=tuple(int(version["version"]) for version in found),
        written=None if written is None else written.isoformat(timespec="seconds"),
        tags=dict(sorted(tags.items())),
        branches=tuple(sorted(dataset.branches.list())),
    )
