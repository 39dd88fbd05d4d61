"""The jobs of this user on this node, from what their download processes leave to be read.

Nothing is asked of anybody: files are read, so that a process that hangs or is stopped is shown
as well as one that works.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from typing import Any

import psutil

from lance_stream.service.logbook import read_errors
from lance_stream.service.metrics import stats_of
from lance_stream.service.runtime import Endpoint, endpoints
from lance_stream.telemetry.stats import StreamStats
from lance_stream.tiers.counts import SharedTierCounts

__all__ = ["Job", "JobStream", "Rates", "find_jobs", "rates"]

_MAX_ERRORS = 20


@dataclass(frozen=True, slots=True)
class JobStream:
    """A stream of a job.

    Attributes:
        active: Whether a process asks for its shards, as during an epoch.
        uri: Of the table, without credentials.
        version: Of the table.
        table_rows: Rows of the selection.
        cache: Cache directory.
        since: When its job began to use it, in seconds since 1970.
        stats: What happened so far.
    """

    active: bool
    uri: str
    version: int
    table_rows: int
    cache: str
    since: float
    stats: StreamStats


@dataclass(frozen=True, slots=True)
class Job:
    """A job and its download process.

    Attributes:
        pid: Of the download process.
        state: ``"running"``, or ``"stopped"`` by a signal.
        started: When that process started, in seconds since 1970.
        directory: Its private directory.
        log: Its log.
        streams: That it serves.
        errors: Newest warnings and errors of the log, the oldest first.
    """

    pid: int
    state: str
    started: float
    directory: str
    log: str
    streams: tuple[JobStream, ...]
    errors: tuple[dict[str, Any], ...]

    @property
    def shared_caches(self) -> tuple[SharedTierCounts, ...]:
        """What its shared caches did."""
        return self.streams[0].stats.shared_caches if self.streams else ()

    def as_dict(self) -> dict[str, Any]:
        """As JSON values; rates are not in it."""
        return {
            "pid": self.pid,
            "state": self.state,
            "started": self.started,
            "directory": self.directory,
            "log": self.log,
            "counters": self.streams[0].stats.counters if self.streams else {},
            "shared_caches": [one.as_dict() for one in self.shared_caches],
            "streams": [_stream_dict(stream) for stream in self.streams],
            "errors": list(self.errors),
        }


@dataclass(frozen=True, slots=True)
class Rates:
    """What happened per second.

    Attributes:
        seconds: Over which they are taken.
        rows: Rows read by all workers.
        lance_bytes: Bytes of shards read from Lance.
        tier_bytes: Bytes taken from the shared tier.
    """

    seconds: float
    rows: float
    lance_bytes: float
    tier_bytes: float


def find_jobs() -> list[Job]:
    """The jobs whose download processes live, by the directory of each.

    Raises:
        DownloadProcessError: The directory where they would be found is not this user's.
    """
    found = (_job(endpoint) for endpoint in endpoints())
    return [job for job in found if job is not None]


def rates(now: StreamStats, before: StreamStats | None, seconds: float) -> Rates:
    """What happened per second since a reading before, or, with None, since the beginning. Pure.

    Args:
        now: Newest reading.
        before: Of the same stream.
        seconds: Between the two.
    """
    seconds = max(seconds, 1e-3)
    rows, lance_bytes, tier_bytes = now.rows, now.lance_bytes, now.tier_bytes
    if before is not None:
        rows -= before.rows
        lance_bytes -= before.lance_bytes
        tier_bytes -= before.tier_bytes
    return Rates(seconds, rows / seconds, lance_bytes / seconds, tier_bytes / seconds)


def _job(endpoint: Endpoint) -> Job | None:
    try:
        pid = endpoint.pid()
        if pid is None:
            return None
        process = psutil.Process(pid)
        stopped = process.status() in (psutil.STATUS_STOPPED, psutil.STATUS_TRACING_STOP)
        return Job(
            pid=pid,
            state="stopped" if stopped else "running",
            started=process.create_time(),
            directory=endpoint.directory,
            log=endpoint.log_path,
            streams=tuple(_streams(endpoint)),
            errors=tuple(read_errors(endpoint.log_path, _MAX_ERRORS)),
        )
    except (psutil.Error, OSError):
        # It ended while it was looked at.
        return None


def _streams(endpoint: Endpoint) -> list[JobStream]:
    try:
        with open(endpoint.status_path) as file:
            served = json.load(file)["streams"]
    except (FileNotFoundError, ValueError):
        # It serves none yet.
        return []
    return [
        JobStream(
            active=stream["active"],
            uri=stream["uri"],
            version=stream["version"],
            table_rows=stream["rows"],
            cache=stream["cache"],
            since=stream["since"],
            stats=stats,
        )
        for stream, stats in zip(served, stats_of(served, endpoint), strict=True)
        # Looked at last: a stream that was closed meanwhile has lost its numbers.
        if os.path.isdir(stream["stats"])
    ]


def _stream_dict(stream: JobStream) -> dict[str, Any]:
    stats = stream.stats.as_dict()
    # The job's.
    del stats["counters"], stats["shared_caches"]
    return {
        **stats,
        "active": stream.active,
        "version": stream.version,
        "table_rows": stream.table_rows,
        "cache": stream.cache,
        "since": stream.since,
    }
