"""Which shards are being fetched, on disk, so that the next process learns what killed this one.

One small file for each fetch in progress: made before the attempt, removed after it. What is left
when a process starts was being fetched when the last one ended.
"""

from __future__ import annotations

import os

from lance_stream.service.events import Key, Lost

__all__ = ["Journal"]


class Journal:
    """The fetches in progress of one process, in one directory."""

    def __init__(self, directory: str) -> None:
        """Use a directory, which must exist."""
        self._directory = directory

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
        path = os.path.join(self._directory, f"{key.stream}.{key.shard}")
        with open(path, "w") as file:
            file.write(text)

    def _remove(self, name: str) -> None:
        try:
            os.unlink(os.path.join(self._directory, name))
        except FileNotFoundError:
            pass
