"""A checksum that a file carries in itself. Pure.

A file holds, somewhere in its metadata, the text ``<algorithm>:<name>:<hex digits>``: the hash of
the whole file, with the digits themselves read as zeros. The name, a hash of what the file is,
tells the text from the same words in a column name. Any reader of the format opens such a file.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Any

import xxhash

__all__ = ["DEFAULT_HASH", "Checksum", "footer", "hash_names", "is_hash"]

DEFAULT_HASH = "xxh3_128"
# The footer of an Arrow file repeats the schema: some hundred bytes per column.
_MAX_FOOTER_BYTES = 16 << 20


def is_hash(algorithm: str) -> bool:
    """Whether an algorithm is known, by the names that the host uses: hashlib's and xxhash's."""
    if algorithm in xxhash.algorithms_available:
        return True
    fixed = algorithm in hashlib.algorithms_available and not algorithm.startswith("shake_")
    return fixed and hasattr(hashlib, algorithm)


def hash_names() -> list[str]:
    """Every algorithm that is known, sorted."""
    names = {*xxhash.algorithms_available, *hashlib.algorithms_available}
    return sorted(filter(is_hash, names))


def footer(content: memoryview) -> tuple[int, int]:
    """Start and stop of the part of an Arrow file that holds its footer."""
    return max(0, len(content) - _MAX_FOOTER_BYTES), len(content)


@dataclass(frozen=True, slots=True)
class Checksum:
    """Where and how the checksum of one file is written.

    Attributes:
        name: What the file is, in any bytes.
        algorithm: Name of the hash (see ``is_hash``).
    """

    name: bytes
    algorithm: str = DEFAULT_HASH

    @property
    def _mark(self) -> bytes:
        name = hashlib.blake2b(self.name, digest_size=12).hexdigest()
        return f"{self.algorithm}:{name}:".encode()

    @property
    def _digits(self) -> int:
        return 2 * self._hasher().digest_size

    def placeholder(self) -> bytes:
        """Text to write into the file; the digits are then overwritten in place."""
        return self._mark + b"0" * self._digits

    def locate(self, content: memoryview, start: int, stop: int) -> int:
        """Offset of the digits, looking for the last text between two offsets; -1: none."""
        part = bytes(content[start:stop])
        mark = self._mark
        at = part.rfind(mark)
        if at < 0 or at + len(mark) + self._digits > len(part):
            return -1
        return start + at + len(mark)

    def compute(self, content: memoryview, at: int) -> bytes:
        """The digits that belong at an offset."""
        hasher = self._hasher()
        digits = self._digits
        hasher.update(content[:at])
        hasher.update(b"0" * digits)
        hasher.update(content[at + digits :])
        return hasher.hexdigest().encode()

    def is_intact(self, content: memoryview, start: int, stop: int) -> bool:
        """Whether the file has the digits between two offsets, and they are right."""
        at = self.locate(content, start, stop)
        return at >= 0 and bytes(content[at : at + self._digits]) == self.compute(content, at)

    def _hasher(self) -> Any:
        if self.algorithm in xxhash.algorithms_available:
            return getattr(xxhash, self.algorithm)()
        return hashlib.new(self.algorithm, usedforsecurity=False)
