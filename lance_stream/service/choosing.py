"""Find the rows that a filter and a subset select, and go on from where a run was stopped."""

from __future__ import annotations

import contextlib
import logging
import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from lance_stream.errors import EmptyStreamError, PlanError
from lance_stream.planning import container
from lance_stream.planning.chosen import ChosenRows, RowBits
from lance_stream.planning.fingerprint import digest
from lance_stream.planning.rows import FragmentRows, RowRange, rows_for
from lance_stream.planning.selection import Selection, shown
from lance_stream.planning.subset import in_subset, is_hashable, places
from lance_stream.source.failures import FailureKind, classify
from lance_stream.source.table import Table

__all__ = ["News", "Selected", "choose", "no_news"]

logger = logging.getLogger(__name__)

# Called while rows are read: how many of how many, in what is being done.
News = Callable[[str, int, int], None]

# Rows that are looked at by the first scan of a filter, and at most by one. Progress is told, and
# may be kept, after each.
_FIRST_ROWS = 16_384
_MAX_ROWS = 1_000_000
# What a scan should take: it costs a few requests, more where an index is looked up.
_PART_S = 3.0
_SAVE_EVERY_S = 10.0
_LOOK_EVERY_S = 0.5
_PARTIAL = b"lance_stream.partial"


def no_news(_what: str, _done: int, _total: int) -> None:
    """Nobody waits for news."""


@dataclass(frozen=True, slots=True)
class Selected:
    """The selected rows of a table.

    Attributes:
        chosen: Which live rows; None for the first ``count`` of them.
        count: How many.
    """

    chosen: ChosenRows | None
    count: int

    def rows(self, chosen: RowRange) -> RowRange | NDArray[np.int64]:
        """The live rows of the table that a range of the selected ones are."""
        return chosen if self.chosen is None else self.chosen.rows(chosen)


def choose(
    table: Table,
    fragments: FragmentRows,
    selection: Selection,
    where: str,
    identity: str,
    news: News,
    partial_path: str | None = None,
    within: Sequence[RowRange] | None = None,
) -> Selected:
    """Find the selected rows; reads the table only for a filter or a subset.

    Args:
        table: Open at one version.
        fragments: Its live rows.
        selection: What is selected.
        where: Table and version, for errors.
        identity: Names the content of the version.
        news: Told of progress.
        partial_path: File that keeps the progress of a long scan of the whole table, or None.
        within: Rows to look at, in table order; None for all.

    Raises:
        PlanError: The filter or the key is wrong, or the filter fails on rows of the table.
        EmptyStreamError: No row of the whole table is selected.
        BaseException: Whatever Lance raises.
    """
    if not selection.chooses_rows:
        limit = fragments.num_rows if selection.limit is None else selection.limit
        return Selected(None, min(limit, fragments.num_rows))
    if selection.filter is not None:
        table.check_filter(selection.filter)
    _check_key(table, selection)
    chosen = _scan(table, fragments, selection, identity, news, partial_path, within)
    if not chosen.count and within is None:
        msg = f"{where}: no row of {fragments.num_rows} is selected by {_words(selection)}"
        raise EmptyStreamError(msg)
    return Selected(chosen, chosen.count)


def _check_key(table: Table, selection: Selection) -> None:
    key = selection.subset_key
    if key is None:
        return
    if key not in table.column_names:
        msg = f"subset_key: there is no column {key!r}; the table has {table.column_names}"
        raise PlanError(msg)
    if not is_hashable(table.column_type(key)):
        msg = (
            f"subset_key={key!r} is of type {table.column_type(key)}: choose a column of numbers, "
            "text, bytes, times or booleans"
        )
        raise PlanError(msg)


def _scan(
    table: Table,
    fragments: FragmentRows,
    selection: Selection,
    identity: str,
    news: News,
    partial_path: str | None,
    within: Sequence[RowRange] | None,
) -> ChosenRows:
    """Look at the rows, a part of the table at a time, going on from where a run stopped."""
    bits = RowBits(fragments.num_rows)
    name = digest({"identity": identity, "rows": selection.rows_as_json()})
    row = _resume(partial_path, name, bits)
    # A limit ends the scan early.
    limit, found = selection.limit, int(bits.count)
    saved = time.monotonic()
    part_rows = _FIRST_ROWS
    todo = [RowRange(0, fragments.num_rows)] if within is None else list(within)
    while todo and (limit is None or found < limit):
        row = max(row, todo[0].start)
        if row >= todo[0].stop:
            del todo[0]
            continue
        part = fragments.part(row, min(part_rows, todo[0].stop - row))
        started = time.monotonic()

        def tell(row: int = row) -> None:
            news("choosing rows", row, fragments.num_rows)

        tell()
        with _alive(table, tell):
            for rows in _matching(table, fragments, part, selection):
                bits.add(rows)
                found += len(rows)
        row, now = part.stop, time.monotonic()
        if partial_path and now - saved > _SAVE_EVERY_S:
            _keep(partial_path, name, bits, row)
            saved = time.monotonic()
        part_rows = min(_MAX_ROWS, rows_for(_PART_S, len(part), now - started))
    news("choosing rows", fragments.num_rows, fragments.num_rows)
    return bits.chosen(limit)


def _matching(
    table: Table, fragments: FragmentRows, part: RowRange, selection: Selection
) -> Iterator[NDArray[np.int64]]:
    """Rows of a part of the table that filter and subset leave, in any order."""
    try:
        for rows, addresses, values in table.matching(fragments, part, selection):
            if selection.subset is None:
                yield rows
            else:
                keys = pa.array(addresses) if values is None else values
                yield rows[in_subset(places(keys), selection.subset)]
    except Exception as error:
        failure = classify(error, while_opening=False)
        if selection.filter is None or failure.kind is not FailureKind.BROKEN:
            raise
        msg = f"filter={shown(selection.filter)!r}: fails on rows of the table: {failure.message}"
        raise PlanError(msg) from error


@contextlib.contextmanager
def _alive(table: Table, tell: Callable[[], None]) -> Iterator[None]:
    """Tell that a scan goes on as long as it reads: what matches nothing gives no batch."""
    ended = threading.Event()

    def watch() -> None:
        seen = table.requests
        while not ended.wait(_LOOK_EVERY_S):
            if table.requests != seen:
                seen = table.requests
                tell()

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    try:
        yield
    finally:
        ended.set()
        watcher.join()


def _resume(path: str | None, name: str, bits: RowBits) -> int:
    """Take over what an earlier run found; the first row that is left to look at."""
    if path is None:
        return 0
    try:
        with open(path, "rb") as file:
            data = file.read()
        header, text = container.unpack_header(_PARTIAL, data)
        if header["name"] != name or not container.is_intact(data, text):
            return 0
        bits.replace(container.unpack(data)["bits"])
        return int(header["next"])
    except container.DAMAGE:
        return 0


def _keep(path: str, name: str, bits: RowBits, next_row: int) -> None:
    data = container.pack(_PARTIAL, {"name": name, "next": next_row}, {"bits": bits.bits})
    temporary = f"{path}.{os.getpid()}.tmp"
    try:
        with open(temporary, "wb") as file:
            file.write(data)
        os.replace(temporary, path)
    except OSError as error:
        logger.warning("progress cannot be kept in %s: %s", path, error)


def _words(selection: Selection) -> str:
    parts = []
    if selection.filter is not None:
        parts.append(f"filter={shown(selection.filter)!r}")
    if selection.subset is not None:
        parts.append(f"subset={selection.subset!r}")
    if selection.subset_key is not None:
        parts.append(f"subset_key={selection.subset_key!r}")
    return ", ".join(parts)
