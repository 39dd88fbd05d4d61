"""Options that several commands have: which table, which rows and columns, how it is read."""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import click

from lance_stream.cli.command import (
    WrongArgumentError,
    option,
    positive,
    seconds,
    subset,
)
from lance_stream.errors import PlanError

if TYPE_CHECKING:
    from lance_stream.offline.request import StreamRequest

__all__ = [
    "cache_format_option",
    "hash_option",
    "index_option",
    "json_option",
    "named_options",
    "planning_options",
    "progress_option",
    "store_options",
    "stream_request",
    "workers_option",
]

_FUNCTION = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*")
_READ = "What is read"
_SHARDS = "How it is cut into shards"
_REACHED = "How the table is reached"
_PRINTED = "What is printed"
_MAX_DEFAULT_WORKERS = 8
# The options that are arguments of ``LanceStream`` under the same name.
_SAME = (
    "split",
    "filter",
    "limit",
    "subset",
    "subset_key",
    "shard_rows",
    "layout",
    "run_rows",
    "layout_seed",
    "with_row_id",
    "transform",
    "transform_version",
)

Decorator = Callable[[Any], Any]


def planning_options(function: Any) -> Any:
    """Add what ``LanceStream`` takes to plan a table."""
    for add in reversed(_REACHING):
        function = add(function)
    function = store_options("storage", "lance.dataset", _REACHED)(function)
    for add in reversed(_PLANNING):
        function = add(function)
    return function


_PLANNING: tuple[Decorator, ...] = (
    option("--version", metavar="N|TAG", heading=_READ, help="Version, tag or branch [latest]."),
    option("--split", metavar="NAME", heading=_READ, help="The table URI/NAME.lance or URI/NAME."),
    option(
        "--columns",
        metavar="A,B|NAME=SQL",
        multiple=True,
        heading=_READ,
        help="Columns in the wanted order, or one with an SQL expression; repeatable.",
    ),
    option("--filter", metavar="SQL", heading=_READ, help="Only rows for which this is true."),
    option(
        "--limit", metavar="N", type=positive, heading=_READ, help="The first N selected rows."
    ),
    option(
        "--subset",
        metavar="LO,HI",
        type=subset,
        heading=_READ,
        help="Rows whose hash is in [LO, HI), within 0 and 1.",
    ),
    option("--subset-key", metavar="COLUMN", heading=_READ, help="Column that is hashed."),
    option("--with-row-id", is_flag=True, heading=_READ, help="Add the column _rowid."),
    option(
        "--transform",
        metavar="MODULE:FUNCTION",
        heading=_READ,
        help="Function from RecordBatch to RecordBatch, called once per shard.",
    ),
    option(
        "--transform-version",
        metavar="TEXT",
        heading=_READ,
        help="Change it when the function changes.",
    ),
    option("--shard-rows", metavar="N", type=positive, heading=_SHARDS, help="Rows per shard."),
    option(
        "--shard-bytes",
        metavar="SIZE",
        default="32mb",
        show_default=True,
        heading=_SHARDS,
        help="Bytes of decoded rows per shard to aim at.",
    ),
    option(
        "--layout",
        type=click.Choice(["contiguous", "scattered"]),
        default="contiguous",
        show_default=True,
        heading=_SHARDS,
        help="A shard is consecutive rows, or runs of rows from all over the selection.",
    ),
    option(
        "--run-rows",
        metavar="N",
        type=positive,
        default=64,
        show_default=True,
        heading=_SHARDS,
        help="Rows of a run in the scattered layout.",
    ),
    option(
        "--layout-seed",
        metavar="N",
        type=int,
        default=0,
        show_default=True,
        heading=_SHARDS,
        help="Which scattered layout.",
    ),
)
_REACHING: tuple[Decorator, ...] = (
    option(
        "--download-timeout",
        metavar="SECONDS",
        type=seconds,
        default=60.0,
        show_default=True,
        heading=_REACHED,
        help="Longest time of one attempt at one shard.",
    ),
    option(
        "--download-retry",
        metavar="N",
        type=click.IntRange(min=0),
        default=2,
        show_default=True,
        heading=_REACHED,
        help="Further attempts, where the failure may pass.",
    ),
)


def store_options(kind: str, owner: str, heading: str) -> Decorator:
    """Add the three ways to give options of a store, of which two keep secrets out of argv."""
    more = ", or MODULE:FUNCTION that returns (options, expiry)" if kind == "storage" else ""

    def add(function: Any) -> Any:
        function = option(
            f"--{kind}-options-from",
            metavar="FILE.json",
            heading=heading,
            help=f"A JSON object of such options{more}.",
        )(function)
        function = option(
            f"--{kind}-option-env",
            metavar="KEY=VARIABLE",
            multiple=True,
            heading=heading,
            help="The same, with the value of an environment variable; for secrets; repeatable.",
        )(function)
        return option(
            f"--{kind}-option",
            metavar="KEY=VALUE",
            multiple=True,
            heading=heading,
            help=f"Option of {owner}; repeatable.",
        )(function)

    return add


index_option = option(
    "--index",
    metavar="FILE|URL",
    heading=_SHARDS,
    help="An index of lance-stream index: nothing is planned.",
)
cache_format_option = option(
    "--cache-format",
    type=click.Choice(["arrow", "mds"]),
    default="arrow",
    show_default=True,
    heading=_SHARDS,
    help="Format of the shard files.",
)
hash_option = option(
    "--validate-hash",
    metavar="NAME",
    heading=_SHARDS,
    help="Hash that the files carry, as sha1 [our own XXH3-128].",
)
json_option = option("--json", "as_json", is_flag=True, heading=_PRINTED, help="Print JSON.")
progress_option = option(
    "--progress/--no-progress",
    default=None,
    heading=_PRINTED,
    help="A progress bar on stderr [if it is a terminal].",
)


def workers_option(what: str) -> Decorator:
    """Add how many things are done at a time."""
    return option(
        "--workers",
        metavar="N",
        type=positive,
        default=lambda: min(_MAX_DEFAULT_WORKERS, os.cpu_count() or 1),
        show_default=f"CPUs, at most {_MAX_DEFAULT_WORKERS}",
        help=f"{what} at a time.",
    )


def named_options(values: Mapping[str, Any], kind: str) -> dict[str, str]:
    """The options of a store from all the ways to give them, as text.

    Args:
        values: Of the command's options.
        kind: As in ``store_options``.

    Raises:
        PlanError: One is not KEY=VALUE, a variable is not set, a file is not a JSON object.
    """
    source = values[f"{kind}_options_from"]
    options = _from_file(source, f"--{kind}-options-from") if source else {}
    for text in values[f"{kind}_option"]:
        key, value = _pair(text, f"--{kind}-option")
        options[key] = value
    for text in values[f"{kind}_option_env"]:
        key, variable = _pair(text, f"--{kind}-option-env")
        if variable not in os.environ:
            msg = f"--{kind}-option-env {key}={variable}: {variable} is not in the environment"
            raise WrongArgumentError(msg)
        options[key] = os.environ[variable]
    return options


def stream_request(uri: str, values: Mapping[str, Any]) -> StreamRequest:
    """What the planning options say.

    Args:
        uri: The table, as given.
        values: Of the command's options.

    Raises:
        PlanError: One is wrong: names it.
    """
    # Loads pyarrow: not for --help.
    from lance_stream.offline.request import StreamRequest  # noqa: PLC0415
    from lance_stream.service.wanted import Wanted  # noqa: PLC0415

    storage = _storage_options(values)
    if values["transform"] is not None or isinstance(storage, str):
        # A program finds modules beside itself, ``python -m`` those of the working directory.
        here = os.getcwd()
        if here not in sys.path:
            sys.path.insert(0, here)
    try:
        wanted = Wanted.of(
            uri,
            version=_version(values["version"]),
            columns=_columns(values["columns"]),
            shard_bytes=_number(values["shard_bytes"]),
            storage_options=storage,
            cache_format=values.get("cache_format", "arrow"),
            **{name: values[name] for name in _SAME},
        )
    except PlanError as error:
        raise WrongArgumentError(_as_options(str(error))) from error
    return StreamRequest(
        wanted=wanted,
        index=values.get("index"),
        timeout_s=values["download_timeout"],
        attempts=1 + values["download_retry"],
    )


def _as_options(text: str) -> str:
    """An error about an argument of ``LanceStream``, in the words of the command line."""
    plain = {"version", "columns", "filter", "limit", "subset", "layout", "transform"}
    first = re.match(r"[a-z_]+", text)
    if first is not None and first.group() in plain:
        text = f"--{text}"
    for name in (*_SAME, "shard_bytes", "cache_format"):
        if "_" in name:
            option_name = f"--{name.replace('_', '-')}"
            text = re.sub(rf"\b{name}(=True)?\b", option_name, text)
    return text


def _storage_options(values: Mapping[str, Any]) -> dict[str, str] | str:
    source = values["storage_options_from"]
    if source and _FUNCTION.fullmatch(source) and not os.path.exists(source):
        if values["storage_option"] or values["storage_option_env"]:
            msg = f"--storage-options-from {source} makes all options: leave the others out"
            raise WrongArgumentError(msg)
        return source
    return named_options(values, "storage")


def _columns(given: Sequence[str]) -> dict[str, str] | None:
    if not given:
        return None
    pairs = []
    for text in given:
        name, equals, expression = text.partition("=")
        if equals:
            pairs.append((name.strip(), expression.strip()))
        else:
            pairs += [(column.strip(), column.strip()) for column in text.split(",")]
    names = [name for name, _ in pairs]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise WrongArgumentError(f"columns names {', '.join(map(repr, twice))} more than once")
    return dict(pairs)


def _version(text: str | None) -> int | str | None:
    return _number(text) if text is not None else None


def _number(text: str) -> int | str:
    return int(text) if text.isascii() and text.isdigit() else text


def _pair(text: str, argument: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not equals or not key:
        # Not the text itself: it may be a secret.
        raise WrongArgumentError(f"{argument} must be KEY=VALUE")
    return key, value


def _from_file(path: str, argument: str) -> dict[str, Any]:
    try:
        with open(path, encoding="utf-8") as file:
            value = json.load(file)
    except (OSError, ValueError) as error:
        # The text of a JSON error does not quote the file.
        raise WrongArgumentError(f"{argument} {path}: {error}") from error
    if not isinstance(value, dict):
        raise WrongArgumentError(f"{argument} {path} must hold a JSON object of options")
    return value
