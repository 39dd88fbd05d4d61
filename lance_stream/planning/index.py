"""The shard index: which rows of which table version make which shard."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, overload

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from lance_stream.errors import IndexFormatError
from lance_stream.planning import checksum
from lance_stream.planning.fingerprint import digest
from lance_stream.planning.rows import FragmentRows, RowRange
from lance_stream.planning.sizing import RowSize

__all__ = ["INDEX_FORMAT", "Selection", "ShardIndex", "ShardInfo"]

# Raised by one when an older lance_stream could misread an index, or misread a shard file made
# by it. Part of every fingerprint.
INDEX_FORMAT = 1

_HEADER = b"lance_stream.index"


@dataclass(frozen=True, slots=True)
class Selection:
    """Which rows and columns of a table are streamed.

    Attributes:
        columns: Output names and SQL expressions in order, or None for every column.
        with_row_id: Whether each sample carries its ``_rowid``.
    """

    columns: tuple[tuple[str, str], ...] | None = None
    with_row_id: bool = False

    def as_json(self) -> dict[str, Any]:
        """The selection as JSON values."""
        columns = None if self.columns is None else [list(pair) for pair in self.columns]
        return {"columns": columns, "with_row_id": self.with_row_id}

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> Selection:
        """The inverse of ``as_json``."""
        columns = value["columns"]
        pairs = None if columns is None else tuple((str(n), str(e)) for n, e in columns)
        return cls(pairs, bool(value["with_row_id"]))


@dataclass(frozen=True, slots=True)
class ShardInfo:
    """One virtual shard.

    Attributes:
        rows: Its rows of the selection, half-open.
        estimated_bytes: Bytes to expect of its file; errs high.
    """

    rows: RowRange
    estimated_bytes: int


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
        rows = self._index.shard_rows(at)
        return ShardInfo(rows, self._index.row_size.shard_bytes(len(rows)))

    def __iter__(self) -> Iterator[ShardInfo]:
        return (self[i] for i in range(len(self)))


@dataclass(frozen=True, slots=True, eq=False)
class ShardIndex:
    """Which rows of which table version make which shard. Immutable; holds no credentials.

    Attributes:
        uri: The table, without credentials.
        version: The version that the index was made of, never 0.
        identity: Names the content of that version (see ``table_identity``).
        selection: Rows and columns.
        schema: Arrow schema of a sample, in column order.
        fragments: Live rows of each fragment.
        shard_stops: int64 array (shards,), cumulative rows.
        row_size: Sampled size of a row.
    """

    uri: str
    version: int
    identity: str
    selection: Selection
    schema: pa.Schema
    fragments: FragmentRows
    shard_stops: NDArray[np.int64]
    row_size: RowSize

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
        """Rows of one shard, half-open.

        Raises:
            IndexError: No such shard.
        """
        if not 0 <= shard < self.num_shards:
            msg = f"shard {shard} is not in an index of {self.num_shards} shards"
            raise IndexError(msg)
        start = int(self.shard_stops[shard - 1]) if shard else 0
        return RowRange(start, int(self.shard_stops[shard]))

    @property
    def fingerprint(self) -> str:
        """32 hex characters: equal exactly when the shard files are interchangeable."""
        stops = np.ascontiguousarray(self.shard_stops)
        return digest(
            {
                "format": INDEX_FORMAT,
                "uri": self.uri,
                "version": self.version,
                "identity": self.identity,
                "selection": self.selection.as_json(),
                # In words: the encoding of a schema may differ between versions of Arrow.
                "schema": [[f.name, str(f.type), f.nullable] for f in self.schema],
                "shards": digest({"stops": stops.tobytes().hex()}),
            }
        )

    def describe(self) -> dict[str, Any]:
        """A summary in JSON values: uri, version, rows, shards, columns, bytes, fingerprint."""
        sizes = [shard.estimated_bytes for shard in self.shards[:1]]
        return {
            "uri": self.uri,
            "version": self.version,
            "fingerprint": self.fingerprint,
            "num_rows": self.num_rows,
            "num_shards": self.num_shards,
            "num_fragments": len(self.fragments.ids),
            "columns": {field.name: str(field.type) for field in self.schema},
            "estimated_bytes": round(self.row_size.mean_bytes * self.num_rows),
            "estimated_shard_bytes": sizes[0],
        }

    def to_bytes(self) -> pa.Buffer:
        """Encode as one Arrow IPC file."""
        header = {
            "format": INDEX_FORMAT,
            "uri": self.uri,
            "version": self.version,
            "identity": self.identity,
            "selection": self.selection.as_json(),
            "row_size": [
                self.row_size.mean_bytes,
                self.row_size.deviation_bytes,
                self.row_size.shard_overhead_bytes,
            ],
        }
        arrays = {
            "schema": np.frombuffer(self.schema.serialize(), np.uint8),
            "fragment_ids": self.fragments.ids,
            "fragment_stops": self.fragments.stops,
            "shard_stops": self.shard_stops,
        }
        columns = [
            pa.LargeListArray.from_arrays(pa.array([0, len(a)], pa.int64()), pa.array(a))
            for a in arrays.values()
        ]
        batch = pa.RecordBatch.from_arrays(columns, names=list(arrays))
        name = json.dumps(header).encode()
        batch = batch.replace_schema_metadata({_HEADER: name})
        sink = pa.BufferOutputStream()
        with pa.ipc.new_file(sink, batch.schema, metadata=checksum.placeholder(name)) as writer:
            writer.write_batch(batch)
        content = bytearray(sink.getvalue())
        at = checksum.locate(memoryview(content), name)
        digits = checksum.compute(memoryview(content), at)
        content[at : at + len(digits)] = digits
        return pa.py_buffer(bytes(content))

    @classmethod
    def from_bytes(cls, data: pa.Buffer | bytes, name: str) -> ShardIndex:
        """Decode what ``to_bytes`` made.

        Args:
            data: The file's content.
            name: Where it came from, for errors.

        Raises:
            IndexFormatError: Not an index, damaged, or written by a newer lance_stream.
        """
        damage: tuple[type[Exception], ...] = (
            AttributeError,
            KeyError,
            TypeError,
            ValueError,
            OSError,
            pa.ArrowException,
        )
        try:
            with pa.ipc.open_file(pa.py_buffer(data)) as reader:
                text = (reader.schema.metadata or {})[_HEADER]
                header = dict(json.loads(text))
                found = header["format"]
                intact = checksum.is_intact(memoryview(data), text)
                batch = reader.get_batch(0) if intact and found == INDEX_FORMAT else None
        except damage as error:
            msg = f"{name} is not a lance_stream shard index, or is damaged: {error!r}"
            raise IndexFormatError(msg) from error
        if found != INDEX_FORMAT:
            msg = (
                f"{name} has index format {found}, this lance_stream reads {INDEX_FORMAT}: "
                "make the index again, or use the version that wrote it"
            )
            raise IndexFormatError(msg)
        if batch is None:
            msg = f"{name} is a damaged lance_stream shard index: its checksum is wrong"
            raise IndexFormatError(msg)
        try:
            arrays = {
                field: batch.column(i).flatten().to_numpy(zero_copy_only=True)
                for i, field in enumerate(batch.schema.names)
            }
            schema = pa.ipc.read_schema(pa.py_buffer(arrays["schema"].tobytes()))
            return cls(
                uri=header["uri"],
                version=header["version"],
                identity=header["identity"],
                selection=Selection.from_json(header["selection"]),
                schema=schema,
                fragments=FragmentRows(arrays["fragment_ids"], arrays["fragment_stops"]),
                shard_stops=arrays["shard_stops"],
                row_size=RowSize(*header["row_size"]),
            )
        except damage as error:
            msg = f"{name} is a damaged lance_stream shard index: {error!r}"
            raise IndexFormatError(msg) from error

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> ShardIndex:
        """Read an index file.

        Raises:
            IndexFormatError: Not an index, damaged, or written by a newer lance_stream.
            OSError: The file cannot be read.
        """
        with open(path, "rb") as file:
            return cls.from_bytes(file.read(), os.fspath(path))
