"""A whole export: plan the table, choose the place, write, say what went wrong."""

from __future__ import annotations

import contextlib
import errno
import os
import re
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote, urlsplit

from lance_stream.errors import (
    CacheFullError,
    CredentialsError,
    LanceStreamError,
    PlanError,
    SourceUnavailableError,
)
from lance_stream.export.compression import check_hashes, load_compression
from lance_stream.export.destination import Destination
from lance_stream.export.filling import Progress, fill
from lance_stream.export.local import LocalDestination
from lance_stream.export.plan import make_plan
from lance_stream.export.remote import RemoteDestination
from lance_stream.export.shards import ShardExport
from lance_stream.offline.attempts import CallFailedError, Policy, StoppedError
from lance_stream.offline.request import StreamRequest
from lance_stream.offline.tables import find_index, shard_source
from lance_stream.service.fetching import Fetcher
from lance_stream.service.indexing import News, no_news
from lance_stream.source.failures import FailureKind
from lance_stream.source.location import redact

__all__ = ["Request", "Summary", "run_export"]

_SCHEME = re.compile(r"([a-zA-Z][a-zA-Z0-9+.-]*)://")


@dataclass(frozen=True, slots=True)
class Request:
    """What to export, and how.

    Attributes:
        stream: The table and the planning arguments.
        out: A directory, or a URL that fsspec can write to.
        out_options: Of the fsspec filesystem; may hold secrets.
        compression: As ``MDSWriter`` takes it, or None.
        hashes: Names of hashes of each file.
        workers: Shards that are exported at a time.
    """

    stream: StreamRequest
    out: str
    out_options: Mapping[str, Any]
    compression: str | None
    hashes: Sequence[str]
    workers: int


@dataclass(frozen=True, slots=True)
class Summary:
    """What an export did.

    Attributes:
        out: Where the dataset is.
        uri: The table.
        version: Its version.
        fingerprint: Of the index.
        rows: Rows of the dataset.
        shards: Its shards.
        kept_shards: Those that an earlier run had finished.
        num_bytes: Bytes of its shard files.
        seconds: Duration of this run.
    """

    out: str
    uri: str
    version: int
    fingerprint: str
    rows: int
    shards: int
    kept_shards: int
    num_bytes: int
    seconds: float


def run_export(request: Request, progress: Progress, news: News = no_news) -> Summary:
    """Export a table as an MDS dataset, or what an earlier run left to do.

    Args:
        request: What and how.
        progress: Told of finished rows.
        news: Told of rows that are looked at to plan the table.

    Raises:
        LanceStreamError: The table cannot be read, the place cannot be written or holds something
            else; says why. What is finished stays, and the same request continues.
    """
    started = time.monotonic()
    stop = threading.Event()
    policy = request.stream.policy(stop)
    hashes = check_hashes(list(request.hashes))
    compression = load_compression(request.compression) if request.compression else None
    with contextlib.ExitStack() as stack:
        destination = _destination(request, policy)
        stack.enter_context(_explained(destination, request.out_options))
        stack.callback(destination.release)
        # First of all: whatever waits, stops.
        stack.callback(stop.set)
        fetcher = Fetcher()
        index = find_index(request.stream, fetcher, policy, news)
        _require_outside(destination.name, index.uri)
        extension = compression.extension if compression else ""
        plan = make_plan(index, request.compression, extension, hashes)
        source = shard_source(request.stream, index)
        shards = ShardExport(fetcher, source, plan, compression, destination, policy)
        entries, kept = fill(destination, plan, shards.run, request.workers, stop, progress)
    return Summary(
        out=destination.name,
        uri=index.uri,
        version=index.version,
        fingerprint=index.fingerprint,
        rows=index.num_rows,
        shards=index.num_shards,
        kept_shards=kept,
        num_bytes=sum(plan.stored_bytes(entry) for entry in entries.values()),
        seconds=time.monotonic() - started,
    )


def _destination(request: Request, policy: Policy) -> Destination:
    scheme = _SCHEME.match(request.out)
    if scheme and scheme.group(1).lower() == "memory":
        msg = f"--out {request.out} would be lost when this process ends: choose another place"
        raise PlanError(msg)
    if scheme and scheme.group(1).lower() not in ("file", "local"):
        parts = urlsplit(request.out)
        if parts.password or parts.query:
            msg = (
                f"--out {redact(request.out)} carries credentials or a query: give them with "
                "--out-option, --out-option-env or --out-options-from"
            )
            raise PlanError(msg)
        return RemoteDestination(request.out.rstrip("/"), request.out_options, policy)
    if request.out_options:
        raise PlanError(f"--out-option is for a URL, and --out {request.out} is a directory")
    path = unquote(urlsplit(request.out).path) if scheme else os.path.expanduser(request.out)
    return LocalDestination(os.path.abspath(path))


def _require_outside(out: str, uri: str) -> None:
    """Refuse to write into the table: PlanError."""
    if out == uri or out.startswith(uri.rstrip("/") + "/"):
        raise PlanError(f"--out {out} lies inside the table {uri}: choose a place elsewhere")


@contextlib.contextmanager
def _explained(destination: Destination, secrets: Mapping[str, Any]) -> Iterator[None]:
    """Say in words what it means that the destination cannot be written."""
    where = destination.name
    try:
        yield
    except LanceStreamError:
        raise
    except StoppedError as error:
        raise PlanError(f"{where}: the export was stopped") from error
    except CallFailedError as error:
        failure = error.failure
        text = redact(failure.message, {k: str(v) for k, v in secrets.items()})
        if failure.kind is FailureKind.CREDENTIALS:
            msg = f"{where}: the store refused access: {text}; check --out-option"
            raise CredentialsError(msg) from error
        if failure.kind in (FailureKind.NOT_FOUND, FailureKind.VERSION_NOT_FOUND):
            raise PlanError(f"{where}: {text}; check bucket and --out-option") from error
        msg = f"{where}: {text}; check --out-option and network, and run the same command again"
        raise SourceUnavailableError(msg) from error
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            msg = (
                f"{where}: no space left in {destination.disk}: {error.strerror}; free some and "
                "run the same command again, which keeps what is finished"
            )
            raise CacheFullError(msg) from error
        raise PlanError(f"{where} cannot be written: {error}") from error
