"""Remove what dead jobs left on this machine: old default caches, sockets, shared memory.

Look first: --dry-run prints what would go and removes nothing. Without it a terminal is asked
before anything is removed (--yes does not ask), and a script is not. What a live process uses is
never touched; caches that were given as local= are left alone, but for unfinished files in those
named with --local.
"""

from __future__ import annotations

import re
import sys
from collections import Counter
from typing import TYPE_CHECKING, Any

import click

from lance_stream.cli.arguments import json_option
from lance_stream.cli.command import FAILED, option, subcommand
from lance_stream.cli.output import counted, print_json, print_table, size

if TYPE_CHECKING:
    from lance_stream.offline.leftover import Kept, Leftover

__all__ = ["command"]

_UNITS_S = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 604800}


class _Age(click.ParamType):
    name = "age"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        match = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?)([smhdw])", str(value))
        if match is None:
            return self.fail(f"{value!r} must be an age, as 7d, 12h or 30m", param, ctx)
        return float(match.group(1)) * _UNITS_S[match.group(2)]


@subcommand(__doc__, "Remove what dead jobs left behind.")
@option(
    "--dry-run/--no-dry-run",
    default=None,
    help="Print what would go; or remove it without a question.",
)
@option("--yes", is_flag=True, help="Do not ask.")
@option(
    "--older-than",
    metavar="AGE",
    type=_Age(),
    default="7d",
    show_default=True,
    help="Default caches that were used since stay.",
)
@option(
    "--local",
    "directories",
    metavar="DIR",
    multiple=True,
    help="A cache directory to remove unfinished files of dead jobs from; repeatable.",
)
@json_option
def command(
    *,
    dry_run: bool | None,
    yes: bool,
    older_than: float,
    directories: tuple[str, ...],
    as_json: bool,
) -> int:
    """Look, tell, and remove unless it is a dry run."""
    from lance_stream.offline.cleaning import CleanRequest, find_leftovers  # noqa: PLC0415

    found, kept = find_leftovers(CleanRequest(older_than, directories))
    if dry_run:
        _tell(found, kept, None, as_json=as_json)
        return 0
    asks = dry_run is None and not yes and sys.stdin.isatty() and sys.stderr.isatty()
    if asks and found:
        _tell(found, kept, None, as_json=False)
        if not click.confirm("Remove all of this?", err=True):
            return FAILED
    stayed = {}
    for item in found:
        why = item.remove()
        if why is not None:
            stayed[item.path] = why
    _tell(found, kept, stayed, as_json=as_json)
    refused = [path for path, why in stayed.items() if why.startswith("cannot")]
    if refused:
        sys.stderr.write(
            f"lance-stream clean: {refused[0]} {stayed[refused[0]]}"
            + (f", and {len(refused) - 1} more\n" if refused[1:] else "\n")
        )
    return FAILED if refused else 0


def _tell(
    found: list[Leftover],
    kept: list[Kept],
    stayed: dict[str, str] | None,
    *,
    as_json: bool,
) -> None:
    """Print what goes, or what went.

    Args:
        found: What was to go.
        kept: What was looked at and stays.
        stayed: What of it stays after all, and why; None: nothing was removed.
        as_json: As JSON.
    """
    gone = [item for item in found if item.path not in (stayed or {})]
    total = sum(item.num_bytes for item in gone)
    if as_json:
        items = [
            {"kind": item.kind, "path": item.path, "bytes": item.num_bytes, "why": item.why}
            for item in gone
        ]
        reasons = {item.path: item.why for item in kept} | (stayed or {})
        print_json(
            {
                "dry_run": stayed is None,
                "removed" if stayed is not None else "would_remove": items,
                "bytes": total,
                "kept": [{"path": path, "why": why} for path, why in reasons.items()],
            }
        )
        return
    if gone:
        rows = [(item.kind, item.path, size(item.num_bytes), item.why) for item in gone]
        print_table("", ["what", "where", "size", "why"], rows)
    for path, why in (stayed or {}).items():
        sys.stdout.write(f"{path} stays: {why}\n")
    did = "would be removed" if stayed is None else "were removed"
    if len(gone) == 1:
        did = did.replace("were", "was")
    stay = "1 stays" if len(kept) == 1 else f"{len(kept):,} stay"
    sys.stdout.write(f"{counted(len(gone), 'thing')} {did}, {size(total)}; {stay}\n")
    # Which process, or when, is in the JSON.
    reasons = Counter(re.sub(r"[0-9].*", "...", item.why) for item in kept)
    for why, number in reasons.most_common():
        sys.stdout.write(f"  {number:,}: {why}\n")
