"""Precompute the shard index of a Lance table.

LanceStream(index=...), and the other commands with --index, then plan nothing. Without --filter,
--subset and --exact only the manifest and a few short runs of rows are read. A long scan that
was stopped is continued by the same command.
"""

from __future__ import annotations

import sys
from typing import Any

import click

from lance_stream.cli.arguments import (
    cache_format_option,
    json_option,
    named_options,
    planning_options,
    progress_option,
    store_options,
    stream_request,
)
from lance_stream.cli.command import WrongArgumentError, option, subcommand, wrong_arguments
from lance_stream.cli.output import counted, print_json, progress_bar, size
from lance_stream.cli.urls import filesystem_options

__all__ = ["command"]

_WRITTEN = "What is written"
_SHARDS = "How it is cut into shards"


@subcommand(__doc__, "Precompute the shard index of a table.")
@click.argument("uri")
@option("--out", metavar="FILE|URL", required=True, heading=_WRITTEN, help="Where it goes.")
@store_options("out", "the fsspec filesystem of a URL", _WRITTEN)
@option(
    "--partial",
    metavar="FILE",
    heading=_WRITTEN,
    help="Local file that keeps the progress of a long scan [OUT.partial].",
)
@planning_options
@option(
    "--exact",
    is_flag=True,
    heading=_SHARDS,
    help="Cut by the exact bytes of every row: reads the whole selection once.",
)
@cache_format_option
@json_option
@progress_option
def command(uri: str, **values: Any) -> int:
    """Make the index; prints a summary."""
    stream = stream_request(uri, values)
    options = filesystem_options(named_options(values, "out"))
    if values["exact"] and (values["layout"] != "contiguous" or values["shard_rows"]):
        msg = "--exact cuts by --shard-bytes, contiguously: leave out --layout and --shard-rows"
        raise WrongArgumentError(msg)
    # Loads lance.
    from lance_stream.offline.index_file import IndexFile  # noqa: PLC0415
    from lance_stream.offline.indexing import IndexRequest, run_index  # noqa: PLC0415

    with wrong_arguments():
        IndexFile.at(values["out"], options)
    with progress_bar(values["progress"], "rows") as news:
        made = run_index(
            IndexRequest(
                stream=stream,
                out=values["out"],
                out_options=options,
                exact=values["exact"],
                partial=values["partial"],
            ),
            news,
        )
    index = made.index
    if values["as_json"]:
        more = {"out": made.out, "bytes": made.num_bytes, "seconds": made.seconds}
        print_json({**index.describe(), **more})
    else:
        sys.stdout.write(
            f"{counted(index.num_rows, 'row')} of {index.uri} version {index.version} in "
            f"{counted(index.num_shards, 'shard')}: {made.out}, {size(made.num_bytes)}, "
            f"{made.seconds:.1f} s\n"
        )
    return 0
