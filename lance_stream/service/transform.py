"""The user's function over the rows of a shard, in the download process."""

from __future__ import annotations

import traceback
from types import TracebackType

import pyarrow as pa

from lance_stream.planning.selection import Selection
from lance_stream.source.failures import Failure, FailureKind
from lance_stream.source.functions import load_function

__all__ = ["TransformFailedError", "transformed"]

_MAX_DETAIL_CHARS = 4000
_ROW_ID = "_rowid"


class TransformFailedError(Exception):
    """The function raised, or gave something that cannot be streamed."""

    def __init__(self, message: str, detail: str = "") -> None:
        """Keep words and traceback."""
        super().__init__(message)
        self.failure = Failure(FailureKind.TRANSFORM, message, retryable=False, detail=detail)


def transformed(table: pa.Table, selection: Selection, search_path: tuple[str, ...]) -> pa.Table:
    """What the selection's transform makes of rows; the rows themselves if there is none.

    Args:
        table: Rows in the types of a shard. A ``_rowid`` that the selection asks for is not given
            to the function, and is put after the columns that it returns.
        selection: Names the function.
        search_path: Folders where the trainer finds modules.

    Raises:
        TransformFailedError: With the traceback of what the function raised.
        PlanError: There is no such function.
    """
    if selection.transform is None:
        return table
    function = load_function("transform", selection.transform, search_path)
    called = f"transform={selection.transform!r}"
    row_ids = None
    if selection.with_row_id:
        row_ids = table.column(_ROW_ID)
        table = table.drop_columns([_ROW_ID])
    try:
        batches = table.combine_chunks().to_batches()
    except pa.ArrowException:
        batches = []
    if len(batches) != 1:
        msg = (
            f"{called}: {table.nbytes} bytes in {table.num_rows} rows do not fit into one "
            "RecordBatch: choose smaller shards, or where rows differ in size, ones that are cut "
            "by exact bytes (lance-stream index --exact, and index=)"
        )
        raise TransformFailedError(msg)
    try:
        result = function(batches[0])
    except BaseException as error:  # also sys.exit, and panics of libraries in Rust
        text = f"{called} raised {type(error).__name__}: {_words(error)}"
        raise TransformFailedError(text, _traceback(error)) from error
    if not isinstance(result, pa.RecordBatch):
        msg = f"{called} returned a {type(result).__name__}, not a pyarrow.RecordBatch"
        raise TransformFailedError(msg)
    if result.num_rows != table.num_rows:
        msg = (
            f"{called} returned {result.num_rows} rows for {table.num_rows}; every row must stay, "
            "in its place"
        )
        raise TransformFailedError(msg)
    names = result.schema.names
    if len(set(names)) != len(names) or not names or (row_ids is not None and _ROW_ID in names):
        msg = f"{called} returned the columns {names}: they must be distinct, and at least one"
        raise TransformFailedError(msg)
    made = pa.Table.from_batches([result])
    return made if row_ids is None else made.append_column(_ROW_ID, row_ids)


def _words(error: BaseException) -> str:
    """What an exception says; a class of the user's may fail at that as well."""
    try:
        return str(error)
    except BaseException as second:  # noqa: BLE001
        return f"(its __str__ raised {type(second).__name__})"


def _traceback(error: BaseException) -> str:
    """The traceback from the user's function on."""
    own: TracebackType | None = error.__traceback__
    text = "".join(traceback.format_exception(error.with_traceback(own.tb_next if own else None)))
    return text[-_MAX_DETAIL_CHARS:].rstrip()
