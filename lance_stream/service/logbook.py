"""The log of the download process: a JSON object per line, in two files of bounded size.

What libraries and functions of users print goes into the same file, as it is, and counts.
"""

from __future__ import annotations

import json
import logging
import os
import sys
from datetime import datetime, timezone
from typing import Any

from lance_stream.source.location import redact

__all__ = ["MAX_LOG_BYTES", "JsonLines", "LogHandler", "read_errors"]

# Of each of the two files. What is printed between two looks comes on top.
MAX_LOG_BYTES = 1 << 20
_MAX_TEXT_CHARS = 8_000
_TAIL_BYTES = 256 << 10
_ERROR_LEVELS = frozenset({"WARNING", "ERROR", "CRITICAL"})


class JsonLines(logging.Formatter):
    """``time`` (UTC), ``pid``, ``level``, ``message``, and what ``extra={"about": {}}`` holds."""

    def format(self, record: logging.LogRecord) -> str:
        """One line, without credentials."""
        entry: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, timezone.utc).isoformat(
                timespec="milliseconds"
            ),
            "pid": record.process,
            "level": record.levelname,
            "message": redact(record.getMessage())[:_MAX_TEXT_CHARS],
            **getattr(record, "about", {}),
        }
        if record.exc_info and record.exc_info[0] is not None:
            text = redact(self.formatException(record.exc_info))
            entry["traceback"] = text[-_MAX_TEXT_CHARS:]
        return json.dumps(entry, default=str)


class LogHandler(logging.StreamHandler):
    """Writes to stderr, which is the log, and begins a new file when it is large."""

    def __init__(self, path: str, max_bytes: int = MAX_LOG_BYTES) -> None:
        """Take the process's stderr.

        Args:
            path: Of the file that stdout and stderr write to. If it is another one, it is not
                touched.
            max_bytes: Of each of the two files.
        """
        super().__init__(sys.stderr)
        self._path = path
        self._max_bytes = max_bytes
        self.setFormatter(JsonLines())

    def emit(self, record: logging.LogRecord) -> None:
        """Write a line."""
        super().emit(record)
        self.bound()

    def bound(self) -> None:
        """If the file is too large, put it aside, in place of the last such, and begin anew.

        Also called from time to time, since what is printed does not come by here.
        """
        self.acquire()
        try:
            status = os.fstat(2)
            if status.st_size <= self._max_bytes:
                return
            if not os.path.samestat(status, os.stat(self._path)):
                return
            os.replace(self._path, f"{self._path}.1")
            fresh = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
            os.dup2(fresh, 1)
            os.dup2(fresh, 2)
            os.close(fresh)
        except OSError:
            # The directory is going away, or the disk is full: the next look tries again.
            return
        finally:
            self.release()


def read_errors(path: str, limit: int) -> list[dict[str, Any]]:
    """The newest warnings and errors of a log, the oldest of them first.

    Args:
        path: Of the log.
        limit: Most of them.

    Returns:
        Entries as ``JsonLines`` writes them; none if there is no log.
    """
    found: list[dict[str, Any]] = []
    for name in (path, f"{path}.1"):
        if len(found) < limit:
            found = [*_errors(name), *found][-limit:]
    return found


def _errors(path: str) -> list[dict[str, Any]]:
    try:
        with open(path, "rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - _TAIL_BYTES))
            lines = file.read().splitlines()
    except OSError:
        return []
    found = []
    for line in lines:
        try:
            entry = json.loads(line)
        except ValueError:
            # Something printed, or the end of a line that began before the tail.
            continue
        if isinstance(entry, dict) and entry.get("level") in _ERROR_LEVELS:
            found.append(entry)
    return found
