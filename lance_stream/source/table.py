"""Open a Lance table at one version, plan from its manifest, read its rows. Imports lance."""

from __future__ import annotations

import importlib
import logging
import os
import sys
import threading
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import lance
import pyarrow as pa

from lance_stream.errors import PlanError
from lance_stream.planning.index import Selection
from lance_stream.planning.rows import FragmentRows, FragmentSpan, RowRange
from lance_stream.planning.sizing import RowSize, estimate_row_size
from lance_stream.source.failures import FailureKind, classify
from lance_stream.source.location import is_object_store

__all__ = ["StorageOptions", "Table", "TableAddress", "client_options", "locate"]

logger = logging.getLogger(__name__)

_SAMPLE_RUNS = 8
_SAMPLE_RUN_ROWS = 64
_SAMPLE_RUN_BYTES = 1 << 20
_PROBE_ROWS = 2
# Renew options this long before they lapse.
_RENEW_BEFORE_S = 60.0
# Caches of one open table; Lance's own defaults are gigabytes.
_INDEX_CACHE_BYTES = 4 << 20
_METADATA_CACHE_BYTES = 32 << 20


def _session() -> Any:
    """Caches for one table. Never shared: they know a manifest by uri and version only.

    A table that is made again at the same uri starts again at version 1.
    """
    return lance.Session(  # pyright: ignore[reportPrivateImportUsage]
        index_cache_size_bytes=_INDEX_CACHE_BYTES,
        metadata_cache_size_bytes=_METADATA_CACHE_BYTES,
    )


class StorageOptions:
    """Options of a store: fixed, or made by a function that also tells when they lapse."""

    def __init__(
        self, options: Mapping[str, str] | None, function: str | None, search_path: tuple[str, ...]
    ) -> None:
        """Take options as given by the user.

        Args:
            options: Fixed options, or None.
            function: ``"package.module:function"`` that returns ``(options, expiry)``, expiry
                as unix seconds or None; called in this process.
            search_path: Folders where the trainer finds modules, for the function's.
        """
        self._fixed = dict(options or {})
        self._function = function
        self._search_path = search_path
        self._expiry: float | None = None
        self._made: dict[str, str] | None = None if function else self._fixed
        self._generation = 0
        self._lock = threading.Lock()

    def current(self) -> tuple[dict[str, str], int]:
        """The options to use now, and their generation: it grows when they are made anew.

        Raises:
            PlanError: The function cannot be imported, or returns something else.
        """
        with self._lock:
            lapsed = self._expiry is not None and time.time() > self._expiry - _RENEW_BEFORE_S
            if self._made is None or lapsed:
                self._made, self._expiry = self._call()
                self._generation += 1
            return self._made, self._generation

    def renew(self, refused: int) -> bool:
        """Note that the store refused the options of a generation; whether there are others.

        Several reads are refused at the same time: only the first has them made anew.
        """
        if not self._function:
            return False
        with self._lock:
            if self._generation == refused:
                self._made = None
        return True

    def secrets(self) -> dict[str, str]:
        """Options whose values must not be printed."""
        return dict(self._made or {})

    def _call(self) -> tuple[dict[str, str], float | None]:
        module, _, name = str(self._function).partition(":")
        for folder in self._search_path:
            if folder not in sys.path:
                sys.path.append(folder)
        try:
            options, expiry = getattr(importlib.import_module(module), name)()
            return {str(k): str(v) for k, v in options.items()}, expiry
        except Exception as error:
            msg = (
                f"storage_options={self._function!r}: {type(error).__name__}: {error}; it must "
                "name a function 'package.module:function' that returns (options, expiry)"
            )
            raise PlanError(msg) from error


@dataclass(frozen=True, slots=True)
class TableAddress:
    """Which table to open.

    Attributes:
        uri: Absolute uri.
        version: Number, tag, or None for the latest.
        request_timeout_s: Longest wait for one answer of the store.
    """

    uri: str
    version: int | str | None
    request_timeout_s: float


def client_options(address: TableAddress, options: dict[str, str]) -> dict[str, str]:
    """Add moderate retries to the options of an object store.

    Lance's defaults multiply to 64 requests per read and minutes on a hung store; retrying is
    the scheduler's job, which knows the deadline. The user's own options win.
    """
    if not is_object_store(address.uri):
        return options
    timeout = f"{max(1, round(address.request_timeout_s))}s"
    return {
        "client_max_retries": "2",
        "lance_aimd_max_retries": "1",
        "timeout": timeout,
        "connect_timeout": f"{max(1, min(5, round(address.request_timeout_s)))}s",
        **options,
    }


class Table:
    """A Lance table at one version. Reads are safe from several threads."""

    def __init__(self, address: TableAddress, options: dict[str, str]) -> None:
        """Open the table.

        Raises:
            BaseException: Whatever Lance raises; see ``failures.classify``.
        """
        self.dataset = lance.dataset(
            address.uri,
            version=address.version,
            storage_options=client_options(address, options) or None,
            session=_session(),
        )
        self.version = int(self.dataset.version)
        self._fragments = {f.fragment_id: f for f in self.dataset.get_fragments()}

    def fragment_rows(self) -> FragmentRows:
        """Live rows of each fragment, from the manifest alone."""
        return FragmentRows.from_counts(
            [(i, f.physical_rows - f.num_deletions) for i, f in self._fragments.items()]
        )

    def manifest(self) -> list[dict[str, Any]]:
        """What names the content: the files of each fragment, in table order."""
        return [fragment.metadata.to_json() for fragment in self._fragments.values()]

    def schema(self, selection: Selection) -> pa.Schema:
        """Schema of the selected rows; reads no data.

        Raises:
            PlanError: A column is not there, or an expression is not valid: names the argument.
        """
        names = [field.name for field in self.dataset.schema]
        for name, expression in selection.columns or ():
            if name == expression and name not in names and not name.startswith("_row"):
                msg = f"columns: there is no column {name!r}; the table has {', '.join(names)}"
                raise PlanError(msg)
        try:
            schema = self.dataset.scanner(**self._projection(selection)).projected_schema
        except BaseException as error:
            if isinstance(error, KeyboardInterrupt | SystemExit):
                raise
            text = str(error).split(", /")[0]
            asked = "" if selection.columns is None else f"columns={dict(selection.columns)}: "
            msg = f"{asked}{text}; the table has {', '.join(map(repr, names))}"
            raise PlanError(msg) from error
        return self._with_metadata(schema)

    def read(self, span: FragmentSpan, selection: Selection) -> pa.Table:
        """Read consecutive live rows by the cheapest route: one ordered scan.

        Raises:
            BaseException: Whatever Lance raises; see ``failures.classify``.
        """
        fragments = [self._fragments[i] for i in span.fragment_ids]
        scanner = self.dataset.scanner(
            fragments=fragments,
            offset=span.offset or None,
            limit=span.num_rows,
            scan_in_order=True,
            batch_size=max(1, span.num_rows),
            **self._projection(selection),
        )
        return scanner.to_table()

    def sample_row_size(
        self, rows: FragmentRows, selection: Selection, schema: pa.Schema
    ) -> RowSize:
        """Estimate the size of selected rows from a few short runs spread over the table."""
        overhead = _ipc_bytes(schema.empty_table()) + 64 * (3 * len(schema) + 2)
        probe = self._sample(rows, selection, [0], _PROBE_ROWS)[0]
        per_row = max(1.0, probe[1] / probe[0])
        length = int(max(1, min(_SAMPLE_RUN_ROWS, _SAMPLE_RUN_BYTES / per_row)))
        starts = _spread(rows.num_rows, _SAMPLE_RUNS, length)
        return estimate_row_size(self._sample(rows, selection, starts, length), overhead)

    def _sample(
        self, rows: FragmentRows, selection: Selection, starts: list[int], length: int
    ) -> list[tuple[int, int]]:
        def run(start: int) -> tuple[int, int]:
            stop = min(start + length, rows.num_rows)
            table = self.read(rows.span(RowRange(start, stop)), selection)
            return table.num_rows, table.nbytes

        with ThreadPoolExecutor(len(starts)) as pool:
            return list(pool.map(run, starts))

    def _projection(self, selection: Selection) -> dict[str, Any]:
        columns: Any = None
        if selection.columns is not None:
            plain = all(name == expression for name, expression in selection.columns)
            names = [name for name, _ in selection.columns]
            columns = names if plain else dict(selection.columns)
        return {"columns": columns, "with_row_id": selection.with_row_id}

    def _with_metadata(self, schema: pa.Schema) -> pa.Schema:
        """Field metadata (which marks blobs) is lost by a projection: take it from the table."""
        fields = []
        for field in schema:
            at = self.dataset.schema.get_field_index(field.name)
            metadata = self.dataset.schema.field(at).metadata if at >= 0 else None
            fields.append(field.with_metadata(metadata) if metadata else field)
        return pa.schema(fields)


def _spread(num_rows: int, runs: int, length: int) -> list[int]:
    """Starts of up to so many runs, evenly over the rows, without overlap."""
    runs = max(1, min(runs, num_rows // max(1, length)))
    step = num_rows / runs
    return [int(i * step + max(0.0, (step - length) / 2)) for i in range(runs)]


def _ipc_bytes(table: pa.Table) -> int:
    sink = pa.MockOutputStream()
    with pa.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table)
    return sink.size()


def locate(remote: str, split: str | None, options: dict[str, str]) -> str:
    """The uri of a split: ``remote/split.lance`` if a table is there, else ``remote/split``.

    Raises:
        BaseException: Whatever Lance raises for a store that does not answer.
    """
    if not split:
        return remote
    plain = f"{remote}/{split.strip('/')}"
    if not is_object_store(remote):
        suffixed = f"{plain}.lance"
        return suffixed if os.path.isdir(suffixed) else plain
    try:
        lance.dataset(f"{plain}.lance", storage_options=options or None, session=_session())
    except Exception as error:
        if classify(error, while_opening=True).kind is not FailureKind.NOT_FOUND:
            raise
        return plain
    return f"{plain}.lance"
