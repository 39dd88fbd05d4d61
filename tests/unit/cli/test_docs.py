"""docs/commands.md says what the commands do."""

from __future__ import annotations

import re

import pytest

from lance_stream.cli.main import main
from tests.support.command_docs import DOCUMENT, names, with_options

TEXT = DOCUMENT.read_text()


def test_the_lists_of_options_are_those_of_the_commands() -> None:
    assert with_options(TEXT) == TEXT, "run: python -m tests.support.command_docs"


@pytest.mark.parametrize("name", names())
def test_every_command_has_a_section(name: str) -> None:
    assert f"\n## {name}\n" in TEXT
    assert f"<!-- options of {name} -->" in TEXT


@pytest.mark.parametrize("name", names())
def test_help_has_every_option(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([name, "--help"]) == 0
    shown = set(re.findall(r"--[a-z][a-z-]+", capsys.readouterr().out)) - {"--help", "--debug"}
    section = TEXT.partition(f"\n## {name}\n")[2].partition("<!-- end -->")[0]
    assert shown <= set(re.findall(r"--[a-z][a-z-]+", section))
