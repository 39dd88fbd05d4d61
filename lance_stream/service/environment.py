"""What environment variables say to the download process. Looked at where it is started, too."""

from __future__ import annotations

import os

from lance_stream.errors import DownloadProcessError

__all__ = ["MAX_FETCHES", "MAX_FETCH_BYTES", "METRICS_PORT", "check_environment", "number"]

MAX_FETCHES = "LANCE_STREAM_MAX_FETCHES"
MAX_FETCH_BYTES = "LANCE_STREAM_MAX_FETCH_BYTES"
METRICS_PORT = "LANCE_STREAM_METRICS_PORT"

# Least and most.
_RANGES = {MAX_FETCHES: (1, 1024), MAX_FETCH_BYTES: (1, 1 << 62), METRICS_PORT: (0, 65535)}


def number(name: str, default: int) -> int:
    """What a variable says; the default if it is not set, or empty.

    Raises:
        DownloadProcessError: It is no number in the range of the variable.
    """
    text = os.environ.get(name, "").strip()
    least, most = _RANGES[name]
    if not text:
        return default
    if not text.isascii() or not text.isdecimal() or not least <= int(text) <= most:
        msg = (
            f"the environment says {name}={text!r}, which must be a whole number from {least} to "
            f"{most}: correct it, or leave it out"
        )
        raise DownloadProcessError(msg)
    return int(text)


def check_environment() -> None:
    """Refuse, before the process is started, what would end it at once.

    Raises:
        DownloadProcessError: Names the variable.
    """
    for name in _RANGES:
        number(name, 0)
