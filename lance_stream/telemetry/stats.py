"""What happened so far on this node, put together from the boards of its processes. Pure but I/O.

The worker's side counts samples, the download process counts shards.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from lance_stream.telemetry.board import Reading
from lance_stream.tiers.counts import SharedTierCounts

__all__ = [
    "DAMAGED",
    "EPOCHS",
    "FAILED",
    "ROWS",
    "SERVER_NAMES",
    "WAITED_NS",
    "WORKER_NAMES",
    "StreamStats",
    "WorkerStats",
    "add_up",
    "prometheus",
    "stream_label",
]

WORKER_NAMES = ("rows", "waited_ns", "epochs", "damaged", "failed")
ROWS, WAITED_NS, EPOCHS, DAMAGED, FAILED = range(5)
SERVER_NAMES = (
    "requested",
    "in_cache",
    "from_tier",
    "from_lance",
    "tier_bytes",
    "tier_ns",
    "lance_bytes",
    "lance_ns",
    "retries",
    "failures",
    "evicted_before_fetch",
    "waiting",
    "running",
)


@dataclass(frozen=True, slots=True)
class WorkerStats:
    """What one process read.

    Attributes:
        pid: Process.
        rank: Rank of the job.
        worker: DataLoader worker; -1 for the trainer itself.
        epoch: Epoch that it last began, or -1.
        rows: Rows read.
        bytes: Bytes of those rows in shard files, by the mean size of a row.
        seconds_waited: Time spent waiting for shards.
    """

    pid: int
    rank: int
    worker: int
    epoch: int
    rows: int
    bytes: int
    seconds_waited: float


@dataclass(frozen=True, slots=True)
class StreamStats:
    """State of a stream, or of all streams of a dataset, on this node.

    Attributes:
        uri: Of the table; of several, joined by commas.
        shards: Virtual shards.
        epoch: Newest epoch that a worker began, or -1.
        rows: Rows read by all workers.
        bytes: Bytes of those rows.
        seconds_waited: Time that workers waited for shards, summed.
        requested: Shards asked of the download process.
        in_cache: Of these, how many were in the local cache already.
        from_tier: Shards taken from the shared tier.
        from_lance: Shards read from Lance.
        tier_bytes: Bytes of the former.
        tier_seconds: Time spent asking the shared tier and waiting for it, in vain too, summed
            over concurrent fetches.
        lance_bytes: Bytes of the latter.
        lance_seconds: Time it took, summed over concurrent fetches.
        retries: Attempts that failed and were followed by another; and damaged files in the
            cache that were dropped and fetched again.
        failures: Shards that could not be had, or were damaged again when fetched again.
        queue_depth: Shards that wait to be fetched, now.
        in_flight: Shards that are being fetched, now.
        workers: Each process that reads.
        counters: Counters of the user, summed over the processes of the node.
        stream: Tells streams of one table apart; of several, joined by commas. The same for the
            same rows in the same cache directory.
        shared_caches: What each shared cache of the job did on this node, and each tier of it,
            since the download process was started. For all streams of the job.
    """

    uri: str
    shards: int
    epoch: int = -1
    rows: int = 0
    bytes: int = 0
    seconds_waited: float = 0.0
    requested: int = 0
    in_cache: int = 0
    from_tier: int = 0
    from_lance: int = 0
    tier_bytes: int = 0
    tier_seconds: float = 0.0
    lance_bytes: int = 0
    lance_seconds: float = 0.0
    retries: int = 0
    failures: int = 0
    queue_depth: int = 0
    in_flight: int = 0
    workers: tuple[WorkerStats, ...] = ()
    counters: dict[str, int] = field(default_factory=dict)
    stream: str = ""
    shared_caches: tuple[SharedTierCounts, ...] = ()

    def in_epoch(self, epoch: int) -> StreamStats:
        """The same, where an epoch is known to have begun."""
        return replace(self, epoch=max(self.epoch, epoch))

    def as_dict(self) -> dict[str, Any]:
        """As JSON values."""
        return asdict(self)

    def to_prometheus(self) -> str:
        """In the text format of Prometheus (version 0.0.4)."""
        return prometheus([self])


def prometheus(streams: Sequence[StreamStats]) -> str:
    """Several streams of one job in the text format of Prometheus (version 0.0.4)."""
    lines: list[str] = []
    labels = _told_apart(streams)
    for name, (kind, text) in _METRICS.items():
        lines += _heading(name, kind, text)
        for stream, label in zip(streams, labels, strict=True):
            value = getattr(stream, name.removesuffix("_total"))
            lines.append(f"lance_stream_{name}{_labels(uri=stream.uri, stream=label)} {value}")
    lines += _heading("worker_rows_total", "counter", "Rows read by one process.")
    for stream, label in zip(streams, labels, strict=True):
        for one in stream.workers:
            who = _labels(
                uri=stream.uri, stream=label, rank=one.rank, worker=one.worker, pid=one.pid
            )
            lines.append(f"lance_stream_worker_rows_total{who} {one.rows}")
    lines += _shared_lines(streams[0].shared_caches if streams else ())
    # The counters are the job's, whichever stream they were read with.
    counters = streams[0].counters if streams else {}
    if counters:
        lines += _heading("counter_total", "counter", "Counters of the training code.")
    for name, value in sorted(counters.items()):
        lines.append(f"lance_stream_counter_total{_labels(name=name)} {value}")
    return "\n".join(lines) + "\n"


def stream_label(fingerprint: str, directory: str) -> str:
    """What tells a stream from others of its table.

    Args:
        fingerprint: Of its index.
        directory: Its cache directory.
    """
    return hashlib.blake2b(f"{fingerprint}/{directory}".encode(), digest_size=6).hexdigest()


def _told_apart(streams: Sequence[StreamStats]) -> list[str]:
    """A label for each: a series that is given twice makes the whole text invalid."""
    labels, seen = list[str](), Counter[tuple[str, str]]()
    for one in streams:
        seen[one.uri, one.stream] += 1
        number = seen[one.uri, one.stream]
        labels.append(one.stream if number == 1 else f"{one.stream}-{number}")
    return labels


def _shared_lines(caches: Sequence[SharedTierCounts]) -> list[str]:
    """What each tier of the shared caches did; those of one name, summed."""
    lines: list[str] = []
    for name, text in _SHARED_METRICS.items():
        of_cache = hasattr(SharedTierCounts, name)
        sums: dict[str, float] = {}
        for cache in caches:
            for one in [cache] if of_cache else cache.tiers:
                sums[one.tier] = sums.get(one.tier, 0) + getattr(one, name)
        if sums:
            lines += _heading(f"shared_cache_{name}_total", "counter", text)
        for tier, value in sums.items():
            lines.append(f"lance_stream_shared_cache_{name}_total{_labels(tier=tier)} {value}")
    return lines


def _heading(name: str, kind: str, text: str) -> list[str]:
    return [f"# HELP lance_stream_{name} {text}", f"# TYPE lance_stream_{name} {kind}"]


def _labels(**labels: object) -> str:
    return "{" + ",".join(f'{k}="{_escaped(str(v))}"' for k, v in labels.items()) + "}"


_METRICS = {
    "rows_total": ("counter", "Rows read by all workers of this node."),
    "bytes_total": ("counter", "Bytes of those rows in shard files."),
    "seconds_waited_total": ("counter", "Seconds that workers waited for shards."),
    "requested_total": ("counter", "Shards asked of the download process."),
    "in_cache_total": ("counter", "Shards that were in the local cache when asked for."),
    "from_tier_total": ("counter", "Shards taken from the shared tier."),
    "from_lance_total": ("counter", "Shards read from Lance."),
    "tier_bytes_total": ("counter", "Bytes taken from the shared tier."),
    "tier_seconds_total": ("counter", "Seconds spent asking it and waiting for it."),
    "lance_bytes_total": ("counter", "Bytes of shards read from Lance."),
    "lance_seconds_total": ("counter", "Seconds spent reading them."),
    "retries_total": ("counter", "Attempts that failed and were followed by another."),
    "failures_total": ("counter", "Shards that could not be had."),
    "queue_depth": ("gauge", "Shards that wait to be fetched."),
    "in_flight": ("gauge", "Shards that are being fetched."),
    "epoch": ("gauge", "Newest epoch that a worker began."),
}

_SHARED_METRICS = {
    "taken": "Shards taken from the shared cache.",
    "not_taken": "Shards that it did not give.",
    "refused": "Shards that it gave whole, but that were not those asked for.",
    "waits": "Shards that another node was reading from Lance.",
    "waits_in_vain": "Of these, how many had to be read here too.",
    "hits": "Reads of a tier that found the content.",
    "misses": "Reads that found nothing.",
    "bad": "Reads that found something else, or damaged content.",
    "errors": "Calls that failed or missed their deadline.",
    "skipped": "Calls that were not made, as the tier was failing.",
    "outages": "How often it began to fail.",
    "puts": "Writes.",
    "present": "Writes that were not needed.",
    "too_large": "Writes of what the tier can never hold.",
    "hit_bytes": "Bytes that were found.",
    "put_bytes": "Bytes that were written.",
    "get_seconds": "Seconds in reads.",
    "put_seconds": "Seconds in writes.",
}


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def add_up(
    uri: str,
    shards: int,
    boards: Iterable[tuple[Reading, float]],
    counters: Iterable[Reading],
) -> StreamStats:
    """Put the boards of a stream, or of several, together.

    Args:
        uri: Of the table.
        shards: Virtual shards.
        boards: Of its workers and its download process, each with the mean bytes of a row.
        counters: Of the user, of each process.
    """
    workers: dict[int, WorkerStats] = {}
    totals = dict.fromkeys(SERVER_NAMES, 0)
    for reading, row_bytes in boards:
        labels, numbers = reading.labels, reading.numbers
        totals["retries"] += numbers.get("damaged", 0)
        totals["failures"] += numbers.get("failed", 0)
        if labels.get("role") == "server":
            for name in SERVER_NAMES:
                totals[name] += numbers.get(name, 0)
            continue
        pid, rows = int(labels.get("pid", 0)), numbers.get("rows", 0)
        old = workers.get(pid)
        workers[pid] = WorkerStats(
            pid=pid,
            rank=int(labels.get("rank", 0)),
            worker=int(labels.get("worker", -1)),
            epoch=max(numbers.get("epochs", 0) - 1, old.epoch if old else -1),
            rows=rows + (old.rows if old else 0),
            bytes=round(rows * row_bytes) + (old.bytes if old else 0),
            seconds_waited=numbers.get("waited_ns", 0) / 1e9 + (old.seconds_waited if old else 0),
        )
    summed: dict[str, int] = {}
    for reading in counters:
        for name, value in reading.numbers.items():
            summed[name] = summed.get(name, 0) + value
    read = sorted(workers.values(), key=lambda one: (one.rank, one.worker, one.pid))
    return StreamStats(
        uri=uri,
        shards=shards,
        epoch=max((one.epoch for one in read), default=-1),
        rows=sum(one.rows for one in read),
        bytes=sum(one.bytes for one in read),
        seconds_waited=sum(one.seconds_waited for one in read),
        requested=totals["requested"],
        in_cache=totals["in_cache"],
        from_tier=totals["from_tier"],
        from_lance=totals["from_lance"],
        tier_bytes=totals["tier_bytes"],
        tier_seconds=totals["tier_ns"] / 1e9,
        lance_bytes=totals["lance_bytes"],
        lance_seconds=totals["lance_ns"] / 1e9,
        retries=totals["retries"],
        failures=totals["failures"],
        queue_depth=totals["waiting"],
        in_flight=totals["running"],
        workers=tuple(read),
        counters=summed,
    )
