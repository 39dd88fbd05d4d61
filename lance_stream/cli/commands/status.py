"""Show what the jobs of this user do on this node: streams, rates, queues, errors.

Read from files that they keep, so nothing waits for them and they do not notice. Rates are means
since a stream began; with --watch, since the last look. Only jobs whose download process lives
are shown.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from lance_stream.cli.arguments import json_option
from lance_stream.cli.command import option, paragraph, seconds, subcommand
from lance_stream.cli.output import print_json, print_table, size

if TYPE_CHECKING:
    from lance_stream.service.jobs import Job, JobStream, Rates

__all__ = ["command"]

_SHOWN_ERRORS = 5
_CLEAR = "\x1b[2J\x1b[H"

# Of the last look, by directories of download process and stream: when, and what was seen.
_Seen = dict[tuple[str, str, float], tuple[float, "JobStream"]]


@subcommand(__doc__, "Show live state of this node's jobs.")
@option("--watch", is_flag=True, help="Go on until interrupted.")
@option(
    "--interval",
    metavar="SECONDS",
    type=seconds,
    default=1.0,
    show_default=True,
    help="Between two looks of --watch.",
)
@json_option
def command(*, watch: bool, interval: float, as_json: bool) -> int:
    """Look once, or again and again."""
    seen: _Seen = {}
    while True:
        _look(seen, clear=watch and not as_json and sys.stdout.isatty(), as_json=as_json)
        sys.stdout.flush()
        if not watch:
            return 0
        time.sleep(interval)


def _look(seen: _Seen, *, clear: bool, as_json: bool) -> None:
    from lance_stream.service.jobs import find_jobs  # noqa: PLC0415

    jobs = find_jobs()
    rated = [(job, list(_rated(job, seen))) for job in jobs]
    if clear:
        sys.stdout.write(_CLEAR)
    if as_json:
        print_json({"time": time.time(), "jobs": [_job_dict(*each) for each in rated]})
        return
    if not jobs:
        sys.stdout.write("no job runs on this node\n")
    for job, streams in rated:
        _tell(job, streams)


def _rated(job: Job, seen: _Seen) -> Iterator[tuple[JobStream, Rates]]:
    """Each stream of a job with its rates; notes what was seen."""
    from lance_stream.service.jobs import rates  # noqa: PLC0415

    now = time.time()
    for stream in job.streams:
        key = (job.directory, stream.cache, stream.since)
        since, before = seen.get(key, (stream.since, None))
        seen[key] = (now, stream)
        old = None if before is None else before.stats
        yield stream, rates(stream.stats, old, now - since)


def _job_dict(job: Job, streams: list[tuple[JobStream, Rates]]) -> dict[str, Any]:
    shown = job.as_dict()
    for stream, (_, rate) in zip(shown["streams"], streams, strict=True):
        stream["rates"] = asdict(rate)
    return shown


def _tell(job: Job, streams: list[tuple[JobStream, Rates]]) -> None:
    age = max(0, round(time.time() - job.started))
    hours, minutes = age // 3600, age // 60 % 60
    sys.stdout.write(
        f"download process {job.pid}: {job.state}, for {hours}:{minutes:02}:{age % 60:02}; "
        f"log {job.log}\n"
    )
    if not streams:
        sys.stdout.write("no streams yet\n")
    for stream, rate in streams:
        _tell_stream(stream, rate)
    _tell_shared(job)
    counters = streams[0][0].stats.counters if streams else {}
    if counters:
        told = ", ".join(f"{name} {value:,}" for name, value in sorted(counters.items()))
        sys.stdout.write(f"counters: {told}\n")
    if job.errors:
        sys.stdout.write("last errors\n")
    for error in job.errors[-_SHOWN_ERRORS:]:
        sys.stdout.write(f"  {error.get('time', '')} {paragraph(str(error.get('message')))}\n")


def _tell_stream(stream: JobStream, rate: Rates) -> None:
    stats = stream.stats
    rows = [
        ("rows read", stats.rows, f"{rate.rows:,.0f}/s, {stats.seconds_waited:,.1f} s waited"),
        ("from lance", stats.from_lance, _source(stats.lance_bytes, rate.lance_bytes)),
        ("from shared cache", stats.from_tier, _source(stats.tier_bytes, rate.tier_bytes)),
        ("from local cache", stats.in_cache, f"of {stats.requested:,} asked for"),
        ("queue", stats.queue_depth, f"{stats.in_flight:,} being fetched"),
        ("failures", stats.failures, f"{stats.retries:,} retries"),
    ]
    title = (
        f"{stream.uri} version {stream.version}: {stream.table_rows:,} rows, {stats.shards:,} "
        f"shards, epoch {stats.epoch}{'' if stream.active else ', idle'}, "
        f"{len(stats.workers):,} readers, cache {stream.cache}"
    )
    print_table(title, ["what", "how many", "more"], rows)


def _tell_shared(job: Job) -> None:
    for tier in (tier for cache in job.shared_caches for tier in cache.tiers):
        rows = [
            ("hits", tier.hits, size(tier.hit_bytes)),
            ("misses", tier.misses, f"{tier.bad:,} wrong or damaged"),
            ("errors", tier.errors, f"{tier.outages:,} outages, {tier.skipped:,} calls not made"),
            ("puts", tier.puts, f"{size(tier.put_bytes)}, {tier.too_large:,} too large"),
        ]
        print_table(f"shared cache {tier.tier}", ["what", "how many", "more"], rows)


def _source(num_bytes: float, per_second: float) -> str:
    return f"{size(num_bytes)}, {size(per_second)}/s"
