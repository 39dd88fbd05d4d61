"""Which shards are being fetched, on disk, so that the next process learns what killed this one.

One small file for each fetch in progress: made before the attempt, removed after it. What is left
when a process starts was being fetched when the last one ended.

Where a note cannot be written (a full disk), the shard is fetched all the same: should it end the
process, the next one merely does not know.
"""

from __future__ import annotations

import logging
import os

from lance_stream.service.events import Key, Lost

__all__ = ["Journal"]

logger = logging.getLogger(__name__)


class Journal:
    """The fetches in progress of one process, in one directory."""

    def __init__(self, directory: str) -> None:
        """Use a directory, which must exist."""
        self._directory = directory
        self._warned = False

    def take_over(self) -> list[Lost]:
        """What an earlier process left behind; the files stay until the shard is fetched."""
        lost = []
        for name in os.listdir(self._directory):
            stream, _, shard = name.rpartition(".")
            try:
                with open(os.path.join(self._directory, name)) as file:
                    how, attempts, deaths = file.read().split()
                key = Key(stream, int(shard))
                if how == "hung":
                    lost.append(Lost(key, int(attempts), int(deaths)))
                else:
                    lost.append(Lost(key, int(attempts) - 1, int(deaths) + 1))
            except (OSError, ValueError):
                # Cut short by the crash: the shard merely loses its history.
                self._remove(name)
        return lost

    def begin(self, key: Key, attempt: int, deaths: int) -> None:
        """Note that an attempt starts."""
        self._write(key, f"run {attempt} {deaths}")

    def hung(self, key: Key, attempts: int) -> None:
        """Note that so many attempts were used up by hanging: no death, but not forgotten."""
        self._write(key, f"hung {attempts} 0")

    def end(self, key: Key) -> None:
        """Note that the attempt is over, whatever came of it."""
        self._remove(f"{key.stream}.{key.shard}")

    def _write(self, key: Key, text: str) -> None:
        try:
            # Who tidies up temporary files may have removed it.
            os.makedirs(self._directory, mode=0o700, exist_ok=True)
            with open(os.path.join(self._directory, f"{key.stream}.{key.shard}"), "w") as file:
                file.write(text)
        except OSError as error:
            if not self._warned:
                logger.warning("cannot note which shards are fetched: %s", error)
            self._warned = True

    def _remove(self, name: str) -> None:
        try:
            os.unlink(os.path.join(self._directory, name))
        except OSError:
            # Nothing was noted; or it cannot be taken back, and counts as one death too many.
            pass
