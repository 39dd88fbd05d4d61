"""Make the shard index of an open table: choose rows, sample sizes, cut shards."""

from __future__ import annotations

import contextlib
import logging
import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from lance_stream.errors import EmptyStreamError, PlanError
from lance_stream.planning import container
from lance_stream.planning.chosen import ChosenRows, RowBits
from lance_stream.planning.fingerprint import digest, table_identity
from lance_stream.planning.index import ShardIndex
from lance_stream.planning.layout import Layout, shard_stops
from lance_stream.planning.row_bytes import ExactCut, row_bytes
from lance_stream.planning.rows import FragmentRows, RowRange
from lance_stream.planning.selection import Selection, shown
from lance_stream.planning.sizing import RowSize, estimate_row_size, rows_per_shard
from lance_stream.planning.subset import in_subset, is_hashable, places
from lance_stream.planning.types import describe_schema, sample_schema, sample_table
from lance_stream.service.learned import learned
from lance_stream.service.transform import TransformFailedError, transformed
from lance_stream.shards.mds_format import mds_encodings
from lance_stream.shards.mds_limits import check_mds_nulls, check_mds_sizes
from lance_stream.source.failures import FailureKind, classify
from lance_stream.source.table import Table

__all__ = [
    "News",
    "Order",
    "Selected",
    "check_format",
    "common_schema",
    "finished",
    "make_index",
    "no_news",
    "sampled_size",
    "select_rows",
]

logger = logging.getLogger(__name__)

# Called while rows are read: how many of how many, in what is being done.
News = Callable[[str, int, int], None]

# Fragments that are looked at by one scan of a filter; progress is kept after each.
_PART_ROWS = 4_000_000
_SAVE_EVERY_S = 10.0
_LOOK_EVERY_S = 0.5
_PARTIAL = b"lance_stream.partial"


def no_news(_what: str, _done: int, _total: int) -> None:
    """Nobody waits for news."""


@dataclass(frozen=True, slots=True)
class Order:
    """What index is wanted.

    Attributes:
        selection: Rows and columns.
        layout: How rows are put into shards.
        shard_rows: Rows per shard, or None: by ``shard_bytes``.
        shard_bytes: Bytes of decoded rows per shard to aim at.
        exact: Cut by the exact bytes of every row, which reads the whole selection once.
        cache_format: Format that the shards will have: not all can hold everything.
        search_path: Folders where a transform is found.
        partial_path: File that keeps the progress of a long scan, for a later run; or None.
        learn_from: Cache directories, where an earlier index may lie.
    """

    selection: Selection
    layout: Layout
    shard_rows: int | None
    shard_bytes: int
    exact: bool = False
    cache_format: str = "arrow"
    search_path: tuple[str, ...] = ()
    partial_path: str | None = None
    learn_from: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Selected:
    """The selected rows of a table, numbered from 0.

    Attributes:
        chosen: Which, or None for the first.
        count: How many.
    """

    chosen: ChosenRows | None
    count: int

    def rows(self, chosen: RowRange) -> RowRange | NDArray[np.int64]:
        """The live rows of the table that a range of them are."""
        return chosen if self.chosen is None else self.chosen.rows(chosen)


def make_index(uri: str, table: Table, order: Order, where: str, news: News) -> ShardIndex:
    """Make the index.

    Args:
        uri: Of the table.
        table: Open at one version.
        order: What is wanted.
        where: Table and version, for errors.
        news: Told of progress.

    Raises:
        LanceStreamError: With words for the user.
        TransformFailedError: The transform failed on the rows that were sampled.
        BaseException: Whatever Lance raises.
    """
    selection = order.selection
    fragments = table.fragment_rows()
    if not fragments.num_rows:
        msg = f"{where} has no rows: nothing to stream"
        raise EmptyStreamError(msg)
    # Before any row is read.
    sample_schema(table.schema(selection), where)
    identity = table_identity(table.manifest())
    selected = select_rows(table, fragments, order, where, identity, news)
    schema, size = _rows(table, uri, fragments, selected, order, where, identity, news)
    if order.exact:
        stops = _exact_stops(table, fragments, selected, order, size, news)
    else:
        shard_rows = order.shard_rows or rows_per_shard(size, order.shard_bytes)
        stops = shard_stops(selected.count, shard_rows)
    if order.cache_format == "mds":
        check_mds_sizes(schema, size, int(np.diff(stops, prepend=0).max()), where)
    check_format(table, order, where, news)
    return ShardIndex(
        uri=uri,
        version=table.version,
        identity=identity,
        selection=selection,
        layout=order.layout,
        schema=schema,
        fragments=fragments,
        chosen=selected.chosen,
        shard_stops=stops,
        row_size=size,
    )


def _rows(
    table: Table,
    uri: str,
    fragments: FragmentRows,
    selected: Selected,
    order: Order,
    where: str,
    identity: str,
    news: News,
) -> tuple[pa.Schema, RowSize]:
    """Schema and size of rows, by a sample; what a transform gives may be known."""
    selection = order.selection
    if selection.transform is not None:
        known = learned(order.learn_from, uri, table.version, identity, selection)
        if known is not None:
            return known
    runs = table.sample(fragments, selected, selection)
    if selection.transform is None:
        made = [finished(run, selection, order.search_path, where) for run in runs]
    else:
        # Called twice, on rows from both ends, to see whether types stay what they are.
        half = (len(runs) + 1) // 2
        made = [
            part
            for some in (runs[:half], runs[half:])
            if some
            for part in _transformed_runs(some, order, where, news)
        ]
    return common_schema(run.schema for run in made), sampled_size(made)


def _transformed_runs(
    runs: list[pa.Table], order: Order, where: str, news: News
) -> list[pa.Table]:
    """What one call of the transform makes of some runs, cut into them again."""
    joined = pa.concat_tables(runs)
    news(f"transform={order.selection.transform!r}", 0, joined.num_rows)
    made, start, parts = finished(joined, order.selection, order.search_path, where), 0, []
    for run in runs:
        parts.append(made.slice(start, run.num_rows))
        start += run.num_rows
    return parts


def check_format(table: Table, order: Order, where: str, news: News) -> None:
    """Refuse rows that the shards' format cannot hold; reads the columns that may hold nulls.

    Raises:
        UnsupportedTypeError: Names the columns.
    """
    selection = order.selection
    # What a transform makes of the rows is seen only when it is called.
    if order.cache_format != "mds" or selection.transform is not None:
        return
    schema = sample_schema(table.schema(selection), where)
    mds_encodings(schema)
    names = [field.name for field in schema if field.nullable and field.name != "_rowid"]
    done, total = 0, table.fragment_rows().num_rows
    for batch in table.scan(names, selection) if names else ():
        news("looking for nulls", done, total)
        check_mds_nulls(batch, where)
        done += batch.num_rows


def finished(
    table: pa.Table, selection: Selection, search_path: tuple[str, ...], where: str
) -> pa.Table:
    """Rows as a shard holds them: in plain types, transformed.

    Raises:
        UnsupportedTypeError: A column cannot be held.
        TransformFailedError: The transform failed.
    """
    plain = sample_table(table, sample_schema(table.schema, where))
    if selection.transform is None:
        return plain
    made = transformed(plain, selection, search_path)
    called = f"transform={selection.transform!r}"
    schema = sample_schema(made.schema, called)
    try:
        return sample_table(made, schema)
    except pa.ArrowException as error:
        msg = f"{called} returned columns that cannot be read: {error}"
        raise TransformFailedError(msg) from error


def select_rows(
    table: Table,
    fragments: FragmentRows,
    order: Order,
    where: str,
    identity: str,
    news: News,
    within: Sequence[RowRange] | None = None,
) -> Selected:
    """Find the rows that filter and subset leave, and the limit.

    Args:
        table: Open at one version.
        fragments: Its live rows.
        order: What is wanted.
        where: Table and version, for errors.
        identity: Names the content of the version.
        news: Told of progress.
        within: Rows to look at, and others of the fragments that they are in; None for all.

    Raises:
        EmptyStreamError: None, of the whole table.
        LanceStreamError: Filter or subset are wrong.
    """
    selection = order.selection
    if not selection.chooses_rows:
        limit = fragments.num_rows if selection.limit is None else selection.limit
        return Selected(None, min(limit, fragments.num_rows))
    if selection.filter is not None:
        table.check_filter(selection.filter)
    _check_key(table, selection)
    chosen = _scan(table, fragments, order, identity, news, _parts(fragments, within))
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
            "text, bytes or times"
        )
        raise PlanError(msg)


def _scan(
    table: Table,
    fragments: FragmentRows,
    order: Order,
    identity: str,
    news: News,
    parts: list[range],
) -> ChosenRows:
    """Look at the rows, a part of the table at a time, going on from where a run stopped."""
    selection, bits = order.selection, RowBits(fragments.num_rows)
    # A limit ends the scan early.
    limit, found = selection.limit, 0
    name = digest(
        {"identity": identity, "rows": selection.rows_as_json(), "part_rows": _PART_ROWS}
    )
    first = _resume(order.partial_path, name, bits, len(parts))
    found += int(bits.count)
    saved = time.monotonic()
    for number, part in enumerate(parts):
        if number < first:
            continue
        if limit is not None and found >= limit:
            break
        done = int(fragments.stops[part.start - 1]) if part.start else 0
        news("choosing rows", done, fragments.num_rows)
        with _alive(table, lambda done=done: news("choosing rows", done, fragments.num_rows)):
            for rows in _matching(table, fragments, part, selection):
                bits.add(rows)
                found += len(rows)
        if order.partial_path and time.monotonic() - saved > _SAVE_EVERY_S:
            _keep(order.partial_path, name, bits, number + 1)
            saved = time.monotonic()
    news("choosing rows", fragments.num_rows, fragments.num_rows)
    return bits.chosen(limit)


def _matching(
    table: Table, fragments: FragmentRows, part: range, selection: Selection
) -> Iterator[NDArray[np.int64]]:
    """Rows of some fragments that filter and subset leave, in any order."""
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


def _parts(fragments: FragmentRows, within: Sequence[RowRange] | None) -> list[range]:
    """Consecutive fragments that together have a few million rows, or those that hold rows."""
    if within is not None:
        stops = fragments.stops
        return [
            range(
                int(np.searchsorted(stops, rows.start, side="right")),
                int(np.searchsorted(stops, rows.stop, side="left")) + 1,
            )
            for rows in within
        ]
    parts, first, before = [], 0, 0
    for at, stop in enumerate(fragments.stops.tolist()):
        if stop - before >= _PART_ROWS or at == len(fragments.stops) - 1:
            parts.append(range(first, at + 1))
            first, before = at + 1, stop
    return parts


def _resume(path: str | None, name: str, bits: RowBits, num_parts: int) -> int:
    """Take over what an earlier run found; the first part that is left to do."""
    if path is None:
        return 0
    try:
        with open(path, "rb") as file:
            data = file.read()
        header, text = container.unpack_header(_PARTIAL, data)
        if header["name"] != name or not container.is_intact(data, text):
            return 0
        bits.replace(container.unpack(data)["bits"])
        return min(int(header["next"]), num_parts)
    except container.DAMAGE:
        return 0


def _keep(path: str, name: str, bits: RowBits, next_part: int) -> None:
    data = container.pack(_PARTIAL, {"name": name, "next": next_part}, {"bits": bits.bits})
    temporary = f"{path}.{os.getpid()}.tmp"
    try:
        with open(temporary, "wb") as file:
            file.write(data)
        os.replace(temporary, path)
    except OSError as error:
        logger.warning("progress cannot be kept in %s: %s", path, error)


def _exact_stops(
    table: Table,
    fragments: FragmentRows,
    selected: Selected,
    order: Order,
    size: RowSize,
    news: News,
) -> NDArray[np.int64]:
    """Cut by the bytes of every row: reads the selection once, a few shards at a time."""
    cut = ExactCut(order.shard_bytes)
    step = rows_per_shard(size, order.shard_bytes)
    for start in range(0, selected.count, step):
        news("measuring rows", start, selected.count)
        rows = selected.rows(RowRange(start, min(start + step, selected.count)))
        for batch in table.batches(fragments, rows, order.selection, size.mean_bytes):
            if order.selection.transform is not None:
                what = f"measuring rows, transform={order.selection.transform!r}"
                news(what, start, selected.count)
            read = pa.Table.from_batches([batch])
            for part in finished(read, order.selection, order.search_path, "").to_batches():
                cut.add(row_bytes(part.columns))
    news("measuring rows", selected.count, selected.count)
    return cut.stops()


def sampled_size(runs: Sequence[pa.Table]) -> RowSize:
    """What a row takes, by some runs of rows as a shard holds them."""
    overhead = _overhead_bytes(runs[0].schema)
    return estimate_row_size([(run.num_rows, run.nbytes) for run in runs], overhead)


def common_schema(schemas: Iterable[pa.Schema]) -> pa.Schema:
    """The schema of all runs of rows.

    Raises:
        TransformFailedError: They differ.
    """
    schema, *others = schemas
    for other in others:
        if not other.equals(schema):
            text = (
                f"it gave {describe_schema(other)} for some rows and "
                f"{describe_schema(schema)} for others: cast them to one type"
            )
            raise TransformFailedError(text)
    return schema


def _overhead_bytes(schema: pa.Schema) -> int:
    """Bytes of a shard file without rows."""
    sink = pa.MockOutputStream()
    with pa.ipc.new_file(sink, schema):
        pass
    return sink.size() + 64 * (3 * len(schema) + 2)


def _words(selection: Selection) -> str:
    parts = []
    if selection.filter is not None:
        parts.append(f"filter={shown(selection.filter)!r}")
    if selection.subset is not None:
        parts.append(f"subset={selection.subset!r}")
    if selection.subset_key is not None:
        parts.append(f"subset_key={selection.subset_key!r}")
    return ", ".join(parts)
