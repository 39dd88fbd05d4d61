"""A table that grows: its latest version, and what was done to it since another."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from lance_stream.planning.growth import Column, Fragment, Operation, Version
from lance_stream.planning.types import type_name
from lance_stream.source.failures import FailureKind, classify
from lance_stream.source.manifest import manifest_numbers
from lance_stream.source.table import files_of, open_latest

__all__ = ["GrowingTable", "RowIds"]

logger = logging.getLogger(__name__)

# Fields of Lance's manifest.
_MAX_FRAGMENT_ID, _NEXT_ROW_ID = 11, 14


@dataclass(frozen=True, slots=True)
class RowIds:
    """Stable row ids of the live rows, in table order.

    Attributes:
        ids: uint64 array (live rows,).
        created: Version in which each row was appended; same shape.
        updated: Version in which each row was changed last; same shape.
    """

    ids: NDArray[np.uint64]
    created: NDArray[np.uint64]
    updated: NDArray[np.uint64]


class GrowingTable:
    """A table that is kept open to be looked at again and again. Not thread-safe.

    Attributes:
        uri: Absolute uri.
    """

    def __init__(self, uri: str, options: dict[str, str]) -> None:
        """Open the latest version: one request lists the latest versions, one reads a manifest.

        Args:
            uri: Absolute uri.
            options: As ``client_options`` makes them.

        Raises:
            BaseException: Whatever Lance raises; see ``failures.classify``.
        """
        self.uri = uri
        self._dataset = open_latest(uri, options)

    def refreshed(self) -> bool:
        """Take up the latest version: one request, and one more if it is another.

        Returns:
            Whether that went well; if not, or the latest version is an older one, as of a table
            that was made again, open the table anew.
        """
        before = self.version
        try:
            self._dataset.checkout_latest()
        except Exception:
            logger.debug("could not look at %s again", self.uri, exc_info=True)
            return False
        return self.version >= before

    @property
    def version(self) -> int:
        """The version at hand."""
        return int(self._dataset.version)

    @property
    def has_row_ids(self) -> bool:
        """Whether rows have ids that they keep."""
        return bool(self._dataset.has_stable_row_ids)

    @property
    def schema(self) -> pa.Schema:
        """Of the table."""
        return self._dataset.schema

    def selected_schema(self, columns: Sequence[tuple[str, str]]) -> pa.Schema:
        """Of output names and SQL expressions; reads no data."""
        return self._dataset.scanner(columns=dict(columns)).projected_schema

    def manifest(self) -> list[dict[str, Any]]:
        """What names the content of the version at hand (see ``Table.manifest``)."""
        return [files_of(fragment.metadata) for fragment in self._dataset.get_fragments()]

    def now(self) -> Version:
        """The version at hand; takes no request."""
        return _version(self._dataset)

    def at(self, version: int) -> Version | None:
        """Another version: one request. None if it was cleaned up."""
        return self._if_there(lambda: _version(self._dataset.checkout_version(version)))

    def operation(self, version: int) -> Operation | None:
        """What made a version: up to two requests. None if it was cleaned up."""
        return self._if_there(lambda: _operation(self._dataset.read_transaction(version)))

    def row_ids(self) -> RowIds:
        """Read the row ids of all live rows, and in which versions they were made and changed."""
        names = ["_rowid", "_row_created_at_version", "_row_last_updated_at_version"]
        table = self._dataset.scanner(columns=names, scan_in_order=True).to_table()
        ids, created, updated = (table.column(name).to_numpy() for name in names)
        return RowIds(ids, created, updated)

    def _if_there(self, read: Any) -> Any:
        try:
            return read()
        except Exception as error:
            kind = classify(error, while_opening=False).kind
            if kind in (FailureKind.VERSION_NOT_FOUND, FailureKind.NOT_FOUND):
                return None
            raise


def _version(dataset: Any) -> Version:
    fragments = [_fragment(fragment.metadata) for fragment in dataset.get_fragments()]
    # Lance tells these numbers nowhere else; the manifest is in memory, as what pickles a dataset.
    numbers = manifest_numbers(bytes(dataset._ds.serialized_manifest()))
    return Version(
        number=int(dataset.version),
        fragments=fragments,
        # Old writers leave it out.
        last_fragment=numbers.get(
            _MAX_FRAGMENT_ID, max((fragment.id for fragment in fragments), default=-1)
        ),
        next_row_id=numbers.get(_NEXT_ROW_ID, 0) if dataset.has_stable_row_ids else None,
        columns={
            arrow.name: Column(type_name(arrow), tuple(_field_ids(field)))
            for arrow, field in zip(dataset.schema, dataset.lance_schema.fields(), strict=True)
        },
    )


def _field_ids(field: Any) -> Iterator[int]:
    yield int(field.id())
    for child in field.children():
        yield from _field_ids(child)


def _fragment(metadata: Any) -> Fragment:
    deletions = metadata.deletion_file
    deleted = 0 if deletions is None else int(deletions.num_deleted_rows or 0)
    return Fragment(
        id=int(metadata.id),
        rows=int(metadata.physical_rows) - deleted,
        # ``path`` makes a class at every access.
        files=tuple((file._path, tuple(file.fields)) for file in metadata.files),
        deletions=None if deletions is None else (deletions.read_version, deletions.id),
        overlays=tuple(overlay.data_file._path for overlay in metadata.overlays),
    )


def _operation(transaction: Any) -> Operation:
    operation = transaction.operation
    groups = tuple(
        (
            tuple(int(fragment.id) for fragment in group.old_fragments),
            tuple(int(fragment.id) for fragment in group.new_fragments),
        )
        for group in getattr(operation, "groups", ())
    )
    return Operation(type(operation).__name__, groups)
