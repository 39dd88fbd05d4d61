"""What a table is, and what its shards would be; or what an index file says. Reads only."""

from __future__ import annotations

import os
import threading
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa

from lance_stream.errors import EmptyStreamError, UnsupportedTypeError
from lance_stream.offline.attempts import Policy
from lance_stream.offline.request import StreamRequest
from lance_stream.offline.tables import attempt_table, find_index
from lance_stream.planning.index import ShardIndex
from lance_stream.planning.reads import expected_requests, route
from lance_stream.planning.types import sample_schema, sample_type, type_name
from lance_stream.service.fetching import Fetcher
from lance_stream.service.indexing import News
from lance_stream.source.history import History, read_history
from lance_stream.source.location import is_object_store
from lance_stream.source.table import Table

__all__ = ["Column", "Inspected", "TableFacts", "inspect_table", "is_index_file", "shard_facts"]

# So many shards are looked at to tell what one takes.
_LOOKED_AT = 32


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a table, or of a selection.

    Attributes:
        name: Its name.
        arrow_type: Its type in the table.
        sample_type: What a sample holds; None: it cannot be streamed.
        nullable: Whether a sample may hold None.
    """

    name: str
    arrow_type: str
    sample_type: str | None
    nullable: bool


@dataclass(frozen=True, slots=True)
class TableFacts:
    """What the manifests say of a table.

    Attributes:
        uri: The table, or a branch of it.
        version: That was opened.
        rows: Live rows.
        fragments: Files that hold any.
        columns: All of them, or those that are selected.
        history: Versions, tags and branches.
    """

    uri: str
    version: int
    rows: int
    fragments: int
    columns: tuple[Column, ...]
    history: History


@dataclass(frozen=True, slots=True)
class Inspected:
    """A table and its shards.

    Attributes:
        table: The table.
        index: Its shards under the planning arguments; None if it cannot be planned.
        reason: Why not; or why it is not a plan of all columns.
    """

    table: TableFacts
    index: ShardIndex | None
    reason: str | None


def is_index_file(target: str) -> bool:
    """Whether a path or URL is an index rather than a table, as far as its name tells.

    A local file is one; a URL is one if it does not end in ``.lance`` and names a file.
    """
    if "://" not in target or target.startswith("file://"):
        return os.path.isfile(os.path.expanduser(target.removeprefix("file://")))
    name = target.rstrip("/").rpartition("/")[2]
    return not is_object_store(target) or ("." in name and not name.endswith(".lance"))


def inspect_table(request: StreamRequest, news: News) -> Inspected:
    """Look at a table, and plan it.

    Args:
        request: The table and the planning arguments.
        news: Told of rows that are looked at.

    Raises:
        LanceStreamError: It cannot be opened, or an argument is wrong.
    """
    fetcher, stop = Fetcher(), threading.Event()
    policy = request.policy(stop)
    selection = request.wanted.selection

    def look(uri: str, table: Table) -> TableFacts:
        fragments = table.fragment_rows()
        return TableFacts(
            uri=uri,
            version=table.version,
            rows=fragments.num_rows,
            fragments=len(fragments.ids),
            columns=tuple(_column(field) for field in table.schema(selection)),
            history=read_history(table.dataset),
        )

    plan = request.wanted.request(timeout_s=policy.timeout_s, attempts=policy.attempts)
    facts = attempt_table(lambda: fetcher.look_up(plan, look), plan.uri, policy)
    # From here on the same version, whoever writes meanwhile.
    pinned = replace(request, wanted=request.wanted.at(facts.uri, facts.version))
    return Inspected(facts, *_planned(fetcher, pinned, facts, policy, news))


def _planned(
    fetcher: Fetcher, request: StreamRequest, facts: TableFacts, policy: Policy, news: News
) -> tuple[ShardIndex | None, str | None]:
    """The index, and what is to be said of it."""
    wanted, reason = request.wanted, None
    bad = [column.name for column in facts.columns if column.sample_type is None]
    good = [column.name for column in facts.columns if column.sample_type is not None]
    if bad and wanted.selection.columns is None:
        reason = f"without the columns of unsupported types: {', '.join(bad)}"
        if not good:
            return None, "no column can be streamed"
        names = tuple((name, name) for name in good if name != "_rowid")
        selection = replace(wanted.selection, columns=names)
        request = replace(request, wanted=replace(wanted, selection=selection))
    try:
        return find_index(request, fetcher, policy, news), reason
    except (EmptyStreamError, UnsupportedTypeError) as error:
        return None, str(error)


def _column(field: pa.Field) -> Column:
    try:
        held = sample_type(sample_schema(pa.schema([field]), "").field(0))
    except UnsupportedTypeError:
        held = None
    return Column(field.name, type_name(field), held, field.nullable)


def shard_facts(index: ShardIndex) -> dict[str, Any]:
    """What the shards of an index take, in JSON values; looks at some of them. Pure."""
    count = index.num_shards
    some = sorted({round(at * (count - 1) / _LOOKED_AT) for at in range(_LOOKED_AT + 1)})
    rows = [len(index.shard_rows(shard)) for shard in some]
    sizes = [index.shard_bytes(shard) for shard in some]
    requests = [_requests(index, shard) for shard in some]
    return {
        "num_shards": count,
        "rows_per_shard": max(rows),
        "estimated_shard_bytes": max(sizes),
        "requests_per_shard": round(sum(requests) / len(requests), 1),
    }


def _requests(index: ShardIndex, shard: int) -> int:
    columns = len(index.selection.columns or index.schema)
    way = route(
        index.fragments,
        index.table_rows(shard),
        row_bytes=index.row_size.mean_bytes,
        num_columns=columns,
    )
    return expected_requests(way, columns)
