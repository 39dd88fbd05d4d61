"""The work of the download process, one call per thread: plan a table, fetch a shard."""

from __future__ import annotations

import itertools
import logging
import os
import threading
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from typing import TypeVar

import pyarrow as pa

from lance_stream.errors import EmptyStreamError, LanceStreamError, PlanError
from lance_stream.planning.fingerprint import digest, table_identity
from lance_stream.planning.index import Selection, ShardIndex
from lance_stream.planning.plan import contiguous_shard_stops
from lance_stream.planning.sizing import rows_per_shard
from lance_stream.processes import this_process
from lance_stream.service.messages import Options, Plan, Register
from lance_stream.shards.arrow_file import ShardHeader, write_shard
from lance_stream.shards.paths import new_temporary_name, shard_name
from lance_stream.shards.values import check_supported
from lance_stream.source.failures import Failure, FailureKind, classify, explain
from lance_stream.source.location import redact
from lance_stream.source.table import (
    StorageOptions,
    Table,
    TableAddress,
    client_options,
    locate,
)

__all__ = ["AttemptError", "Fetcher", "StreamSource", "cache_failure"]

logger = logging.getLogger(__name__)

_MAX_OPEN_TABLES = 64
_T = TypeVar("_T")


class AttemptError(Exception):
    """One attempt failed in a way that the scheduler understands."""

    def __init__(self, failure: Failure) -> None:
        """Keep the failure."""
        super().__init__(failure.message)
        self.failure = failure


@dataclass(slots=True)
class StreamSource:
    """What the shards of one registered stream are read from."""

    register: Register
    index: ShardIndex
    fingerprint: str
    checked: Table | None = None  # the open table that is known to be the index's

    @classmethod
    def load(cls, register: Register) -> StreamSource:
        """Read the stream's index.

        Raises:
            IndexFormatError: It is damaged.
            OSError: It cannot be read.
        """
        index = ShardIndex.load(register.index_path)
        return cls(register, index, index.fingerprint)

    def path(self, shard: int) -> str:
        """The shard's file in the cache."""
        return os.path.join(self.register.directory, shard_name(self.fingerprint, shard))


class Fetcher:
    """Open tables, and the two things done with them. Thread-safe."""

    def __init__(self) -> None:
        """Start with no table open."""
        # Concurrent fetches wait for one opening.
        self._tables: OrderedDict[str, Future[Table]] = OrderedDict()
        self._options: dict[str, StorageOptions] = {}
        self._lock = threading.Lock()
        self._writer = this_process()
        self._writes = itertools.count()

    def plan(self, request: Plan) -> ShardIndex:
        """Make the index of a table.

        Raises:
            LanceStreamError: With words for the user.
        """
        named = f"{request.uri}/{request.split}" if request.split else request.uri
        subject = f"cannot open {redact(named)}"
        if request.version is not None:
            subject += f" version {request.version!r}"
        options = self._storage_options(request.options)
        try:

            def open_table(made: dict[str, str]) -> tuple[str, Table]:
                remote = TableAddress(request.uri, None, request.timeout_s)
                known = client_options(remote, made)
                uri = self._opening(lambda: locate(request.uri, request.split, known))
                address = TableAddress(uri, request.version, request.timeout_s)
                # Not the cached table: the latest version must be looked up anew.
                return uri, self._opening(lambda: Table(address, made))

            uri, table = self._renewing(options, lambda made, _generation: open_table(made))
            return self._make_index(request, uri, table)
        except AttemptError as error:
            kind = error.failure.kind
            message = redact(error.failure.message, options.secrets())
            if kind is FailureKind.BROKEN and request.columns is not None:
                msg = f"columns={dict(request.columns)}: fails on rows of the table: {message}"
                raise PlanError(msg) from error
            names = {cls.__name__: cls for cls in LanceStreamError.__subclasses__()}
            raise names[kind.value](explain(kind, subject, message)) from error

    def fetch(self, source: StreamSource, shard: int) -> tuple[str, int]:
        """Read a shard's rows and write its file, not yet published.

        Returns:
            Path of the temporary file, and its bytes.

        Raises:
            AttemptError: With the reason; no file is left.
        """
        register, index = source.register, source.index
        options = self._storage_options(register.options)
        rows = index.shard_rows(shard)
        span = index.fragments.span(rows)

        def read(made: dict[str, str], generation: int) -> pa.Table:
            opened = self._table(source, options, made, generation)
            return self._reading(lambda: opened.read(span, index.selection))

        table = self._renewing(options, read)
        if table.num_rows != len(rows) or not table.schema.equals(index.schema):
            found = f"{table.num_rows} rows of {table.schema.names}"
            wanted = f"{len(rows)} rows of {index.schema.names}"
            failure = Failure(
                FailureKind.BROKEN,
                f"the table gave {found}, the index says {wanted}",
                retryable=False,
            )
            raise AttemptError(failure)
        name = shard_name(source.fingerprint, shard)
        # Two datasets of one process may fetch the same shard into the same directory.
        unique = f"{next(self._writes)}-{name}"
        path = os.path.join(register.directory, new_temporary_name(unique, *self._writer))
        try:
            header = ShardHeader(source.fingerprint, shard, len(rows))
            return path, write_shard(path, table, header)
        except BaseException as error:
            _unlink(path)
            raise AttemptError(cache_failure(error, register.directory, table.nbytes)) from error

    def _make_index(self, request: Plan, uri: str, table: Table) -> ShardIndex:
        where = f"{redact(uri)} version {table.version}"
        selection = Selection(request.columns, request.with_row_id)
        rows = table.fragment_rows()
        if not rows.num_rows:
            msg = f"{where} has no rows: nothing to stream"
            raise EmptyStreamError(msg)
        schema = table.schema(selection)
        check_supported(schema, where)
        schema = schema.remove_metadata()
        size = self._reading(lambda: table.sample_row_size(rows, selection, schema))
        shard_rows = request.shard_rows or rows_per_shard(size, request.shard_bytes)
        return ShardIndex(
            uri=uri,
            version=table.version,
            identity=table_identity(table.manifest()),
            selection=selection,
            schema=schema,
            fragments=rows,
            shard_stops=contiguous_shard_stops(rows.num_rows, shard_rows),
            row_size=size,
        )

    def _storage_options(self, options: Options) -> StorageOptions:
        """One object for equal options, so that a token is renewed once for all streams."""
        key = digest({"values": options.values, "function": options.function})
        with self._lock:
            if key not in self._options:
                self._options[key] = StorageOptions(
                    options.values, options.function, options.search_path
                )
            return self._options[key]

    def _table(
        self, source: StreamSource, options: StorageOptions, made: dict[str, str], generation: int
    ) -> Table:
        register = source.register
        key = digest(
            {
                "uri": register.uri,
                "version": register.version,
                # The same version number may name another table since.
                "identity": source.index.identity,
                "options": id(options),
                "generation": generation,
            }
        )
        with self._lock:
            opening = self._tables.get(key)
            opens = opening is None
            if opening is None:
                opening = self._tables[key] = Future()
            self._tables.move_to_end(key)
            while len(self._tables) > _MAX_OPEN_TABLES:
                self._tables.popitem(last=False)
        if opens:
            address = TableAddress(register.uri, register.version, register.timeout_s)
            try:
                opening.set_result(self._opening(lambda: Table(address, made)))
            except BaseException as error:  # noqa: BLE001
                # Who waits gets it as well; the next attempt opens anew.
                with self._lock:
                    if self._tables.get(key) is opening:
                        del self._tables[key]
                opening.set_exception(error)
        table = opening.result()
        if source.checked is not table:
            if table_identity(table.manifest()) != source.index.identity:
                failure = Failure(
                    FailureKind.VERSION_NOT_FOUND,
                    f"version {register.version} is not the one that training began with: the "
                    "table was made again at the same uri",
                    retryable=False,
                )
                raise AttemptError(failure)
            source.checked = table
        return table

    def _opening(self, call: Callable[[], _T]) -> _T:
        return _classified(call, while_opening=True)

    def _reading(self, call: Callable[[], _T]) -> _T:
        return _classified(call, while_opening=False)

    def _renewing(self, options: StorageOptions, call: Callable[[dict[str, str], int], _T]) -> _T:
        """Call again with new credentials, once, if the store refused made ones."""
        made, generation = options.current()
        try:
            return call(made, generation)
        except AttemptError as error:
            if error.failure.kind is not FailureKind.CREDENTIALS or not options.renew(generation):
                raise
        return call(*options.current())


def _classified(call: Callable[[], _T], *, while_opening: bool) -> _T:
    try:
        return call()
    except (LanceStreamError, AttemptError):
        raise
    except BaseException as error:  # Lance panics are not Exceptions.
        logger.debug("Lance raised", exc_info=True)
        raise AttemptError(classify(error, while_opening=while_opening)) from error


def cache_failure(error: BaseException, directory: str, num_bytes: int) -> Failure:
    """What it means that a shard file could not be written or put in its place."""
    failure = classify(error, while_opening=False)
    if failure.kind is FailureKind.CACHE_FULL:
        status = os.statvfs(directory)
        free = status.f_bavail * status.f_frsize
        message = f"{directory} has {free} bytes free, the shard needs about {num_bytes}"
        return Failure(failure.kind, f"{message}: {failure.message}", retryable=False)
    if isinstance(error, OSError):
        message = f"{directory}: {failure.message}"
        return Failure(FailureKind.CACHE_UNUSABLE, message, retryable=False)
    return Failure(FailureKind.BROKEN, failure.message, retryable=False)


def _unlink(path: str) -> None:
    try:
        os.unlink(path)
    except FileNotFoundError:
        pass
