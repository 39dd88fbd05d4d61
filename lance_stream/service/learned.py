"""What an earlier index knows of a selection: columns and size of its transformed rows."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Iterator

import pyarrow as pa

from lance_stream.errors import LanceStreamError
from lance_stream.planning.index import ShardIndex
from lance_stream.planning.selection import Selection
from lance_stream.planning.sizing import RowSize
from lance_stream.shards.paths import is_index_name

__all__ = ["learned"]


def learned(
    directories: Iterable[str], uri: str, version: int, identity: str, selection: Selection
) -> tuple[pa.Schema, RowSize] | None:
    """Look for an index of the same rows and columns, whatever its shards; reads files.

    Args:
        directories: Cache directories, in which streams lay down their indexes.
        uri: Of the table.
        version: Of the table.
        identity: Of its content.
        selection: Rows, columns, transform and its version.

    Returns:
        Schema and size of the rows as a shard holds them; None if there is no such index.
    """
    for path in _index_files(directories):
        try:
            index = ShardIndex.from_bytes(_content(path), path)
        except (LanceStreamError, OSError):
            continue
        found = (index.uri, index.version, index.identity, index.selection.as_json())
        if found == (uri, version, identity, selection.as_json()):
            return index.schema, index.row_size
    return None


def _index_files(directories: Iterable[str]) -> Iterator[str]:
    for directory in directories:
        try:
            names = sorted(filter(is_index_name, os.listdir(directory)))
        except OSError:
            continue
        yield from (os.path.join(directory, name) for name in names)


def _content(path: str) -> bytes:
    """The content of a regular file; OSError for anything else."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    with open(descriptor, "rb") as file:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise OSError(f"{path} is not a regular file")
        return file.read()
