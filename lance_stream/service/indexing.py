"""Make the shard index of an open table: choose rows, sample sizes, cut shards."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa

from lance_stream.errors import EmptyStreamError
from lance_stream.planning.fingerprint import table_identity
from lance_stream.planning.index import ShardIndex
from lance_stream.planning.layout import Layout, shard_stops
from lance_stream.planning.row_bytes import ExactCut, row_bytes
from lance_stream.planning.rows import FragmentRows, RowRange
from lance_stream.planning.selection import Selection
from lance_stream.planning.sizing import RowSize, estimate_row_size, rows_per_shard
from lance_stream.planning.types import describe_schema, sample_schema, sample_table
from lance_stream.service.choosing import News, Selected, choose, no_news
from lance_stream.service.learned import learned
from lance_stream.service.transform import TransformFailedError, transformed
from lance_stream.shards.mds_format import mds_encodings
from lance_stream.shards.mds_limits import check_mds_nulls, check_mds_sizes
from lance_stream.source.table import Table

__all__ = [
    "News",
    "Order",
    "check_format",
    "common_schema",
    "finished",
    "make_index",
    "no_news",
    "sampled_size",
]


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
    selected = choose(table, fragments, selection, where, identity, news, order.partial_path)
    schema, size = _rows(table, uri, fragments, selected, order, where, identity, news)
    whole = selected.count == fragments.num_rows and table.is_all(selection)
    if whole and selection.transform is None:
        size = size.of_files(table.file_bytes_per_row())
    exact_bytes = None
    if order.exact:
        cut = _exact_cut(table, fragments, selected, order, size, news)
        stops, exact_bytes = cut.stops(), cut.shard_bytes()
        size = replace(size, mean_bytes=float(exact_bytes.sum()) / selected.count)
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
        exact_bytes=exact_bytes,
        target_bytes=order.shard_bytes if order.shard_rows is None else None,
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


def _exact_cut(
    table: Table,
    fragments: FragmentRows,
    selected: Selected,
    order: Order,
    size: RowSize,
    news: News,
) -> ExactCut:
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
    return cut


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
