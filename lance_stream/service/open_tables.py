"""Tables that the download process has open, with credentials that are renewed. Thread-safe."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from typing import TypeVar

from lance_stream.errors import CredentialsError, LanceStreamError, PlanError
from lance_stream.planning.fingerprint import digest, table_identity
from lance_stream.service.attempt import AttemptError, PostponedError
from lance_stream.service.messages import Options, Plan
from lance_stream.service.stream_source import StreamSource
from lance_stream.service.transform import TransformFailedError
from lance_stream.source.failures import Failure, FailureKind, classify
from lance_stream.source.location import redact
from lance_stream.source.options import StorageOptions
from lance_stream.source.table import Table, TableAddress, client_options, dereference, locate

__all__ = ["OpenTables", "another_table", "opening", "reading"]

logger = logging.getLogger(__name__)

# What the caches of all open tables may take, and those of one at least and at most.
_CACHE_BYTES = 2 << 30
_LEAST_CACHE_BYTES, _MOST_CACHE_BYTES = 4 << 20, 32 << 20
_T = TypeVar("_T")


@dataclass(slots=True)
class _Open:
    """A table that is open, or being opened, and the streams that read it."""

    table: Future[Table] = field(default_factory=Future)
    streams: set[str] = field(default_factory=set)


class OpenTables:
    """Open tables and storage options, each shared by all streams that name the same."""

    def __init__(self) -> None:
        """Start with no table open."""
        self._tables: dict[str, _Open] = {}
        self._options: dict[str, StorageOptions] = {}
        self._lock = threading.Lock()

    def newly_opened(self, request: Plan, options: StorageOptions) -> tuple[str, Table]:
        """Look up where and which the table is, and open it.

        Not a table that is open already: the latest version must be looked up anew.
        """

        def open_table(made: dict[str, str], _generation: int) -> tuple[str, Table]:
            known = client_options(TableAddress(request.uri, None, request.timeout_s), made)
            uri = opening(lambda: locate(request.uri, request.split, known))
            uri, version = opening(lambda: dereference(uri, request.version, known))
            address = TableAddress(uri, version, request.timeout_s)
            try:
                return uri, opening(lambda: Table(address, made))
            except AttemptError as error:
                if error.failure.kind is FailureKind.VERSION_NOT_FOUND:
                    # Of a table that is not there every version is missing: say that.
                    latest = TableAddress(uri, None, request.timeout_s)
                    opening(lambda: Table(latest, made))
                raise

        return self.renewing(options, open_table)

    def storage_options(self, options: Options) -> StorageOptions:
        """One object for equal options, so that a token is renewed once for all streams."""
        key = digest({"values": options.values, "function": options.function})
        with self._lock:
            if key not in self._options:
                self._options[key] = StorageOptions(
                    options.values, options.function, options.search_path
                )
            return self._options[key]

    def table(
        self, source: StreamSource, options: StorageOptions, made: dict[str, str], generation: int
    ) -> Table:
        """The open table of a stream; waits where another thread is opening it.

        It stays open until the stream is forgotten. The scheduler's deadline of the attempt holds
        for the waiting too.

        Args:
            source: Of the stream.
            options: Its storage options.
            made: What they are at the moment.
            generation: Of ``made``.

        Raises:
            AttemptError: It cannot be opened, or is not the one of the stream's index.
        """
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
            if source.table_key != key:
                self._leave(source)
            opened = self._tables.get(key)
            opens = opened is None
            if opened is None:
                opened = _Open()
            # A fetch may still run when its stream is gone.
            if not source.is_gone:
                self._tables[key] = opened
                opened.streams.add(register.stream)
                source.table_key = key
            share = _CACHE_BYTES // max(1, len(self._tables))
        if opens:
            address = TableAddress(register.uri, register.version, register.timeout_s)
            cache_bytes = max(_LEAST_CACHE_BYTES, min(_MOST_CACHE_BYTES, share))
            try:
                opened.table.set_result(opening(lambda: Table(address, made, cache_bytes)))
            except BaseException as error:  # noqa: BLE001
                # Who waits gets it as well; the next attempt opens anew.
                with self._lock:
                    if self._tables.get(key) is opened:
                        del self._tables[key]
                opened.table.set_exception(error)
        table = opened.table.result()
        if source.checked is not table:
            if table_identity(table.manifest()) != source.index.identity:
                raise AttemptError(another_table(register.version))
            source.checked = table
        return table

    def renewing(self, options: StorageOptions, call: Callable[[dict[str, str], int], _T]) -> _T:
        """Call again with new credentials, once, if the store refused made ones.

        Raises:
            AttemptError: Without what is secret of the options.
        """
        try:
            made, generation = _current(options)
            try:
                return call(made, generation)
            except AttemptError as error:
                refused = error.failure.kind is FailureKind.CREDENTIALS
                if not refused or not options.renew(generation):
                    raise
            return call(*_current(options))
        except AttemptError as error:
            failure, secrets = error.failure, options.secrets()
            raise AttemptError(
                replace(
                    failure,
                    message=redact(failure.message, secrets),
                    detail=redact(failure.detail, secrets),
                )
            ) from error

    def forget(self, source: StreamSource) -> None:
        """Close the table of a stream that is gone, if no other reads it."""
        with self._lock:
            source.is_gone = True
            self._leave(source)

    def _leave(self, source: StreamSource) -> None:
        """The stream does not read what it read; with the lock."""
        opened = self._tables.get(source.table_key)
        if opened is not None:
            opened.streams.discard(source.register.stream)
            if not opened.streams:
                del self._tables[source.table_key]


def _current(options: StorageOptions) -> tuple[dict[str, str], int]:
    """The options to use now; with what is wrong with their function as an ``AttemptError``."""
    try:
        return options.current()
    except CredentialsError as error:
        words = ("there are no credentials to use", "look at that function, and what it calls")
        failure = Failure(FailureKind.CREDENTIALS, str(error), retryable=True, words=words)
        raise AttemptError(failure) from error
    except PlanError as error:
        words = ("there are no credentials to use", "correct that function")
        failure = Failure(FailureKind.BAD_REQUEST, str(error), retryable=False, words=words)
        raise AttemptError(failure) from error


def opening(call: Callable[[], _T]) -> _T:
    """Call, with what Lance raises while a table is opened as an ``AttemptError``."""
    return _classified(call, while_opening=True)


def reading(call: Callable[[], _T]) -> _T:
    """Call, with what Lance raises while rows are read as an ``AttemptError``."""
    return _classified(call, while_opening=False)


def another_table(version: int, asked: int | str | None = None, *, given: bool = False) -> Failure:
    """The table is not the index's.

    Args:
        version: That was opened.
        asked: As a user gave it.
        given: Whether the user gave the index.
    """
    if isinstance(asked, str):
        text = f"{asked!r} stands for version {version}, which is not the one of the index"
    else:
        text = (
            f"version {version} is not the one of the index: the table was made again at the "
            "same uri"
        )
    cure = "build the dataset again"
    if given:
        cure = "make the index again (build_index, lance-stream index), or leave it out"
    words = ("the index is of something else", cure)
    return Failure(FailureKind.VERSION_NOT_FOUND, text, retryable=False, words=words)


def _classified(call: Callable[[], _T], *, while_opening: bool) -> _T:
    try:
        return call()
    except (LanceStreamError, AttemptError, PostponedError, TransformFailedError):
        raise
    except BaseException as error:  # Lance panics are not Exceptions.
        logger.debug("Lance raised", exc_info=True)
        raise AttemptError(classify(error, while_opening=while_opening)) from error
