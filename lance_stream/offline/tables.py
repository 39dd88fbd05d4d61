"""The index and the rows of a table, for work without a download process. Reads tables."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import pyarrow as pa

from lance_stream.errors import (
    LanceStreamError,
    PlanError,
    SourceUnavailableError,
    TransformError,
    VersionNotFoundError,
    error_from_name,
)
from lance_stream.offline.attempts import CallFailedError, Policy, Pulse, attempt
from lance_stream.offline.request import StreamRequest
from lance_stream.planning.index import ShardIndex
from lance_stream.service.arguments import search_path
from lance_stream.service.attempt import Attempt, AttemptError
from lance_stream.service.fetching import Fetcher
from lance_stream.service.indexing import News, no_news
from lance_stream.service.messages import Plan, Register
from lance_stream.service.stream_source import StreamSource
from lance_stream.service.wanted import load_index
from lance_stream.source.failures import Failure, FailureKind, explain_shard
from lance_stream.source.location import redact

__all__ = [
    "attempt_table",
    "find_index",
    "plan_table",
    "read_shard",
    "shard_error",
    "shard_source",
    "shard_subject",
]

_T = TypeVar("_T")


def find_index(
    stream: StreamRequest, fetcher: Fetcher, policy: Policy, news: News = no_news
) -> ShardIndex:
    """Plan the table, or take the index that is given if it is of the table.

    Args:
        stream: Which table, rows and shards.
        fetcher: Reads the table.
        policy: How long and how often.
        news: Told of progress while rows are read.

    Raises:
        LanceStreamError: The table cannot be streamed so; says why.
    """
    wanted, index, name = stream.wanted, None, ""
    if stream.index is not None:
        index, name = load_index(stream.index)
        wanted.check_index(index, name)
        wanted = wanted.like(index)
    request = wanted.request(
        timeout_s=stream.timeout_s,
        attempts=stream.attempts,
        identity=None if index is None else index.identity,
    )
    try:
        made = plan_table(fetcher, request, policy, news) or index
    except VersionNotFoundError as error:
        if index is None:
            raise
        msg = f"{name} is of version {index.version} of {redact(index.uri)}: {error}"
        raise VersionNotFoundError(msg) from error
    if made is None:
        raise PlanError(f"no index of {redact(wanted.uri)} was made")
    return made


def shard_source(
    stream: StreamRequest,
    index: ShardIndex,
    *,
    directory: str = "",
    cache_format: str = "arrow",
    algorithm: str | None = None,
) -> StreamSource:
    """What the shards of an index are read from, and where their files go.

    Args:
        stream: How the table is reached.
        index: Of the stream.
        directory: Cache directory, if files are written.
        cache_format: Of the files.
        algorithm: Hash that the files carry, or None for our own.
    """
    register = Register(
        stream="offline",
        uri=index.uri,
        version=index.version,
        index_path="",
        directory=directory,
        ledger_path="",
        options=stream.wanted.options,
        timeout_s=stream.timeout_s,
        attempts=stream.attempts,
        cache_format=cache_format,
        algorithm=algorithm,
        search_path=() if index.selection.transform is None else search_path(),
    )
    return StreamSource(register, index)


def plan_table(
    fetcher: Fetcher, request: Plan, policy: Policy, news: News = no_news
) -> ShardIndex | None:
    """Plan a table in this process, trying again what may pass.

    Args:
        fetcher: Reads the table.
        request: Table and arguments.
        policy: How often, and how long a silence.
        news: Told of progress while rows are read.

    Returns:
        The index; None if the request only asks whether one is of the table.

    Raises:
        LanceStreamError: With words for the user.
        StoppedError: Nothing is wanted any more.
    """
    pulse, doing = Pulse(), ""

    def told(what: str, done: int, total: int) -> None:
        nonlocal doing
        doing = what
        pulse.beat()
        news(what, done, total)

    try:
        return attempt_table(lambda: fetcher.plan(request, told), request.uri, policy, pulse)
    except SourceUnavailableError as error:
        if "transform=" not in doing or not isinstance(error.__cause__, CallFailedError):
            raise
        msg = (
            f"planning {redact(request.uri)}: {doing}: {error.__cause__}; raise --download-timeout"
        )
        raise TransformError(msg) from error


def attempt_table(
    call: Callable[[], _T], uri: str, policy: Policy, pulse: Pulse | None = None
) -> _T:
    """Do something with a whole table, trying again what may pass.

    Args:
        call: Raises LanceStreamError.
        uri: Of the table.
        policy: How often and how long.
        pulse: Of a call that takes long.

    Raises:
        LanceStreamError: With words for the user.
        StoppedError: Nothing is wanted any more.
    """

    def classified() -> _T:
        try:
            return call()
        except SourceUnavailableError as error:
            failure = Failure(FailureKind.UNAVAILABLE, str(error), retryable=True)
            raise CallFailedError(failure) from error

    what = f"planning {redact(uri)}"
    try:
        return attempt(classified, policy, what, pulse=pulse)
    except CallFailedError as error:
        if isinstance(error.__cause__, LanceStreamError):
            raise error.__cause__ from None
        msg = f"{what}: {error}; check endpoint and network, or raise --download-timeout"
        raise SourceUnavailableError(msg) from error


def read_shard(fetcher: Fetcher, source: StreamSource, shard: int, policy: Policy) -> pa.Table:
    """Read a shard's rows, trying again what may pass.

    Raises:
        LanceStreamError: They cannot be had; names shard, rows, table and version.
        StoppedError: Nothing is wanted any more.
    """
    running = Attempt()

    def read() -> pa.Table:
        nonlocal running
        running = Attempt()
        try:
            return fetcher.read(source, shard, running)
        except AttemptError as error:
            raise CallFailedError(error.failure) from error

    try:
        return attempt(read, policy, shard_subject(source.index, shard))
    except CallFailedError as error:
        failure = error.failure
        if running.doing and error.__cause__ is None:
            # It got no answer: the function is still at it.
            text = (
                f"{running.doing}: {failure.message}; raise --download-timeout, or give it fewer "
                "rows at a time with smaller shards"
            )
            failure = Failure(FailureKind.TRANSFORM, text, retryable=False)
        raise shard_error(source, shard, failure) from error


def shard_error(source: StreamSource, shard: int, failure: Failure) -> LanceStreamError:
    """The error that a failure at a shard is, in words for the user."""
    subject = shard_subject(source.index, shard)
    message = redact(failure.message, source.register.options.values or {})
    return error_from_name(*explain_shard(failure, subject, message, failure.detail))


def shard_subject(index: ShardIndex, shard: int) -> str:
    """A shard in words: its number, rows, table and version."""
    rows = index.describe_rows(shard)
    return f"shard {shard} ({rows} of {redact(index.uri)} version {index.version})"
