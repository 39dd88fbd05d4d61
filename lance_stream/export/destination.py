"""Where an export goes: what a directory and an object store have in common."""

from __future__ import annotations

import json
import re
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from typing import Any

from lance_stream.export.plan import Found

__all__ = [
    "PIECE_BYTES",
    "PLAN_NAME",
    "Destination",
    "parse_mapping",
    "record_name",
    "record_shard",
]

PLAN_NAME = "plan.json"
# Of a file that is read again.
PIECE_BYTES = 16 << 20
_RECORD = re.compile(r"([0-9]{8,})\.json")


def record_name(shard: int) -> str:
    """Name of the record of a finished shard."""
    return f"{shard:08}.json"


def record_shard(name: str) -> int | None:
    """The shard of a record's name; None for another name."""
    match = _RECORD.fullmatch(name)
    return int(match.group(1)) if match else None


def parse_mapping(text: bytes) -> dict[str, Any]:
    """A JSON object; empty if it is none."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


class Destination(ABC):
    """A place for the files of one export. Shards may be published from several threads.

    A shard is published first and recorded then, and the index comes last: so whatever moment
    an export is killed at, what is recorded is there, and an index means that all is.

    Attributes:
        name: Its path or URL, for messages.
        disk: The directory that files are written to, here or until they are published.
    """

    name: str
    disk: str

    @abstractmethod
    def look(self) -> Found:
        """What is there."""

    @abstractmethod
    def claim(self) -> None:
        """Make the place, and hold it against other exports, until ``release``.

        Raises:
            CacheInUseError: Another export holds it.
        """

    @abstractmethod
    def begin(self, identity: Mapping[str, Any]) -> None:
        """Write down which export this is, so that it can be continued."""

    @abstractmethod
    def records(self) -> dict[int, Any]:
        """What was recorded of finished shards."""

    @abstractmethod
    def pieces(self, name: str) -> Iterator[bytes]:
        """Content of a published file; FileNotFoundError if it is not there."""

    @abstractmethod
    def temporary_path(self, name: str) -> str:
        """A path for a file until it is published."""

    @abstractmethod
    def publish(self, path: str, name: str) -> None:
        """Put a complete file in its place, at once and whole, and remove the temporary one."""

    @abstractmethod
    def record(self, shard: int, entry: Mapping[str, Any]) -> None:
        """Note that a shard is finished."""

    @abstractmethod
    def publish_index(self, text: str) -> None:
        """Put the index in its place, at once and whole."""

    @abstractmethod
    def clean_up(self) -> None:
        """Remove all but the dataset."""

    @abstractmethod
    def release(self) -> None:
        """Let go of the place; may be called again. Leaves no temporary files."""
