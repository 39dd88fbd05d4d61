"""Fill a cache with the shards of a Lance table before training.

LanceStream with the same arguments then finds every shard in it. A run that was interrupted or
killed is continued by the same command. A directory that a live job uses is refused.
"""

from __future__ import annotations

import dataclasses
import os
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from lance_stream.cli.arguments import (
    cache_format_option,
    hash_option,
    index_option,
    json_option,
    planning_options,
    progress_option,
    stream_request,
    workers_option,
)
from lance_stream.cli.command import WrongArgumentError, option, subcommand
from lance_stream.cli.output import counted, print_json, progress_bar, size

if TYPE_CHECKING:
    from lance_stream.offline.warming import Warmed

__all__ = ["command"]

_WARMED = "What is filled"


@subcommand(__doc__, "Fill a cache before training.")
@click.argument("uri")
@option(
    "--local",
    metavar="DIR",
    heading=_WARMED,
    help="The cache directory, as LanceStream(local=...); with --engine ray on a file system "
    "that all nodes share.",
)
@option(
    "--shared-cache",
    metavar="URL",
    multiple=True,
    heading=_WARMED,
    help="The shared cache instead, as LanceStream(shared_cache=...); repeatable, fast to slow.",
)
@option(
    "--shared-cache-env",
    metavar="VARIABLE",
    multiple=True,
    heading=_WARMED,
    help="The same, with the URL in an environment variable; for passwords; repeatable.",
)
@option(
    "--engine",
    type=click.Choice(["here", "ray"]),
    default="here",
    show_default=True,
    heading=_WARMED,
    help="Who fetches: this machine, or the nodes of a Ray cluster.",
)
@option(
    "--ray-address",
    metavar="ADDRESS",
    heading=_WARMED,
    help="Of the cluster [RAY_ADDRESS, or Ray on this machine].",
)
@planning_options
@index_option
@cache_format_option
@hash_option
@workers_option("Shards")
@json_option
@progress_option
def command(uri: str, **values: Any) -> int:
    """Fill the cache; prints a summary."""
    if values["ray_address"] and values["engine"] != "ray":
        raise click.UsageError("--ray-address is for --engine ray")
    shared = _urls(values["shared_cache"], values["shared_cache_env"])
    if (values["local"] is None) == (not shared):
        raise click.UsageError("give one of --local and --shared-cache")
    stream = stream_request(uri, values)
    # Loads lance.
    from lance_stream.offline.warming import WarmRequest, here, run_warm  # noqa: PLC0415

    engine = here
    if values["engine"] == "ray":
        from lance_stream.offline.ray_engine import ray_engine  # noqa: PLC0415

        engine = ray_engine(values["ray_address"])
    request = WarmRequest(
        stream=stream,
        local=values["local"],
        shared=shared,
        algorithm=values["validate_hash"] or None,
        workers=values["workers"],
    )
    with progress_bar(values["progress"], "rows") as news:
        warmed = run_warm(request, news, engine)
    if values["as_json"]:
        told = dataclasses.asdict(warmed)
        told["bytes"] = told.pop("num_bytes")
        print_json(told)
    else:
        sys.stdout.write(_text(warmed))
    return 0


def _urls(given: Sequence[str], variables: Sequence[str]) -> tuple[str, ...]:
    for variable in variables:
        if not os.environ.get(variable):
            msg = f"--shared-cache-env {variable}: {variable} is not in the environment"
            raise WrongArgumentError(msg)
    return (*given, *(os.environ[variable] for variable in variables))


def _text(warmed: Warmed) -> str:
    kept = f", {warmed.kept_shards:,} of them were there" if warmed.kept_shards else ""
    nodes = f" by {counted(len(warmed.nodes), 'node')}" if warmed.nodes else ""
    return (
        f"{warmed.rows:,} rows of {warmed.uri} version {warmed.version} are in "
        f"{warmed.where}: {counted(warmed.shards, 'shard')}{kept}, "
        f"{size(warmed.num_bytes)}; fetched "
        f"{size(warmed.fetched_bytes)} in {warmed.seconds:.1f} s{nodes}\n"
    )
