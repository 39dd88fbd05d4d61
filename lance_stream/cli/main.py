"""The entry of ``lance-stream``: finds the subcommand, gives the exit status."""

from __future__ import annotations

import contextlib
import importlib
import os
import pkgutil
import signal
import sys
import threading
from collections.abc import Iterator, Sequence

import click

from lance_stream import __version__
from lance_stream.cli import commands
from lance_stream.cli.command import (
    FAILED,
    INTERRUPTED,
    TERMINATED,
    WRONG_ARGUMENTS,
    TerminatedError,
    paragraph,
)

__all__ = ["main"]


class _Commands(click.Group):
    """The modules of ``cli.commands``, each loaded when it is called or listed."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        del ctx
        return sorted(module.name for module in pkgutil.iter_modules(commands.__path__))

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in self.list_commands(ctx):
            return None
        return importlib.import_module(f"{commands.__name__}.{cmd_name}").command


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command line.

    Args:
        argv: Arguments without the program's name; default those of the process.

    Returns:
        The exit status: 0 only for success, 2 for wrong arguments, 130 after Ctrl-C, 143 after
        SIGTERM.
    """
    with _terminable():
        status = _run(None if argv is None else list(argv))
    if any(_holds_the_process(thread) for thread in threading.enumerate()):
        # A hung read is in a daemon thread, deep in native code, which does not end well.
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)
    return status


@contextlib.contextmanager
def _terminable() -> Iterator[None]:
    """Have the first SIGTERM end the command as Ctrl-C does; a second one kills it."""
    ours = threading.current_thread() is threading.main_thread()
    if not ours or signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
        yield
        return

    def end(_number: int, _frame: object) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        raise TerminatedError

    signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


def _run(argv: list[str] | None) -> int:
    group = _Commands(
        "lance-stream",
        help="Lance tables for mosaicml-streaming's StreamingDataset.",
        no_args_is_help=False,
    )
    click.version_option(__version__, message="lance-stream %(version)s")(group)
    try:
        return int(group.main(argv, prog_name="lance-stream", standalone_mode=False) or 0)
    except click.UsageError as error:
        name = error.ctx.command_path if error.ctx is not None else "lance-stream"
        words = paragraph(error.format_message()).rstrip(".")
        sys.stderr.write(f"{name}: {words}; see {name} --help\n")
        return WRONG_ARGUMENTS
    except click.ClickException as error:
        sys.stderr.write(f"lance-stream: {paragraph(error.format_message())}\n")
        return FAILED
    except TerminatedError:
        return TERMINATED
    except click.Abort:
        return INTERRUPTED


def _holds_the_process(thread: threading.Thread) -> bool:
    return thread.daemon and thread.name.startswith("lance-stream-")


if __name__ == "__main__":
    sys.exit(main())
