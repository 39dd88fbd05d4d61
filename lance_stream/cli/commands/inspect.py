"""Show what a Lance table is and how it would be streamed, or what an index file says.

URI_OR_INDEX is a table (a path, s3://, gs://, az://), or the path or URL of an index of
lance-stream index. Of a table the planning options tell which rows, columns and shards.
"""

from __future__ import annotations

import dataclasses
import sys
from typing import TYPE_CHECKING, Any

import click

from lance_stream.cli.arguments import (
    cache_format_option,
    json_option,
    planning_options,
    progress_option,
    stream_request,
)
from lance_stream.cli.command import WrongArgumentError, subcommand
from lance_stream.cli.output import print_json, print_table, progress_bar, size
from lance_stream.errors import PlanError

if TYPE_CHECKING:
    from lance_stream.offline.inspecting import Inspected
    from lance_stream.planning.index import ShardIndex

__all__ = ["command"]

# Of an index they say nothing.
_ANY = {"uri_or_index", "as_json", "progress", "debug", "download_timeout", "download_retry"}
_MOST = 20


@subcommand(__doc__, "Show a table, its columns and its shards; or an index.")
@click.argument("uri_or_index", metavar="URI_OR_INDEX")
@planning_options
@cache_format_option
@json_option
@progress_option
def command(uri_or_index: str, **values: Any) -> int:
    """Look, and print."""
    # Loads pyarrow and lance.
    from lance_stream.offline.inspecting import inspect_table, is_index_file  # noqa: PLC0415
    from lance_stream.source.location import is_object_store  # noqa: PLC0415

    if is_index_file(uri_or_index):
        try:
            return _show_index(uri_or_index, as_json=values["as_json"])
        except PlanError:
            # A table may have a dot in its name.
            if not is_object_store(uri_or_index):
                raise
    stream = stream_request(uri_or_index, values)
    with progress_bar(values["progress"], "rows") as news:
        found = inspect_table(stream, news)
    if values["as_json"]:
        print_json(_table_json(found))
    else:
        _print_table(found)
    return 0


def _show_index(target: str, *, as_json: bool) -> int:
    from lance_stream.service.wanted import load_index  # noqa: PLC0415

    context = click.get_current_context()
    given = [
        f"--{name.replace('_', '-')}"
        for name in context.params
        if name not in _ANY
        and context.get_parameter_source(name) is click.core.ParameterSource.COMMANDLINE
    ]
    index, _ = load_index(target)
    if given:
        msg = f"{target} is an index, which was made with its own options: leave out "
        raise WrongArgumentError(msg + ", ".join(given))
    if as_json:
        print_json({"kind": "index", **index.describe(), "shards": _shards_json(index)})
        return 0
    sys.stdout.write(
        f"Index of {index.uri} version {index.version}, fingerprint {index.fingerprint}\n"
    )
    _print_selection(index)
    columns = index.describe()["columns"]
    _print_columns([(name, kind, _sample_type(index, name)) for name, kind in columns.items()])
    _print_shards(index)
    return 0


def _sample_type(index: ShardIndex, name: str) -> str:
    from lance_stream.planning.types import sample_type  # noqa: PLC0415

    return sample_type(index.schema.field(name)) or "unsupported"


def _table_json(found: Inspected) -> dict[str, Any]:
    table, history = found.table, found.table.history
    return {
        "kind": "table",
        "uri": table.uri,
        "version": table.version,
        "latest_version": history.versions[-1] if history.versions else table.version,
        "num_versions": len(history.versions),
        "latest_written": history.written,
        "tags": history.tags,
        "branches": list(history.branches),
        "num_rows": table.rows,
        "num_fragments": table.fragments,
        "columns": [dataclasses.asdict(column) for column in table.columns],
        "plan": None if found.index is None else found.index.describe(),
        "shards": None if found.index is None else _shards_json(found.index),
        "note": found.reason,
    }


def _shards_json(index: ShardIndex) -> dict[str, Any]:
    from lance_stream.offline.inspecting import shard_facts  # noqa: PLC0415

    return {**shard_facts(index), "estimated_bytes": index.describe()["estimated_bytes"]}


def _print_table(found: Inspected) -> None:
    table, history = found.table, found.table.history
    latest = history.versions[-1] if history.versions else table.version
    which = "the latest" if latest == table.version else f"the latest is {latest}"
    versions = f"version {table.version} ({which}) of {len(history.versions):,}"
    lines = [
        table.uri,
        f"  {versions}, last written {history.written}",
        f"  {table.rows:,} rows in {table.fragments:,} fragments",
    ]
    if history.tags:
        tags = [f"{name} = {version}" for name, version in history.tags.items()]
        lines.append(f"  tags: {_some(tags)}")
    if history.branches:
        lines.append(f"  branches: {_some(list(history.branches))}")
    sys.stdout.write("\n".join(lines) + "\n")
    _print_columns(
        [
            (column.name, column.arrow_type, column.sample_type or "unsupported")
            for column in table.columns
        ]
    )
    if found.index is not None:
        _print_selection(found.index)
        _print_shards(found.index)
    if found.reason is not None:
        sys.stdout.write(f"Note: {found.reason}\n")


def _some(texts: list[str]) -> str:
    more = f", and {len(texts) - _MOST} more" if len(texts) > _MOST else ""
    return ", ".join(texts[:_MOST]) + more


def _print_columns(rows: list[tuple[str, str, str]]) -> None:
    print_table("", ["column", "Arrow type", "in a sample"], rows)


def _print_selection(index: ShardIndex) -> None:
    said = {name: value for name, value in index.selection.as_json().items() if value}
    words = ", ".join(f"{name}={value!r}" for name, value in said.items() if name != "columns")
    sys.stdout.write(
        f"Selected: {index.num_rows:,} of {index.fragments.num_rows:,} rows"
        + (f" ({words})" if words else "")
        + f", layout {index.layout.kind}\n"
    )


def _print_shards(index: ShardIndex) -> None:
    facts = _shards_json(index)
    sys.stdout.write(
        f"Shards: {facts['num_shards']:,} of up to {facts['rows_per_shard']:,} rows and about "
        f"{size(facts['estimated_shard_bytes'])}, together about "
        f"{size(facts['estimated_bytes'])}; about {facts['requests_per_shard']:g} requests to "
        "read one\n"
    )
