"""Run ``lance-stream`` as a process of its own."""

from __future__ import annotations

from typing import Any

from tests.support.scripts import RunningScript, ScriptResult, run_script, start_script

__all__ = ["COMMAND", "lance_stream", "refusal", "start_lance_stream"]

COMMAND = "import sys\nfrom lance_stream.cli.main import main\nsys.exit(main())\n"


def lance_stream(*arguments: object, **options: Any) -> ScriptResult:
    """Run a command line to its end; options as of ``run_script``."""
    return run_script(COMMAND, *arguments, **options)


def start_lance_stream(*arguments: object, **options: Any) -> RunningScript:
    """Run a command line in the background; options as of ``start_script``."""
    return start_script(COMMAND, *arguments, **options)


def refusal(result: ScriptResult, status: int = 1) -> str:
    """What a failed command said: one line, no traceback, nothing on stdout."""
    assert result.returncode == status, result.stderr
    assert result.stdout == ""
    assert result.stderr.startswith("lance-stream "), result.stderr
    assert result.stderr.count("\n") == 1, result.stderr
    assert "Traceback" not in result.stderr
    return result.stderr
