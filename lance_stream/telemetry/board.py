"""Numbers that one process writes and others read, in a small mapped file.

A file of 4096 bytes: 2048 of JSON, padded with spaces, that says who writes and what the numbers
are called, then int64 numbers. There is one writer, which changes a number by one store into
memory, so nobody ever waits for anybody; a reader sees each number as it was at some moment.
"""

from __future__ import annotations

import contextlib
import functools
import json
import logging
import os
import struct
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

__all__ = ["Board", "Reading", "board_path", "read_board", "read_boards", "take_over"]

logger = logging.getLogger(__name__)

_BYTES = 4096
_TEXT_BYTES = 2048
_MAX_NUMBERS = (_BYTES - _TEXT_BYTES) // 8
_SUFFIX = ".board"
_MAX_LOOKS = 5


class Board:
    """The numbers of this process. Not for use after a fork: make another one.

    Attributes:
        numbers: Writable int64 memory; index by ``place``.
    """

    def __init__(self, directory: str, name: str, labels: Mapping[str, Any], names: Sequence[str]):
        """Make the file, or go on with one of that name.

        Where it cannot be made (a full disk) a warning says so, and the numbers are kept by this
        process alone: counting never stops training.

        Args:
            directory: Where boards lie; made if it is missing, in one that is there.
            name: Of the file, unique among its writers.
            labels: Who writes, in JSON values.
            names: Of the numbers, at most 256 in all.
        """
        self._labels = dict(labels)
        self._names = list(names)
        self._lock = threading.Lock()
        self.path = board_path(directory, name)
        try:
            self._view, self._mapping = _mapped(directory, self.path)
        except OSError as error:
            logger.warning("stats are incomplete: cannot make %s: %s", self.path, error)
            self._view, self._mapping = memoryview(bytearray(_BYTES)), None
        self.numbers = self._view[_TEXT_BYTES:].cast("q")
        self._describe()

    @property
    def names(self) -> tuple[str, ...]:
        """Of the numbers, in their order."""
        return tuple(self._names)

    @property
    def is_lost(self) -> bool:
        """Whether its file was removed, so that nobody else sees the numbers."""
        return self._mapping is not None and not os.path.exists(self.path)

    def place(self, name: str) -> int:
        """Index of a number, which is added if it is new.

        Raises:
            ValueError: There are too many, or their names are too long.
        """
        with self._lock:
            if name not in self._names:
                if len(self._names) >= _MAX_NUMBERS:
                    msg = f"{name!r}: a process can count at most {_MAX_NUMBERS} things"
                    raise ValueError(msg)
                self._names.append(name)
                try:
                    self._describe()
                except ValueError:
                    self._names.pop()
                    raise
            return self._names.index(name)

    def label(self, **labels: Any) -> None:
        """Say more of who writes."""
        with self._lock:
            self._labels.update(labels)
            self._describe()

    def _describe(self) -> None:
        text = json.dumps({"labels": self._labels, "names": self._names}).encode()
        if len(text) > _TEXT_BYTES:
            msg = f"the names of {len(self._names)} counters take more than {_TEXT_BYTES} bytes"
            raise ValueError(msg)
        self._view[:_TEXT_BYTES] = text.ljust(_TEXT_BYTES)


def board_path(directory: str, name: str) -> str:
    """Where a board of a name lies."""
    return os.path.join(directory, name + _SUFFIX)


def take_over(
    directory: str, role: str, process: tuple[int, int], is_alive: Callable[[int, int], bool]
) -> str:
    """Go on with the board of a process that had the same role and is gone, if there is one.

    So that workers which are started anew for every epoch do not leave a board each.

    Args:
        directory: Where boards lie.
        role: What the process does, without hyphens; its part of the name.
        process: Pid and start time of this process.
        is_alive: Tells from pid and start time whether a process still runs.

    Returns:
        Name for this process's board; the file is there if one was taken over.
    """
    name = f"{role}-{process[0]}-{process[1]}"
    try:
        found = [entry for entry in os.listdir(directory) if entry.endswith(_SUFFIX)]
    except OSError:
        return name
    for entry in found:
        parts = entry.removesuffix(_SUFFIX).split("-")
        same = len(parts) == 3 and parts[0] == role
        if same and not is_alive(int(parts[1]), int(parts[2])):
            # Whoever renames it first has it.
            with contextlib.suppress(OSError):
                os.rename(os.path.join(directory, entry), os.path.join(directory, name + _SUFFIX))
                return name
    return name


def _mapped(directory: str, path: str) -> tuple[memoryview, object]:
    # pyarrow takes longer to load than reading all boards of a node.
    from lance_stream.shards.mapping import map_writable  # noqa: PLC0415

    with contextlib.suppress(FileExistsError):
        os.mkdir(directory, 0o700)
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        if os.fstat(descriptor).st_size != _BYTES:
            # Written, not sparse: a full disk is an error here, instead of a SIGBUS later.
            os.pwrite(descriptor, b" " * _TEXT_BYTES + bytes(_BYTES - _TEXT_BYTES), 0)
        return map_writable(descriptor, _BYTES)
    finally:
        os.close(descriptor)


@dataclass(frozen=True, slots=True)
class Reading:
    """What a board showed.

    Attributes:
        labels: Who writes it.
        numbers: By name.
    """

    labels: dict[str, Any]
    numbers: dict[str, int]


def read_board(path: str) -> Reading | None:
    """Read a board; None if it is gone, or is being made."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            data = os.read(descriptor, _BYTES)
        finally:
            os.close(descriptor)
        labels, names = _described(data[:_TEXT_BYTES])
        values = struct.unpack_from(f"={len(names)}q", data, _TEXT_BYTES)
    except (OSError, ValueError, KeyError, TypeError, struct.error):
        return None
    return Reading(dict(labels), dict(zip(names, values, strict=True)))


# A trainer may look a hundred times a second, and what a board is called seldom changes.
@functools.lru_cache(maxsize=256)
def _described(text: bytes) -> tuple[dict[str, Any], list[str]]:
    about = json.loads(text)
    return about["labels"], about["names"]


def read_boards(directory: str) -> list[Reading]:
    """All boards of a directory, by file name."""
    names, found = _listed(directory), []
    for _ in range(_MAX_LOOKS):
        found = [read_board(os.path.join(directory, name)) for name in names]
        before, names = names, _listed(directory)
        if names == before:
            break
        # One is being taken over, and by neither name or by both its numbers may have been read.
    return [reading for reading in found if reading is not None]


def _listed(directory: str) -> list[str]:
    try:
        return sorted(name for name in os.listdir(directory) if name.endswith(_SUFFIX))
    except FileNotFoundError:
        return []
