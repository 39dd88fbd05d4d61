"""Look at the record batches of an Arrow file without unpacking any. Pure.

pyarrow tells whether a batch is compressed only by reading it. What is needed of the file's
flatbuffers (``File.fbs`` and ``Message.fbs`` of Arrow) is little.
"""

from __future__ import annotations

import struct

__all__ = ["has_compressed_batches"]

_MAGIC = b"ARROW1"
_CONTINUES = 0xFFFFFFFF
# Numbers of fields.
_FOOTER_BLOCKS = (2, 3)  # Dictionaries and record batches.
_MESSAGE_TYPE, _MESSAGE_HEADER = 1, 2
_DICTIONARY_DATA = 1
_BATCH_COMPRESSION = 3
# Of the union MessageHeader.
_DICTIONARY_BATCH, _RECORD_BATCH = 2, 3
_BLOCK_BYTES = 24


def has_compressed_batches(content: memoryview) -> bool:
    """Whether any batch of an Arrow file is compressed, or the file is not laid out as one."""
    try:
        return any(_is_compressed(content, at) for at in _blocks(content))
    except (struct.error, ValueError):
        return True


def _blocks(content: memoryview) -> list[int]:
    """Offsets of the batches, by the footer."""
    if bytes(content[-6:]) != _MAGIC:
        msg = "no Arrow file"
        raise ValueError(msg)
    start = len(content) - 10 - _read(content, "<i", len(content) - 10)
    table = start + _read(content, "<I", start)
    found = []
    for number in _FOOTER_BLOCKS:
        field = _field(content, table, number)
        if field is not None:
            vector = field + _read(content, "<I", field)
            length = _read(content, "<I", vector)
            stop = vector + 4 + length * _BLOCK_BYTES
            if stop > len(content):
                msg = "blocks beyond the end"
                raise ValueError(msg)
            found += [_read(content, "<q", at) for at in range(vector + 4, stop, _BLOCK_BYTES)]
    return found


def _is_compressed(content: memoryview, at: int) -> bool:
    """Whether the message at an offset is a batch with compressed buffers."""
    if _read(content, "<I", at) != _CONTINUES:
        msg = "a message as of Arrow before 0.15"
        raise ValueError(msg)
    message = at + 8 + _read(content, "<I", at + 8)
    kind, header = (
        _field(content, message, _MESSAGE_TYPE),
        _field(content, message, _MESSAGE_HEADER),
    )
    if kind is None or header is None:
        msg = "a message without content"
        raise ValueError(msg)
    table = header + _read(content, "<I", header)
    if content[kind] == _DICTIONARY_BATCH:
        data = _field(content, table, _DICTIONARY_DATA)
        if data is None:
            msg = "a dictionary without values"
            raise ValueError(msg)
        table = data + _read(content, "<I", data)
    elif content[kind] != _RECORD_BATCH:
        msg = "no batch"
        raise ValueError(msg)
    return _field(content, table, _BATCH_COMPRESSION) is not None


def _field(content: memoryview, table: int, number: int) -> int | None:
    """Offset of a field of a table of flatbuffers; None if it is not set."""
    layout = table - _read(content, "<i", table)
    entry = 4 + 2 * number
    if entry + 2 > _read(content, "<H", layout):
        return None
    offset = _read(content, "<H", layout + entry)
    return table + offset if offset else None


def _read(content: memoryview, kind: str, at: int) -> int:
    if at < 0:
        # That would count from the end.
        msg = "an offset before the beginning"
        raise ValueError(msg)
    return struct.unpack_from(kind, content, at)[0]
