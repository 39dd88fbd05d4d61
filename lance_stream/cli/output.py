"""What commands print: a progress bar, tables, summaries. Loads rich when it draws."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

__all__ = ["News", "counted", "print_json", "print_table", "progress_bar", "size"]

# What is being done, how much of it is done, and of how much.
News = Callable[[str, int, int], None]


@contextmanager
def progress_bar(wanted: bool | None, unit: str) -> Iterator[News]:
    """A bar on stderr; or nothing.

    Args:
        wanted: Whether; None: if stderr is a terminal.
        unit: What is counted.
    """
    if not (sys.stderr.isatty() if wanted is None else wanted):
        yield lambda _what, _done, _total: None
        return
    from rich.console import Console  # noqa: PLC0415
    from rich.progress import (  # noqa: PLC0415
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TaskID,
        TaskProgressColumn,
        TextColumn,
        TimeRemainingColumn,
    )

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TaskProgressColumn(show_speed=True),
        MofNCompleteColumn(),
        TextColumn(unit),
        TimeRemainingColumn(),
    )
    tasks: dict[str, TaskID] = {}
    with Progress(*columns, console=Console(stderr=True)) as bar:

        def show(what: str, done: int, total: int) -> None:
            if what not in tasks:
                tasks[what] = bar.add_task(what, total=total)
            bar.update(tasks[what], completed=done, total=total)

        yield show


def print_json(value: Mapping[str, Any]) -> None:
    """Print a value as one line of JSON, to stdout."""
    sys.stdout.write(json.dumps(value) + "\n")


def print_table(title: str, headings: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """Print rows under headings, to stdout; numbers to the right."""
    from rich.box import SIMPLE_HEAD  # noqa: PLC0415
    from rich.console import Console  # noqa: PLC0415
    from rich.table import Table  # noqa: PLC0415
    from rich.text import Text  # noqa: PLC0415

    table = Table(title=title or None, title_justify="left", box=SIMPLE_HEAD, pad_edge=False)
    for at, heading in enumerate(headings):
        numbers = bool(rows) and all(isinstance(row[at], int | float) for row in rows)
        table.add_column(heading, justify="right" if numbers else "left", overflow="fold")
    for row in rows:
        # Names of columns and files are no markup.
        table.add_row(*(Text(f"{cell:,}" if isinstance(cell, int) else str(cell)) for cell in row))
    # What is not a terminal gets whole lines, to be searched.
    wide = None if sys.stdout.isatty() else 10_000
    Console(width=wide, soft_wrap=wide is not None).print(table)


def counted(number: int, noun: str) -> str:
    """A number of things, in words: 1 shard, 2 shards."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def size(num_bytes: float) -> str:
    """Bytes in words, in powers of 1024."""
    for unit in ("bytes", "KB", "MB", "GB"):
        if num_bytes < 1024:
            return f"{num_bytes:,.0f} bytes" if unit == "bytes" else f"{num_bytes:,.1f} {unit}"
        num_bytes /= 1024
    return f"{num_bytes:,.1f} TB"
