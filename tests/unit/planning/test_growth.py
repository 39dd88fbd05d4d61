"""Whether a table was only appended to, and where rows are: against a plain list of rows."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lance_stream.planning.growth import (
    Column,
    Fragment,
    Operation,
    Seen,
    Version,
    appended,
    changed_column,
    is_plain,
    mentioned,
    refused_by_row_ids,
    rows_identity,
    stepped,
)
from lance_stream.planning.row_order import by_row_ids, cut, joined
from lance_stream.planning.rows import RowRange


def fragment(number: int, rows: int, name: str = "") -> Fragment:
    return Fragment(number, rows, ((name or f"{number}.lance", (0, 1)),))


def never() -> Operation:
    raise AssertionError("nobody need ask what was done")


FRAGMENTS = [fragment(0, 40), fragment(1, 5), fragment(2, 5), fragment(3, 40)]
ALL = (RowRange(0, 90),)
SEEN = Seen.of(Version(4, FRAGMENTS, 3, 90), ALL)


class Table:
    """A table as Lance keeps it: fragments sorted by number; here each holds its rows."""

    def __init__(self) -> None:
        self.rows = 0
        self.next_id = 0
        self.held: dict[int, list[int]] = {}

    def append(self, rows: int) -> None:
        self.held[self.next_id] = list(range(self.rows, self.rows + rows))
        self.rows += rows
        self.next_id += 1

    def compact(self, first: int, count: int, into: int) -> Operation | None:
        old = sorted(self.held)[first : first + count]
        rows = [row for number in old for row in self.held.pop(number)]
        if not rows:
            return None
        new = []
        for part in np.array_split(rows, min(into, len(rows))):
            self.held[self.next_id] = part.tolist()
            new.append(self.next_id)
            self.next_id += 1
        return Operation("Rewrite", ((tuple(old), tuple(new)),))

    def fragments(self) -> list[Fragment]:
        return [fragment(number, len(rows)) for number, rows in sorted(self.held.items())]

    def scan(self) -> list[int]:
        return [row for _, rows in sorted(self.held.items()) for row in rows]


@given(
    st.lists(
        st.one_of(
            st.integers(1, 9),
            st.tuples(st.integers(0, 6), st.integers(1, 4), st.integers(1, 3)),
        ),
        min_size=1,
        max_size=25,
    )
)
def test_rows_are_followed_through_appends_and_compactions(
    changes: list[int | tuple[int, int, int]],
) -> None:
    table = Table()
    table.append(3)
    order, before = joined([RowRange(0, 3)]), table.fragments()
    for change in changes:
        operation: Operation | None = Operation("Append")
        if isinstance(change, int):
            table.append(change)
        else:
            operation = table.compact(*change)
            if operation is None:
                continue
        after = table.fragments()
        found = stepped(order, before, after, lambda made=operation: made)
        assert not isinstance(found, str)
        order, before = found, after
    scanned = table.scan()
    rows = [row for part in order for row in scanned[part.start : part.stop]]
    assert rows == list(range(table.rows))
    assert by_row_ids(np.array(scanned, np.uint64)) == order
    start, stop = table.rows // 3, table.rows // 3 + 1 + table.rows // 2
    chosen = [row for part in cut(order, start, stop) for row in scanned[part.start : part.stop]]
    assert chosen == list(range(start, stop))


def test_new_fragments_without_a_gap_are_appends() -> None:
    more = [*FRAGMENTS, fragment(4, 7), fragment(5, 1)]
    found = appended(SEEN, Version(9, more, 5, 98))
    assert found is not None
    assert (found.version, found.rows, found.last_fragment, found.order) == (
        9,
        98,
        5,
        (RowRange(0, 98),),
    )
    assert found.next_row_id == 98
    assert Seen.from_json(json.loads(json.dumps(found.as_json()))) == found
    assert appended(SEEN, Version(4, FRAGMENTS, 3, 90)) == SEEN


def test_a_fragment_that_came_and_went_must_be_looked_at() -> None:
    """Before the next append and after it; not again when it was looked at."""
    assert appended(SEEN, Version(6, FRAGMENTS, 4)) is None
    assert appended(SEEN, Version(7, [*FRAGMENTS, fragment(5, 7)], 5)) is None
    assert appended(SEEN, Version(7, [*FRAGMENTS, fragment(4, 7)], 5)) is None
    later = Seen.of(Version(6, FRAGMENTS, 4), ALL)
    assert appended(later, Version(7, [*FRAGMENTS, fragment(5, 7)], 5)) is not None


@pytest.mark.parametrize(
    "changed",
    [
        FRAGMENTS[:3],
        [*FRAGMENTS, fragment(5, 7)],
        [*FRAGMENTS, replace(fragment(4, 6), deletions=(4, 1))],
        [*FRAGMENTS, replace(fragment(4, 6), overlays=("o",))],
        [replace(FRAGMENTS[0], rows=39, deletions=(4, 1)), *FRAGMENTS[1:], fragment(4, 1)],
        [*FRAGMENTS[:3], fragment(3, 40, "another.lance"), fragment(4, 1)],
        [FRAGMENTS[0], *FRAGMENTS[2:], fragment(4, 10)],
    ],
    ids=["fewer", "gap", "deleted ahead", "overlay", "deleted", "other file", "gone"],
)
def test_anything_else_must_be_looked_at(changed: list[Fragment]) -> None:
    last = max(fragment.id for fragment in changed)
    assert appended(SEEN, Version(9, changed, last)) is None


@pytest.mark.parametrize("name", ["Update", "Delete", "Overwrite", "Restore", "unheard of"])
def test_what_changes_rows_is_named(name: str) -> None:
    after = [replace(FRAGMENTS[0], rows=37, deletions=(4, 1)), *FRAGMENTS[1:], fragment(4, 3)]
    assert stepped(ALL, FRAGMENTS, after, lambda: Operation(name)) == name


def test_a_fragment_that_was_rewritten_whole_by_an_update_is_no_compaction() -> None:
    """It looks like one: the last fragment is gone, another has as many rows."""
    after = [*FRAGMENTS[:3], fragment(4, 40)]
    assert stepped(ALL, FRAGMENTS, after, lambda: Operation("Update")) == "Update"
    made = Operation("Rewrite", (((3,), (4,)),))
    assert stepped(ALL, FRAGMENTS, after, lambda: made) == ALL


@pytest.mark.parametrize(
    ("after", "groups"),
    [
        ([*FRAGMENTS[:3], fragment(4, 39)], [((3,), (4,))]),
        ([*FRAGMENTS[:3], replace(fragment(4, 40), deletions=(1, 1))], [((3,), (4,))]),
        ([*FRAGMENTS[:3], fragment(5, 40)], [((3,), (4,))]),
        ([*FRAGMENTS[:2], fragment(4, 40)], [((3,), (4,))]),
        ([*FRAGMENTS[:3], fragment(4, 40), fragment(5, 1)], [((3,), (4,))]),
    ],
    ids=["lost a row", "deletions", "another", "lost a fragment", "one more"],
)
def test_a_compaction_that_is_not_whole_is_refused(
    after: list[Fragment], groups: list[tuple[tuple[int, ...], tuple[int, ...]]]
) -> None:
    made = Operation("Rewrite", tuple(groups))
    assert stepped(ALL, FRAGMENTS, after, lambda: made) == "a compaction that lost rows"


def test_columns_may_be_added_and_dropped_but_not_changed() -> None:
    old = FRAGMENTS[:1]
    wider = [replace(old[0], files=(*old[0].files, ("more.lance", (2,))))]
    rewritten = [replace(old[0], files=(("0.lance", (0, -2)), ("more.lance", (1,))))]
    assert stepped(ALL, old, wider, lambda: Operation("Merge")) == ALL
    assert stepped(ALL, wider, old, lambda: Operation("Project")) == ALL
    assert stepped(ALL, old, rewritten, lambda: Operation("Merge")) == "Merge"
    assert stepped(ALL, old, old, never) == ALL


def test_a_column_that_is_not_kept_may_be_rewritten() -> None:
    """As by a change of its type: its old place is marked, the new one is in a new file."""
    old = FRAGMENTS[:1]
    retyped = [replace(old[0], files=(("0.lance", (0, -2)), ("more.lance", (2,))))]
    only, both = frozenset({0}), frozenset({0, 1})
    assert stepped(ALL, old, retyped, lambda: Operation("Merge"), only) == ALL
    assert stepped(ALL, old, retyped, lambda: Operation("Merge"), both) == "Merge"
    assert stepped(ALL, old, retyped, lambda: Operation("Update"), only) == "Update"
    moved = [replace(old[0], files=(("other.lance", (0, 1)),))]
    assert stepped(ALL, old, moved, lambda: Operation("Merge"), only) == "Merge"
    # Nulls that were in no file, and now are values.
    filled = [replace(old[0], files=(*old[0].files, ("more.lance", (7,))))]
    assert stepped(ALL, old, filled, lambda: Operation("Merge"), frozenset({0, 7})) == "Merge"


def test_a_column_is_known_by_its_fields() -> None:
    known = {"v": Column("double", (1,)), "s": Column("", (2, 3))}
    assert changed_column(known, {**known, "w": Column("int64", (4,))}) is None
    for changes, says in (
        ({"v": Column("double", (4,))}, ("double", "is another column of that name (double)")),
        ({"v": Column("float", (4,))}, ("double", "is float")),
        ({"s": Column("struct", (2, 4))}, ("there", "has other fields inside (struct)")),
        ({"s": Column("struct", (5, 3))}, ("there", "is another column of that name (struct)")),
    ):
        (name,) = changes
        was, what = says
        found = changed_column(known, {**known, **changes})
        assert found == (f"column {name!r} was {was}", what)
    assert changed_column(known, {"s": known["s"]}) == (
        "column 'v' was double",
        "was dropped or renamed",
    )


def test_columns_that_sql_goes_by() -> None:
    names = ["v", "a b", "Kind", "s", "ü", "val", "a.b", "it's", "t"]
    texts = ["v * 2 > val1", "`a b` + s.x", "kind = 'val''t' OR `it's` = ü OR \"ü\" = 'val'"]
    assert mentioned(names, texts) == ("v", "a b", "Kind", "s", "ü", "it's")
    assert mentioned(names, []) == ()
    assert mentioned(["v", "s"], ["x = 'v", "s > 1"]) == ("v", "s")


def test_a_plain_table() -> None:
    assert is_plain(FRAGMENTS)
    assert is_plain([])
    assert not is_plain(FRAGMENTS[1:])
    assert not is_plain([replace(FRAGMENTS[0], deletions=(1, 1))])


def test_rows_are_named_by_their_files_and_places() -> None:
    base = rows_identity(FRAGMENTS, [RowRange(42, 60)])
    assert rows_identity([*FRAGMENTS, fragment(4, 9)], [RowRange(42, 60)]) == base
    others = [
        rows_identity(FRAGMENTS, [RowRange(43, 60)]),
        rows_identity(FRAGMENTS, [RowRange(42, 61)]),
        rows_identity([*FRAGMENTS[:3], fragment(3, 40, "x")], [RowRange(42, 60)]),
        rows_identity(FRAGMENTS, [RowRange(50, 60), RowRange(42, 50)]),
    ]
    columns = [{"v": Column("int64", (1,))}, {"v": Column("int64", (2,))}]
    others += [rows_identity(FRAGMENTS, [RowRange(42, 60)], each) for each in columns]
    assert len({base, *others}) == 7


def test_cut_is_checked() -> None:
    order = (RowRange(0, 4), RowRange(9, 12), RowRange(4, 9))
    assert cut(order, 3, 8) == (RowRange(3, 4), RowRange(9, 12), RowRange(4, 5))
    assert cut(order, 4, 7) == (RowRange(9, 12),)
    for start, stop in ((0, 0), (3, 13), (-1, 2), (12, 12)):
        with pytest.raises(IndexError, match="are not among 12"):
            cut(order, start, stop)
    with pytest.raises(IndexError, match="are not among 0"):
        cut((), 0, 1)


IDS = np.array([0, 1, 4, 5, 6, 2, 3], np.uint64)
MADE = np.array([1, 1, 3, 7, 7, 2, 2], np.uint64)
KNOWN = Seen(5, 5, 3, 2, "", joined([RowRange(0, 5)]), next_row_id=5)


def test_row_ids_prove_that_rows_were_only_appended_and_moved() -> None:
    assert refused_by_row_ids(KNOWN, IDS, MADE, MADE, 7) is None
    assert by_row_ids(IDS) == (RowRange(0, 2), RowRange(5, 7), RowRange(2, 5))
    assert by_row_ids(IDS[:0]) == ()


def test_row_ids_show_what_else_was_done() -> None:
    updated = MADE.copy()
    updated[1] = 6
    assert refused_by_row_ids(KNOWN, IDS, MADE, updated, 7) == "rows were updated"
    updated = MADE.copy()
    updated[3] = 8
    assert refused_by_row_ids(KNOWN, IDS, MADE, updated, 7) == "rows were updated"
    assert refused_by_row_ids(KNOWN, IDS[1:], MADE[1:], MADE[1:], 7) == "1 rows were deleted"
    gap = np.delete(IDS, 3), np.delete(MADE, 3)
    missing = "rows that were appended since are missing"
    assert refused_by_row_ids(KNOWN, *gap, gap[1], 7) == missing
    assert refused_by_row_ids(KNOWN, IDS, MADE, MADE, 8) == missing
    unknown = replace(KNOWN, next_row_id=None)
    assert refused_by_row_ids(unknown, IDS, MADE, MADE, 7) == missing
    swapped = MADE.copy()
    swapped[[0, 3]] = [7, 1]
    text = "rows are not in the order in which they were appended"
    assert refused_by_row_ids(KNOWN, IDS, swapped, swapped, 7) == text
