"""Shard caches in any filesystem of fsspec: a local or network path, S3, GCS, Azure and others."""

from __future__ import annotations

import contextlib
import inspect
import logging
import os
import re
import socket
import stat
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Any

import fsspec
from fsspec.implementations.local import LocalFileSystem

from lance_stream.errors import PlanError, ShardCorruptError
from lance_stream.shards.regular import open_regular
from lance_stream.tiers.frame import BadFrameError
from lance_stream.tiers.shard_cache import ShardCache, ValueTooLargeError
from lance_stream.tiers.tier_url import TierUrl

__all__ = ["FsspecCache"]

logger = logging.getLogger(__name__)

_NAME = re.compile(r"[0-9a-f]{40}\.shard")
_TEMPORARY = re.compile(r"\.tmp-[^/]*\.shard")
_TEMPORARY_AGE_S = 3600.0
# A put is one request there, which is whole or nothing. Elsewhere a file grows as it is written.
_ATOMIC_PUT = frozenset({"s3", "s3a", "gs", "gcs", "az", "abfs", "abfss", "adl", "oss", "memory"})
# Schemes that fsspec does not know before their package is installed.
_FROM_PACKAGES = {"abfss": "adlfs"}
_AGES = ("mtime", "LastModified", "last_modified", "updated", "created", "modified")
# Between two looks at all files, this part of a limit is filled.
_LOOK_EVERY = 20
_MIN_LOOK_S = 1.0
# What the url may not set, and what a filesystem takes without naming it.
_RESERVED = frozenset({"self", "loop", "asynchronous", "session"})
_VARIADIC = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
_MORE_OPTIONS = {"s3": ("profile",), "s3a": ("profile",)}


@dataclass(frozen=True, slots=True)
class _File:
    written: float
    path: str
    num_bytes: int


class FsspecCache(ShardCache):
    """Values as files ``<url>/<prefix>/<key>.shard``.

    On an object store a value is put by one request. Elsewhere it is written under a name that
    no other node uses, and renamed. Limits are held by looking at all files and removing the
    oldest: at the first put, and whenever this process has put a twentieth of the limit since,
    so that many nodes together may exceed it by that much each. Nothing but files with names
    like ours is ever removed.
    """

    def __init__(self, url: TierUrl, *, clock: Callable[[], float] = time.time) -> None:
        """Load the filesystem's library; does no I/O.

        Args:
            url: Any url of fsspec. Options that are not ours go to the filesystem
                (``endpoint_url``, ``key``, ``client_kwargs.region_name`` and the like).
            clock: Unix seconds.

        Raises:
            PlanError: There is no such filesystem, or an option is not one of it.
            ImportError: Its library is not installed.
        """
        try:
            kind: Any = fsspec.get_filesystem_class(url.scheme)
        except ValueError as error:
            if url.scheme in _FROM_PACKAGES:
                msg = f"No module named {_FROM_PACKAGES[url.scheme]!r}"
                raise ImportError(msg) from error
            msg = f"shared_cache={url.shown!r}: there is no tier {url.scheme!r}"
            raise PlanError(msg) from error
        self._kind = kind
        self._url = url
        self._options = _storage_options(url, kind)
        self._clock = clock
        self._renames = url.scheme not in _ATOMIC_PUT
        # Where somebody may have made a directory, a link or a pipe of a name of ours.
        self._is_local = issubclass(kind, LocalFileSystem)
        base = url.path if url.scheme == "file" else url.text
        path = kind._strip_protocol(base)
        self._folder = "/".join([str(path).rstrip("/"), *([url.prefix] if url.prefix else [])])
        self._opening = threading.Lock()
        self._looking = threading.Lock()
        self._opened: Any = None
        self._looked_at: float | None = None
        self._puts_since = self._bytes_since = 0

    def get(self, key: str) -> bytes | None:
        """See ``ShardCache``."""
        path = self._path(key)
        try:
            if self._is_local:
                return self._get_local(path)
            if self._url.ttl_s is not None and self._is_expired(_written(self._info(path))):
                return None
            return bytes(self._fs.cat_file(path))
        except FileNotFoundError:
            return None

    def put(self, key: str, data: bytes) -> None:
        """See ``ShardCache``."""
        limit = self._url.max_bytes
        if limit is not None and len(data) > limit:
            msg = f"{len(data)} bytes are more than max_bytes={limit}"
            raise ValueTooLargeError(msg)
        if self._renames:
            self._put_by_renaming(self._path(key), data)
        else:
            self._fs.pipe_file(self._path(key), data)
        self._puts_since += 1
        self._bytes_since += len(data)
        if self._is_due() and self._looking.acquire(blocking=False):
            try:
                self._trim()
            except Exception as error:
                # A limit that cannot be held is a failure of the tier.
                if self._is_bounded:
                    raise
                logger.debug("cannot sweep %s: %s", self, self._url.redact(str(error)))
            finally:
                self._looking.release()

    def __contains__(self, key: object) -> bool:
        """See ``ShardCache``."""
        path = self._path(str(key))
        try:
            if self._is_local:
                status = os.lstat(path)
                # Anything else is to be overwritten.
                return stat.S_ISREG(status.st_mode) and not self._is_expired(status.st_mtime)
            # Not exists(), which takes every error for absence.
            return not self._is_expired(_written(self._info(path)))
        except FileNotFoundError:
            return False

    def delete(self, key: str) -> None:
        """See ``ShardCache``."""
        path = self._path(key)
        try:
            if self._is_local:
                self._delete_local(path)
            else:
                self._fs.rm_file(path)
        except FileNotFoundError:
            pass

    def close(self) -> None:
        """See ``ShardCache``."""
        self._opened = None

    def __repr__(self) -> str:
        return f"FsspecCache({self._url.shown!r})"

    @property
    def _is_bounded(self) -> bool:
        url = self._url
        return not (url.ttl_s is None and url.max_bytes is None and url.max_shards is None)

    @property
    def _fs(self) -> Any:
        """The filesystem, made at first use: some look for credentials then."""
        with self._opening:
            if self._opened is None:
                # Not one that is shared with others, whose listings may be cached.
                self._opened = self._kind(**self._options)
                if self._url.scheme in ("s3", "s3a"):
                    # The guard around us tries again later, and meanwhile Lance is asked.
                    self._opened.retries = 2
            return self._opened

    def _path(self, key: str) -> str:
        return f"{self._folder}/{key}.shard"

    def _get_local(self, path: str) -> bytes | None:
        """What a plain file holds.

        Raises:
            FileNotFoundError: There is nothing.
            BadFrameError: It is no plain file, and so not ours.
        """
        try:
            descriptor = open_regular(path)
        except (ShardCorruptError, IsADirectoryError) as error:
            raise BadFrameError(f"{path} is no plain file") from error
        with open(descriptor, "rb") as file:
            if self._is_expired(os.fstat(descriptor).st_mtime):
                return None
            return file.read()

    def _delete_local(self, path: str) -> None:
        """Free a name. A directory that is not empty is moved out of the way: it is not ours."""
        if not stat.S_ISDIR(os.lstat(path).st_mode):
            os.unlink(path)
            return
        try:
            os.rmdir(path)
        except OSError:
            os.rename(path, f"{path}.not-a-shard-{uuid.uuid4().hex}")

    def _rename(self, temporary: str, path: str) -> None:
        if not self._is_local:
            self._fs.mv(temporary, path)
            return
        # Not mv, which puts a file into what is a directory.
        try:
            os.replace(temporary, path)
        except IsADirectoryError:
            with contextlib.suppress(FileNotFoundError):
                self._delete_local(path)
            os.replace(temporary, path)

    def _info(self, path: str) -> dict[str, Any]:
        """What is known of a file.

        Raises:
            FileNotFoundError: There is none.
        """
        info = self._fs.info(path)
        if info.get("type") == "directory":
            raise FileNotFoundError(path)
        return info

    def _is_expired(self, written: float) -> bool:
        return self._url.ttl_s is not None and self._clock() - written > self._url.ttl_s

    def _put_by_renaming(self, path: str, data: bytes) -> None:
        unique = f"{socket.gethostname()}-{os.getpid()}-{uuid.uuid4().hex}"
        temporary = f"{self._folder}/.tmp-{unique}.shard"
        try:
            try:
                self._fs.pipe_file(temporary, data)
            except FileNotFoundError:
                self._fs.makedirs(self._folder, exist_ok=True)
                self._fs.pipe_file(temporary, data)
            self._rename(temporary, path)
        except BaseException:
            with contextlib.suppress(OSError, NotImplementedError):
                self._fs.rm_file(temporary)
            raise

    def _is_due(self) -> bool:
        url, looked_at = self._url, self._looked_at
        if looked_at is None:
            return self._is_bounded or self._renames
        many = url.max_shards is not None and self._puts_since >= url.max_shards / _LOOK_EVERY
        much = url.max_bytes is not None and self._bytes_since >= url.max_bytes / _LOOK_EVERY
        if many or much:
            return True
        if url.ttl_s is None:
            return False
        return self._clock() - looked_at >= max(_MIN_LOOK_S, url.ttl_s / 4)

    def _trim(self) -> None:
        """Remove what is too old or too much, and temporary files that dead writers left."""
        self._looked_at = self._clock()
        self._puts_since = self._bytes_since = 0
        now, url = self._clock(), self._url
        shards = []
        for file in self._files():
            name = file.path.rpartition("/")[2]
            if _NAME.fullmatch(name):
                shards.append(file)
            elif _TEMPORARY.fullmatch(name) and now - file.written > _TEMPORARY_AGE_S:
                self._remove(file.path)
        count, total = len(shards), sum(file.num_bytes for file in shards)
        for file in sorted(shards, key=lambda file: (file.written, file.path)):
            many = url.max_shards is not None and count > url.max_shards
            much = url.max_bytes is not None and total > url.max_bytes
            if not (many or much or self._is_expired(file.written)):
                break
            self._remove(file.path)
            count -= 1
            total -= file.num_bytes

    def _files(self) -> Iterator[_File]:
        try:
            listed = self._fs.ls(self._folder, detail=True)
        except FileNotFoundError:
            return
        for info in listed:
            if info.get("type") == "file":
                yield _File(_written(info), str(info["name"]), int(info.get("size") or 0))

    def _remove(self, path: str) -> None:
        try:
            self._fs.rm_file(path)
        except FileNotFoundError:
            # Another node was faster.
            pass


def _written(info: dict[str, Any]) -> float:
    """When a file was written, in unix seconds; filesystems name and type it differently.

    One that does not say counts as new: what is older than others is not known then.
    """
    value = next((info[name] for name in _AGES if info.get(name) is not None), None)
    if isinstance(value, str):
        with contextlib.suppress(ValueError):
            value = datetime.fromisoformat(value.replace("Z", "+00:00"))
    if isinstance(value, datetime):
        return (value if value.tzinfo else value.replace(tzinfo=timezone.utc)).timestamp()
    return float(value) if isinstance(value, int | float) else time.time()


def _storage_options(url: TierUrl, kind: Any) -> dict[str, Any]:
    """What the filesystem is made with: of the url, of its options, and ours.

    Raises:
        PlanError: An option is not one of the filesystem.
    """
    known: dict[str, Any] = dict.fromkeys(_MORE_OPTIONS.get(url.scheme, ()))
    for cls in kind.__mro__:
        for name, parameter in inspect.signature(cls.__init__).parameters.items():
            if name not in _RESERVED and parameter.kind not in _VARIADIC:
                known.setdefault(name, parameter.default)
    url.require_options(known)
    options: dict[str, Any] = dict(kind._get_kwargs_from_urls(url.text))
    # A listing from the cache would not show what other nodes put.
    options.update(skip_instance_cache=True, use_listings_cache=False)
    if url.scheme in ("s3", "s3a"):
        options["config_kwargs"] = {
            "connect_timeout": url.timeout_s,
            "read_timeout": url.timeout_s,
            "retries": {"max_attempts": 1},
            # Content has a hash of its own, and one that is wrong must not look like an outage.
            "request_checksum_calculation": "when_required",
            "response_checksum_validation": "when_required",
        }
    for name, text in url.extra.items():
        outer, dot, inner = name.partition(".")
        value = _typed(text, known.get(name))
        if dot:
            options[outer] = {**options.get(outer, {}), inner: value}
        else:
            options[name] = value
    return options


def _typed(text: str, default: Any) -> Any:
    """An option in the type of its default."""
    if isinstance(default, bool):
        return text.lower() in ("true", "1", "yes")
    if isinstance(default, int) and text.lstrip("-").isdecimal():
        return int(text)
    return text
