"""Compare every cached shard with the Lance table; changes nothing.

The checksum of each shard file is checked, and its rows are read from the table again and
compared value by value. Bad files, and stale ones (shards of another version or selection of the
table), make the exit status 1; files of other tables and of others are only listed.
"""

from __future__ import annotations

import dataclasses
import sys
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
from lance_stream.cli.command import FAILED, option, positive, subcommand
from lance_stream.cli.output import counted, print_json, print_table, progress_bar

if TYPE_CHECKING:
    from lance_stream.offline.verifying import Verified

__all__ = ["command"]

_VERIFIED = "What is verified"


@subcommand(__doc__, "Compare every cached shard with the table.")
@click.argument("uri")
@option(
    "--local",
    metavar="DIR",
    required=True,
    heading=_VERIFIED,
    help="The cache directory, as LanceStream(local=...).",
)
@option(
    "--sample",
    metavar="N",
    type=positive,
    heading=_VERIFIED,
    help="Read the rows of only N shards again; all checksums are checked.",
)
@option(
    "--allow-stale",
    is_flag=True,
    heading=_VERIFIED,
    help="Stale files are no failure: the directory is shared by several selections.",
)
@planning_options
@index_option
@cache_format_option
@hash_option
@workers_option("Shards")
@json_option
@progress_option
def command(uri: str, **values: Any) -> int:
    """Compare; prints what is wrong. The exit status is 1 if anything is."""
    stream = stream_request(uri, values)
    # Loads lance.
    from lance_stream.offline.verifying import (  # noqa: PLC0415
        BAD,
        STALE,
        VerifyRequest,
        run_verify,
    )

    request = VerifyRequest(
        stream=stream,
        local=values["local"],
        algorithm=values["validate_hash"] or None,
        sample=values["sample"],
        workers=values["workers"],
    )
    with progress_bar(values["progress"], "shards") as news:
        found = run_verify(request, news)
    wrong = found.count(BAD) + (0 if values["allow_stale"] else found.count(STALE))
    if values["as_json"]:
        print_json({**dataclasses.asdict(found), "ok": not wrong})
    else:
        _print(found, wrong)
    if wrong:
        told = [
            counted(found.count(kind), f"{kind} file")
            for kind in (BAD, STALE)
            if found.count(kind)
        ]
        sys.stderr.write(
            f"lance-stream verify: {found.directory} has {' and '.join(told)}; remove "
            "what is wrong, and training fetches what it needs again\n"
        )
    return FAILED if wrong else 0


def _print(found: Verified, wrong: int) -> None:
    if found.findings:
        rows = [(item.kind, item.file, item.reason) for item in found.findings]
        print_table("", ["kind", "file", "why"], rows)
    how = "not all right" if wrong else "right"
    sys.stdout.write(
        f"{found.directory}: {found.cached_shards:,} of the {counted(found.shards, 'shard')} of "
        f"{found.uri} version {found.version} are cached, {found.compared_shards:,} were "
        f"compared with the table in {found.seconds:.1f} s: {how}\n"
    )
