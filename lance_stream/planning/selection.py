"""Which rows and columns of a table are streamed. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

__all__ = ["Selection", "shown"]

_SHOWN = 400


@dataclass(frozen=True, slots=True)
class Selection:
    """Which rows and columns of a table are streamed.

    Attributes:
        columns: Output names and SQL expressions in order, or None for every column.
        with_row_id: Whether each sample carries its ``_rowid``.
        filter: SQL predicate that rows match, or None.
        limit: How many of the rows are taken, the first ones, or None for all.
        subset: ``(lo, hi)``: rows whose place by hash lies in ``[lo, hi)``, or None for all.
        subset_key: Column whose values are hashed; None: the row's address.
        transform: ``"package.module:function"`` that makes the samples' columns of the
            selected ones, or None.
        transform_version: Names what the function does; changed when it changes.
    """

    columns: tuple[tuple[str, str], ...] | None = None
    with_row_id: bool = False
    filter: str | None = None
    limit: int | None = None
    subset: tuple[float, float] | None = None
    subset_key: str | None = None
    transform: str | None = None
    transform_version: str | None = None

    @property
    def chooses_rows(self) -> bool:
        """Whether rows must be looked at to know which are selected."""
        return self.filter is not None or self.subset is not None

    def as_json(self) -> dict[str, Any]:
        """The selection as JSON values."""
        columns = None if self.columns is None else [list(pair) for pair in self.columns]
        return {
            **self.rows_as_json(),
            "columns": columns,
            "with_row_id": self.with_row_id,
            "transform": self.transform,
            "transform_version": self.transform_version,
        }

    def rows_as_json(self) -> dict[str, Any]:
        """What decides about rows, as JSON values."""
        return {
            "filter": self.filter,
            "limit": self.limit,
            "subset": None if self.subset is None else list(self.subset),
            "subset_key": self.subset_key,
        }

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> Selection:
        """The inverse of ``as_json``."""
        columns, subset, limit = value["columns"], value["subset"], value["limit"]
        return cls(
            columns=None if columns is None else tuple((str(n), str(e)) for n, e in columns),
            with_row_id=bool(value["with_row_id"]),
            filter=_text(value["filter"]),
            limit=None if limit is None else int(limit),
            subset=None if subset is None else (float(subset[0]), float(subset[1])),
            subset_key=_text(value["subset_key"]),
            transform=_text(value["transform"]),
            transform_version=_text(value["transform_version"]),
        )


def _text(value: object) -> str | None:
    return None if value is None else str(value)


def shown(text: str) -> str:
    """A text for an error: a long one without its middle."""
    if len(text) <= _SHOWN:
        return text
    return f"{text[: _SHOWN // 2]} ... {text[-_SHOWN // 2 :]}"
