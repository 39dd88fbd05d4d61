"""An export into an object store, or whatever else fsspec can write to."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeVar

from lance_stream.errors import PlanError
from lance_stream.export.destination import (
    PIECE_BYTES,
    PLAN_NAME,
    Destination,
    parse_mapping,
    record_name,
    record_shard,
)
from lance_stream.export.lease import StoreLease
from lance_stream.export.plan import INDEX_NAME, STATE_NAME, Found
from lance_stream.offline.attempts import CallFailedError, Policy, attempt
from lance_stream.processes import is_alive, this_process
from lance_stream.shards.paths import new_temporary_name, sweep_temporary_files
from lance_stream.source.failures import Failure, FailureKind, classify

__all__ = ["RemoteDestination"]

_T = TypeVar("_T")
# An upload may take as long as this rate needs, on top of the time for an answer.
_SLOWEST_BYTES_PER_S = 256 << 10
_LAST_REQUEST_S = 5.0
_TEMPORARY_FOLDER = f"lance-stream-export-{os.getuid()}"


class RemoteDestination(Destination):
    """A folder of a store. Objects appear there whole, as far as the store has it so."""

    def __init__(self, url: str, options: Mapping[str, Any], policy: Policy) -> None:
        """Take a URL; asks nothing of the store.

        Args:
            url: An fsspec URL, without credentials.
            options: Of the fsspec filesystem.
            policy: How often and how long a request is tried.

        Raises:
            PlanError: There is no such filesystem, or its package is not installed.
        """
        self.name, self.disk = url, tempfile.gettempdir()
        self._policy = policy
        self._files, self._root = _filesystem(url, options)
        self._state = f"{self._root}/{STATE_NAME}"
        self._lease: StoreLease | None = None
        self._folder: str | None = None
        self._folder_lock = threading.Lock()
        self._writer = this_process()
        self._writes = itertools.count()

    def look(self) -> Found:
        """What is there; nothing if there is no such folder."""
        sizes = self._list(self._root)
        sizes.pop(STATE_NAME, None)
        state = self._read(f"{STATE_NAME}/{PLAN_NAME}")
        index = self._read(INDEX_NAME) if INDEX_NAME in sizes else None
        return Found(sizes, state, index)

    def claim(self) -> None:
        """Take the lease of the folder; the store knows no locks."""
        lease = StoreLease(self._read, self._put_text, self.name, self._policy.stop)
        lease.take()
        self._lease = lease

    def begin(self, identity: Mapping[str, Any]) -> None:
        """Write the plan."""
        self._put_text(f"{STATE_NAME}/{PLAN_NAME}", json.dumps(identity))

    def records(self) -> dict[int, Any]:
        """The records of the state folder."""
        shards = {name: record_shard(name) for name in self._list(self._state)}
        paths = {
            f"{self._state}/{name}": shard for name, shard in shards.items() if shard is not None
        }
        if not paths:
            return {}

        def read() -> Any:
            return self._files.cat(list(paths), on_error="omit")

        texts = self._ask(read, "reading what is finished")
        if not isinstance(texts, dict):
            # One path alone gives its content alone.
            texts = dict.fromkeys(paths, texts)
        found = {
            self._files._strip_protocol(path): bytes(text or b"") for path, text in texts.items()
        }
        return {
            shard: parse_mapping(found[path]) for path, shard in paths.items() if path in found
        }

    def pieces(self, name: str) -> Iterator[bytes]:
        """Download the file."""
        path = f"{self._root}/{name}"
        start, more = 0, True
        while more:

            def read(start: int = start) -> bytes | None:
                try:
                    return self._files.cat_file(path, start=start, end=start + PIECE_BYTES)
                except FileNotFoundError:
                    return None

            piece = self._ask(read, f"reading {name}", PIECE_BYTES / _SLOWEST_BYTES_PER_S)
            if piece is None:
                raise FileNotFoundError(path)
            yield bytes(piece)
            start += len(piece)
            more = len(piece) == PIECE_BYTES

    def temporary_path(self, name: str) -> str:
        """In a folder of the user in the temporary directory."""
        with self._folder_lock:
            if self._folder is None:
                self._folder = _temporary_folder()
        unique = f"{next(self._writes)}-{name}"
        return os.path.join(self._folder, new_temporary_name(unique, *self._writer))

    def publish(self, path: str, name: str) -> None:
        """Upload the file."""
        if self._lease is not None:
            self._lease.require()
        size = os.stat(path).st_size

        def upload() -> None:
            self._files.put_file(path, f"{self._root}/{name}")

        self._ask(upload, f"uploading {name}", size / _SLOWEST_BYTES_PER_S)
        os.unlink(path)

    def record(self, shard: int, entry: Mapping[str, Any]) -> None:
        """Upload a record."""
        self._put_text(f"{STATE_NAME}/{record_name(shard)}", json.dumps(entry))

    def publish_index(self, text: str) -> None:
        """Upload the index."""
        self._put_text(INDEX_NAME, text)

    def clean_up(self) -> None:
        """Remove the state."""
        if self._lease is not None:
            self._lease.stop()

        def remove() -> None:
            self._files.invalidate_cache()
            with contextlib.suppress(FileNotFoundError):
                self._files.rm(self._state, recursive=True)

        self._ask(remove, f"removing {STATE_NAME}")
        self._lease = None

    def release(self) -> None:
        """Give up the lease, and remove temporary files."""
        if self._folder is not None:
            own = self._writer
            for _ in sweep_temporary_files(self._folder, lambda *writer: writer != own):
                pass
        if self._lease is not None:
            self._lease.stop()
            self._lease = None
            path = f"{self._state}/{StoreLease.NAME}"
            # The next export need not wait until it lapses. The export's own policy has ended.
            with contextlib.suppress(CallFailedError):
                last = Policy(1, _LAST_REQUEST_S, threading.Event())
                attempt(lambda: _classified(lambda: self._files.rm_file(path), ""), last, "")

    def _list(self, folder: str) -> dict[str, int]:
        def names() -> list[Any]:
            self._files.invalidate_cache()
            try:
                return list(self._files.ls(folder, detail=True))
            except FileNotFoundError:
                return []

        found = {}
        for entry in self._ask(names, "listing"):
            path = entry["name"].rstrip("/")
            if path.rpartition("/")[0] == folder:
                found[path.rpartition("/")[2]] = int(entry.get("size") or 0)
        return found

    def _read(self, name: str) -> dict[str, Any] | None:
        def read() -> bytes | None:
            try:
                return self._files.cat_file(f"{self._root}/{name}")
            except FileNotFoundError:
                return None

        content = self._ask(read, f"reading {name}")
        return None if content is None else parse_mapping(content)

    def _put_text(self, name: str, text: str) -> None:
        def put() -> None:
            self._files.pipe_file(f"{self._root}/{name}", text.encode())

        self._ask(put, f"writing {name}")

    def _ask(self, call: Callable[[], _T], what: str, more_s: float = 0.0) -> _T:
        return attempt(lambda: _classified(call, what), self._policy, what, more_s)


def _filesystem(url: str, options: Mapping[str, Any]) -> tuple[Any, str]:
    import fsspec  # noqa: PLC0415 - not for local exports

    try:
        files, root = fsspec.core.url_to_fs(url, **options)
    except ImportError as error:
        scheme = url.partition("://")[0]
        msg = f"--out {url}: {error}; install the package for {scheme}://, as lance-stream[s3]"
        raise PlanError(msg) from error
    except (OSError, TypeError, ValueError) as error:
        # Some connect at once; some take no options but their own.
        raise PlanError(f"--out {url}: {error}") from error
    return files, str(root).rstrip("/")


def _classified(call: Callable[[], _T], what: str) -> _T:
    try:
        return call()
    except Exception as error:
        failure = classify(error, while_opening=False)
        if failure.kind is FailureKind.CACHE_FULL:
            raise
        if isinstance(error, PermissionError):
            failure = Failure(FailureKind.CREDENTIALS, failure.message, retryable=False)
        elif isinstance(error, FileNotFoundError):
            failure = Failure(FailureKind.NOT_FOUND, failure.message, retryable=False)
        elif failure.kind is FailureKind.BROKEN:
            # Clients wrap what the network did in classes and words of their own.
            failure = Failure(FailureKind.UNAVAILABLE, failure.message, retryable=True)
        words = f"{what}: {failure.message}" if what else failure.message
        raise CallFailedError(Failure(failure.kind, words, failure.retryable)) from error


def _temporary_folder() -> str:
    """A private folder for files to upload; removes there what killed exports left behind."""
    folder = os.path.join(tempfile.gettempdir(), _TEMPORARY_FOLDER)
    os.makedirs(folder, mode=0o700, exist_ok=True)
    status = os.lstat(folder)
    if status.st_uid != os.getuid() or status.st_mode & 0o077:
        msg = f"{folder} is not a private folder of this user: remove it, or set TMPDIR"
        raise PlanError(msg)
    for _ in sweep_temporary_files(folder, is_alive):
        pass
    return folder
