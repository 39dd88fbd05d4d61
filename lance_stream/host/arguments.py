"""Check what a user gives to a stream, before anything is asked of the table. Pure."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence

from lance_stream.errors import PlanError
from lance_stream.service.messages import Options
from lance_stream.source.location import is_object_store

__all__ = ["check_columns", "check_options", "check_outside", "check_shard_rows", "check_version"]


def check_outside(local: str, uri: str, split: str | None) -> None:
    """Refuse a cache inside the table, since eviction removes files: PlanError."""
    tables = [f"{uri}/{split}", f"{uri}/{split}.lance"] if split else [uri]
    for table in tables:
        if local == table or local.startswith(table.rstrip("/") + "/"):
            msg = f"local={local!r} lies inside the table {table!r}: choose a directory elsewhere"
            raise PlanError(msg)


def check_version(version: int | str | None) -> int | str | None:
    """A version number or a tag; PlanError for anything else."""
    if version is None or (isinstance(version, str) and version):
        return version
    if isinstance(version, int) and not isinstance(version, bool) and version > 0:
        return version
    raise PlanError(f"version={version!r} must be a positive number or the name of a tag")


def check_columns(
    columns: Sequence[str] | Mapping[str, str] | None,
) -> tuple[tuple[str, str], ...] | None:
    """Columns as pairs of output name and expression; PlanError if they are not that."""
    if columns is None:
        return None
    if isinstance(columns, str) or not isinstance(columns, Sequence | Mapping):
        raise PlanError(f"columns={columns!r} must be a list of names or a dict")
    if isinstance(columns, Mapping):
        pairs = tuple(columns.items())
    else:
        pairs = tuple((name, name) for name in columns)
    if not pairs:
        raise PlanError("columns=[] selects nothing: name a column, or leave it out for all")
    if not all(isinstance(n, str) and isinstance(e, str) and n and e for n, e in pairs):
        raise PlanError(f"columns={columns!r} must hold names and expressions as text")
    names = [name for name, _ in pairs]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise PlanError(f"columns names {', '.join(map(repr, twice))} more than once")
    return pairs


def check_shard_rows(shard_rows: int | None) -> int | None:
    """A positive number of rows, or None; PlanError for anything else."""
    if shard_rows is None:
        return None
    if isinstance(shard_rows, bool) or not isinstance(shard_rows, int) or shard_rows < 1:
        raise PlanError(f"shard_rows={shard_rows!r} must be a positive number of rows")
    return shard_rows


def check_options(options: Mapping[str, str] | str | None, uri: str) -> Options:
    """Storage options as a message; PlanError, without values, if they are not usable."""
    if isinstance(options, str):
        module, _, function = options.partition(":")
        if not module or not function:
            raise PlanError("storage_options as text must be 'package.module:function'")
        return Options(function=options, search_path=tuple(p or os.getcwd() for p in sys.path))
    values = dict(options or {})
    for name, value in values.items():
        if not isinstance(name, str) or not isinstance(value, str):
            raise PlanError(f"storage_options[{name!r}] must be text, not {type(value).__name__}")
        # Lance panics on an endpoint without a scheme.
        if "endpoint" in name.lower() and is_object_store(uri) and "://" not in value:
            raise PlanError(f"storage_options[{name!r}] must begin with http:// or https://")
    return Options(values=values or None)
