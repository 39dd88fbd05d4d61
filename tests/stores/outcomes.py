"""What became of a dataset on an object store: rows or an error, how soon, and what was asked."""

from __future__ import annotations

import os
import re
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from lance_stream.errors import LanceStreamError
from tests.support.fault_proxy import ProxyControl
from tests.support.streams import batches, ids

__all__ = ["data_reads", "epoch", "leaks", "outcome"]

_DATA_FILE = re.compile(r"/data/[^/?]+\.lance$")


def outcome(work: Callable[[], Any]) -> dict[str, Any]:
    """The value of some work, or the error of ours that it raised and all that is said of it.

    Returns:
        ``value``, ``error`` (class name or None), ``message``, ``text`` (as a user sees it, with
        traceback and causes) and ``seconds``.
    """
    started_s = time.monotonic()
    result: dict[str, Any] = {"value": None, "error": None, "message": "", "text": ""}
    try:
        result["value"] = work()
    except LanceStreamError as error:
        result["error"] = type(error).__name__
        result["message"] = str(error)
        result["text"] = "".join(traceback.format_exception(error))
    return {**result, "seconds": time.monotonic() - started_s}


def epoch(data: Any, workers: int) -> dict[str, Any]:
    """The `outcome` of one epoch; the value is the sorted ``i`` of rows that are all exact."""
    return outcome(lambda: sorted(ids(batches(data, workers))))


def data_reads(proxy: ProxyControl) -> Counter[str]:
    """How often each data file was asked for since the log was last read."""
    return Counter(
        record.path
        for record in proxy.log()
        if record.method == "GET" and _DATA_FILE.search(record.path)
    )


def leaks(secrets: Iterable[str]) -> list[str]:
    """Where a secret is to be read: files of the download process, and any command line."""
    texts = {}
    for path in Path(os.environ["LANCE_STREAM_RUNTIME_DIR"]).rglob("*"):
        if path.is_file():
            texts[str(path)] = path.read_bytes().decode("latin1")
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            texts[f"command line of {pid}"] = Path("/proc", pid, "cmdline").read_text()
        except (OSError, UnicodeDecodeError):
            continue
    return [where for where, text in texts.items() if any(secret in text for secret in secrets)]
