"""Numbers in a manifest that Lance keeps to itself. Pure."""

from __future__ import annotations

__all__ = ["manifest_numbers"]

# How protobuf writes the value of a field.
_VARINT, _BYTES, _FIXED = 0, 2, {1: 8, 5: 4}


def manifest_numbers(manifest: bytes) -> dict[int, int]:
    """The whole numbers at the top of a manifest (protobuf), by the number of their field.

    Raises:
        ValueError: It is no such message.
    """

    def varint() -> int:
        nonlocal at
        value = shift = 0
        while True:
            byte = manifest[at]
            at += 1
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value
            shift += 7

    at, found = 0, {}
    try:
        while at < len(manifest):
            field, wire = divmod(varint(), 8)
            if wire == _VARINT:
                found[field] = varint()
            elif wire == _BYTES:
                length = varint()
                at += length
            elif wire in _FIXED:
                at += _FIXED[wire]
            else:
                raise ValueError(f"wire type {wire} in a manifest")
    except IndexError as error:
        raise ValueError("a manifest that is cut off") from error
    return found
