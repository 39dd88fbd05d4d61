"""What the shards of an index are called in a cache directory. Pure."""

from __future__ import annotations

from lance_stream.planning.checksum import DEFAULT_HASH
from lance_stream.planning.fingerprint import content_fingerprint
from lance_stream.planning.index import ShardIndex
from lance_stream.planning.window import FAMILY_CHARS
from lance_stream.shards.header import ShardHeader
from lance_stream.shards.paths import index_name, is_index_name, is_shard_name, shard_name

__all__ = ["ShardNames"]


class ShardNames:
    """Names of the shards of an index, in one format and with one checksum.

    Attributes:
        fingerprint: Names what is cached as a whole.
    """

    def __init__(self, index: ShardIndex, cache_format: str, algorithm: str | None) -> None:
        """Compute the names that all shards share.

        Args:
            index: Of the stream.
            cache_format: ``"arrow"`` or ``"mds"``.
            algorithm: Hash that was asked for, or None for our own.
        """
        self._index = index
        self._format = cache_format
        self._algorithm = algorithm
        self.fingerprint = self._content(index.fingerprint)
        # In a window each part has a name of its own, whatever the window.
        self._parts: list[tuple[str, int, int]] = []
        first = 0
        for number, part in enumerate(index.window.parts if index.window else ()):
            if part.num_shards:
                content = self._content(index.part_fingerprint(number))
                self._parts.append((content, first, part.num_shards))
            first += part.num_shards
        self._firsts = {content: first for content, first, _ in self._parts}
        self._known = {
            shard_name(content, 0, cache_format).split(".")[0]: (first, count)
            for content, first, count in self._parts or [(self.fingerprint, 0, index.num_shards)]
        }

    def place(self, shard: int) -> tuple[str, int]:
        """Fingerprint of what a shard's file holds, and its number among the files of that."""
        for content, first, count in self._parts:
            if first <= shard < first + count:
                return content, shard - first
        return self.fingerprint, shard

    def name(self, shard: int) -> str:
        """Name of a shard's file."""
        content, number = self.place(shard)
        return shard_name(content, number, self._format)

    def header(self, shard: int) -> ShardHeader:
        """What a shard's file says that it is."""
        rows = len(self._index.shard_rows(shard))
        return ShardHeader(*self.place(shard), rows, self._algorithm or DEFAULT_HASH)

    def find(self, name: str) -> int | None:
        """Which shard a file is; None if it is none of ours."""
        if not is_shard_name(name):
            return None
        content, number, suffix = name.split(".")
        first, count = self._known.get(content, (0, 0))
        at = int(number)
        return first + at if suffix == self._format and at < count else None

    def is_left_behind(self, name: str) -> bool:
        """Whether a file is a shard or index of a window that this one takes the place of."""
        window = self._index.window
        if window is None or not name.startswith(window.family[:FAMILY_CHARS]):
            return False
        if is_index_name(name):
            return name != index_name(self._index.fingerprint)
        return is_shard_name(name) and self.find(name) is None

    def _content(self, fingerprint: str) -> str:
        made = content_fingerprint(fingerprint, self._format, self._algorithm)
        window = self._index.window
        return made if window is None else window.family[:FAMILY_CHARS] + made[FAMILY_CHARS:]
