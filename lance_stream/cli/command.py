"""What all subcommands have in common: headings in ``--help``, errors in one paragraph, types."""

from __future__ import annotations

import contextlib
import inspect
import os
import sys
import traceback
from collections.abc import Callable, Iterator
from typing import Any

import click

from lance_stream.cli.wording import as_options
from lance_stream.errors import LanceStreamError, PlanError
from lance_stream.source.location import redact

__all__ = [
    "FAILED",
    "INTERRUPTED",
    "TERMINATED",
    "WRONG_ARGUMENTS",
    "Command",
    "TerminatedError",
    "WrongArgumentError",
    "option",
    "paragraph",
    "positive",
    "seconds",
    "subcommand",
    "subset",
    "wrong_arguments",
]

FAILED, WRONG_ARGUMENTS, INTERRUPTED, TERMINATED = 1, 2, 130, 143


class TerminatedError(KeyboardInterrupt):
    """SIGTERM came: what Ctrl-C would clean up is cleaned up."""


_WIDTH = 88
_OTHER = "Options"


class WrongArgumentError(PlanError):
    """What a command was given is wrong, whatever the table is."""


@contextlib.contextmanager
def wrong_arguments() -> Iterator[None]:
    """What a check of arguments refuses is the fault of who gave them: exit status 2."""
    try:
        yield
    except PlanError as error:
        raise WrongArgumentError(str(error)) from error


class _Option(click.Option):
    """An option that stands under a heading of ``--help``."""

    def __init__(self, *arguments: Any, heading: str = _OTHER, **more: Any) -> None:
        super().__init__(*arguments, **more)
        self.heading = heading


class Command(click.Command):
    """A subcommand; the docstring of its module is its description."""

    def invoke(self, ctx: click.Context) -> int:
        """Run it; an error is one paragraph on stderr. Returns the exit status."""
        debug = ctx.params.pop("debug", False)
        try:
            return super().invoke(ctx)
        except (click.ClickException, click.exceptions.Exit):
            raise
        except TerminatedError:
            status, told = TERMINATED, "terminated"
        except (KeyboardInterrupt, click.Abort):
            status, told = INTERRUPTED, "interrupted"
        except LanceStreamError as error:
            # What follows the first line is for logs: the traceback of a user's function.
            wrong = isinstance(error, WrongArgumentError)
            status = WRONG_ARGUMENTS if wrong else FAILED
            told = as_options(str(error).partition("\n")[0])
            _show(error, debug=debug)
        except BrokenPipeError:
            # Whoever read the output has seen enough. Python would complain again at its end.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return FAILED
        except Exception as error:  # noqa: BLE001
            status, told = FAILED, f"{type(error).__name__}: {error}"
            _show(error, debug=debug)
        sys.stderr.write(f"{ctx.command_path}: {paragraph(told)}\n")
        return status

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the options, under their headings in the order of their first one."""
        sections: dict[str, list[tuple[str, str]]] = {}
        for parameter in self.get_params(ctx):
            # Newer versions of click have a record of arguments too; the usage names them.
            named = isinstance(parameter, click.Option)
            record = parameter.get_help_record(ctx) if named else None
            if record is not None:
                heading = getattr(parameter, "heading", _OTHER)
                sections.setdefault(heading, []).append(record)
        for heading in sorted(sections, key=lambda name: name == _OTHER):
            with formatter.section(heading):
                formatter.write_dl(sections[heading])


def subcommand(description: str | None, summary: str) -> Callable[[Callable[..., int]], Command]:
    """Make a function the command of its module; it returns the exit status.

    Args:
        description: Text of ``--help``, the module's docstring.
        summary: A few words for the list of commands.
    """

    def make(function: Callable[..., int]) -> Command:
        name = function.__module__.rpartition(".")[2]
        made = click.command(
            name,
            cls=Command,
            help=inspect.cleandoc(description or summary),
            short_help=summary,
            context_settings={"max_content_width": _WIDTH},
        )(function)
        made.params.append(
            _Option(["--debug"], is_flag=True, help="Show where an error comes from.")
        )
        return made

    return make


def paragraph(text: str) -> str:
    """Text in one line, without a password."""
    return redact(" ".join(text.split()))


def _show(error: BaseException, *, debug: bool) -> None:
    if debug:
        traceback.print_exception(error)


def option(*names: str, heading: str = _OTHER, **more: Any) -> Callable[[Any], Any]:
    """``click.option`` under a heading."""
    return click.option(*names, cls=_Option, heading=heading, **more)


positive = click.IntRange(min=1)


class _Seconds(click.ParamType):
    name = "seconds"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        with contextlib.suppress(ValueError):
            number = float(value)
            if 0 < number < float("inf"):
                return number
        return self.fail(f"{value!r} must be a number of seconds above 0", param, ctx)


class _Subset(click.ParamType):
    name = "subset"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[float, float]:
        if isinstance(value, tuple):
            return value
        with contextlib.suppress(ValueError):
            low, high = value.split(",")
            return float(low), float(high)
        return self.fail(f"{value!r} must be two numbers, as 0,0.9", param, ctx)


seconds = _Seconds()
subset = _Subset()
