"""Make the shard index of a window over a table that grows: each part is cut by itself."""

from __future__ import annotations

import threading
from collections import OrderedDict
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from lance_stream.errors import EmptyStreamError
from lance_stream.planning.fingerprint import array_digest, digest
from lance_stream.planning.index import ShardIndex
from lance_stream.planning.layout import shard_stops
from lance_stream.planning.row_order import RowOrder, cut, joined
from lance_stream.planning.rows import FragmentRows, RowRange
from lance_stream.planning.sizing import RowSize, rows_per_shard
from lance_stream.planning.types import sample_schema
from lance_stream.planning.window import Part, Window
from lance_stream.service import messages as m
from lance_stream.service.choosing import Selected, choose
from lance_stream.service.indexing import (
    News,
    Order,
    common_schema,
    finished,
    sampled_size,
)
from lance_stream.shards.mds_format import mds_encodings
from lance_stream.shards.mds_limits import check_mds_sizes
from lance_stream.source.table import Table

__all__ = ["WindowIndexes"]

_MAX_REMEMBERED = 4096


@dataclass(frozen=True, slots=True)
class _Piece:
    """The selected rows of a part.

    Attributes:
        chosen: Names which of the part's rows they are; empty for all.
        ranges: Where they are among the selected rows of the table, in order of appending.
    """

    rows: RowRange
    identity: str
    chosen: str
    ranges: RowOrder

    @property
    def count(self) -> int:
        return sum(map(len, self.ranges))


class _Picked:
    """Rows of a part for sampling: consecutive ones are not read over a gap."""

    def __init__(self, selected: Selected, piece: _Piece) -> None:
        self._selected = selected
        self._piece = piece

    @property
    def count(self) -> int:
        """How many."""
        return self._piece.count

    def rows(self, chosen: RowRange) -> RowRange | NDArray[np.int64]:
        """The live rows of the table that the first of a range are."""
        return self._selected.rows(cut(self._piece.ranges, chosen.start, chosen.stop)[0])


class WindowIndexes:
    """Makes indexes of windows; remembers what rows of a part take. Thread-safe."""

    def __init__(self) -> None:
        """Begin without any."""
        self._lock = threading.Lock()
        self._sizes: OrderedDict[str, tuple[pa.Schema, RowSize]] = OrderedDict()

    def make(
        self, uri: str, table: Table, order: Order, wanted: m.Window, where: str, news: News
    ) -> ShardIndex:
        """Make the index.

        Args:
            uri: Of the table.
            table: Open at one version.
            order: What is wanted.
            wanted: Which rows.
            where: Table and version, for errors.
            news: Told of progress.

        Raises:
            LanceStreamError: With words for the user.
            BaseException: Whatever Lance raises.
        """
        selection, fragments = order.selection, table.fragment_rows()
        sample_schema(table.schema(selection), where)
        places = tuple(RowRange(start, stop) for start, stop in wanted.ranges)
        selected = choose(
            table,
            fragments,
            selection,
            where,
            wanted.identity,
            news,
            within=sorted(places, key=lambda r: r.start),
        )
        pieces = _pieces(wanted, places, selected)
        rows = RowRange(wanted.parts[0][0], wanted.parts[-1][1])
        if not any(piece.count for piece in pieces):
            msg = f"{where}: no row of {rows}, in order of appending, is selected by the filter"
            raise EmptyStreamError(msg)
        kinds = [
            self._kind(uri, table, fragments, order, piece, selected, where)
            for piece in pieces
            if piece.count
        ]
        schema = common_schema(schema for schema, _ in kinds)
        sizes = iter([size for _, size in kinds])
        parts, stops, before = [], [], 0
        for piece in pieces:
            cuts = np.zeros(0, np.int64)
            if piece.count:
                # By the rows of the part alone, or it would be cut otherwise in another window.
                per_shard = order.shard_rows or rows_per_shard(next(sizes), order.shard_bytes)
                cuts = shard_stops(piece.count, per_shard)
            stops.append(cuts + before)
            before += piece.count
            parts.append(Part(piece.rows, piece.identity, piece.chosen, piece.count, len(cuts)))
        size = RowSize(
            max(size.mean_bytes for _, size in kinds),
            max(size.deviation_bytes for _, size in kinds),
            max(size.shard_overhead_bytes for _, size in kinds),
        )
        if order.cache_format == "mds":
            mds_encodings(schema)
            longest = int(np.diff(np.concatenate(stops), prepend=0).max())
            check_mds_sizes(schema, size, longest, where)
        return ShardIndex(
            uri=uri,
            version=table.version,
            identity=wanted.identity,
            selection=selection,
            layout=order.layout,
            schema=schema,
            fragments=fragments,
            chosen=selected.chosen,
            shard_stops=np.concatenate(stops),
            row_size=size,
            window=Window(
                wanted.family, tuple(parts), joined(r for piece in pieces for r in piece.ranges)
            ),
        )

    def _kind(
        self,
        uri: str,
        table: Table,
        fragments: FragmentRows,
        order: Order,
        piece: _Piece,
        selected: Selected,
        where: str,
    ) -> tuple[pa.Schema, RowSize]:
        """Schema and size of the rows of a part, sampled once."""
        key = digest(
            {
                "uri": uri,
                "part": [piece.rows.start, piece.rows.stop, piece.identity, piece.chosen],
                "selection": order.selection.as_json(),
            }
        )
        with self._lock:
            found = self._sizes.get(key)
        if found is None:
            runs = [
                finished(run, order.selection, order.search_path, where)
                for run in table.sample(fragments, _Picked(selected, piece), order.selection)
            ]
            found = common_schema(run.schema for run in runs), sampled_size(runs)
            with self._lock:
                self._sizes[key] = found
                while len(self._sizes) > _MAX_REMEMBERED:
                    self._sizes.popitem(last=False)
        return found


def _pieces(wanted: m.Window, places: RowOrder, selected: Selected) -> list[_Piece]:
    """What is selected of each part, and where it is among all that is selected."""
    first, chosen = wanted.parts[0][0], selected.chosen
    pieces = []
    for start, stop, identity in wanted.parts:
        ranges, name = cut(places, start - first, stop - first), ""
        if chosen is not None:
            ranks = [
                RowRange(chosen.before(part.start), chosen.before(part.stop)) for part in ranges
            ]
            offsets, found = 0, [np.zeros(0, np.int64)]
            for part, rank in zip(ranges, ranks, strict=True):
                if len(rank):
                    found.append(chosen.rows(rank) - part.start + offsets)
                offsets += len(part)
            name, ranges = array_digest(np.concatenate(found)), joined(ranks)
        pieces.append(_Piece(RowRange(start, stop), identity, name, ranges))
    return pieces
