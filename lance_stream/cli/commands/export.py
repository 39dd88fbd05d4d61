"""Write a Lance table as a complete MDS dataset, which the stock StreamingDataset reads.

The result is a directory of shard files and an index.json. An export that was interrupted or
killed is continued by the same command; index.json appears last, when all else is in place.
"""

from __future__ import annotations

import dataclasses
import sys
from typing import TYPE_CHECKING, Any

import click

from lance_stream.cli.arguments import (
    index_option,
    json_option,
    named_options,
    planning_options,
    progress_option,
    store_options,
    stream_request,
    workers_option,
)
from lance_stream.cli.command import option, subcommand
from lance_stream.cli.output import News, print_json, progress_bar
from lance_stream.cli.urls import filesystem_options

if TYPE_CHECKING:
    from lance_stream.export.filling import Progress
    from lance_stream.export.run import Summary

__all__ = ["command"]

_WRITTEN = "What is written"


@subcommand(__doc__, "Write a table as an MDS dataset.")
@click.argument("uri")
@option("--out", metavar="DIR|URL", required=True, heading=_WRITTEN, help="Where it goes.")
@store_options("out", "the fsspec filesystem of a URL", _WRITTEN)
@option(
    "--compression",
    metavar="NAME[:LEVEL]",
    heading=_WRITTEN,
    help="br, bz2, gz, snappy or zstd, as MDSWriter.",
)
@option(
    "--hashes",
    metavar="NAMES",
    default="",
    heading=_WRITTEN,
    help="Hashes of each file in the index, as sha1,xxh64.",
)
@planning_options
@index_option
@workers_option("Shards")
@json_option
@progress_option
def command(uri: str, **values: Any) -> int:
    """Export the table; prints a summary."""
    stream = stream_request(uri, values)
    options = filesystem_options(named_options(values, "out"))
    # Loads lance.
    from lance_stream.export.run import Request, run_export  # noqa: PLC0415

    names = [name.strip() for name in values["hashes"].split(",")]
    with progress_bar(values["progress"], "rows") as news:
        summary = run_export(
            Request(
                stream=stream,
                out=values["out"],
                out_options=options,
                compression=values["compression"] or None,
                hashes=[name for name in names if name],
                workers=values["workers"],
            ),
            _counted(news),
            news,
        )
    if values["as_json"]:
        told = dataclasses.asdict(summary)
        told["bytes"] = told.pop("num_bytes")
        print_json(told)
    else:
        sys.stdout.write(_text(summary))
    return 0


def _counted(news: News) -> Progress:
    """Takes rows as they are finished."""
    rows = 0

    def finished(more: int, of: int) -> None:
        nonlocal rows
        rows += more
        news("export", rows, of)

    return finished


def _text(summary: Summary) -> str:
    kept = f", {summary.kept_shards:,} of them were there" if summary.kept_shards else ""
    return (
        f"{summary.rows:,} rows of {summary.uri} version {summary.version} are in {summary.out}: "
        f"{summary.shards:,} shards{kept}, {summary.num_bytes:,} bytes, {summary.seconds:.1f} s\n"
    )
