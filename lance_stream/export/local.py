"""An export into a local directory."""

from __future__ import annotations

import contextlib
import fcntl
import itertools
import json
import os
from collections.abc import Iterator, Mapping
from typing import Any

from lance_stream.errors import CacheInUseError
from lance_stream.export.destination import (
    PIECE_BYTES,
    PLAN_NAME,
    Destination,
    parse_mapping,
    record_name,
    record_shard,
)
from lance_stream.export.plan import INDEX_NAME, STATE_NAME, Found
from lance_stream.processes import this_process
from lance_stream.shards.paths import new_temporary_name, sweep_temporary_files

__all__ = ["LocalDestination"]

_LOCK_NAME = "lock"


class LocalDestination(Destination):
    """A directory."""

    def __init__(self, path: str) -> None:
        """Take an absolute path; touches nothing."""
        self.name = self.disk = path
        self._state = os.path.join(path, STATE_NAME)
        self._lock: int | None = None
        self._is_new = False
        self._writer = this_process()
        self._writes = itertools.count()

    def look(self) -> Found:
        """What is there; nothing if there is no such directory."""
        try:
            with os.scandir(self.name) as entries:
                # Not what a running export has in hand; a folder is something as well.
                sizes = {
                    e.name: e.stat().st_size for e in entries if not e.name.startswith(".tmp-")
                }
        except FileNotFoundError:
            return Found({}, None, None)
        began = sizes.pop(STATE_NAME, None) is not None
        state = self._read(os.path.join(STATE_NAME, PLAN_NAME)) if began else None
        index = self._read(INDEX_NAME) if INDEX_NAME in sizes else None
        return Found(sizes, state, index)

    def claim(self) -> None:
        """Make the directory, and lock it."""
        path = os.path.join(self._state, _LOCK_NAME)
        self._is_new = not os.path.exists(self.name)
        while self._lock is None:
            os.makedirs(self._state, exist_ok=True)
            try:
                descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
            except FileNotFoundError:
                continue  # The one before has just cleaned up.
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if _is_at(descriptor, path):
                    self._lock = descriptor
            except BlockingIOError as error:
                pid = os.pread(descriptor, 20, 0).decode(errors="replace") or "unknown"
                msg = (
                    f"another export to {self.name} is running, with pid {pid}: wait until it has "
                    "ended, or choose another --out"
                )
                raise CacheInUseError(msg) from error
            finally:
                if self._lock is None:
                    os.close(descriptor)
        os.ftruncate(self._lock, 0)
        os.pwrite(self._lock, str(os.getpid()).encode(), 0)
        self._sweep()

    def begin(self, identity: Mapping[str, Any]) -> None:
        """Write the plan."""
        self._write(json.dumps(identity), os.path.join(STATE_NAME, PLAN_NAME))

    def records(self) -> dict[int, Any]:
        """The records of the state directory."""
        found = {}
        for name in os.listdir(self._state):
            shard = record_shard(name)
            if shard is not None:
                found[shard] = self._read(os.path.join(STATE_NAME, name))
        return found

    def pieces(self, name: str) -> Iterator[bytes]:
        """Read the file; a regular one, and nothing that it links to."""
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        with open(os.open(os.path.join(self.name, name), flags), "rb") as file:
            while piece := file.read(PIECE_BYTES):
                yield piece

    def temporary_path(self, name: str) -> str:
        """Beside the file to be, so that it can be renamed."""
        unique = f"{next(self._writes)}-{name}"
        return os.path.join(self.name, new_temporary_name(unique, *self._writer))

    def publish(self, path: str, name: str) -> None:
        """Rename the file; its content is on the disk before its name is."""
        _sync(path)
        os.rename(path, os.path.join(self.name, name))

    def record(self, shard: int, entry: Mapping[str, Any]) -> None:
        """Write a record."""
        self._write(json.dumps(entry), os.path.join(STATE_NAME, record_name(shard)))

    def publish_index(self, text: str) -> None:
        """Write the index."""
        # The names of the shards first.
        _sync(self.name)
        self._write(text, INDEX_NAME, durable=True)
        _sync(self.name)

    def clean_up(self) -> None:
        """Remove the state, the lock last: from then on another export may begin."""
        self._sweep()
        names = [name for name in os.listdir(self._state) if name != _LOCK_NAME]
        for name in [*names, _LOCK_NAME]:
            os.unlink(os.path.join(self._state, name))
        with contextlib.suppress(OSError):
            os.rmdir(self._state)
        self._unlock()

    def release(self) -> None:
        """Unlock; without finished shards nothing is left behind."""
        if self._lock is None:
            return
        # Whatever fails here must not hide the error that brought us here.
        with contextlib.suppress(OSError):
            self._sweep()
            if not self.records():
                self._remove_nothing_done()
        self._unlock()

    def _unlock(self) -> None:
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def _remove_nothing_done(self) -> None:
        found = self.look()
        if found.index is None and not found.sizes:
            self.clean_up()
            if self._is_new:
                os.rmdir(self.name)

    def _sweep(self) -> None:
        """Remove temporary files; who holds the lock is the only writer."""
        for _ in sweep_temporary_files(self.name, lambda _pid, _started: False):
            pass

    def _read(self, name: str) -> dict[str, Any] | None:
        try:
            with open(os.path.join(self.name, name), "rb") as file:
                return parse_mapping(file.read())
        except FileNotFoundError:
            return None

    def _write(self, text: str, name: str, *, durable: bool = False) -> None:
        """Write a file at once and whole; after a power failure it may be damaged or missing."""
        path = self.temporary_path(os.path.basename(name))
        try:
            with open(path, "w", encoding="utf-8") as file:
                file.write(text)
            if durable:
                _sync(path)
            os.rename(path, os.path.join(self.name, name))
        except BaseException:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(path)
            raise


def _is_at(descriptor: int, path: str) -> bool:
    """Whether an open file is still the one of that name."""
    try:
        return os.path.samestat(os.fstat(descriptor), os.stat(path))
    except FileNotFoundError:
        return False


def _sync(path: str) -> None:
    """Have what was written to a file or a directory on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
