"""Read rows of an open table by the cheapest route, in batches that Arrow can hold."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from lance_stream.errors import PlanError
from lance_stream.planning.reads import Take, route
from lance_stream.planning.rows import FragmentRows, RowRange
from lance_stream.planning.selection import Selection, shown
from lance_stream.source.addresses import LiveRows
from lance_stream.source.batches import (
    OneRowTooLargeError,
    batch_rows,
    in_batches,
    is_too_large,
)

__all__ = ["RowReader", "projection"]

# Of a scan over rows that are not all wanted, and of one over the whole table.
_SCAN_ROWS = 8192
_SCAN_BYTES = 8 << 20
# Batches that are decoded ahead.
_SCAN_AHEAD = 4


class RowReader:
    """Reads of one open table. Safe from several threads."""

    def __init__(
        self,
        dataset: Any,
        fragments: dict[int, Any],
        live: LiveRows,
        allowlist: Callable[[list[int]], Any],
    ) -> None:
        """Take an open table.

        Args:
            dataset: Of Lance.
            fragments: Its fragments by their ids.
            live: Where its live rows lie.
            allowlist: Lance's encoding of row addresses.
        """
        self._dataset, self._fragments, self._live = dataset, fragments, live
        self._allowlist = allowlist

    def batches(
        self,
        rows_of: FragmentRows,
        rows: RowRange | NDArray[np.int64],
        selection: Selection,
        row_bytes: float,
    ) -> Iterator[pa.RecordBatch]:
        """Read live rows, in table order.

        Args:
            rows_of: Live rows of the table.
            rows: Which, ascending; at least one.
            selection: Columns.
            row_bytes: Mean size of a row.

        Raises:
            PlanError: A value is too large for Arrow: names its row and column.
            BaseException: Whatever Lance raises; see ``failures.classify``.
        """
        columns = len(selection.columns or self._dataset.schema.names)
        way = route(rows_of, rows, row_bytes=row_bytes, num_columns=columns)
        if isinstance(way, Take):
            yield from self._taken(rows_of, way.rows, selection)
            return
        first = rows.start if isinstance(rows, RowRange) else int(rows[0])
        span = RowRange(first, first + way.span.num_rows)
        most = batch_rows(len(span), row_bytes)
        if way.keep is None:
            yield from self._consecutive(rows_of, span, most, selection)
        else:
            read = self._consecutive(rows_of, span, min(_SCAN_ROWS, most), selection)
            yield from _kept(read, way.keep)

    def scan(self, rows_of: FragmentRows, selection: Selection) -> Iterator[pa.RecordBatch]:
        """Every row of the table, in order, a few batches at a time."""
        rows, most = RowRange(0, rows_of.num_rows), min(_SCAN_ROWS, rows_of.num_rows)
        yield from self._consecutive(rows_of, rows, most, selection, batch_size_bytes=_SCAN_BYTES)

    def schema(self, selection: Selection) -> pa.Schema:
        """Schema of the columns, as they are read."""
        return self._dataset.scanner(**projection(selection)).projected_schema

    def _consecutive(
        self,
        rows_of: FragmentRows,
        rows: RowRange,
        most: int,
        selection: Selection,
        **more: Any,
    ) -> Iterator[pa.RecordBatch]:
        def scan(part: RowRange, most: int) -> Iterator[pa.RecordBatch]:
            scanner = self._scanner(rows_of, part, most, selection, **more)
            yield from scanner.to_batches()

        try:
            yield from in_batches(scan, rows, most)
        except OneRowTooLargeError as error:
            raise self._too_large(rows_of, error.row, selection) from error

    def _scanner(
        self,
        rows_of: FragmentRows,
        rows: RowRange,
        most: int,
        selection: Selection,
        **more: Any,
    ) -> Any:
        span = rows_of.span(rows)
        if most < len(rows):
            # Several batches: not so many ahead that they fill the memory.
            more["batch_readahead"] = _SCAN_AHEAD
        return self._dataset.scanner(
            fragments=[self._fragments[i] for i in span.fragment_ids],
            offset=span.offset or None,
            limit=span.num_rows,
            scan_in_order=True,
            batch_size=most,
            **projection(selection),
            **more,
        )

    def _taken(
        self, rows_of: FragmentRows, rows: NDArray[np.int64], selection: Selection
    ) -> Iterator[pa.RecordBatch]:
        """Rows by their address; Lance joins requests that lie close together."""

        def take(part: RowRange, _most: int) -> Iterator[pa.RecordBatch]:
            yield from self._take(rows_of, rows[part.start : part.stop], selection).to_batches()

        try:
            yield from in_batches(take, RowRange(0, len(rows)), len(rows))
        except OneRowTooLargeError as error:
            raise self._too_large(rows_of, int(rows[error.row]), selection) from error

    def _take(
        self, rows_of: FragmentRows, rows: NDArray[np.int64], selection: Selection
    ) -> pa.Table:
        wanted = projection(selection)
        addresses = self._live.addresses(rows_of, rows)
        if self._dataset.has_stable_row_ids:
            # The list of those is one of ids, which are not known here.
            among = {"filter": f"_rowaddr in ({','.join(map(str, addresses.tolist()))})"}
        else:
            among = {"row_addr_allowlist": self._allowlist(addresses.tolist())}
        scanner = self._dataset.scanner(
            with_row_address=True, scan_in_order=True, **among, **wanted
        )
        table = scanner.to_table()
        found = table.column("_rowaddr").to_numpy()
        if "_rowaddr" in (wanted["columns"] or ()):
            # Asked for twice, it comes last.
            ids = ["_rowid"] if wanted["with_row_id"] else []
            table = table.select([*wanted["columns"], *ids])
        else:
            table = table.drop_columns(["_rowaddr"])
        if np.array_equal(found, addresses):
            return table
        # Whatever order Lance gives, the one of the index counts.
        order = np.argsort(found, kind="stable")
        if not np.array_equal(found[order], np.sort(addresses)):
            msg = f"{len(addresses)} rows were asked for by address, {len(found)} came"
            raise RuntimeError(msg)
        back = np.empty(len(addresses), np.int64)
        back[np.argsort(addresses, kind="stable")] = order
        return table.take(pa.array(back))

    def _too_large(self, rows_of: FragmentRows, row: int, selection: Selection) -> PlanError:
        """What to tell of a row with a value that Arrow cannot hold; looks for its column."""
        pairs = selection.columns or [(name, name) for name in self._dataset.schema.names]
        for name, expression in pairs:
            alone = Selection(columns=((name, expression),))
            scanner = self._scanner(rows_of, RowRange(row, row + 1), 1, alone)
            try:
                scanner.to_table()
            except Exception as error:
                if not is_too_large(error):
                    raise
                kind, what = scanner.projected_schema.field(name).type, shown(expression)
                msg = (
                    f"column {name!r} ({kind}) has a value of more than 2^31 - 1 bytes in row "
                    f"{row} of the table, and this type holds no more: leave the column out "
                    f"or make its values smaller; if columns={{{name!r}: {what!r}}} computes it, "
                    "it may do so from arrow_cast(..., 'LargeUtf8')"
                )
                return PlanError(msg)
        msg = f"row {row} of the table does not fit into one batch: leave large columns out"
        return PlanError(msg)


def projection(selection: Selection) -> dict[str, Any]:
    """What a scanner is given for the columns of a selection."""
    columns: Any = None
    if selection.columns is not None:
        plain = all(name == expression for name, expression in selection.columns)
        names = [name for name, _ in selection.columns]
        columns = names if plain else dict(selection.columns)
    return {
        "columns": columns,
        "with_row_id": selection.with_row_id,
        # Otherwise a scan gives descriptors in their place.
        "blob_handling": "all_binary",
    }


def _kept(batches: Iterable[pa.RecordBatch], keep: NDArray[np.int64]) -> Iterator[pa.RecordBatch]:
    """The rows to keep of batches in order, without holding the others."""
    before = 0
    for batch in batches:
        first, stop = np.searchsorted(keep, [before, before + batch.num_rows])
        if stop > first:
            yield batch.take(pa.array(keep[first:stop] - before))
        before += batch.num_rows
