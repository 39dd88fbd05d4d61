"""What a shard file says that it is, and the checks that are the same for every format."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from typing import Any

from lance_stream.errors import ShardCorruptError
from lance_stream.planning.checksum import DEFAULT_HASH, Checksum, footer
from lance_stream.shards.mapping import map_readonly
from lance_stream.shards.regular import open_regular

__all__ = ["MappedFile", "ShardHeader", "expect", "sign"]


@dataclass(frozen=True, slots=True)
class ShardHeader:
    """What a shard file is, as written inside it.

    Attributes:
        fingerprint: Of the stream's content (see ``planning.fingerprint``).
        shard: Number in the index.
        num_rows: Rows of the shard.
        algorithm: Name of the hash of its checksum.
    """

    fingerprint: str
    shard: int
    num_rows: int
    algorithm: str = DEFAULT_HASH

    def as_json(self) -> dict[str, Any]:
        """The header as JSON values."""
        return {"fingerprint": self.fingerprint, "shard": self.shard, "rows": self.num_rows}

    def to_bytes(self) -> bytes:
        """Encode as JSON."""
        return json.dumps(self.as_json()).encode()

    @property
    def checksum(self) -> Checksum:
        """The checksum that the file carries."""
        return Checksum(self.to_bytes(), self.algorithm)


class MappedFile:
    """A file in memory.

    Attributes:
        content: Its bytes, read-only; valid as long as any view of them lives.
        num_bytes: Size of the file.
        inode: Device, inode and modification time: names this very file.
    """

    __slots__ = ("content", "inode", "num_bytes")

    def __init__(self, path: str) -> None:
        """Map the file.

        Raises:
            FileNotFoundError: There is no such file.
            ShardCorruptError: It is empty, or no plain file.
        """
        with open(open_regular(path), "rb") as file:
            status = os.fstat(file.fileno())
            self.num_bytes = status.st_size
            self.inode = (status.st_dev, status.st_ino, status.st_mtime_ns, status.st_size)
            if not status.st_size:
                msg = f"{path} is empty"
                raise ShardCorruptError(msg)
            self.content = memoryview(map_readonly(file.fileno(), status.st_size))

    def require_intact(self, path: str, header: ShardHeader, start: int, stop: int) -> None:
        """Check the whole file against the checksum that it holds between two offsets.

        Raises:
            ShardCorruptError: It does not match, or is another file's.
        """
        if not header.checksum.is_intact(self.content, start, stop):
            msg = (
                f"{path}: the {header.algorithm} checksum does not match the content, or it is "
                "another shard's"
            )
            raise ShardCorruptError(msg)


def sign(path: str, header: ShardHeader, within: tuple[int, int] | None = None) -> int:
    """Write the checksum of a complete file over its placeholder.

    Args:
        path: The file.
        header: What it is.
        within: Offsets between which the placeholder is; None: in the footer of an Arrow file.

    Returns:
        Bytes of the file.

    Raises:
        OSError: The file cannot be written.
    """
    with open(path, "r+b") as file:
        num_bytes = os.fstat(file.fileno()).st_size
        content = memoryview(map_readonly(file.fileno(), num_bytes))
        at = header.checksum.locate(content, *(within or footer(content)))
        # Not through a mapping: where the disk is full that would be a SIGBUS, not an error.
        os.pwrite(file.fileno(), header.checksum.compute(content, at), at)
    return num_bytes


def expect(path: str, what: str, expected: object, found: object) -> None:
    """Raise ShardCorruptError unless two things are equal."""
    if expected != found:
        msg = f"{path}: {what} should be {expected} but is {found}"
        raise ShardCorruptError(msg)
