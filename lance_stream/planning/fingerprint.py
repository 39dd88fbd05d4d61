"""Name what is cached, so that no cached file can stand for other data. Pure."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from typing import Any

__all__ = ["digest", "table_identity"]


def digest(parts: Mapping[str, Any], length: int = 32) -> str:
    """Hash a mapping of JSON values, independent of key order.

    Args:
        parts: JSON-serialisable values.
        length: Hex characters to return, at most 64.

    Returns:
        Lower-case hex.
    """
    text = json.dumps(parts, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return hashlib.blake2b(text.encode(), digest_size=32).hexdigest()[:length]


def table_identity(fragments: Iterable[Mapping[str, Any]]) -> str:
    """Name the content of a table version by its files.

    A version number does not: a table that is dropped and made again at the same uri starts
    again at 1. Data and deletion files have unique names and never change, so the list of them
    is the content.

    Args:
        fragments: Each fragment's manifest entry as JSON values, in table order.

    Returns:
        32 hex characters.
    """
    hasher = hashlib.blake2b(digest_size=16)
    for fragment in fragments:
        hasher.update(json.dumps(fragment, sort_keys=True, default=str).encode())
        hasher.update(b"\n")
    return hasher.hexdigest()
