"""The work of the download process, one call per thread: plan a table, fetch a shard."""

from __future__ import annotations

import itertools
import logging
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

import pyarrow as pa

from lance_stream.errors import LanceStreamError, PlanError, TransformError, UnsupportedTypeError
from lance_stream.planning.fingerprint import digest, table_identity
from lance_stream.planning.index import ShardIndex
from lance_stream.planning.layout import Layout
from lance_stream.planning.selection import Selection
from lance_stream.planning.types import describe_schema
from lance_stream.processes import this_writer
from lance_stream.service.attempt import Attempt, AttemptError
from lance_stream.service.growing import GrowingTables, look
from lance_stream.service.indexing import News, Order, check_format, finished, make_index, no_news
from lance_stream.service.messages import Pin, Plan, Poll, Polled
from lance_stream.service.open_tables import OpenTables, another_table, opening, reading
from lance_stream.service.sharing import SharedCaches
from lance_stream.service.stream_source import StreamSource
from lance_stream.service.transform import TransformFailedError
from lance_stream.service.window_index import WindowIndexes
from lance_stream.shards.paths import new_temporary_name
from lance_stream.shards.shard_file import write_shard
from lance_stream.source.failures import Failure, FailureKind, classify, explain
from lance_stream.source.growth import GrowingTable
from lance_stream.source.location import redact
from lance_stream.source.options import StorageOptions
from lance_stream.source.pins import pin_version, unpin
from lance_stream.source.table import (
    Table,
    TableAddress,
    client_options,
    locate,
)

__all__ = ["Fetched", "Fetcher", "cache_failure"]

logger = logging.getLogger(__name__)

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Fetched:
    """A shard's file that is complete, but not yet published."""

    path: str
    num_bytes: int
    from_tier: bool


class Fetcher:
    """Open tables, and the two things done with them. Thread-safe."""

    def __init__(self, max_fetches: int = 16) -> None:
        """Start with no table open.

        Args:
            max_fetches: Fetches at a time.
        """
        self.shared = SharedCaches(max_fetches)
        self._tables = OpenTables()
        self._growing = GrowingTables()
        self._windows = WindowIndexes()
        self._writer = this_writer()
        self._writes = itertools.count()

    def plan(self, request: Plan, news: News = no_news) -> ShardIndex | None:
        """Make the index of a table; None if the request only asks whether one is of it.

        Args:
            request: Table and arguments.
            news: Told of progress while rows are read, which may take long.

        Raises:
            LanceStreamError: With words for the user.
        """
        options = self._tables.storage_options(request.options)
        # A wrong url of a shared cache is an error now, not at the first shard.
        self.shared.open(request.shared_cache)
        with _told(request, options):
            uri, table = self._tables.newly_opened(request, options)
            where = f"{redact(uri)} version {table.version}"
            window = request.window
            if window is not None and table_identity(table.manifest()) != window.identity:
                raise AttemptError(another_table(table.version))
            if request.identity is not None:
                if table_identity(table.manifest()) != request.identity:
                    raise AttemptError(another_table(table.version, request.version, given=True))
                reading(lambda: check_format(table, _order(request), where, news))
                return None
            order = _order(request)
            if window is not None:
                return reading(lambda: self._windows.make(uri, table, order, window, where, news))
            return reading(lambda: make_index(uri, table, order, where, news))

    def look_up(self, request: Plan, use: Callable[[str, Table], _T]) -> _T:
        """What a function makes of a table, newly opened at the version that a request names.

        Args:
            request: Which table; what it says of shards is not looked at.
            use: Takes the table's uri, and the table.

        Raises:
            LanceStreamError: With words for the user.
        """
        options = self._tables.storage_options(request.options)
        with _told(request, options):
            uri, table = self._tables.newly_opened(request, options)
            return reading(lambda: use(uri, table))

    def poll(self, request: Poll, news: News = no_news) -> Polled:
        """Look whether a table has grown.

        Args:
            request: Table, and what was seen of it.
            news: Told of progress where many versions are looked at.

        Raises:
            TableChangedError: Something else was done to it.
            LanceStreamError: With words for the user.
        """
        options = self._tables.storage_options(request.options)

        def look_at(made: dict[str, str], generation: int) -> Polled:
            known = client_options(TableAddress(request.uri, None, request.timeout_s), made)
            at = {"uri": request.uri, "split": request.split, "options": id(options)}
            key = digest({**at, "generation": generation})
            opened = self._growing.take(key)
            if opened is None or not opened.refreshed():
                uri = opening(lambda: locate(request.uri, request.split, known))
                opened = opening(lambda: GrowingTable(uri, known))
            found = opening(lambda: look(opened, request, news))
            self._growing.put(key, opened)
            return found

        with _told(request, options):
            return self._tables.renewing(options, look_at)

    def pin(
        self, pin: Pin, is_alive: Callable[[int, int], bool]
    ) -> tuple[str, Callable[[], None]]:
        """Put a tag on a version.

        Returns:
            Name of the tag, and what removes it.

        Raises:
            AttemptError: It cannot be written.
        """
        options = self._tables.storage_options(pin.options)
        address = TableAddress(pin.uri, pin.version, pin.timeout_s)

        def create(made: dict[str, str], _generation: int) -> tuple[str, Table]:
            table = opening(lambda: Table(address, made))
            owner = (pin.pid, pin.started)
            name = opening(lambda: pin_version(table.dataset, pin.version, owner, is_alive))
            return name, table

        def remove(made: dict[str, str], _generation: int) -> None:
            table = opening(lambda: Table(address, made))
            opening(lambda: unpin(table.dataset, name))

        name, _ = self._tables.renewing(options, create)
        return name, lambda: self._tables.renewing(options, remove)

    def read(self, source: StreamSource, shard: int, attempt: Attempt | None = None) -> pa.Table:
        """Read a shard's rows, in the types of a shard and transformed.

        Args:
            source: Of the stream.
            shard: Which.
            attempt: Who is told how it goes on.

        Raises:
            AttemptError: With the reason.
            PostponedError: The attempt had to give way.
        """
        attempt = attempt or Attempt()
        register, index = source.register, source.index
        options = self._tables.storage_options(register.options)
        parts, num_rows = index.reads(shard), len(index.shard_rows(shard))

        def read(made: dict[str, str], generation: int) -> pa.Table:
            opened = self._tables.table(source, options, made, generation)
            row_bytes, tables = index.row_size.mean_bytes, list[pa.Table]()
            if index.selection.transform is not None:
                # The plan knows what the function gives, not what it takes.
                taken = source.read_row_bytes or opened.file_bytes_per_row()
                row_bytes = max(row_bytes, taken)
            for rows in parts:
                before, is_last = sum(table.nbytes for table in tables), rows is parts[-1]
                seen = partial(attempt.read_part, before, is_last)
                tables.append(
                    reading(
                        lambda rows=rows, seen=seen: opened.read(
                            index.fragments, rows, index.selection, row_bytes, seen
                        )
                    )
                )
            return tables[0] if len(tables) == 1 else pa.concat_tables(tables)

        try:
            table = self._tables.renewing(options, read)
        except PlanError as error:
            failure = Failure(FailureKind.UNSUPPORTED, str(error), retryable=False)
            raise AttemptError(failure) from error
        if index.selection.transform is not None:
            source.read_row_bytes = max(source.read_row_bytes, table.nbytes / max(1, num_rows))
            attempt.begin(f"transform={index.selection.transform!r}")
        try:
            table = finished(table, index.selection, register.search_path, register.uri)
        except TransformFailedError as error:
            raise AttemptError(error.failure) from error
        except LanceStreamError as error:
            # The function, or a type that it gives, is not what it was when planned.
            failure = Failure(FailureKind.TRANSFORM, str(error), retryable=False)
            raise AttemptError(failure) from error
        attempt.begin("")
        if table.num_rows != num_rows or not table.schema.equals(index.schema):
            raise AttemptError(_mismatch(table, num_rows, index))
        return table

    def fetch(self, source: StreamSource, shard: int, attempt: Attempt | None = None) -> Fetched:
        """Have a shard's rows in a file, not yet published: from the shared cache, or Lance.

        Args:
            source: Of the stream.
            shard: Which.
            attempt: Who is told how it goes on.

        Raises:
            AttemptError: With the reason; no file is left.
            PostponedError: The attempt had to give way.
        """
        attempt = attempt or Attempt()
        register = source.register
        header = source.header(shard)
        # Two datasets of one process may fetch the same shard into the same directory.
        unique = f"{next(self._writes)}-{source.name(shard)}"
        path = os.path.join(register.directory, new_temporary_name(unique, *self._writer))
        expected = source.index.shard_bytes(shard)
        started_ns = time.monotonic_ns()
        try:
            with _writing(path, register.directory, expected):
                num_bytes = self.shared.take(register, header, source.index.schema, path)
        finally:
            if register.shared_cache:
                attempt.tier_ns = time.monotonic_ns() - started_ns
        if num_bytes is not None:
            return Fetched(path, num_bytes, from_tier=True)
        try:
            table = self.read(source, shard, attempt)
            with _writing(path, register.directory, table.nbytes):
                num_bytes = write_shard(register.cache_format, path, table, header)
        except BaseException:
            self.shared.release(register, header)
            raise
        return Fetched(path, num_bytes, from_tier=False)

    def share(self, source: StreamSource, shard: int) -> None:
        """Put a published shard into the shared cache of its stream, in the background."""
        self.shared.offer(
            source.register, source.header(shard), source.index.schema, source.path(shard)
        )

    def keep_to_itself(self, source: StreamSource, shard: int) -> None:
        """A shard that was fetched is not published, and so not shared: others may read it."""
        self.shared.release(source.register, source.header(shard))

    def forget(self, source: StreamSource) -> None:
        """Close the table of a stream that is gone, if no other reads it."""
        self._tables.forget(source)


@contextmanager
def _writing(path: str, directory: str, num_bytes: int) -> Iterator[None]:
    """Leave no file behind where writing it fails, and say why."""
    try:
        yield
    except BaseException as error:
        _unlink(path)
        raise AttemptError(cache_failure(error, directory, num_bytes)) from error


@contextmanager
def _told(request: Plan | Poll, options: StorageOptions) -> Iterator[None]:
    """Raise what fails at a table as a LanceStreamError, with words for the user."""
    named = redact(f"{request.uri}/{request.split}" if request.split else request.uri)
    subject = f"cannot open {named}"
    if request.version is not None:
        subject += f" version {request.version!r}"
    try:
        yield
    except TransformFailedError as error:
        failure = error.failure
        raise TransformError(
            explain(failure.kind, f"planning {named}", failure.message, failure.detail)
        ) from error
    except AttemptError as error:
        kind = error.failure.kind
        message = redact(error.failure.message, options.secrets())
        if kind is FailureKind.BROKEN and _computes(request.columns):
            msg = f"columns={dict(request.columns or ())}: fails on rows of the table: {message}"
            raise PlanError(msg) from error
        names = {cls.__name__: cls for cls in LanceStreamError.__subclasses__()}
        text = explain(kind, subject, message, words=error.failure.words)
        raise names[kind.value](text) from error


def _computes(columns: tuple[tuple[str, str], ...] | None) -> bool:
    """Whether a column is an expression over the table's, which may fail on its values."""
    return any(name != expression for name, expression in columns or ())


def _order(request: Plan) -> Order:
    """What a request asks for."""
    subset = request.subset
    selection = Selection(
        columns=request.columns,
        with_row_id=request.with_row_id,
        filter=request.filter,
        limit=request.limit,
        subset=None if subset is None else (subset[0], subset[1]),
        subset_key=request.subset_key,
        transform=request.transform,
        transform_version=request.transform_version,
    )
    return Order(
        selection=selection,
        layout=Layout(request.layout, request.run_rows, request.layout_seed),
        shard_rows=request.shard_rows,
        shard_bytes=request.shard_bytes,
        exact=request.exact,
        cache_format=request.cache_format,
        search_path=request.search_path,
        partial_path=request.partial_path,
        learn_from=request.learn_from,
    )


def _mismatch(table: pa.Table, num_rows: int, index: ShardIndex) -> Failure:
    """What was read is not what the index says."""
    found, wanted = f"{table.num_rows} rows", f"{num_rows} rows"
    if not table.schema.equals(index.schema):
        found += f" of {describe_schema(table.schema)}"
        wanted += f" of {describe_schema(index.schema)}"
    if index.selection.transform is not None:
        text = (
            f"it gave {found}, and {wanted} when the stream was planned; cast its columns, and "
            "change transform_version if the function has changed"
        )
        return Failure(FailureKind.TRANSFORM, text, retryable=False)
    text = f"the table gave {found}, the index says {wanted}"
    return Failure(FailureKind.BROKEN, text, retryable=False)


def cache_failure(error: BaseException, directory: str, num_bytes: int) -> Failure:
    """What it means that a shard file could not be written or put in its place."""
    failure = classify(error, while_opening=False)
    if failure.kind is FailureKind.CACHE_FULL:
        status = os.statvfs(directory)
        free = status.f_bavail * status.f_frsize
        message = f"{directory} has {free} bytes free, the shard needs about {num_bytes}"
        return Failure(failure.kind, f"{message}: {failure.message}", retryable=False)
    if isinstance(error, UnsupportedTypeError | PlanError):
        # Arrow files hold all that a sample may be.
        words = f'{error}; or use cache_format="arrow"'
        return Failure(FailureKind.UNSUPPORTED, words, retryable=False)
    if isinstance(error, OSError):
        message = f"{directory}: {failure.message}"
        return Failure(FailureKind.CACHE_UNUSABLE, message, retryable=False)
    return Failure(FailureKind.BROKEN, failure.message, retryable=False)


def _unlink(path: str) -> None:
    try:
        os.unlink(path)
    except FileNotFoundError:
        pass
