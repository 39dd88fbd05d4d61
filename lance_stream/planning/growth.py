"""Whether a table that is followed was only appended to, and where its rows are now. Pure.

Rows are numbered in the order in which they were appended. That is the order of the table until it
is compacted: Lance sorts fragments by number, and the fragment that takes the place of small ones
in the middle of a table gets a new number, so that its rows come last. What moved is known by the
fragments that a compaction names, or by stable row ids.

Fragments are numbered in the order of their making, never twice. So a version whose fragments are
those of an earlier one, followed by new ones numbered without a gap and without deletions, has
been appended to and nothing else, however many versions lie between. The table keeps the highest
number that any fragment ever had: one that was appended and is gone again leaves a gap, also if
it was the last.
"""

from __future__ import annotations

import hashlib
import re
from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from dataclasses import field as made
from itertools import accumulate
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lance_stream.planning.row_order import RowOrder, extended, joined, paired
from lance_stream.planning.rows import RowRange

__all__ = [
    "Column",
    "Fragment",
    "Operation",
    "Seen",
    "Version",
    "appended",
    "changed_column",
    "is_plain",
    "mentioned",
    "refused_by_row_ids",
    "rows_identity",
    "stepped",
]

_STRINGS = re.compile(r"""(`[^`]*`|"[^"]*")|'[^']*'""")
# What Lance calls a change of columns, of rows that stay.
_COLUMNS = ("Merge", "Project")


@dataclass(frozen=True, slots=True)
class Fragment:
    """A fragment of one version.

    Attributes:
        id: Its number.
        rows: Live rows.
        files: Path of each data file, and the numbers of the fields in it.
        deletions: What names the file of deletions; None for none.
        overlays: Paths of files that replace values.
    """

    id: int
    rows: int
    files: tuple[tuple[str, tuple[int, ...]], ...]
    deletions: tuple[int, int] | None = None
    overlays: tuple[str, ...] = ()

    @property
    def is_untouched(self) -> bool:
        """Whether no row was deleted or changed since it was made."""
        return self.deletions is None and not self.overlays


@dataclass(frozen=True, slots=True)
class Operation:
    """What made a version.

    Attributes:
        name: As Lance calls it.
        groups: Of a compaction: fragments that were read, and those that took their place.
    """

    name: str
    groups: tuple[tuple[tuple[int, ...], tuple[int, ...]], ...] = ()


@dataclass(frozen=True, slots=True)
class Column:
    """A column at the top of a table.

    Attributes:
        kind: Its type; empty if that is not known.
        ids: Number of its field, and of those in it. Lance gives them to no other column of a
            version, and a column keeps them when it is renamed, but not when it is retyped.
    """

    kind: str
    ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Version:
    """A version of a table, as far as it is looked at.

    Attributes:
        number: Its number.
        fragments: In table order.
        last_fragment: Highest number that a fragment of the table ever had; -1 if none was made.
        next_row_id: The stable row id that the next row will get; None without such ids.
        columns: By name.
    """

    number: int
    fragments: Sequence[Fragment]
    last_fragment: int
    next_row_id: int | None = None
    columns: Mapping[str, Column] = made(default_factory=dict)

    @property
    def rows(self) -> int:
        """Live rows."""
        return sum(fragment.rows for fragment in self.fragments)


@dataclass(frozen=True, slots=True)
class Seen:
    """What is kept of a version that was looked at, to compare a later one with.

    Attributes:
        version: Its number.
        rows: Live rows.
        num_fragments: How many.
        last_fragment: Highest number that a fragment of the table ever had; -1 if none was made.
        digest: Of the fragments.
        order: Where the rows are, in the order of appending.
        next_row_id: The stable row id that the next row will get; None without such ids.
    """

    version: int
    rows: int
    num_fragments: int
    last_fragment: int
    digest: str
    order: RowOrder
    next_row_id: int | None = None

    @classmethod
    def of(cls, version: Version, order: RowOrder) -> Seen:
        """What is kept of a version."""
        return cls(
            version=version.number,
            rows=version.rows,
            num_fragments=len(version.fragments),
            last_fragment=version.last_fragment,
            digest=_digest(version.fragments),
            order=order,
            next_row_id=version.next_row_id,
        )

    def is_of(self, fragments: Sequence[Fragment]) -> bool:
        """Whether the fragments are those that were seen."""
        return len(fragments) == self.num_fragments and _digest(fragments) == self.digest

    def as_json(self) -> dict[str, Any]:
        """JSON values, small whatever the table."""
        return {
            "version": self.version,
            "rows": self.rows,
            "fragments": self.num_fragments,
            "last_fragment": self.last_fragment,
            "digest": self.digest,
            "order": [[part.start, part.stop] for part in self.order],
            "next_row_id": self.next_row_id,
        }

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> Seen:
        """The inverse of ``as_json``; KeyError, TypeError or ValueError for anything else."""
        next_row_id = value["next_row_id"]
        return cls(
            version=int(value["version"]),
            rows=int(value["rows"]),
            num_fragments=int(value["fragments"]),
            last_fragment=int(value["last_fragment"]),
            digest=str(value["digest"]),
            order=tuple(RowRange(int(start), int(stop)) for start, stop in value["order"]),
            next_row_id=None if next_row_id is None else int(next_row_id),
        )


def is_plain(fragments: Sequence[Fragment]) -> bool:
    """Whether a table has only ever been appended to: its order is that of appending."""
    numbered = all(fragment.id == at for at, fragment in enumerate(fragments))
    return numbered and all(fragment.is_untouched for fragment in fragments)


def appended(seen: Seen, version: Version) -> Seen | None:
    """What is kept of a later version if it was appended to and nothing else; else None."""
    old, new = version.fragments[: seen.num_fragments], version.fragments[seen.num_fragments :]
    if not seen.is_of(old) or not _follow(seen.last_fragment, new):
        return None
    if version.last_fragment != seen.last_fragment + len(new):
        # Fragments came and went.
        return None
    rows = sum(fragment.rows for fragment in new)
    return Seen.of(version, extended(seen.order, seen.rows, rows))


def stepped(
    order: RowOrder,
    before: Sequence[Fragment],
    after: Sequence[Fragment],
    operation: Callable[[], Operation],
    kept: frozenset[int] | None = None,
) -> RowOrder | str:
    """Follow the rows from one version to the next.

    Args:
        order: Where the rows are in the version before.
        before: Its fragments.
        after: Those of the version that follows it.
        operation: Tells what made that version; asked where the fragments do not say it.
        kept: Numbers of the fields whose values must stay; None: all.

    Returns:
        Where the rows are now; or, if rows were changed or removed, what was done.
    """
    new = after[len(before) :]
    if list(after[: len(before)]) == list(before) and all(f.is_untouched for f in new):
        old_rows = sum(fragment.rows for fragment in before)
        return extended(order, old_rows, sum(fragment.rows for fragment in new))
    made = operation()
    if made.name == "Rewrite":
        return _moved(order, before, after, made.groups) or "a compaction that lost rows"
    if _columns_only(before, after, kept, rewrites=made.name in _COLUMNS):
        return order
    return made.name


def mentioned(names: Iterable[str], texts: Iterable[str]) -> tuple[str, ...]:
    """The columns that SQL may go by: whose name is a word of it, in whatever case and place.

    That may be one too many, never one too few.
    """
    # Strings are no names; a quote in a quoted name begins no string.
    text = "\n".join(_STRINGS.sub(lambda found: found[1] or " ", each) for each in texts)
    return tuple(
        name
        for name in names
        if re.search(rf"(?<!\w){re.escape(name)}(?!\w)", text, re.IGNORECASE)
    )


def changed_column(
    known: Mapping[str, Column], now: Mapping[str, Column]
) -> tuple[str, str] | None:
    """What a column was, and what became of it, in words; None: all are what they were."""
    for name, column in known.items():
        found = now.get(name)
        if found is not None and found.ids == column.ids:
            continue
        if found is None:
            what = "was dropped or renamed"
        elif found.kind != column.kind and column.kind:
            what = f"is {found.kind}"
        elif found.ids[0] == column.ids[0]:
            what = f"has other fields inside ({found.kind})"
        else:
            what = f"is another column of that name ({found.kind})"
        return f"column {name!r} was {column.kind or 'there'}", what
    return None


def refused_by_row_ids(
    seen: Seen,
    ids: NDArray[np.uint64],
    created: NDArray[np.uint64],
    updated: NDArray[np.uint64],
    next_row_id: int | None,
) -> str | None:
    """Whether stable row ids show that rows were changed or removed since a version was seen.

    Args:
        seen: That version.
        ids: uint64 array (live rows,), in table order.
        created: Version in which each row was appended; same shape.
        updated: Version in which each row was changed last; same shape.
        next_row_id: The id that the next row will get.

    Returns:
        What was done, or None: the table was only appended to.
    """
    order = np.argsort(ids, kind="stable")
    created, updated = created[order], updated[order]
    num_old = int(np.count_nonzero(created <= seen.version))
    if num_old != seen.rows:
        return f"{seen.rows - num_old} rows were deleted"
    if np.any(created[: seen.rows] > seen.version):
        return "rows are not in the order in which they were appended"
    changed = np.count_nonzero(updated > np.maximum(created, np.uint64(seen.version)))
    changed += np.count_nonzero(updated[seen.rows :] > created[seen.rows :])
    if changed:
        return "rows were updated"
    first = seen.next_row_id
    new = ids[order][seen.rows :].astype(np.int64)
    if (
        first is None
        or next_row_id != first + len(new)
        or not np.array_equal(new, first + np.arange(len(new)))
    ):
        return "rows that were appended since are missing"
    return None


def rows_identity(
    fragments: Sequence[Fragment],
    ranges: Sequence[RowRange],
    columns: Mapping[str, Column] | None = None,
) -> str:
    """Name the content of live rows, 32 hex characters: by the files that they are in.

    And by which field of these each column is: names can be given to other columns.
    """
    stops = list(accumulate(fragment.rows for fragment in fragments))
    hasher = hashlib.blake2b(digest_size=16)
    fields = sorted((name, column.ids) for name, column in (columns or {}).items())
    hasher.update(f"{fields}\n".encode())
    for rows in ranges:
        at = bisect_right(stops, rows.start)
        while at < len(fragments) and stops[at] - fragments[at].rows < rows.stop:
            before = stops[at] - fragments[at].rows
            inside = max(rows.start - before, 0), min(rows.stop - before, fragments[at].rows)
            hasher.update(f"{_text(fragments[at])} {inside}\n".encode())
            at += 1
    return hasher.hexdigest()


def _text(fragment: Fragment) -> str:
    return repr(
        (fragment.id, fragment.rows, fragment.files, fragment.deletions, fragment.overlays)
    )


def _digest(fragments: Iterable[Fragment]) -> str:
    hasher = hashlib.blake2b(digest_size=16)
    for fragment in fragments:
        hasher.update(f"{_text(fragment)}\n".encode())
    return hasher.hexdigest()


def _follow(last: int, new: Sequence[Fragment]) -> bool:
    """Whether fragments were appended one after the other, and left as they are."""
    return all(f.id == last + 1 + at and f.is_untouched for at, f in enumerate(new))


def _columns_only(
    before: Sequence[Fragment],
    after: Sequence[Fragment],
    kept: frozenset[int] | None,
    *,
    rewrites: bool,
) -> bool:
    """Whether only columns were added or dropped, and the values of those that are kept stayed.

    Args:
        before: Fragments of a version.
        after: Those of the next.
        kept: Numbers of the fields whose values must stay; None: all.
        rewrites: Whether files of other columns may be changed too.
    """
    if len(before) != len(after):
        return False

    def stay(old: Fragment, new: Fragment) -> bool:
        if kept is not None and _homes(old, kept) != _homes(new, kept):
            return False
        # A retyped column has a new field in a new file; its old place is marked as empty.
        may_differ = rewrites and kept is not None
        return may_differ or _nested(set(old.files), set(new.files))

    return all(
        (old.id, old.rows, old.deletions, old.overlays)
        == (new.id, new.rows, new.deletions, new.overlays)
        and stay(old, new)
        for old, new in zip(before, after, strict=True)
    )


def _nested(some: set[Any], others: set[Any]) -> bool:
    return some <= others or others <= some


def _homes(fragment: Fragment, kept: frozenset[int]) -> list[tuple[int, int, str]]:
    """Where the values of fields are: number, place among the fields of a file, and the file."""
    return sorted(
        (field, at, path)
        for path, fields in fragment.files
        for at, field in enumerate(fields)
        if field in kept
    )


def _moved(
    order: RowOrder,
    before: Sequence[Fragment],
    after: Sequence[Fragment],
    groups: Iterable[tuple[Sequence[int], Sequence[int]]],
) -> RowOrder | None:
    """Where the rows are after a compaction; None if some are not there, or others are."""
    old, new = _places(before), _places(after)
    pieces: list[tuple[RowRange, int]] = []
    left_old, left_new = dict(old), dict(new)
    for reads, makes in groups:
        if not (set(reads) <= set(left_old) and set(makes) <= set(left_new)):
            return None
        sources = [left_old.pop(fragment)[1] for fragment in reads]
        made = [left_new.pop(fragment) for fragment in makes]
        if not all(fragment.is_untouched for fragment, _ in made):
            return None
        targets = [rows for _, rows in made]
        if sum(map(len, sources)) != sum(map(len, targets)):
            return None
        pieces += paired(sources, targets)
    if left_old.keys() != left_new.keys():
        return None
    for fragment, (was, rows) in left_old.items():
        if left_new[fragment][0] != was:
            return None
        pieces.append((rows, left_new[fragment][1].start))
    pieces.sort(key=lambda piece: piece[0].start)
    starts = [rows.start for rows, _ in pieces]
    found = []
    for part in order:
        at, start = bisect_right(starts, part.start) - 1, part.start
        while start < part.stop:
            rows, target = pieces[at]
            stop = min(part.stop, rows.stop)
            found.append(RowRange(target + start - rows.start, target + stop - rows.start))
            start, at = stop, at + 1
    return joined(found)


def _places(fragments: Sequence[Fragment]) -> dict[int, tuple[Fragment, RowRange]]:
    """Each fragment that has rows, and where they are."""
    stops = accumulate(fragment.rows for fragment in fragments)
    return {
        fragment.id: (fragment, RowRange(stop - fragment.rows, stop))
        for fragment, stop in zip(fragments, stops, strict=True)
    }
