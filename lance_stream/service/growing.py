"""Look at tables that are followed: have they grown, and was nothing else done to them?"""

from __future__ import annotations

import json
import threading
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import replace

from lance_stream.errors import TableChangedError
from lance_stream.planning import growth
from lance_stream.planning.fingerprint import table_identity
from lance_stream.planning.growth import Fragment, Seen
from lance_stream.planning.rows import RowRange
from lance_stream.planning.types import type_name
from lance_stream.service.indexing import News
from lance_stream.service.messages import Poll, Polled
from lance_stream.source.growth import GrowingTable
from lance_stream.source.location import redact

__all__ = ["GrowingTables", "look"]

_MAX_OPEN = 16
_START_ANEW = (
    "To go on with the table as it is now, start follow() without the state; a table that is "
    "changed in place is streamed one version= at a time"
)


class GrowingTables:
    """Tables that are kept open between two looks. Thread-safe."""

    def __init__(self) -> None:
        """Begin with none."""
        self._lock = threading.Lock()
        self._open: OrderedDict[str, GrowingTable] = OrderedDict()

    def take(self, key: str) -> GrowingTable | None:
        """An open table, for the caller alone until it is put back."""
        with self._lock:
            return self._open.pop(key, None)

    def put(self, key: str, table: GrowingTable) -> None:
        """Keep a table for the next look."""
        with self._lock:
            self._open[key] = table
            while len(self._open) > _MAX_OPEN:
                self._open.popitem(last=False)


def look(table: GrowingTable, request: Poll, news: News) -> Polled:
    """What there is in a table, if it was only appended to since it was seen.

    Args:
        table: At its latest version.
        request: What was seen, and what is asked for.
        news: Told of progress where many versions are looked at.

    Raises:
        TableChangedError: Rows were changed, removed or cannot be followed; says in which version.
        BaseException: Whatever Lance raises.
    """
    fragments, fields = table.fragments(), table.field_ids()
    used = _used(request, fields)
    if request.seen:
        before = Seen.from_json(json.loads(request.seen))
        if before.fields is not None:
            used = tuple(before.fields)
            _check_fields(redact(table.uri), before, table.version, fields, _given(request))
        seen = _since(redact(table.uri), before, table, fragments, news)
    else:
        seen = _first(table, fragments)
    seen = replace(seen, fields={name: fields[name] for name in used if name in fields})
    complete = all(stop <= seen.rows for _, stop in request.parts)
    parts = [
        growth.rows_identity(fragments, growth.cut(seen.order, start, stop))
        for start, stop in (request.parts if complete else ())
    ]
    return Polled(
        uri=table.uri,
        seen=json.dumps(seen.as_json()),
        identity=table_identity(table.manifest()),
        parts=tuple(parts),
        table_columns=tuple((field.name, type_name(field)) for field in table.schema),
        columns=_selected(table, request),
    )


def _used(request: Poll, names: Iterable[str]) -> tuple[str, ...]:
    """Columns of the table that samples, or the choice of rows, are made of."""
    names = tuple(names)
    sql = [expression for name, expression in request.columns or () if name != expression]
    found = set(names) if request.columns is None else _given(request)
    for text in (*sql, request.filter or ""):
        found |= growth.named_in(text, names)
    return tuple(name for name in names if name in found)


def _given(request: Poll) -> set[str]:
    """Columns that are selected as they are."""
    return {name for name, expression in request.columns or () if name == expression}


def _check_fields(
    where: str, before: Seen, version: int, fields: dict[str, int], given: set[str]
) -> None:
    """Refuse a table in which a column is another one than when it was seen."""
    for name, number in (before.fields or {}).items():
        # Those that are selected as they are, are compared with their types by who follows.
        if fields.get(name) == number or name in given:
            continue
        what = "is another one of that name" if name in fields else "was dropped or renamed"
        msg = (
            f"{where}: column {name!r}, which columns= or filter= uses, {what} in version "
            f"{version}, since version {before.version}: follow() streams the same columns "
            f"throughout. {_START_ANEW}"
        )
        raise TableChangedError(msg)


def _selected(table: GrowingTable, request: Poll) -> tuple[tuple[str, str], ...]:
    """Name and type of each selected column; a column that is gone is left out."""
    if request.columns is None:
        return tuple((field.name, type_name(field)) for field in table.schema)
    names = set(table.schema.names)
    if all(name == expression for name, expression in request.columns):
        there = [name for name, _ in request.columns if name in names]
        return tuple((name, type_name(table.schema.field(name))) for name in there)
    return tuple((f.name, type_name(f)) for f in table.selected_schema(request.columns))


def _first(table: GrowingTable, fragments: Sequence[Fragment]) -> Seen:
    """What is kept of a table that was not seen before: it is taken as it is."""
    if not table.has_row_ids:
        rows = sum(fragment.rows for fragment in fragments)
        order = growth.joined([RowRange(0, rows)])
        return Seen.of(table.version, fragments, order, None)
    if growth.is_plain(fragments):
        rows = sum(fragment.rows for fragment in fragments)
        order = growth.joined([RowRange(0, rows)])
        return Seen.of(table.version, fragments, order, rows)
    ids = table.row_ids().ids
    next_id = int(ids.max()) + 1 if len(ids) else None
    return Seen.of(table.version, fragments, growth.by_row_ids(ids), next_id)


def _since(
    where: str, seen: Seen, table: GrowingTable, fragments: Sequence[Fragment], news: News
) -> Seen:
    version = table.version
    if version < seen.version or (version == seen.version and not seen.is_of(fragments)):
        msg = (
            f"{where} has version {version}, and version {seen.version} of another content was "
            f"seen before: the table was made again or restored. {_START_ANEW}"
        )
        raise TableChangedError(msg)
    grown = growth.appended(seen, version, fragments)
    # Where nothing has come, rows may have come and gone: others that look more often saw them.
    if grown is not None and (grown.rows > seen.rows or version == seen.version):
        return grown
    before = table.fragments_at(seen.version)
    if before is None:
        return _by_row_ids(where, seen, table, fragments)
    if not seen.is_of(before):
        msg = (
            f"{where}: version {seen.version} is not what it was when it was seen: the table was "
            f"made again at the same uri. {_START_ANEW}"
        )
        raise TableChangedError(msg)
    order, next_id = seen.order, seen.next_row_id
    for at in range(seen.version + 1, version + 1):
        news("following versions", at - seen.version, version - seen.version)
        after = fragments if at == version else table.fragments_at(at)
        if after is None:
            return _by_row_ids(where, seen, table, fragments)
        operations: list[growth.Operation | None] = []

        def operation(at: int = at, found: list = operations) -> growth.Operation:
            found.append(table.operation(at))
            return found[-1] or growth.Operation("unknown")

        result = growth.stepped(order, before, after, operation)
        if isinstance(result, str):
            if operations and operations[-1] is None:
                return _by_row_ids(where, seen, table, fragments)
            raise TableChangedError(_changed(where, seen.version, at, result))
        if next_id is not None:
            next_id += sum(f.rows for f in after) - sum(f.rows for f in before)
        order, before = result, after
    return Seen.of(version, fragments, order, next_id)


def _by_row_ids(
    where: str, seen: Seen, table: GrowingTable, fragments: Sequence[Fragment]
) -> Seen:
    """Compare by stable row ids, where the versions in between are gone."""
    version = table.version
    if not table.has_row_ids or seen.next_row_id is None:
        msg = (
            f"{where} was rewritten between version {seen.version}, which was seen, and version "
            f"{version}, and the versions in between were cleaned up: whether rows were only "
            "appended and compacted cannot be told. Keep old versions for as long as a follower "
            "may be away, or write the table with enable_stable_row_ids=True. "
            f"{_START_ANEW}"
        )
        raise TableChangedError(msg)
    found = table.row_ids()
    refused = growth.refused_by_row_ids(seen, found.ids, found.created, found.updated)
    if refused is not None:
        raise TableChangedError(_changed(where, seen.version, version, refused))
    next_id = seen.next_row_id + len(found.ids) - seen.rows
    return Seen.of(version, fragments, growth.by_row_ids(found.ids), next_id)


def _changed(where: str, seen: int, version: int, what: str) -> str:
    said = _WORDS.get(what, what)
    return (
        f"{where} is followed, and was changed otherwise than by appending: {said}, between "
        f"version {seen}, which was seen, and version {version}. A round is the same rows for "
        f"ever, so producers may only append, compact, and add or drop columns. {_START_ANEW}"
    )


_WORDS = {
    "Update": "an update or merge (Update)",
    "Delete": "a delete (Delete)",
    "Overwrite": "an overwrite (Overwrite)",
    "Restore": "a restore of an earlier version (Restore)",
    "DataReplacement": "a replacement of data files (DataReplacement)",
    "Merge": "a change of values in columns (Merge)",
}
