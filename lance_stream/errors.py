"""Every error that lance_stream raises on purpose.

::

    LanceStreamError
    ├── DatasetNotFoundError     (ValueError)    no Lance table at that uri
    ├── VersionNotFoundError     (ValueError)    no such version or tag, or it was cleaned up
    ├── CredentialsError         (PermissionError)   the store refused who we are
    ├── SourceUnavailableError   (ConnectionError)   network, throttling, a hung store
    ├── ShardUnavailableError    (RuntimeError)  one shard could not be fetched; says which and why
    ├── ShardCorruptError        (ValueError)    a cached file is not what was published
    ├── CacheFullError           (OSError)       no room left for a shard file
    ├── CacheInUseError          (RuntimeError)  another live job holds the cache directory
    ├── CacheUnusableError       (OSError)       the cache directory is gone, or cannot be written
    ├── UnsupportedTypeError     (TypeError)     a column type that no sample value exists for
    ├── PlanError                (ValueError)    a bad argument: column, expression, size
    ├── TransformError           (RuntimeError)  the user's transform failed: holds its traceback
    ├── EmptyStreamError         (ValueError)    nothing to stream
    ├── IndexFileError           (OSError)       an index file cannot be read or written
    ├── IndexFormatError         (ValueError)    not an index, or a damaged or newer one
    ├── StateMismatchError       (ValueError)    ranks or checkpoints that describe different data
    ├── TableChangedError        (ValueError)    a followed table was not only appended to
    ├── NoNewDataError           (TimeoutError)  a followed table did not grow in time
    └── DownloadProcessError     (RuntimeError)  the download process cannot be started or reached

    ShardCredentialsError        ShardUnavailableError and CredentialsError in one: the store
                                 refused a shard, since keys have lapsed in mid-epoch, for one
    VersionGoneError             ShardUnavailableError and VersionNotFoundError in one: the
                                 version of a shard was cleaned up while it was in use

None is a ``FileNotFoundError``: inside a reader, the host takes that to mean "evicted, prepare
the shard again". Every class takes one message, so that it survives the trip from a DataLoader
worker to the training loop, and from the download process to a trainer.
"""

from __future__ import annotations

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
    "LanceStreamError",
    "NoNewDataError",
    "PlanError",
    "ShardCorruptError",
    "ShardCredentialsError",
    "ShardUnavailableError",
    "SourceUnavailableError",
    "StateMismatchError",
    "TableChangedError",
    "TransformError",
    "UnsupportedTypeError",
    "VersionGoneError",
    "VersionNotFoundError",
    "error_from_name",
]


class LanceStreamError(Exception):
    """Base of every error that lance_stream raises on purpose."""


class DatasetNotFoundError(LanceStreamError, ValueError):
    """There is no Lance table (or no bucket, or no folder) at the uri."""


class VersionNotFoundError(LanceStreamError, ValueError):
    """The table has no such version or tag, or the version was cleaned up while in use."""


class CredentialsError(LanceStreamError, PermissionError):
    """The store refused the credentials, or there were none."""


class SourceUnavailableError(LanceStreamError, ConnectionError):
    """The store did not answer, or throttled, for longer than retrying allows."""


class ShardUnavailableError(LanceStreamError, RuntimeError):
    """One shard could not be fetched: names shard, rows, uri, version and the cause."""


class ShardCredentialsError(ShardUnavailableError, CredentialsError):
    """One shard could not be fetched, because the store refused the credentials."""


class VersionGoneError(ShardUnavailableError, VersionNotFoundError):
    """A shard's version was cleaned up while in use; shards that are cached go on working."""


class ShardCorruptError(LanceStreamError, ValueError):
    """A shard file is not the one that was published for that place in the plan."""


class CacheFullError(LanceStreamError, OSError):
    """There is no room for a shard file in the cache directory."""


class CacheUnusableError(LanceStreamError, OSError):
    """The cache directory is gone, or cannot be written, while a dataset uses it."""


class CacheInUseError(LanceStreamError, RuntimeError):
    """A live process already uses the cache directory: names its pid."""


class TransformError(LanceStreamError, RuntimeError):
    """The function given as ``transform`` raised, or returned what cannot be streamed."""


class UnsupportedTypeError(LanceStreamError, TypeError):
    """A selected column has a type that samples cannot hold yet: names column and type."""


class PlanError(LanceStreamError, ValueError):
    """A planning argument is wrong: names the argument."""


class EmptyStreamError(LanceStreamError, ValueError):
    """The selection holds no rows."""


class IndexFileError(LanceStreamError, OSError):
    """An index file cannot be read or written: names the place. Its cause has the details."""


class IndexFormatError(LanceStreamError, ValueError):
    """A file is not a shard index, or is damaged, or was written by a newer lance_stream."""


class StateMismatchError(LanceStreamError, ValueError):
    """Ranks, or a checkpoint and a stream, describe different data."""


class TableChangedError(LanceStreamError, ValueError):
    """A table that is followed was changed otherwise than by appending: names the versions."""


class NoNewDataError(LanceStreamError, TimeoutError):
    """A table that is followed did not grow for as long as was to be waited."""


class DownloadProcessError(LanceStreamError, RuntimeError):
    """The download process could not be started, or did not answer in time."""


def error_from_name(name: str, message: str) -> LanceStreamError:
    """Make the error that another process described by class name and message. Pure.

    Args:
        name: Class name as in this module.
        message: Text of the error.

    Returns:
        An instance of that class, or of ``LanceStreamError`` for a name that is not in the tree.
    """
    found = globals().get(name)
    if isinstance(found, type) and issubclass(found, LanceStreamError):
        return found(message)
    return LanceStreamError(f"{name}: {message}")
