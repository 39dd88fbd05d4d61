"""A checksum that an Arrow IPC file carries in its own footer. Pure.

The footer metadata has the key ``lance_stream.check`` with the value ``xxh3-128:``, a name of the
file, ``:`` and 32 hex digits: the XXH3-128 of the whole file, with the digits themselves read as
zeros. The name, a hash of what the file is, tells the value from the same words in a column name.
Any Arrow reader opens such a file.
"""

from __future__ import annotations

import hashlib

import xxhash

__all__ = ["compute", "is_intact", "locate", "placeholder"]

_DIGITS = 32
# The footer repeats the schema: some hundred bytes per column.
_MAX_FOOTER_BYTES = 16 << 20


def placeholder(name: bytes) -> dict[bytes, bytes]:
    """Footer metadata to write a file with; the digits are then overwritten in place.

    Args:
        name: What the file is, in any bytes.
    """
    return {b"lance_stream.check": _mark(name) + b"0" * _DIGITS}


def locate(content: memoryview, name: bytes) -> int:
    """Offset of the digits of the file of that name; -1 if there are none."""
    tail = bytes(content[-_MAX_FOOTER_BYTES:])
    mark = _mark(name)
    at = tail.rfind(mark)
    if at < 0 or at + len(mark) + _DIGITS > len(tail):
        return -1
    return len(content) - len(tail) + at + len(mark)


def compute(content: memoryview, at: int) -> bytes:
    """The digits that belong at an offset."""
    hasher = xxhash.xxh3_128()
    hasher.update(content[:at])
    hasher.update(b"0" * _DIGITS)
    hasher.update(content[at + _DIGITS :])
    return hasher.hexdigest().encode()


def is_intact(content: memoryview, name: bytes) -> bool:
    """Whether a file has the digits of its name, and they are right."""
    at = locate(content, name)
    return at >= 0 and bytes(content[at : at + _DIGITS]) == compute(content, at)


def _mark(name: bytes) -> bytes:
    return b"xxh3-128:" + hashlib.blake2b(name, digest_size=12).hexdigest().encode() + b":"
