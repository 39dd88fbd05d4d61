"""Compare a cache directory with the table: what ``lance-stream verify`` does. Changes nothing."""

from __future__ import annotations

import contextlib
import os
import random
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass

from lance_stream.errors import IndexFormatError, PlanError, ShardCorruptError
from lance_stream.offline.parallel import in_parallel
from lance_stream.offline.request import StreamRequest
from lance_stream.offline.same_rows import first_difference
from lance_stream.offline.tables import find_index, read_shard, shard_source
from lance_stream.offline.warming import cache_directory
from lance_stream.planning.checksum import hash_names
from lance_stream.planning.fingerprint import content_fingerprint
from lance_stream.planning.index import ShardIndex
from lance_stream.service.arguments import check_hash
from lance_stream.service.directory import LOCK_NAME
from lance_stream.service.fetching import Fetcher
from lance_stream.service.indexing import News
from lance_stream.service.stream_source import StreamSource
from lance_stream.shards.paths import (
    index_name,
    is_index_name,
    is_leftover_name,
    is_shard_name,
    shard_name,
)
from lance_stream.shards.regular import read_regular
from lance_stream.shards.shard_file import FORMATS, OpenShard, open_shard
from lance_stream.source.location import redact

__all__ = [
    "BAD",
    "FOREIGN",
    "LEFTOVER",
    "OTHER",
    "STALE",
    "Finding",
    "Verified",
    "VerifyRequest",
    "run_verify",
]

# What a file in the directory can be, besides right.
BAD = "bad"  # not what its name says: damaged, or other rows
STALE = "stale"  # a shard of another version or selection of the table, or of nothing known
OTHER = "other"  # a shard of another table, whose index lies in the directory
LEFTOVER = "leftover"  # of a writer that did not finish, or of a job that runs
FOREIGN = "foreign"  # not one of ours


@dataclass(frozen=True, slots=True)
class VerifyRequest:
    """What to compare with what.

    Attributes:
        stream: The table and the planning arguments.
        local: The cache directory, as a ``LanceStream`` is given it.
        algorithm: Hash that the files carry (``validate_hash``), or None for our own.
        sample: How many shards' rows are compared with the table, chosen at random each time;
            None: all.
        workers: Shards at a time.
    """

    stream: StreamRequest
    local: str
    algorithm: str | None
    sample: int | None
    workers: int


@dataclass(frozen=True, slots=True)
class Finding:
    """A file that is not simply right.

    Attributes:
        file: Its name.
        kind: One of the kinds above.
        reason: In words.
    """

    file: str
    kind: str
    reason: str


@dataclass(frozen=True, slots=True)
class Verified:
    """What is in a cache directory.

    Attributes:
        directory: The directory.
        uri: The table.
        version: Its version.
        fingerprint: Of what should be cached.
        shards: Shards of the selection.
        cached_shards: Those of which there is a file.
        compared_shards: Those whose rows were compared with the table's.
        findings: Files that are not simply right, by name.
        seconds: Duration.
    """

    directory: str
    uri: str
    version: int
    fingerprint: str
    shards: int
    cached_shards: int
    compared_shards: int
    findings: tuple[Finding, ...]
    seconds: float

    def count(self, kind: str) -> int:
        """How many files are of a kind."""
        return sum(finding.kind == kind for finding in self.findings)


def run_verify(request: VerifyRequest, news: News) -> Verified:
    """Look at every file of a cache directory; read the rows of its shards again.

    Every shard file's checksum and header are checked; then its rows are compared with the
    table's, value by value. A live job may use the directory meanwhile: what it evicts is left
    out.

    Args:
        request: What and how.
        news: Told of shards that are done.

    Raises:
        LanceStreamError: The table cannot be read, or there is no such directory.
    """
    started = time.monotonic()
    stream, stop = request.stream, threading.Event()
    check_hash(request.algorithm)
    directory = cache_directory(request.local, stream)
    if not os.path.isdir(directory):
        raise PlanError(f"--local {directory}: there is no such directory")
    fetcher, policy = Fetcher(), stream.policy(stop)
    index = find_index(stream, fetcher, policy, news)
    source = shard_source(
        stream,
        index,
        directory=directory,
        cache_format=stream.wanted.cache_format,
        algorithm=request.algorithm,
    )
    cached, findings = _sorted_out(source)
    chosen = set(cached)
    if request.sample is not None and request.sample < len(cached):
        chosen = set(random.sample(cached, request.sample))
    compared = 0

    def check(shard: int) -> tuple[bool, str | None]:
        file = _open(source, shard)
        if file is None or isinstance(file, str) or shard not in chosen:
            return False, file if isinstance(file, str) else None
        rows = read_shard(fetcher, source, shard, policy)
        return True, first_difference(file, rows)

    done = 0
    news("verify", 0, len(cached))
    try:
        with contextlib.closing(in_parallel(check, cached, request.workers, stop)) as results:
            for shard, (was_compared, wrong) in results:
                done += 1
                compared += was_compared
                news("verify", done, len(cached))
                if wrong is not None:
                    findings.append(Finding(source.name(shard), BAD, wrong))
    finally:
        stop.set()
    return Verified(
        directory=directory,
        uri=redact(index.uri),
        version=index.version,
        fingerprint=source.fingerprint,
        shards=index.num_shards,
        cached_shards=len(cached),
        compared_shards=compared,
        findings=tuple(sorted(findings, key=lambda finding: finding.file)),
        seconds=time.monotonic() - started,
    )


def _open(source: StreamSource, shard: int) -> OpenShard | str | None:
    """A shard's file, checked; or what is wrong with it; or None if it is gone."""
    index = source.index
    expected, path = source.header(shard), source.path(shard)
    try:
        return open_shard(
            source.register.cache_format, path, expected, index.schema, verified=None
        )
    except FileNotFoundError:
        return None
    except ShardCorruptError as error:
        return str(error).removeprefix(f"{path}: ")
    except OSError as error:
        return f"cannot be read: {error}"


def _sorted_out(source: StreamSource) -> tuple[list[int], list[Finding]]:
    """The shards of which there are files, and what else there is."""
    directory, index = source.register.directory, source.index
    names = sorted(os.listdir(directory))
    theirs = _indexes(directory, names)
    first = source.name(0).split(".")
    cached: list[int] = []
    findings: list[Finding] = []
    for name in names:
        if is_shard_name(name):
            prefix, number, suffix = name.split(".")
            if [prefix, suffix] != first[::2]:
                findings.append(_of_something_else(name, index, theirs))
            elif int(number) < index.num_shards and name == source.name(int(number)):
                cached.append(int(number))
            else:
                findings.append(Finding(name, BAD, f"there are only {index.num_shards} shards"))
        elif is_index_name(name):
            wrong = _wrong_index(directory, name, index)
            if wrong is not None:
                findings.append(Finding(name, BAD, wrong))
        elif is_leftover_name(name):
            findings.append(Finding(name, LEFTOVER, "of a job that runs, or was killed"))
        elif name != LOCK_NAME:
            findings.append(Finding(name, FOREIGN, "not a file of lance_stream"))
    return cached, findings


def _indexes(directory: str, names: Sequence[str]) -> dict[tuple[str, str], ShardIndex]:
    """The index of each kind of shard file, by what their names begin and end with."""
    found: dict[tuple[str, str], ShardIndex] = {}
    for name in filter(is_index_name, names):
        with contextlib.suppress(IndexFormatError, ShardCorruptError, OSError):
            index = _index(directory, name)
            for cache_format in FORMATS:
                for algorithm in (None, *hash_names()):
                    content = content_fingerprint(index.fingerprint, cache_format, algorithm)
                    prefix, _, suffix = shard_name(content, 0, cache_format).split(".")
                    found[prefix, suffix] = index
    return found


def _of_something_else(
    name: str, ours: ShardIndex, theirs: dict[tuple[str, str], ShardIndex]
) -> Finding:
    prefix, _, suffix = name.split(".")
    index = theirs.get((prefix, suffix))
    if index is None:
        return Finding(name, STALE, "of a table, version or selection that is not known")
    if index.uri != ours.uri:
        return Finding(name, OTHER, f"of {redact(index.uri)} version {index.version}")
    if index.version != ours.version:
        msg = f"of version {index.version}, and version {ours.version} is asked for"
        return Finding(name, STALE, msg)
    return Finding(name, STALE, "of another selection, layout, format or hash of the version")


def _index(directory: str, name: str) -> ShardIndex:
    path = os.path.join(directory, name)
    return ShardIndex.from_bytes(read_regular(path), path)


def _wrong_index(directory: str, name: str, ours: ShardIndex) -> str | None:
    try:
        index = _index(directory, name)
    except FileNotFoundError:
        return None
    except (IndexFormatError, ShardCorruptError, OSError) as error:
        return str(error)
    if index_name(index.fingerprint) != name:
        return f"it is the index {index_name(index.fingerprint)}"
    if index.fingerprint == ours.fingerprint and index.to_bytes() != ours.to_bytes():
        return None if index.rows_fingerprint == ours.rows_fingerprint else "it has other rows"
    return None
