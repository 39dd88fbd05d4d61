"""What the download process counts of each stream, on boards that everybody may read."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Sequence
from typing import Any

from lance_stream.planning.index import ShardIndex
from lance_stream.service.cache_files import ledger_owner
from lance_stream.service.messages import Register
from lance_stream.service.runtime import SERVER_BOARD
from lance_stream.source.location import redact
from lance_stream.telemetry.board import Board, board_path, read_board
from lance_stream.telemetry.shared_counts import write_private, write_shared
from lance_stream.telemetry.stats import SERVER_NAMES, stream_label
from lance_stream.tiers.counts import SharedTierCounts

__all__ = ["Tallies"]


class Tallies:
    """A board for each stream. Used by the event loop's thread only."""

    def __init__(self, status_path: str, shared_path: str = "") -> None:
        """Begin with the streams of the process before, if any: nobody asks for them yet.

        Args:
            status_path: File that lists the streams, for people.
            shared_path: File of what the shared caches did.
        """
        self._status_path = status_path
        self._shared_path = shared_path
        self._shared: tuple[SharedTierCounts, ...] = ()
        self._boards: dict[str, Board] = {}
        self._streams = _known(status_path)
        for one in self.streams:
            self._take_over(one["stats"])
        if self._streams:
            self._write_status()

    @property
    def streams(self) -> list[dict[str, Any]]:
        """Each stream of the job: uri, version, shards, rows, and where its boards lie.

        Also those that nobody asks for at this moment, as between two epochs.
        """
        return [one for one in self._streams.values() if os.path.isdir(one["stats"])]

    def open(self, register: Register, index: ShardIndex) -> None:
        """Begin, or go on with, the board of a stream."""
        path = board_path(register.stats_directory, SERVER_BOARD)
        old = read_board(path)
        # What a process counted that died is gone on with, and so is its time.
        since = old.labels.get("since", time.time()) if old is not None else time.time()
        labels = {"role": "server", "pid": os.getpid(), "since": since}
        # Whoever built the dataset: as long as it lives, so do the boards (``boards_are_needed``).
        labels["owner"] = ledger_owner(register.ledger_path)
        self._boards[register.stream] = Board(
            register.stats_directory, SERVER_BOARD, labels, SERVER_NAMES
        )
        self._streams[register.stream] = {
            "key": register.stream,
            "uri": redact(register.uri),
            "stream": stream_label(index.fingerprint, register.directory),
            "version": register.version,
            "shards": index.num_shards,
            "rows": index.num_rows,
            "mean_row_bytes": index.row_size.mean_bytes,
            "cache": register.directory,
            "stats": register.stats_directory,
            "since": since,
            "active": True,
        }
        self._write_status()

    def close(self, stream: str) -> None:
        """Nobody asks for the stream any more, or until its next epoch."""
        board = self._boards.pop(stream, None)
        if board is None:
            return
        _nothing_waits(board)
        self._streams[stream]["active"] = False
        # A dataset that is gone has taken its boards along.
        for key, one in list(self._streams.items()):
            if not one["active"] and not os.path.isdir(one["stats"]):
                del self._streams[key]
        self._write_status()

    def add(self, stream: str, name: str, n: int = 1) -> None:
        """Count something."""
        board = self._boards.get(stream)
        if board is not None:
            board.numbers[SERVER_NAMES.index(name)] += n

    def show(self, loads: dict[str, tuple[int, int]]) -> None:
        """Show how many shards of each stream wait, and are fetched, now."""
        for stream, board in self._boards.items():
            waiting, running = loads.get(stream, (0, 0))
            board.numbers[SERVER_NAMES.index("waiting")] = waiting
            board.numbers[SERVER_NAMES.index("running")] = running

    def show_shared(self, caches: Sequence[SharedTierCounts]) -> None:
        """Show what the shared caches did, if that is not what is shown already."""
        if tuple(caches) != self._shared:
            self._shared = tuple(caches)
            write_shared(self._shared_path, caches)

    def _take_over(self, directory: str) -> None:
        old = read_board(board_path(directory, SERVER_BOARD))
        if old is not None:
            labels = {**old.labels, "pid": os.getpid()}
            _nothing_waits(Board(directory, SERVER_BOARD, labels, SERVER_NAMES))

    def _write_status(self) -> None:
        write_private(self._status_path, {"pid": os.getpid(), "streams": self.streams})


def _nothing_waits(board: Board) -> None:
    """Nothing of a stream waits, or is fetched, for anybody any more."""
    for name in ("waiting", "running"):
        board.numbers[SERVER_NAMES.index(name)] = 0


def _known(status_path: str) -> dict[str, dict[str, Any]]:
    try:
        with open(status_path, "rb") as file:
            streams = json.load(file)["streams"]
        return {one["key"]: {**one, "active": False} for one in streams}
    except (OSError, ValueError, KeyError, TypeError):
        return {}
