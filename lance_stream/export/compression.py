"""Compressions and hashes of files, by the names of mosaicml-streaming."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass

import xxhash

from lance_stream.errors import PlanError
from lance_stream.planning.checksum import is_hash

__all__ = ["Compression", "check_hashes", "file_hashes", "load_compression"]


@dataclass(frozen=True, slots=True)
class Compression:
    """A compression of the host.

    Attributes:
        name: Its name, with the level if one was given.
        extension: Of the name of a compressed file.
        compress: Compresses the content of a file.
    """

    name: str
    extension: str
    compress: Callable[[bytes], bytes]


def load_compression(name: str) -> Compression:
    """Find a compression by name, such as ``zstd`` or ``zstd:11``.

    Raises:
        PlanError: There is none of that name.
    """
    # Takes seconds, as it loads all of streaming: only for who asks.
    from streaming.base import compression as host  # noqa: PLC0415

    if not host.is_compression(name):
        families = sorted({known.split(":")[0] for known in host.get_compressions()})
        msg = (
            f"compression={name!r} is not one of mosaicml-streaming: {', '.join(families)}, "
            "with a level as in 'zstd:11'"
        )
        raise PlanError(msg)
    extension = host.get_compression_extension(name)
    return Compression(name, extension, lambda data: host.compress(name, data))


def check_hashes(names: list[str]) -> list[str]:
    """Names of hashes; PlanError if one is not known."""
    for name in names:
        if not is_hash(name):
            msg = f"hashes={name!r} is not a hash of mosaicml-streaming, such as sha1 or xxh3_64"
            raise PlanError(msg)
    return names


def file_hashes(content: bytes, names: tuple[str, ...]) -> dict[str, str]:
    """The hex digest of a file by each hash."""
    return {name: _hasher(name)(content).hexdigest() for name in names}


def _hasher(name: str) -> Callable[[bytes], hashlib._Hash]:
    return getattr(xxhash if name in xxhash.algorithms_available else hashlib, name)
