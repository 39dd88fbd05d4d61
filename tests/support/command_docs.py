"""The lists of options in docs/commands.md, made from the commands themselves.

``python -m tests.support.command_docs`` writes them into the file.
"""

from __future__ import annotations

import importlib
import pkgutil
import re
from pathlib import Path

import click

from lance_stream.cli import commands

__all__ = ["DOCUMENT", "names", "options", "with_options"]

DOCUMENT = Path(__file__).resolve().parents[2] / "docs" / "commands.md"
_LISTS = re.compile(r"(<!-- options of (\w+) -->\n).*?(<!-- end -->\n)", re.DOTALL)


def names() -> list[str]:
    """The subcommands."""
    return sorted(module.name for module in pkgutil.iter_modules(commands.__path__))


def options(name: str) -> str:
    """The options of a command as a list in Markdown."""
    command: click.Command = importlib.import_module(f"{commands.__name__}.{name}").command
    lines, heading = [], ""
    # As --help has them: those without a heading of their own come last.
    found = [p for p in command.params if isinstance(p, click.Option)]
    headings = list(dict.fromkeys(getattr(p, "heading", "Options") for p in found))
    for wanted in sorted(headings, key=lambda text: text == "Options"):
        for option in found:
            if getattr(option, "heading", "Options") == wanted:
                if heading != wanted:
                    lines += [f"\n{wanted}\n"]
                    heading = wanted
                lines.append(f"- `{_usage(option)}`: {option.help}{_default(option)}")
    return "\n".join(lines).lstrip("\n") + "\n"


def _usage(option: click.Option) -> str:
    names = "/".join([*option.opts, *option.secondary_opts])
    if option.is_flag:
        return names
    if isinstance(option.type, click.Choice):
        return f"{names} {'|'.join(option.type.choices)}"
    return f"{names} {option.metavar}"


def _default(option: click.Option) -> str:
    if not option.show_default:
        return " Required." if option.required else ""
    shown = option.show_default if isinstance(option.show_default, str) else option.default
    return f" Default: {shown}."


def with_options(text: str) -> str:
    """The document with its lists as they should be."""
    return _LISTS.sub(lambda found: found[1] + "\n" + options(found[2]) + "\n" + found[3], text)


if __name__ == "__main__":
    DOCUMENT.write_text(with_options(DOCUMENT.read_text()))
