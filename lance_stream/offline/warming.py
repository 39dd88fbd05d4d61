"""Fill a cache before training: what ``lance-stream warm`` does."""

from __future__ import annotations

import contextlib
import errno
import os
import tempfile
import threading
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass, field

import msgspec

from lance_stream.errors import CacheFullError, LanceStreamError, PlanError, ShardCorruptError
from lance_stream.offline.attempts import CallFailedError, Policy, StoppedError, attempt
from lance_stream.offline.parallel import in_parallel
from lance_stream.offline.request import StreamRequest
from lance_stream.offline.shared_place import SharedPlace
from lance_stream.offline.tables import find_index, shard_error, shard_source, shard_subject
from lance_stream.processes import is_alive, this_node, this_writer
from lance_stream.service.arguments import check_hash, check_outside
from lance_stream.service.attempt import AttemptError
from lance_stream.service.cache_files import lay_down_index, sweep_ledgers
from lance_stream.service.directory import claim_directory
from lance_stream.service.fetching import Fetched, Fetcher, cache_failure
from lance_stream.service.indexing import News
from lance_stream.service.stream_source import StreamSource
from lance_stream.shards.paths import sweep_temporary_files
from lance_stream.shards.shard_file import open_shard
from lance_stream.source.location import is_object_store, redact

__all__ = [
    "Engine",
    "Results",
    "WarmRequest",
    "Warmed",
    "cache_directory",
    "here",
    "is_whole",
    "run_warm",
    "warm_shards",
]


@dataclass(frozen=True, slots=True)
class WarmRequest:
    """What to fetch, and where to.

    Attributes:
        stream: The table and the planning arguments.
        local: The cache directory, as a ``LanceStream`` is given it; None: a shared cache.
        shared: Urls of the shared cache, from fast to slow; may hold secrets.
        algorithm: Hash that the files carry (``validate_hash``), or None for our own.
        workers: Shards that are fetched at a time.
    """

    stream: StreamRequest
    local: str | None
    shared: tuple[str, ...]
    algorithm: str | None
    workers: int


@dataclass(frozen=True, slots=True)
class Warmed:
    """What is in the cache now.

    Attributes:
        where: Directory of the shard files, or the shared cache.
        uri: The table.
        version: Its version.
        fingerprint: Of what is cached.
        rows: Rows of the selection.
        shards: Its shards, all of which are there.
        kept_shards: Those that were there before.
        num_bytes: Bytes of all their files.
        fetched_bytes: Bytes of those that this run fetched.
        seconds: Duration of this run.
        nodes: Names of the machines that fetched, where it was several.
    """

    where: str
    uri: str
    version: int
    fingerprint: str
    rows: int
    shards: int
    kept_shards: int
    num_bytes: int
    fetched_bytes: int
    seconds: float
    nodes: tuple[str, ...] = field(default=())


# Fetches shards into a claimed directory: each that is there, its bytes, and on which machine.
Results = Generator[tuple[int, int, str], None, None]
Engine = Callable[[WarmRequest, StreamSource, Sequence[int]], Results]


def cache_directory(local: str, request: StreamRequest) -> str:
    """Where a ``LanceStream`` with these arguments keeps its shards.

    Raises:
        PlanError: It lies inside the table.
    """
    wanted = request.wanted
    path = os.path.abspath(os.path.expanduser(local))
    if not is_object_store(wanted.uri):
        check_outside(path, wanted.uri, wanted.split)
    return os.path.join(path, wanted.split) if wanted.split else path


def run_warm(request: WarmRequest, news: News, engine: Engine) -> Warmed:
    """Fetch every shard that is not in the cache; what an earlier run fetched stays.

    Args:
        request: What and where to.
        news: Told of rows that are in the cache.
        engine: Who fetches.

    Raises:
        LanceStreamError: A shard cannot be had, the cache is in use, full or down; says why. What
            was fetched stays, and the same request goes on.
    """
    started = time.monotonic()
    stream, wanted = request.stream, request.stream.wanted
    check_hash(request.algorithm)
    path = None if request.local is None else cache_directory(request.local, stream)
    # A wrong url is told before any work.
    shared = SharedPlace(request.shared) if path is None else None
    stop = threading.Event()
    index = find_index(stream, Fetcher(), stream.policy(stop), news)
    with contextlib.ExitStack() as stack:
        if path is not None:
            claim = claim_directory(path)
            stack.callback(claim.close)
            path = claim.path
        elif shared is not None:
            stack.callback(shared.close)
        source = shard_source(
            stream,
            index,
            directory=path or "",
            cache_format=wanted.cache_format,
            algorithm=request.algorithm,
        )
        if path is not None:
            with _explained(path):
                sweep_ledgers(path)
                for _ in sweep_temporary_files(path, is_alive, this_node()):
                    pass
                lay_down_index(path, index)
                found = {shard: is_whole(source, shard) for shard in range(index.num_shards)}
            there = {shard: size for shard, size in found.items() if size}
        else:
            there = {} if shared is None else shared.there(source, request.workers)
        fetched, nodes = _fetch_rest(request, source, there, news, engine)
    return Warmed(
        where=path or repr(shared),
        uri=redact(index.uri),
        version=index.version,
        fingerprint=source.fingerprint,
        rows=index.num_rows,
        shards=index.num_shards,
        kept_shards=len(there),
        num_bytes=sum(there.values()) + sum(fetched.values()),
        fetched_bytes=sum(fetched.values()),
        seconds=time.monotonic() - started,
        nodes=tuple(sorted(nodes)),
    )


def _fetch_rest(
    request: WarmRequest,
    source: StreamSource,
    there: dict[int, int],
    news: News,
    engine: Engine,
) -> tuple[dict[int, int], set[str]]:
    index = source.index
    rows = sum(len(index.shard_rows(shard)) for shard in there)
    news("warm", rows, index.num_rows)
    fetched: dict[int, int] = {}
    nodes: set[str] = set()
    todo = [shard for shard in range(index.num_shards) if shard not in there]
    # Closed at once if anything is raised here: it must end before the claim does.
    with contextlib.closing(engine(request, source, todo)) as results:
        for shard, num_bytes, node in results:
            fetched[shard] = num_bytes
            if node:
                nodes.add(node)
            rows += len(index.shard_rows(shard))
            news("warm", rows, index.num_rows)
    if len(fetched) < len(todo):
        msg = f"only {len(fetched)} of {len(todo)} shards came: run this again"
        raise PlanError(msg)
    return fetched, nodes


def here(request: WarmRequest, source: StreamSource, todo: Sequence[int]) -> Results:
    """Fetch in threads of this process. An ``Engine``."""
    results = warm_shards(request.stream, source, todo, request.workers, request.shared)
    with contextlib.closing(results):
        for shard, num_bytes in results:
            yield shard, num_bytes, ""


def warm_shards(
    stream: StreamRequest,
    source: StreamSource,
    todo: Sequence[int],
    workers: int,
    shared: Sequence[str] = (),
) -> Generator[tuple[int, int], None, None]:
    """Fetch some shards into a directory that is claimed, or into a shared cache.

    Args:
        stream: How long and how often to try.
        source: The shards, and where their files go.
        todo: Which.
        workers: How many at a time.
        shared: Urls of the shared cache; none: the directory.

    Yields:
        Each shard, and the bytes of its file.

    Raises:
        LanceStreamError: One cannot be had.
    """
    stop, fetcher = threading.Event(), Fetcher()
    policy = stream.policy(stop)
    with contextlib.ExitStack() as stack:
        place = None
        if shared:
            place = SharedPlace(shared)
            stack.callback(place.close)
            scratch = stack.enter_context(tempfile.TemporaryDirectory(prefix="lance-stream-warm-"))
            register = msgspec.structs.replace(source.register, directory=scratch)
            source = StreamSource(register, source.index)
        stack.callback(_sweep_own, source.register.directory)
        stack.callback(stop.set)

        def fetch(shard: int) -> int:
            file = _fetched(fetcher, source, shard, policy)
            if place is not None:
                place.put(source, shard, file.path)
                return file.num_bytes
            try:
                # Here and not in the attempt: one that was given up publishes nothing.
                os.rename(file.path, source.path(shard))
            except OSError as error:
                failure = cache_failure(error, source.register.directory, file.num_bytes)
                raise shard_error(source, shard, failure) from error
            return file.num_bytes

        with contextlib.closing(in_parallel(fetch, todo, workers, stop)) as results:
            yield from results


def _fetched(fetcher: Fetcher, source: StreamSource, shard: int, policy: Policy) -> Fetched:
    """A shard's file, not yet published."""

    def fetch() -> Fetched:
        try:
            return fetcher.fetch(source, shard)
        except AttemptError as error:
            raise CallFailedError(error.failure) from error

    try:
        return attempt(fetch, policy, shard_subject(source.index, shard))
    except CallFailedError as error:
        raise shard_error(source, shard, error.failure) from error
    except StoppedError as error:
        raise PlanError(f"{shard_subject(source.index, shard)}: stopped") from error


def is_whole(source: StreamSource, shard: int) -> int:
    """Bytes of a shard's file if it is there, cut nowhere, and says that it is the shard; else 0.

    Its checksum is not computed, which would read the whole cache: readers do.
    """
    path, index, expected = source.path(shard), source.index, source.header(shard)
    try:
        status = os.lstat(path)
        name = (status.st_dev, status.st_ino, status.st_mtime_ns, status.st_size)
        file = open_shard(
            source.register.cache_format, path, expected, index.schema, verified=name
        )
    except (FileNotFoundError, ShardCorruptError):
        return 0
    return file.num_bytes


def _sweep_own(directory: str) -> None:
    """Remove what attempts that were given up have written."""
    *me, node = this_writer()
    for _ in sweep_temporary_files(directory, lambda pid, started: [pid, started] != me, node):
        pass


@contextlib.contextmanager
def _explained(directory: str) -> Iterator[None]:
    try:
        yield
    except LanceStreamError:
        raise
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            msg = f"{directory}: no space left: {error.strerror}; free some and run this again"
            raise CacheFullError(msg) from error
        msg = f"cannot use {directory} as a cache directory: {error}"
        raise PlanError(msg) from error
