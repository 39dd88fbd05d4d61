"""Fakes and contract suites for those who extend lance_stream. Not loaded by anything else."""

from __future__ import annotations

from lance_stream.testing.memory_cache import MemoryShardCache
from lance_stream.testing.shard_cache_contract import ShardCacheContract

__all__ = ["MemoryShardCache", "ShardCacheContract"]
