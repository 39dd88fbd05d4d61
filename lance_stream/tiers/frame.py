"""How content is written into a tier, so that nothing else is ever taken for it. Pure.

A value starts with a header of 88 bytes: what it is (magic, version), whose it is (the hash of
the key), what follows (rows, length, hash) and a hash of the header itself. Either the content
follows, or, where it is larger than the tier takes, it lies in parts of equal size under names
made from the key, the content's hash and the number, so that parts of two contents never mix.
"""

from __future__ import annotations

import hashlib
import math
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import xxhash

from lance_stream.tiers.shard_cache import Data, ValueTooLargeError

__all__ = [
    "HEADER_BYTES",
    "MAX_PARTS",
    "BadFrameError",
    "Frame",
    "join_parts",
    "make_frame",
    "open_value",
    "stored_name",
]

# Raised when the layout changes. Part of every name, so that versions never meet.
FRAME_VERSION = 1
MAX_PARTS = 1 << 16
_MAGIC = b"LnSt"
# magic, version, reserved, hash of the key, rows, bytes, bytes of a part or 0, hash of content
_FIELDS = struct.Struct("<4sHH20s4xQQQ16s")
_SEAL = struct.Struct("<16s")
HEADER_BYTES = _FIELDS.size + _SEAL.size
_NAME_BYTES = 20


class BadFrameError(ValueError):
    """A value is not the one that was put under that key: says how it differs."""


@dataclass(frozen=True, slots=True)
class Frame:
    """What a header says.

    Attributes:
        name: Name of the value in the tier, 40 hex characters.
        rows: Rows of the content; 0: not said.
        num_bytes: Bytes of the content.
        part_bytes: Bytes of each part but the last; 0: the content follows the header.
        digest: Hash of the content.
    """

    name: str
    rows: int
    num_bytes: int
    part_bytes: int
    digest: bytes

    @property
    def num_parts(self) -> int:
        """Parts beside the header; 0 when the content follows it."""
        return math.ceil(self.num_bytes / self.part_bytes) if self.part_bytes else 0

    def part_names(self) -> list[str]:
        """Names of the parts in the tier, in order."""
        stem = f"{self.name}/{self.digest.hex()}/{self.part_bytes}"
        return [_hashed(f"{stem}/{number}") for number in range(self.num_parts)]

    def parts(self, data: Data) -> Iterator[memoryview]:
        """The content cut into parts, in order."""
        view = memoryview(data).cast("B")
        for number in range(self.num_parts):
            yield view[number * self.part_bytes : (number + 1) * self.part_bytes]

    def header(self) -> bytes:
        """The header."""
        fields = _FIELDS.pack(
            _MAGIC,
            FRAME_VERSION,
            0,
            bytes.fromhex(self.name),
            self.rows,
            self.num_bytes,
            self.part_bytes,
            self.digest,
        )
        return fields + _SEAL.pack(xxhash.xxh3_128_digest(fields))

    def value(self, data: Data) -> bytes:
        """What is kept under the name: the header, and the content if it is not in parts."""
        return self.header() if self.part_bytes else b"".join((self.header(), data))


def stored_name(key: str) -> str:
    """Name in a tier of what belongs to a key: 40 lower-case hex characters."""
    return _hashed(key)


def make_frame(
    name: str, data: Data, *, rows: int = 0, max_value_bytes: int | None = None
) -> Frame:
    """Describe content that is to be written.

    Args:
        name: As ``stored_name`` gives.
        data: The content.
        rows: Rows that it holds; 0: not said.
        max_value_bytes: Largest value that the tier takes; None: any.

    Raises:
        ValueTooLargeError: It would need more than ``MAX_PARTS`` parts.
    """
    size = memoryview(data).nbytes
    part_bytes = 0
    if max_value_bytes is not None and HEADER_BYTES + size > max_value_bytes:
        part_bytes = max_value_bytes
        if part_bytes < HEADER_BYTES or math.ceil(size / part_bytes) > MAX_PARTS:
            msg = f"{size} bytes do not fit into {MAX_PARTS} values of {max_value_bytes} bytes"
            raise ValueTooLargeError(msg)
    return Frame(name, rows, size, part_bytes, xxhash.xxh3_128_digest(data))


def open_value(
    value: Data, *, name: str, rows: int | None = None
) -> tuple[Frame, memoryview | None]:
    """Check what was found under a name.

    Args:
        value: What was found.
        name: The name.
        rows: Rows that the content must have; None: any.

    Returns:
        What the header says, and the content, or None if that is in parts.

    Raises:
        BadFrameError: It is not what was put there.
    """
    view = memoryview(value).toreadonly().cast("B")
    frame = _read_header(view)
    if frame.name != name:
        msg = f"it is the content of {frame.name}, not of {name}"
        raise BadFrameError(msg)
    if rows is not None and frame.rows != rows:
        msg = f"it has {frame.rows} rows, not {rows}"
        raise BadFrameError(msg)
    if frame.part_bytes:
        if len(view) != HEADER_BYTES:
            msg = f"{len(view) - HEADER_BYTES} bytes follow a header whose content is in parts"
            raise BadFrameError(msg)
        return frame, None
    content = view[HEADER_BYTES:]
    _check_content(frame, content)
    return frame, content


def join_parts(frame: Frame, parts: Sequence[Data]) -> memoryview:
    """Put parts together again, and check the whole.

    Raises:
        BadFrameError: It is not what was put there.
    """
    content = memoryview(b"".join(parts))
    _check_content(frame, content)
    return content


def _read_header(view: memoryview) -> Frame:
    if len(view) < HEADER_BYTES:
        msg = f"{len(view)} bytes are less than a header: cut, or not ours"
        raise BadFrameError(msg)
    fields = view[: _FIELDS.size]
    magic, version, _, name, rows, num_bytes, part_bytes, digest = _FIELDS.unpack(fields)
    if magic != _MAGIC:
        raise BadFrameError("it does not start as ours do: another program's")
    (seal,) = _SEAL.unpack(view[_FIELDS.size : HEADER_BYTES])
    if seal != xxhash.xxh3_128_digest(fields):
        raise BadFrameError("the hash of its header does not match")
    if version != FRAME_VERSION:
        msg = f"its layout is version {version}, not {FRAME_VERSION}"
        raise BadFrameError(msg)
    frame = Frame(name.hex(), rows, num_bytes, part_bytes, digest)
    if frame.num_parts > MAX_PARTS:
        msg = f"it names {frame.num_parts} parts, more than {MAX_PARTS}"
        raise BadFrameError(msg)
    return frame


def _check_content(frame: Frame, content: memoryview) -> None:
    if len(content) != frame.num_bytes:
        msg = f"it has {len(content)} bytes, not the {frame.num_bytes} that its header says"
        raise BadFrameError(msg)
    if xxhash.xxh3_128_digest(content) != frame.digest:
        raise BadFrameError("the hash of its content does not match")


def _hashed(text: str) -> str:
    person = f"lance-stream-{FRAME_VERSION}".encode()
    return hashlib.blake2b(
        text.encode("utf-8", "surrogatepass"), digest_size=_NAME_BYTES, person=person
    ).hexdigest()
