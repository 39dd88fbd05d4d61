"""Train PyTorch models straight from Lance tables, with mosaicml-streaming's StreamingDataset.

Names load on first use: importing this package loads neither lance nor torch nor streaming.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lance_stream.errors import (
        CacheFullError,
        CacheInUseError,
        CacheUnusableError,
        CredentialsError,
        DatasetNotFoundError,
        DownloadProcessError,
        EmptyStreamError,
        IndexFileError,
        IndexFormatError,
        LanceStreamError,
        NoNewDataError,
        PlanError,
        ShardCorruptError,
        ShardCredentialsError,
        ShardUnavailableError,
        SourceUnavailableError,
        StateMismatchError,
        TableChangedError,
        TransformError,
        UnsupportedTypeError,
        VersionGoneError,
        VersionNotFoundError,
    )
    from lance_stream.host.collate import collate
    from lance_stream.host.dataset import LanceStreamingDataset
    from lance_stream.host.follow import Round, follow
    from lance_stream.host.indexes import build_index
    from lance_stream.host.observing import counter, progress, stats
    from lance_stream.host.stream import LanceStream
    from lance_stream.planning.index import ShardIndex
    from lance_stream.tiers.opening import open_shard_cache
    from lance_stream.tiers.shard_cache import ShardCache, ValueTooLargeError

__version__ = "0.1.0"

__all__ = [
    "CacheFullError",
    "CacheInUseError",
    "CacheUnusableError",
    "CredentialsError",
    "DatasetNotFoundError",
    "DownloadProcessError",
    "EmptyStreamError",
    "IndexFileError",
    "IndexFormatError",
    "LanceStream",
    "LanceStreamError",
    "LanceStreamingDataset",
    "NoNewDataError",
    "PlanError",
    "Round",
    "ShardCache",
    "ShardCorruptError",
    "ShardCredentialsError",
    "ShardIndex",
    "ShardUnavailableError",
    "SourceUnavailableError",
    "StateMismatchError",
    "TableChangedError",
    "TransformError",
    "UnsupportedTypeError",
    "ValueTooLargeError",
    "VersionGoneError",
    "VersionNotFoundError",
    "__version__",
    "build_index",
    "collate",
    "counter",
    "follow",
    "open_shard_cache",
    "progress",
    "stats",
]

_ROOMS = {
    "build_index": "host.indexes",
    "LanceStream": "host.stream",
    "LanceStreamingDataset": "host.dataset",
    "ShardCache": "tiers.shard_cache",
    "ValueTooLargeError": "tiers.shard_cache",
    "ShardIndex": "planning.index",
    "open_shard_cache": "tiers.opening",
    "collate": "host.collate",
    "Round": "host.follow",
    "counter": "host.observing",
    "follow": "host.follow",
    "progress": "host.observing",
    "stats": "host.observing",
}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        msg = f"module 'lance_stream' has no attribute {name!r}"
        raise AttributeError(msg)
    room = _ROOMS.get(name, "errors")
    if room.startswith("host."):
        # All that workers use, now: a thread that calls stats() for the first time while workers
        # are forked would leave them the lock of an import that never ends.
        importlib.import_module("lance_stream.host.observing")
        importlib.import_module("lance_stream.host.collate")
    module = importlib.import_module(f"lance_stream.{room}")
    value = globals()[name] = getattr(module, name)
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
