"""The shard index: which rows of which table version make which shard."""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, overload

import fsspec
import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from lance_stream.errors import IndexFileError, IndexFormatError
from lance_stream.planning import container
from lance_stream.planning.chosen import ChosenRows
from lance_stream.planning.fingerprint import array_digest, digest
from lance_stream.planning.layout import Layout
from lance_stream.planning.reads import rows_array
from lance_stream.planning.rows import FragmentRows, RowRange
from lance_stream.planning.selection import Selection
from lance_stream.planning.sizing import RowSize
from lance_stream.planning.types import type_name
from lance_stream.planning.window import FAMILY_CHARS, Window

__all__ = ["INDEX_FORMAT", "ShardIndex", "ShardInfo"]

# Raised by one when an older lance_stream could misread an index, or misread a shard file made
# by it. Part of every fingerprint.
INDEX_FORMAT = 2

_HEADER = b"lance_stream.index"


@dataclass(frozen=True, slots=True)
class ShardInfo:
    """One virtual shard.

    Attributes:
        rows: How many rows it has.
        estimated_bytes: Bytes to expect of its file; errs high.
        row_ranges: Its rows of the selection, numbered in table order, as half-open ranges in
            ascending order. Without a filter or subset these are rows of the table. (In a round of
            ``follow``, the rows that the whole table selects, in order of appending.)
    """

    rows: int
    estimated_bytes: int
    row_ranges: tuple[RowRange, ...]


class _Shards(Sequence[ShardInfo]):
    """The shards of an index, made on access: a million of them cost two arrays."""

    def __init__(self, index: ShardIndex) -> None:
        self._index = index

    def __len__(self) -> int:
        return self._index.num_shards

    @overload
    def __getitem__(self, at: int) -> ShardInfo: ...
    @overload
    def __getitem__(self, at: slice) -> list[ShardInfo]: ...
    def __getitem__(self, at: int | slice) -> ShardInfo | list[ShardInfo]:
        if isinstance(at, slice):
            return [self[i] for i in range(*at.indices(len(self)))]
        if at < 0:
            at += len(self)
        rows = len(self._index.shard_rows(at))
        estimate = self._index.shard_bytes(at)
        return ShardInfo(rows, estimate, tuple(self._index.selected_ranges(at)))

    def __iter__(self) -> Iterator[ShardInfo]:
        return (self[i] for i in range(len(self)))


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class ShardIndex:
    """Which rows of which table version make which shard. Immutable; holds no credentials.

    Attributes:
        uri: The table, without credentials.
        version: The version that the index was made of, never 0.
        identity: Names the content of that version (see ``table_identity``).
        selection: Rows and columns.
        layout: How rows are put into shards.
        schema: Arrow schema of a sample, in column order.
        fragments: Live rows of each fragment.
        chosen: Which live rows are selected; None for the first ``num_rows`` of them.
        shard_stops: int64 array (shards,), cumulative rows.
        row_size: Size of a row, sampled, or measured if ``exact_bytes`` is there.
        window: Of a round of ``follow``: which part of the table is streamed; else None.
        exact_bytes: int64 array (shards,): bytes of the rows of each shard, where the index was
            made by measuring them all; None: as ``row_size`` has it.
        target_bytes: Bytes of a shard that were aimed at; None: it was cut by rows.
    """

    uri: str
    version: int
    identity: str
    selection: Selection
    layout: Layout
    schema: pa.Schema
    fragments: FragmentRows
    chosen: ChosenRows | None
    shard_stops: NDArray[np.int64]
    row_size: RowSize
    window: Window | None = None
    exact_bytes: NDArray[np.int64] | None = None
    target_bytes: int | None = None

    def __repr__(self) -> str:
        parts = f"version={self.version}, rows={self.num_rows}, shards={self.num_shards}"
        return f"ShardIndex({self.uri!r}, {parts})"

    @property
    def num_rows(self) -> int:
        """Rows of the selection."""
        return int(self.shard_stops[-1])

    @property
    def num_shards(self) -> int:
        """Virtual shards."""
        return len(self.shard_stops)

    @property
    def shards(self) -> Sequence[ShardInfo]:
        """The shards in order."""
        return _Shards(self)

    def shard_rows(self, shard: int) -> RowRange:
        """Rows of one shard, counted through all shards, half-open.

        Raises:
            IndexError: No such shard.
        """
        if not 0 <= shard < self.num_shards:
            msg = f"shard {shard} is not in an index of {self.num_shards} shards"
            raise IndexError(msg)
        start = int(self.shard_stops[shard - 1]) if shard else 0
        return RowRange(start, int(self.shard_stops[shard]))

    def shard_bytes(self, shard: int) -> int:
        """Bytes to expect of a shard's file; errs high, and only a little if all were measured."""
        rows = len(self.shard_rows(shard))
        if self.exact_bytes is None:
            return self.row_size.shard_bytes(rows)
        return int(self.exact_bytes[shard]) + self.row_size.shard_overhead_bytes

    def selected_ranges(self, shard: int) -> list[RowRange]:
        """Rows of one shard, numbered within the selection; ascending but in a window."""
        rows, window = self.shard_rows(shard), self.window
        if window is None:
            return self._fitted(0).ranges(rows, self.num_rows)
        part, number = window.place(shard)
        before = window.rows_before(part)
        local = RowRange(rows.start - before, rows.stop - before)
        layout = self._fitted(shard - number)
        ranges = layout.ranges(local, window.parts[part].num_rows)
        return window.cut([RowRange(r.start + before, r.stop + before) for r in ranges])

    def _fitted(self, first: int) -> Layout:
        """The layout as it is done: runs fit into a full shard, which the first one is."""
        return self.layout.fitted(len(self.shard_rows(first)))

    def table_rows(self, shard: int) -> RowRange | NDArray[np.int64]:
        """Rows of one shard, numbered among the live rows of the table.

        Returns:
            A range, or an int64 array in ascending order.
        """
        return self._table_rows(self.selected_ranges(shard))

    def reads(self, shard: int) -> list[RowRange | NDArray[np.int64]]:
        """Rows of one shard in order, each part of them as ``table_rows`` gives them.

        One part, unless the table was compacted since the rows were appended.
        """
        ascending: list[list[RowRange]] = []
        for part in self.selected_ranges(shard):
            if ascending and ascending[-1][-1].stop <= part.start:
                ascending[-1].append(part)
            else:
                ascending.append([part])
        return [self._table_rows(ranges) for ranges in ascending]

    def _table_rows(self, ranges: list[RowRange]) -> RowRange | NDArray[np.int64]:
        if self.chosen is not None:
            return np.concatenate([self.chosen.rows(part) for part in ranges])
        return ranges[0] if len(ranges) == 1 else rows_array(ranges)

    def describe_rows(self, shard: int) -> str:
        """Rows of one shard in words, for errors and logs."""
        if self.window is not None:
            part, number = self.window.place(shard)
            rows = self.window.parts[part].rows
            return f"shard {number} of rows {rows} in order of appending"
        ranges = self.selected_ranges(shard)
        first, last = ranges[0].start, ranges[-1].stop
        which = f"rows {RowRange(first, last)}"
        if len(ranges) > 1:
            num_rows = sum(map(len, ranges))
            which = f"{num_rows} rows in {len(ranges)} runs of [{first}, {last})"
        return f"{which} of the selection" if self.chosen is not None else which

    @property
    def fingerprint(self) -> str:
        """32 hex characters: equal exactly when the shard files are interchangeable."""
        made = digest({**self.rows_as_json(), **self._columns_as_json()})
        return made if self.window is None else _of_family(self.window, made)

    def part_fingerprint(self, part: int) -> str:
        """32 hex characters: equal exactly when the shards of a part are interchangeable."""
        window = self.window
        if window is None:
            msg = "an index without a window has no parts"
            raise ValueError(msg)
        first = sum(each.num_shards for each in window.parts[:part])
        stops = self.shard_stops[first : first + window.parts[part].num_shards]
        made = digest(
            {
                "format": INDEX_FORMAT,
                "uri": self.uri,
                "part": window.as_json()["parts"][part],
                "layout": self.layout.as_json(),
                "shards": array_digest(stops - window.rows_before(part)),
                **self._columns_as_json(),
            }
        )
        return _of_family(window, made)

    def _columns_as_json(self) -> dict[str, Any]:
        return {
            "selection": self.selection.as_json(),
            # In words: the encoding of a schema may differ between versions of Arrow.
            "schema": [[f.name, type_name(f), f.nullable] for f in self.schema],
        }

    @property
    def rows_fingerprint(self) -> str:
        """32 hex characters: equal exactly when the same rows are in the same shards."""
        return digest(self.rows_as_json())

    def rows_as_json(self) -> dict[str, Any]:
        """What decides which rows are in which shard."""
        if self.window is not None:
            # Not the version: a part is the same rows in every later one.
            return {
                "format": INDEX_FORMAT,
                "uri": self.uri,
                "parts": self.window.as_json()["parts"],
                "rows": self.selection.rows_as_json(),
                "layout": self.layout.as_json(),
                "shards": array_digest(self.shard_stops),
            }
        chosen = None if self.chosen is None else array_digest(self.chosen.bits)
        return {
            "format": INDEX_FORMAT,
            "uri": self.uri,
            "version": self.version,
            "identity": self.identity,
            "rows": self.selection.rows_as_json(),
            "layout": self._fitted(0).as_json(),
            # The rows themselves: an expression may depend on more than the table.
            "chosen": chosen,
            "shards": array_digest(self.shard_stops),
        }

    def describe(self) -> dict[str, Any]:
        """A summary in JSON values: uri, version, rows, shards, columns, bytes, fingerprint."""
        return {
            "uri": self.uri,
            "version": self.version,
            "fingerprint": self.fingerprint,
            "num_rows": self.num_rows,
            "num_shards": self.num_shards,
            "num_fragments": len(self.fragments.ids),
            "table_rows": self.fragments.num_rows,
            "selection": self.selection.as_json(),
            "layout": self.layout.as_json(),
            "columns": {field.name: type_name(field) for field in self.schema},
            "estimated_bytes": (
                round(self.row_size.mean_bytes * self.num_rows)
                if self.exact_bytes is None
                else int(self.exact_bytes.sum())
            ),
            "estimated_shard_bytes": self.shards[0].estimated_bytes,
        }

    def to_bytes(self) -> bytes:
        """Encode as one Arrow IPC file."""
        size = self.row_size
        header = {
            "format": INDEX_FORMAT,
            "uri": self.uri,
            "version": self.version,
            "identity": self.identity,
            "selection": self.selection.as_json(),
            "layout": self.layout.as_json(),
            "target_bytes": self.target_bytes,
            "row_size": [size.mean_bytes, size.deviation_bytes, size.shard_overhead_bytes],
        }
        if self.window is not None:
            header["window"] = self.window.as_json()
        arrays = {
            "schema": np.frombuffer(self.schema.serialize(), np.uint8),
            "fragment_ids": self.fragments.ids,
            "fragment_stops": self.fragments.stops,
            "shard_stops": self.shard_stops,
        }
        if self.chosen is not None:
            arrays["chosen"] = self.chosen.bits
        if self.exact_bytes is not None:
            arrays["exact_bytes"] = self.exact_bytes
        return container.pack(_HEADER, header, arrays)

    @classmethod
    def from_bytes(cls, data: pa.Buffer | bytes, name: str) -> ShardIndex:
        """Decode what ``to_bytes`` made.

        Args:
            data: The file's content.
            name: Where it came from, for errors.

        Raises:
            IndexFormatError: Not an index, damaged, or written by a newer lance_stream.
        """
        try:
            header, text = container.unpack_header(_HEADER, data)
            found = header["format"]
            intact = container.is_intact(data, text)
        except container.DAMAGE as error:
            msg = f"{name} is not a lance_stream shard index, or is damaged: {error!r}"
            raise IndexFormatError(msg) from error
        if found != INDEX_FORMAT:
            msg = (
                f"{name} has index format {found}, this lance_stream reads {INDEX_FORMAT}: "
                "make the index again, or use the version that wrote it"
            )
            raise IndexFormatError(msg)
        if not intact:
            msg = f"{name} is a damaged lance_stream shard index: its checksum is wrong"
            raise IndexFormatError(msg)
        try:
            arrays = container.unpack(data)
            fragments = FragmentRows(arrays["fragment_ids"], arrays["fragment_stops"])
            chosen, window = arrays.get("chosen"), header.get("window")
            return cls(
                uri=header["uri"],
                version=header["version"],
                identity=header["identity"],
                selection=Selection.from_json(header["selection"]),
                layout=Layout.from_json(header["layout"]),
                schema=pa.ipc.read_schema(pa.py_buffer(arrays["schema"].tobytes())),
                fragments=fragments,
                chosen=None if chosen is None else ChosenRows(chosen, fragments.num_rows),
                shard_stops=arrays["shard_stops"],
                row_size=RowSize(*header["row_size"]),
                window=None if window is None else Window.from_json(window),
                exact_bytes=arrays.get("exact_bytes"),
                target_bytes=header.get("target_bytes"),
            )
        except container.DAMAGE as error:
            msg = f"{name} is a damaged lance_stream shard index: {error!r}"
            raise IndexFormatError(msg) from error

    @classmethod
    def load(cls, url: str | os.PathLike[str]) -> ShardIndex:
        """Read an index file.

        Args:
            url: A path, or any URL that fsspec opens.

        Raises:
            IndexFormatError: Not an index, damaged, or written by a newer lance_stream.
            IndexFileError: The file cannot be read.
        """
        path = os.fspath(url)
        name = _without_secrets(path)
        try:
            if "://" not in path:
                with open(path, "rb") as file:
                    data = file.read()
            else:
                # Not ``fsspec.open``, which may take a signed URL's question mark for a pattern.
                system, inner = fsspec.core.url_to_fs(path)
                data = system.cat_file(inner)
        except Exception as error:
            # Each store's client has errors of its own.
            raise IndexFileError(f"the index {name} cannot be read: {_why(error)}") from error
        return cls.from_bytes(data, name)

    def save(self, url: str | os.PathLike[str]) -> None:
        """Write an index file: complete, or not there.

        Args:
            url: A path, or any URL that fsspec writes; an object store puts it as one object.

        Raises:
            IndexFileError: It cannot be written.
        """
        path = os.fspath(url)
        name = _without_secrets(path)
        try:
            self._write(path)
        except Exception as error:
            msg = f"the index cannot be written to {name}: {_why(error)}"
            raise IndexFileError(msg) from error

    def _write(self, path: str) -> None:
        data = self.to_bytes()
        if "://" in path and not path.startswith("file://"):
            system, inner = fsspec.core.url_to_fs(path)
            system.pipe_file(inner, data)
            return
        path = path.removeprefix("file://")
        if os.path.isdir(path):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
        temporary = f"{path}.{os.getpid()}.tmp"
        try:
            with open(temporary, "wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, path)
        except BaseException:
            if os.path.exists(temporary):
                os.unlink(temporary)
            raise


def _of_family(window: Window, fingerprint: str) -> str:
    return window.family[:FAMILY_CHARS] + fingerprint[FAMILY_CHARS:]


def _without_secrets(url: str) -> str:
    """A URL without password and query; a path as it is."""
    if "://" not in url:
        return url
    return re.sub(r"://[^/@]*@", "://***@", url.partition("?")[0])


def _why(error: Exception) -> str:
    """What is wrong with a place, and what to do; without the place, which may hold secrets."""
    if isinstance(error, FileNotFoundError):
        return "there is no such file or folder"
    if isinstance(error, IsADirectoryError):
        return "it is a folder: name a file in it"
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    if isinstance(error, ValueError | ImportError):
        return "it is no path and no URL that fsspec knows: check its protocol"
    return f"{type(error).__name__}; check the URL and its credentials"
