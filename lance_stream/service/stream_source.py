"""A registered stream as the download process knows it: its index and the names of its shards."""

from __future__ import annotations

import os
from dataclasses import dataclass, field

from lance_stream.planning.index import ShardIndex
from lance_stream.service.messages import Register
from lance_stream.shards.header import ShardHeader
from lance_stream.shards.names import ShardNames
from lance_stream.shards.regular import read_regular
from lance_stream.source.table import Table

__all__ = ["StreamSource"]


@dataclass(slots=True)
class StreamSource:
    """What the shards of one registered stream are read from."""

    register: Register
    index: ShardIndex
    names: ShardNames = field(init=False)
    checked: Table | None = None  # the open table that is known to be the index's
    table_key: str = ""
    is_gone: bool = False  # nobody asks for its shards any more
    # Mean bytes of a row as it was read, where a transform makes something else of it; or 0.0.
    read_row_bytes: float = 0.0

    def __post_init__(self) -> None:
        """Name the shards."""
        register = self.register
        self.names = ShardNames(self.index, register.cache_format, register.algorithm)

    @classmethod
    def load(cls, register: Register) -> StreamSource:
        """Read the stream's index.

        Raises:
            IndexFormatError: It is damaged.
            ShardCorruptError: It is no plain file.
            OSError: It cannot be read.
        """
        path = register.index_path
        return cls(register, ShardIndex.from_bytes(read_regular(path), path))

    def expected_bytes(self, shard: int) -> int:
        """Memory that reading a shard takes, as far as is known."""
        rows = len(self.index.shard_rows(shard))
        return max(self.index.shard_bytes(shard), round(rows * self.read_row_bytes))

    @property
    def fingerprint(self) -> str:
        """Names what the stream caches."""
        return self.names.fingerprint

    def path(self, shard: int) -> str:
        """The shard's file in the cache."""
        return os.path.join(self.register.directory, self.name(shard))

    def header(self, shard: int) -> ShardHeader:
        """What the shard's file says that it is."""
        return self.names.header(shard)

    def name(self, shard: int) -> str:
        """The name of the shard's file."""
        return self.names.name(shard)
