"""Compressions and hashes of files, by the names of mosaicml-streaming."""

from __future__ import annotations

import bz2
import gzip
import hashlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import xxhash

from lance_stream.errors import PlanError
from lance_stream.planning.checksum import is_hash

__all__ = [
    "CHECK_HASH",
    "Compression",
    "check_hashes",
    "file_hashes",
    "load_compression",
    "pieces_hash",
]

# What a finished file is known by until the index is there.
CHECK_HASH = "xxh3_64"


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
    extension, _, level = name.partition(":")
    family = _FAMILIES.get(extension)
    levels = {str(number) for number in family.levels} if family else set()
    if family is None or (":" in name and level not in levels):
        msg = (
            f"compression={name!r} is not one of mosaicml-streaming: {', '.join(_FAMILIES)}, "
            "with a level as in 'zstd:11'"
        )
        raise PlanError(msg)
    if not family.levels:
        return Compression(name, extension, family.load())
    compress, number = family.load(), int(level or family.default)
    return Compression(name, extension, lambda data: compress(data, number))


@dataclass(frozen=True, slots=True)
class _Family:
    """A compression with its levels, as the host has them, by the packages that it depends on."""

    load: Callable[[], Callable[..., bytes]]
    levels: range = range(0)
    default: int = 0


def _brotli() -> Callable[..., bytes]:
    import brotli  # noqa: PLC0415 - for who asks

    return lambda data, level: brotli.compress(data, quality=level)


def _snappy() -> Callable[..., bytes]:
    import snappy  # noqa: PLC0415 - for who asks

    return snappy.compress


def _zstd() -> Callable[..., bytes]:
    import zstd  # noqa: PLC0415 - for who asks

    return zstd.compress


_FAMILIES = {
    "br": _Family(_brotli, range(12), 11),
    "bz2": _Family(lambda: bz2.compress, range(1, 10), 9),
    "gz": _Family(lambda: gzip.compress, range(10), 9),
    "snappy": _Family(_snappy),
    "zstd": _Family(_zstd, range(1, 23), 3),
}


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


def pieces_hash(pieces: Iterable[bytes], name: str) -> str:
    """The hex digest of content that comes in pieces."""
    hasher = _hasher(name)()
    for piece in pieces:
        hasher.update(piece)
    return hasher.hexdigest()


def _hasher(name: str) -> Callable[..., hashlib._Hash]:
    return getattr(xxhash if name in xxhash.algorithms_available else hashlib, name)
