"""A whole ``lance-stream index``: plan the table, write the index."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from lance_stream.errors import PlanError
from lance_stream.offline.index_file import IndexFile
from lance_stream.offline.request import StreamRequest
from lance_stream.offline.tables import plan_table
from lance_stream.planning.index import ShardIndex
from lance_stream.service.fetching import Fetcher
from lance_stream.service.indexing import News
from lance_stream.source.location import redact

__all__ = ["IndexRequest", "WrittenIndex", "run_index"]


@dataclass(frozen=True, slots=True)
class IndexRequest:
    """What to make, and where it goes.

    Attributes:
        stream: The table and the planning arguments.
        out: A path, or a URL that fsspec can write to.
        out_options: Of the fsspec filesystem; may hold secrets.
        exact: Cut by the exact bytes of every row.
        partial: Local file for the progress of a long scan; None: a place of its own.
    """

    stream: StreamRequest
    out: str
    out_options: Mapping[str, Any]
    exact: bool
    partial: str | None


@dataclass(frozen=True, slots=True)
class WrittenIndex:
    """What was made.

    Attributes:
        index: The index.
        out: Where it is.
        num_bytes: Bytes of its file.
        seconds: Duration of this run.
    """

    index: ShardIndex
    out: str
    num_bytes: int
    seconds: float


def run_index(request: IndexRequest, news: News) -> WrittenIndex:
    """Make an index, going on from where a run that was stopped left off.

    Args:
        request: What and where.
        news: Told of rows that are looked at.

    Raises:
        LanceStreamError: The table cannot be streamed so, or the file cannot be written.
    """
    started = time.monotonic()
    wanted = request.stream.wanted
    if request.exact and (wanted.layout.kind != "contiguous" or wanted.shard_rows is not None):
        msg = "--exact cuts by --shard-bytes, contiguously: leave out --layout and --shard-rows"
        raise PlanError(msg)
    # A wrong place is told before hours of work.
    file = IndexFile.at(request.out, request.out_options)
    partial = _partial_path(request, file)
    stop = threading.Event()
    try:
        plan = wanted.request(
            timeout_s=request.stream.timeout_s,
            attempts=request.stream.attempts,
            exact=request.exact,
            partial_path=partial,
        )
        index = plan_table(Fetcher(), plan, request.stream.policy(stop), news)
    finally:
        stop.set()
    if index is None:
        raise PlanError(f"no index of {redact(wanted.uri)} was made")
    num_bytes = file.write(index)
    with contextlib.suppress(FileNotFoundError):
        os.unlink(partial)
    return WrittenIndex(index, file.name, num_bytes, time.monotonic() - started)


def _partial_path(request: IndexRequest, file: IndexFile) -> str:
    if request.partial is None:
        path = file.partial_path(request.stream.wanted.uri)
        if os.path.isdir(path):
            msg = f"{path}, which keeps the progress, is a directory: name a file with --partial"
            raise PlanError(msg)
        return path
    path = os.path.abspath(os.path.expanduser(request.partial))
    if not os.path.isdir(os.path.dirname(path)):
        raise PlanError(f"--partial {request.partial}: there is no such directory")
    if os.path.isdir(path):
        raise PlanError(f"--partial {request.partial} is a directory: name a file in it")
    return path
