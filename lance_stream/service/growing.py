"""Look at tables that are followed: have they grown, and was nothing else done to them?"""

from __future__ import annotations

import json
import threading
from collections import OrderedDict
from collections.abc import Mapping, Sequence

from lance_stream.errors import TableChangedError
from lance_stream.planning import growth
from lance_stream.planning.fingerprint import table_identity
from lance_stream.planning.growth import Column, Seen, Version
from lance_stream.planning.row_order import by_row_ids, cut, joined
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
    now, where = table.now(), redact(table.uri)
    known = {name: Column(kind, ids) for name, kind, ids in request.fields}
    if request.seen:
        before = Seen.from_json(json.loads(request.seen))
        seen = _since(where, before, table, now, known, news)
        _check_columns(where, before, now, known)
    else:
        seen = _first(table, now)
    fields = {name: now.columns[name] for name in known or _followed(now, request)}
    complete = all(stop <= seen.rows for _, stop in request.parts)
    parts = [
        growth.rows_identity(now.fragments, cut(seen.order, start, stop), fields)
        for start, stop in (request.parts if complete else ())
    ]
    return Polled(
        uri=table.uri,
        seen=json.dumps(seen.as_json()),
        identity=table_identity(table.manifest()),
        parts=tuple(parts),
        table_columns=tuple((field.name, type_name(field)) for field in table.schema),
        columns=_selected(table, request),
        fields=tuple((name, column.ids) for name, column in fields.items()),
    )


def _followed(now: Version, request: Poll) -> Sequence[str]:
    """The columns that rounds go by: the selected ones, and those in expressions and filters."""
    if request.columns is None:
        return list(now.columns)
    # The name of a column is that, whatever it would be as SQL.
    plain = {sql for _, sql in request.columns if sql in now.columns}
    texts = [*(sql for _, sql in request.columns if sql not in plain), *request.texts]
    found = {*plain, *growth.mentioned(now.columns, texts)}
    return [name for name in now.columns if name in found]


def _selected(table: GrowingTable, request: Poll) -> tuple[tuple[str, str], ...]:
    """Name and type of each selected column; a column that is gone is left out."""
    if request.columns is None:
        return tuple((field.name, type_name(field)) for field in table.schema)
    names = set(table.schema.names)
    if all(name == expression for name, expression in request.columns):
        there = [name for name, _ in request.columns if name in names]
        return tuple((name, type_name(table.schema.field(name))) for name in there)
    return tuple((f.name, type_name(f)) for f in table.selected_schema(request.columns))


def _first(table: GrowingTable, now: Version) -> Seen:
    """What is kept of a table that was not seen before: it is taken as it is."""
    if table.has_row_ids and not growth.is_plain(now.fragments):
        return Seen.of(now, by_row_ids(table.row_ids().ids))
    return Seen.of(now, joined([RowRange(0, now.rows)]))


def _check_columns(where: str, seen: Seen, now: Version, known: Mapping[str, Column]) -> None:
    changed = growth.changed_column(known, now.columns)
    if changed is not None:
        was, what = changed
        msg = (
            f"{where}: {was} up to version {seen.version}, and {what} in version {now.number}: "
            "follow() goes by the same columns throughout. Give columns=, filter= and "
            "subset_key= without it, and start without the state"
        )
        raise TableChangedError(msg)


def _since(
    where: str,
    seen: Seen,
    table: GrowingTable,
    now: Version,
    known: Mapping[str, Column],
    news: News,
) -> Seen:
    """What is kept of the version at hand, if it was only appended to since one was seen."""
    version = now.number
    if version < seen.version or (version == seen.version and not seen.is_of(now.fragments)):
        msg = (
            f"{where} has version {version}, and version {seen.version} of another content was "
            f"seen before: the table was made again or restored. {_START_ANEW}"
        )
        raise TableChangedError(msg)
    grown = growth.appended(seen, now)
    if grown is not None:
        return grown
    before = table.at(seen.version)
    if before is None:
        return _by_row_ids(where, seen, table, now)
    if not seen.is_of(before.fragments):
        msg = (
            f"{where}: version {seen.version} is not what it was when it was seen: the table was "
            f"made again at the same uri. {_START_ANEW}"
        )
        raise TableChangedError(msg)
    order = seen.order
    kept = frozenset(i for column in known.values() for i in column.ids) if known else None
    for at in range(seen.version + 1, version + 1):
        news("following versions", at - seen.version, version - seen.version)
        after = now if at == version else table.at(at)
        if after is None:
            return _by_row_ids(where, seen, table, now)
        operations: list[growth.Operation | None] = []

        def operation(at: int = at, found: list = operations) -> growth.Operation:
            found.append(table.operation(at))
            return found[-1] or growth.Operation("unknown")

        result = growth.stepped(order, before.fragments, after.fragments, operation, kept)
        if isinstance(result, str):
            if operations and operations[-1] is None:
                return _by_row_ids(where, seen, table, now)
            raise TableChangedError(_changed(where, seen.version, at, result))
        # In each version: the number of a field that is gone may be given to another.
        _check_columns(where, seen, after, known)
        order, before = result, after
    return Seen.of(now, order)


def _by_row_ids(where: str, seen: Seen, table: GrowingTable, now: Version) -> Seen:
    """Compare by stable row ids, where the versions in between are gone."""
    version = now.number
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
    refused = growth.refused_by_row_ids(
        seen, found.ids, found.created, found.updated, now.next_row_id
    )
    if refused is not None:
        raise TableChangedError(_changed(where, seen.version, version, refused))
    return Seen.of(now, by_row_ids(found.ids))


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
