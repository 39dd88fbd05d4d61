"""Open a Lance table at one version, plan from its manifest, read its rows. Imports lance."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

import lance
import numpy as np
import pyarrow as pa
from lance.dataset import serialize_row_addrs
from numpy.typing import NDArray

from lance_stream.errors import PlanError
from lance_stream.planning.rows import FragmentRows, FragmentSpan, RowRange
from lance_stream.planning.selection import Selection, shown
from lance_stream.source.addresses import LiveRows
from lance_stream.source.failures import FailureKind, classify
from lance_stream.source.location import is_object_store
from lance_stream.source.reading import RowReader, projection

__all__ = [
    "Picked",
    "Table",
    "TableAddress",
    "client_options",
    "dereference",
    "files_of",
    "locate",
    "open_latest",
]

_SAMPLE_RUNS = 8
_SAMPLE_RUN_ROWS = 64
_SAMPLE_RUN_BYTES = 1 << 20
_PROBE_ROWS = 2
# What a row is taken to have before any was read.
_PROBE_ROW_BYTES = 1024.0
# Files of Lance's first format.
_LEGACY = "0.1"
# What a data file takes besides rows, at most: its footer, and descriptions of its columns.
_FILE_BYTES = 4096
_FILE_COLUMN_BYTES = 1024
# Caches of one open table; Lance's own defaults are gigabytes.
_INDEX_CACHE_BYTES = 4 << 20
_METADATA_CACHE_BYTES = 32 << 20
_LOOKING_CACHE_BYTES = 1 << 20


def _session(metadata_bytes: int = _METADATA_CACHE_BYTES) -> Any:
    """Caches for one table. Never shared: they know a manifest by uri and version only.

    A table that is made again at the same uri starts again at version 1.
    """
    return lance.Session(  # pyright: ignore[reportPrivateImportUsage]
        index_cache_size_bytes=_INDEX_CACHE_BYTES,
        metadata_cache_size_bytes=metadata_bytes,
    )


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

    def __init__(
        self,
        address: TableAddress,
        options: dict[str, str],
        metadata_bytes: int = _METADATA_CACHE_BYTES,
    ) -> None:
        """Open the table.

        Args:
            address: Which.
            options: Of its store.
            metadata_bytes: Of what its files say of themselves that are kept in memory.

        Raises:
            BaseException: Whatever Lance raises; see ``failures.classify``.
        """
        self.dataset = lance.dataset(
            address.uri,
            version=address.version,
            storage_options=client_options(address, options) or None,
            session=_session(metadata_bytes),
        )
        self.version = int(self.dataset.version)
        self._fragments = {f.fragment_id: f for f in self.dataset.get_fragments()}
        self._live = LiveRows(self._fragments, partial(_live_addresses, self.dataset))
        self._reader = RowReader(self.dataset, self._fragments, self._live, serialize_row_addrs)

    def fragment_rows(self) -> FragmentRows:
        """Live rows of each fragment, from the manifest alone."""
        return FragmentRows.from_counts(
            [(i, f.physical_rows - f.num_deletions) for i, f in self._fragments.items()]
        )

    def manifest(self) -> list[dict[str, Any]]:
        """What names the content: the files of each fragment, in table order.

        Not Lance's own JSON, which takes 0.1 ms a fragment and gains fields with its versions.
        """
        return [files_of(fragment.metadata) for fragment in self._fragments.values()]

    def is_all(self, selection: Selection) -> bool:
        """Whether a selection has every column, as it is stored."""
        if selection.columns is None:
            return True
        plain = {name for name, expression in selection.columns if name == expression}
        return plain.issuperset(self.column_names)

    def file_bytes_per_row(self) -> float:
        """Mean bytes that a row takes in the data files, from the manifest alone.

        Without what a file takes besides rows; 0.0 where files hold columns that were dropped, or
        sizes are not known.
        """
        known = set()
        todo = list(self.dataset.lance_schema.fields())
        while todo:
            field = todo.pop()
            known.add(field.id())
            todo += field.children()
        num_bytes = num_rows = 0
        for fragment in self._fragments.values():
            num_rows += fragment.physical_rows
            for file in fragment.metadata.files:
                if not file.file_size_bytes or not known.issuperset(file.fields):
                    return 0.0
                besides = _FILE_BYTES + _FILE_COLUMN_BYTES * len(file.fields)
                num_bytes += max(0, file.file_size_bytes - besides)
        return num_bytes / num_rows

    def schema(self, selection: Selection) -> pa.Schema:
        """Schema of the selected columns; reads no data.

        Raises:
            PlanError: A column is not there, or an expression is not valid: names the argument.
        """
        names = self.column_names
        for name, expression in selection.columns or ():
            if name == expression and name not in names and not name.startswith("_row"):
                msg = f"columns: there is no column {name!r}; the table has {', '.join(names)}"
                raise PlanError(msg)
        asked = "" if selection.columns is None else f"columns={dict(selection.columns)}: "
        return self._checked(asked, **projection(selection))

    def check_filter(self, filter: str) -> None:  # noqa: A002 - the argument's own name
        """Parse a predicate; reads no data.

        Raises:
            PlanError: It is not valid: with the parser's words.
        """
        self._checked(
            f"filter={shown(filter)!r}: ", columns=[], with_row_address=True, filter=filter
        )

    @property
    def column_names(self) -> list[str]:
        """Names of the table's columns."""
        return [field.name for field in self.dataset.schema]

    def column_type(self, name: str) -> pa.DataType:
        """Type of a column; KeyError if there is none of that name."""
        return self.dataset.schema.field(name).type

    def _checked(self, asked: str, **arguments: Any) -> pa.Schema:
        try:
            scanner = self.dataset.scanner(**arguments)
            if "filter" in arguments:
                scanner.explain_plan()
            return scanner.projected_schema
        except BaseException as error:
            if isinstance(error, KeyboardInterrupt | SystemExit):
                raise
            if classify(error, while_opening=True).kind is not FailureKind.BAD_REQUEST:
                raise
            text = shown(str(error).split(", /")[0])
            msg = f"{asked}{text}; the table has {', '.join(map(repr, self.column_names))}"
            raise PlanError(msg) from error

    def read(
        self,
        fragments: FragmentRows,
        rows: RowRange | NDArray[np.int64],
        selection: Selection,
        row_bytes: float,
        seen: Callable[[int, bool], None] | None = None,
    ) -> pa.Table:
        """Read live rows by the cheapest route, in table order.

        Args:
            fragments: Live rows of the table.
            rows: Which, ascending; at least one.
            selection: Columns.
            row_bytes: Mean size of a row.
            seen: Told of the bytes of the rows so far, and whether there are more; what it raises
                ends the reading.

        Raises:
            PlanError: A value is too large for Arrow: names its row and column.
            BaseException: Whatever Lance raises; see ``failures.classify``.
        """
        parts, num_bytes, left = [], 0, len(rows)
        for batch in self._reader.batches(fragments, rows, selection, row_bytes):
            parts.append(batch)
            num_bytes += batch.nbytes
            left -= batch.num_rows
            if seen is not None:
                seen(num_bytes, left > 0)
        return pa.Table.from_batches(parts, None if parts else self._reader.schema(selection))

    def batches(
        self,
        fragments: FragmentRows,
        rows: RowRange | NDArray[np.int64],
        selection: Selection,
        row_bytes: float,
    ) -> Iterator[pa.RecordBatch]:
        """The same, a batch at a time."""
        return self._reader.batches(fragments, rows, selection, row_bytes)

    def sample(
        self, fragments: FragmentRows, pick: Picked, selection: Selection
    ) -> list[pa.Table]:
        """Read a few short runs of selected rows, spread over the table; at least one row.

        Args:
            fragments: Live rows of the table.
            pick: Gives the live rows of a range of the selection.
            selection: Columns.

        Raises:
            BaseException: Whatever Lance raises; see ``failures.classify``.
        """

        def run(start: int, length: int, row_bytes: float) -> pa.Table:
            rows = pick.rows(RowRange(start, min(start + length, pick.count)))
            return self.read(fragments, rows, selection, row_bytes)

        probe = run(0, _PROBE_ROWS, _PROBE_ROW_BYTES)
        per_row = max(1.0, probe.nbytes / probe.num_rows)
        length = int(max(1, min(_SAMPLE_RUN_ROWS, _SAMPLE_RUN_BYTES / per_row)))
        starts = _spread(pick.count, _SAMPLE_RUNS, length)
        with ThreadPoolExecutor(len(starts)) as pool:
            return list(pool.map(lambda start: run(start, length, per_row), starts))

    def matching(
        self,
        fragments: FragmentRows,
        part: RowRange,
        selection: Selection,
    ) -> Iterator[tuple[NDArray[np.int64], NDArray[np.uint64], pa.Array | None]]:
        """Find the rows that a selection's filter leaves, before its subset and limit.

        Args:
            fragments: Live rows of the table.
            part: Live rows that are looked at: whole fragments, or rows of a single one.
            selection: Filter and subset key.

        Yields:
            Some live rows of the table, in any order; their addresses; and the values of the
            subset key, if there is one.
        """
        span = fragments.span(part)
        ids = list(span.fragment_ids)
        key = selection.subset_key
        # Together: a request for each, one after the other, takes long in an object store.
        self._live.deletions(ids)
        scanner = self.dataset.scanner(
            fragments=[self._fragments[i] for i in ids],
            columns=[] if key is None else [key],
            with_row_address=True,
            blob_handling="all_binary",
            # With an index of files of the first format Lance panics.
            use_scalar_index=self.dataset.data_storage_version != _LEGACY,
            **self._among(span, selection.filter),
        )
        for batch in scanner.to_batches():
            addresses = batch.column("_rowaddr").to_numpy()
            values = None if key is None else batch.column(key)
            yield self._live.rows(fragments, addresses), addresses, values

    def _among(self, span: FragmentSpan, predicate: str | None) -> dict[str, Any]:
        """A filter, kept to a part of a fragment if the span is one.

        A limit and an offset would count the rows that match.
        """
        chosen = [self._fragments[i] for i in span.fragment_ids]
        if span.num_rows == sum(f.physical_rows - f.num_deletions for f in chosen):
            return {"filter": predicate}
        scanner = self.dataset.scanner(
            fragments=chosen,
            columns=[],
            with_row_id=True,
            with_row_address=True,
            offset=span.offset or None,
            limit=span.num_rows,
            scan_in_order=True,
        )
        table = scanner.to_table()
        if self.dataset.data_storage_version == _LEGACY:
            # Which knows no such list; and reads what lies before as well.
            addresses = table.column("_rowaddr").to_numpy()
            among = f"_rowaddr >= {addresses.min()} and _rowaddr <= {addresses.max()}"
            alone = (predicate or "").rstrip().removesuffix(";")
            return {"filter": f"{among} and ({alone}\n)" if alone else among}
        # The list is one of ids, which are the addresses unless they are stable.
        ids = table.column("_rowid").to_pylist()
        return {"filter": predicate, "row_addr_allowlist": serialize_row_addrs(ids)}

    @property
    def requests(self) -> int:
        """Requests to the store so far."""
        return int(self.dataset.io_stats_snapshot().read_iops)

    def scan(self, names: list[str], selection: Selection) -> Iterator[pa.RecordBatch]:
        """Some columns of every row, in table order, a few batches at a time.

        Args:
            names: Columns of the selection.
            selection: What they are.
        """
        known = dict(selection.columns or [(name, name) for name in self.column_names])
        columns = tuple((name, known[name]) for name in names)
        return self._reader.scan(self.fragment_rows(), Selection(columns=columns))


def _live_addresses(dataset: Any, fragments: list[Any]) -> Iterator[NDArray[np.uint64]]:
    """Addresses of the live rows of some fragments; reads their deletions only."""
    scanner = dataset.scanner(
        fragments=fragments, columns=[], with_row_address=True, scan_in_order=True
    )
    for batch in scanner.to_batches():
        yield batch.column("_rowaddr").to_numpy()


class Picked(Protocol):
    """Selected rows, numbered from 0."""

    @property
    def count(self) -> int:
        """How many."""
        ...

    def rows(self, chosen: RowRange) -> RowRange | NDArray[np.int64]:
        """The live rows of the table that a range of them are."""
        ...


def files_of(fragment: Any) -> dict[str, Any]:
    """What names the content of a fragment: its files, as JSON values."""
    # ``path`` makes a class at every access.
    paths = [file._path for file in fragment.files]
    deletions = fragment.deletion_file
    return {
        "id": fragment.id,
        "files": paths + [overlay.data_file._path for overlay in fragment.overlays],
        "deletions": None if deletions is None else [deletions.read_version, deletions.id],
    }


def _spread(num_rows: int, runs: int, length: int) -> list[int]:
    """Starts of up to so many runs, evenly over the rows, without overlap."""
    runs = max(1, min(runs, num_rows // max(1, length)))
    step = num_rows / runs
    return [int(i * step + max(0.0, (step - length) / 2)) for i in range(runs)]


def open_latest(uri: str, options: dict[str, str]) -> Any:
    """A Lance dataset to be looked at again and again.

    With nearly no caches: each manifest is read once, and those of hundreds of versions would
    fill any.

    Raises:
        BaseException: Whatever Lance raises; see ``failures.classify``.
    """
    session = lance.Session(  # pyright: ignore[reportPrivateImportUsage]
        index_cache_size_bytes=_LOOKING_CACHE_BYTES, metadata_cache_size_bytes=_LOOKING_CACHE_BYTES
    )
    return lance.dataset(uri, storage_options=options or None, session=session)


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


def dereference(
    uri: str, version: int | str | None, options: dict[str, str]
) -> tuple[str, int | None]:
    """The uri and number that a tag, or the latest version of a branch, stands for.

    A branch has version numbers of its own; it is opened as ``uri/tree/branch``.

    Raises:
        ValueError: There is no such tag or branch.
        BaseException: Whatever Lance raises.
    """
    if not isinstance(version, str):
        return uri, version
    dataset = lance.dataset(uri, storage_options=options or None, session=_session())
    tags = dataset.tags.list()
    if version in tags:
        branch, number = tags[version]["branch"], int(tags[version]["version"])
        return (f"{uri}/tree/{branch}" if branch else uri), number
    branches = dataset.branches.list()
    if version in branches:
        return f"{uri}/tree/{version}", None
    known = ", ".join([*tags, *branches][:20]) or "none at all"
    msg = f"Ref not found: there is no tag or branch {version!r}, but {known}"
    raise ValueError(msg)
