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
        CredentialsError,
        DatasetNotFoundError,
        DownloadProcessError,
        EmptyStreamError,
        IndexFormatError,
        LanceStreamError,
        PlanError,
        ShardCorruptError,
        ShardUnavailableError,
        SourceUnavailableError,
        StateMismatchError,
        UnsupportedTypeError,
        VersionNotFoundError,
    )
    from lance_stream.host.stream import LanceStream
    from lance_stream.planning.index import ShardIndex

__version__ = "0.1.0"

__all__ = [
    "CacheFullError",
    "CacheInUseError",
    "CredentialsError",
    "DatasetNotFoundError",
    "DownloadProcessError",
    "EmptyStreamError",
    "IndexFormatError",
    "LanceStream",
    "LanceStreamError",
    "PlanError",
    "ShardCorruptError",
    "ShardIndex",
    "ShardUnavailableError",
    "SourceUnavailableError",
    "StateMismatchError",
    "UnsupportedTypeError",
    "VersionNotFoundError",
    "__version__",
]

_ROOMS = {"LanceStream": "host.stream", "ShardIndex": "planning.index"}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        msg = f"module 'lance_stream' has no attribute {name!r}"
        raise AttributeError(msg)
    module = importlib.import_module(f"lance_stream.{_ROOMS.get(name, 'errors')}")
    return getattr(module, name)


def __dir__() -> list[str]:
    return sorted(__all__)
