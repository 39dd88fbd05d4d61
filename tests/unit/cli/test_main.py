from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import click
import pytest

from lance_stream import __version__
from lance_stream.cli import commands
from lance_stream.cli.command import option, subcommand
from lance_stream.cli.main import main
from lance_stream.errors import PlanError, TransformError

NAMES = ["clean", "export", "index", "inspect", "status", "verify", "warm"]


@pytest.fixture
def outcome(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[Any], None]:
    """Puts a command ``try`` beside the others; it raises or returns what is given."""

    def install(result: Any) -> None:
        def command(*, long_name: int | None) -> int:
            del long_name
            if isinstance(result, BaseException):
                raise result
            return result

        name = f"{commands.__name__}.try"
        command.__module__ = name
        module = ModuleType(name)
        taken = option("--long-name", type=int)(command)
        module.command = subcommand("Try it.", "Tries.")(taken)  # type: ignore[attr-defined]
        monkeypatch.setitem(sys.modules, name, module)
        (tmp_path / "try.py").write_text("")
        monkeypatch.setattr(commands, "__path__", [*commands.__path__, str(tmp_path)])

    return install


@pytest.mark.parametrize(
    ("result", "status", "told"),
    [
        (0, 0, ""),
        (3, 3, ""),
        (KeyboardInterrupt(), 130, "lance-stream try: interrupted\n"),
        (click.Abort(), 130, "lance-stream try: interrupted\n"),
        (PlanError("columns: no 'x'"), 1, "lance-stream try: columns: no 'x'\n"),
        (TransformError("it raised\nTraceback ..."), 1, "lance-stream try: it raised\n"),
        (ValueError("two\n  lines"), 1, "lance-stream try: ValueError: two lines\n"),
        (KeyError("x"), 1, "lance-stream try: KeyError: 'x'\n"),
        (OSError(28, "full"), 1, "lance-stream try: OSError: [Errno 28] full\n"),
        (
            PlanError("s3://user:secret@bucket/x?sig=secret, refused"),
            1,
            "lance-stream try: s3://***@bucket/x?***, refused\n",
        ),
    ],
)
def test_status_and_error(
    outcome: Callable[[Any], None],
    capsys: pytest.CaptureFixture[str],
    result: Any,
    status: int,
    told: str,
) -> None:
    outcome(result)
    assert main(["try"]) == status
    output = capsys.readouterr()
    assert (output.out, output.err) == ("", told)


def test_where_an_error_comes_from(
    outcome: Callable[[Any], None], capsys: pytest.CaptureFixture[str]
) -> None:
    outcome(ValueError("x"))
    assert main(["try", "--debug"]) == 1
    assert "Traceback" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ([], "lance-stream: Missing command; see lance-stream --help"),
        (["nope"], "lance-stream: No such command 'nope'"),
        (["try", "--x"], "lance-stream try: No such option"),
        (["try", "--long", "1"], "lance-stream try: No such option"),
        (["try", "--long-name", "x"], "lance-stream try: Invalid value for '--long-name'"),
    ],
)
def test_wrong_arguments(
    outcome: Callable[[Any], None],
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    told: str,
) -> None:
    outcome(0)
    assert main(arguments) == 2
    output = capsys.readouterr()
    assert output.out == ""
    assert output.err.startswith(told)
    assert output.err.count("\n") == 1


def test_a_module_is_a_command(
    outcome: Callable[[Any], None], capsys: pytest.CaptureFixture[str]
) -> None:
    outcome(0)
    assert main(["--help"]) == 0
    listed = [
        line.split()[0]
        for line in capsys.readouterr().out.partition("Commands:")[2].split("\n")
        if line.strip()
    ]
    assert listed == sorted([*NAMES, "try"])


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--help"], "Write a table as an MDS dataset"),
        (["--version"], f"lance-stream {__version__}"),
        (["export", "--help"], "--storage-options-from FILE.json"),
    ],
)
def test_help(capsys: pytest.CaptureFixture[str], arguments: list[str], words: str) -> None:
    assert main(arguments) == 0
    output = capsys.readouterr()
    assert words in output.out
    assert output.err == ""


SCRIPT = """
import sys, threading, json
from types import ModuleType
from lance_stream.cli.command import subcommand
from lance_stream.cli import commands, main as entry

def command():
    threading.Thread(target=threading.Event().wait, name="lance-stream-x", daemon=True).start()
    sys.stdout.write("printed")
    return 7

command.__module__ = name = "lance_stream.cli.commands.warm"
module = sys.modules[name] = ModuleType(name)
module.command = subcommand("", "x")(command)
sys.exit(entry.main(["warm"]) + 1)
"""


def test_a_hung_call_does_not_hold_the_process() -> None:
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, timeout=30)
    assert (done.returncode, done.stdout, done.stderr) == (7, b"printed", b"")
    assert not [t for t in threading.enumerate() if t.name.startswith("lance-stream-")]


def test_a_reader_that_has_seen_enough() -> None:
    script = f"{sys.executable} -m lance_stream.cli --help | head -c 5; echo ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", script], capture_output=True, timeout=30, text=True)
    assert done.stdout.startswith("Usage")
    assert "Traceback" not in done.stderr


LOADED = """
import json, sys
from lance_stream.cli.main import main
status = main(sys.argv[1:])
found = {name.split(".")[0] for name in sys.modules}
print(json.dumps(sorted(found & {"torch", "streaming", "lance", "rich", "pyarrow", "numpy"})))
sys.exit(status)
"""


@pytest.mark.parametrize("name", ["", *NAMES])
def test_help_loads_nothing_heavy(name: str, run_python: Callable[..., str]) -> None:
    printed = run_python(LOADED, *filter(None, [name]), "--help")
    assert "Usage: lance-stream" in printed
    assert json.loads(printed.splitlines()[-1]) == []
