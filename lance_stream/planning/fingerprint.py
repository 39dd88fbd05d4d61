"""Name what is cached, so that no cached file can stand for other data. Pure."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["array_digest", "content_fingerprint", "digest", "table_identity"]


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


def array_digest(array: NDArray[Any]) -> str:
    """Hash the bytes of an array: 32 hex characters."""
    return hashlib.blake2b(np.ascontiguousarray(array).data, digest_size=16).hexdigest()


def content_fingerprint(index_fingerprint: str, cache_format: str, algorithm: str | None) -> str:
    """Name what a stream caches: the rows of an index, in one format, with one checksum.

    Args:
        index_fingerprint: Of the index.
        cache_format: ``"arrow"`` or ``"mds"``.
        algorithm: Hash that was asked for, or None for our own.

    Returns:
        32 hex characters; the index's own for what is the default.
    """
    if cache_format == "arrow" and algorithm is None:
        return index_fingerprint
    return digest({"index": index_fingerprint, "format": cache_format, "hash": algorithm})


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
