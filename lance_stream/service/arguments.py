"""Check what a user gives to a stream, before anything is asked of the table. Pure."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Mapping, Sequence
from typing import TypeGuard

from lance_stream.errors import PlanError
from lance_stream.planning.checksum import is_hash
from lance_stream.planning.layout import LAYOUTS, Layout
from lance_stream.planning.selection import shown
from lance_stream.service.messages import Options
from lance_stream.shards.shard_file import FORMATS
from lance_stream.source.location import is_object_store

__all__ = [
    "check_bool",
    "check_cache_format",
    "check_columns",
    "check_filter",
    "check_hash",
    "check_layout",
    "check_limit",
    "check_options",
    "check_outside",
    "check_shard_rows",
    "check_subset",
    "check_transform",
    "check_version",
    "search_path",
]

# What Lance calls the address and the id of a row.
_LANCE_NAMES = ("_rowaddr", "_rowid")
# A message to the download process holds 16 MB.
_MAX_FILTER_BYTES = 8 << 20
_MAX_COUNT = 1 << 62
# What may hold a semicolon that ends nothing, and one that does.
_SQL_TOKEN = re.compile(
    r"'(?:[^']|'')*'|\"(?:[^\"]|\"\")*\"|`[^`]*`|--[^\n]*|/\*.*?\*/|;", re.DOTALL
)


def check_outside(local: str, uri: str, split: str | None) -> None:
    """Refuse a cache inside the table, since eviction removes files: PlanError."""
    tables = [f"{uri}/{split}", f"{uri}/{split}.lance"] if split else [uri]
    for table in tables:
        if local == table or local.startswith(table.rstrip("/") + "/"):
            msg = f"local={local!r} lies inside the table {table!r}: choose a directory elsewhere"
            raise PlanError(msg)


def check_bool(value: bool, argument: str) -> bool:
    """True or False; PlanError for anything else, which would mean one of them by chance."""
    if not isinstance(value, bool):
        raise PlanError(f"{argument}={value!r} must be True or False")
    return value


def check_version(version: int | str | None) -> int | str | None:
    """A version number or a tag; PlanError for anything else."""
    if version is None or (isinstance(version, str) and version):
        return version
    if _is_count(version):
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
    for name, expression in pairs:
        if name in _LANCE_NAMES and name != expression:
            raise PlanError(
                f"columns: {name!r} is Lance's own name: call {expression!r} otherwise"
            )
        if name != expression:
            _check_one_statement(expression, f"columns: {name!r}")
    names = [name for name, _ in pairs]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise PlanError(f"columns names {', '.join(map(repr, twice))} more than once")
    return pairs


def check_shard_rows(shard_rows: int | None) -> int | None:
    """A positive number of rows, or None; PlanError for anything else."""
    if shard_rows is None:
        return None
    if not _is_count(shard_rows):
        raise PlanError(f"shard_rows={shard_rows!r} must be a positive number of rows")
    return shard_rows


def check_filter(predicate: str | None) -> str | None:
    """A predicate in SQL, or None; PlanError for anything else."""
    if predicate is None:
        return None
    if not isinstance(predicate, str) or not predicate.strip():
        raise PlanError(f"filter={predicate!r} must be a predicate in SQL, such as 'label = 3'")
    try:
        num_bytes = len(predicate.encode())
    except UnicodeEncodeError as error:
        raise PlanError(f"filter is not valid Unicode: {error}") from error
    if num_bytes > _MAX_FILTER_BYTES:
        msg = (
            f"filter is a text of {num_bytes} bytes, and may have {_MAX_FILTER_BYTES}: mark the "
            "rows in a column instead of listing them"
        )
        raise PlanError(msg)
    _check_one_statement(predicate, "filter")
    return predicate


def _check_one_statement(text: str, argument: str) -> None:
    """Refuse text behind the end of a statement, which the parser leaves out without a word."""
    for token in _SQL_TOKEN.finditer(text):
        rest = text[token.end() :] if token.group() == ";" else ""
        if rest.strip():
            msg = (
                f"{argument}: there is text after a ';', which ends a statement: "
                f"{shown(rest.strip())!r}; give one expression"
            )
            raise PlanError(msg)


def check_limit(limit: int | None) -> int | None:
    """A positive number of rows, or None; PlanError for anything else."""
    if limit is None:
        return None
    if not _is_count(limit):
        raise PlanError(f"limit={limit!r} must be a positive number of rows")
    return limit


def check_subset(
    subset: Sequence[float] | None, key: str | None
) -> tuple[tuple[float, float] | None, str | None]:
    """Two numbers in [0, 1] and a column, or None; PlanError for anything else."""
    if subset is None:
        if key is not None:
            raise PlanError("subset_key is given without a subset")
        return None, None
    numbers = isinstance(subset, Sequence) and all(
        isinstance(x, int | float) and not isinstance(x, bool) for x in subset
    )
    if not numbers or len(subset) != 2 or not 0 <= subset[0] < subset[1] <= 1:
        raise PlanError(f"subset={subset!r} must be (lo, hi) with 0 <= lo < hi <= 1")
    if key is not None and (not isinstance(key, str) or not key):
        raise PlanError(f"subset_key={key!r} must be the name of a column")
    # Plus zero, so that minus zero is not another subset.
    return (float(subset[0]) + 0.0, float(subset[1])), key


def check_layout(kind: str, run_rows: int, seed: int) -> Layout:
    """A layout; PlanError if it is none."""
    if kind not in LAYOUTS:
        raise PlanError(f"layout={kind!r} must be {' or '.join(map(repr, LAYOUTS))}")
    if not _is_count(run_rows):
        raise PlanError(f"run_rows={run_rows!r} must be a positive number of rows")
    if isinstance(seed, bool) or not isinstance(seed, int) or not -(2**63) <= seed < 2**63:
        raise PlanError(f"layout_seed={seed!r} must be an integer of 64 bits")
    return Layout(kind, run_rows, seed)


def check_cache_format(cache_format: str) -> str:
    """A format of shard files; PlanError for anything else."""
    if cache_format not in FORMATS:
        known = " or ".join(map(repr, FORMATS))
        raise PlanError(f"cache_format={cache_format!r} must be {known}")
    return cache_format


def check_hash(algorithm: str | None) -> None:
    """PlanError unless it is None or the name of a hash that the host knows."""
    if algorithm and not (isinstance(algorithm, str) and is_hash(algorithm)):
        msg = (
            f"validate_hash={algorithm!r} is not a hash of mosaicml-streaming, such as 'sha1' or "
            "'xxh3_64'"
        )
        raise PlanError(msg)


def check_transform(
    transform: str | None, version: str | int | None
) -> tuple[str | None, str | None]:
    """Name of a function and of its version; PlanError if they are not that."""
    if transform is None:
        if version is not None:
            raise PlanError("transform_version is given without a transform")
        return None, None
    parts = transform.split(":") if isinstance(transform, str) else []
    if len(parts) != 2 or not all(parts):
        msg = (
            f"transform={transform!r} must be text, 'package.module:function': the function runs "
            "in another process, which imports it"
        )
        raise PlanError(msg)
    if parts[0] == "__main__":
        msg = f"transform={transform!r}: the download process cannot import __main__; use a module"
        raise PlanError(msg)
    return transform, None if version is None else str(version)


def search_path() -> tuple[str, ...]:
    """Where this process finds modules, for the download process to find the same."""
    return tuple(folder or os.getcwd() for folder in sys.path)


def check_options(options: Mapping[str, str] | str | None, uri: str) -> Options:
    """Storage options as a message; PlanError, without values, if they are not usable."""
    if isinstance(options, str):
        module, _, function = options.partition(":")
        if not module or not function:
            raise PlanError("storage_options as text must be 'package.module:function'")
        return Options(function=options, search_path=search_path())
    values = dict(options or {})
    for name, value in values.items():
        if not isinstance(name, str) or not isinstance(value, str):
            raise PlanError(f"storage_options[{name!r}] must be text, not {type(value).__name__}")
        # Lance panics on an endpoint without a scheme.
        if "endpoint" in name.lower() and is_object_store(uri) and "://" not in value:
            raise PlanError(f"storage_options[{name!r}] must begin with http:// or https://")
    return Options(values=values or None)


def _is_count(value: object) -> TypeGuard[int]:
    """Whether a value is a positive number that arithmetic in 64 bits stands."""
    return isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= _MAX_COUNT
