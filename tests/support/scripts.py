"""Python code run in a fresh interpreter under a watchdog.

Whatever may hang, crash, fork or import lance is run like this, so that the pytest process stays
clean. Output goes to files and never to pipes: an orphan that keeps stdout open cannot block the
test.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import textwrap
import time
import weakref
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

from tests.support.processes import group_pids, kill_group, leashed, tail

REPO_ROOT = Path(__file__).resolve().parents[2]

_POLL_S = 0.01


@dataclass(frozen=True)
class ScriptResult:
    """What an ended script left: a negative return code is the signal that ended it."""

    returncode: int
    stdout: str
    stderr: str
    seconds: float

    def check(self) -> ScriptResult:
        """Itself if the script ended with status 0.

        Raises:
            AssertionError: Any other status; shows the ends of both outputs.
        """
        if self.returncode != 0:
            raise AssertionError(
                f"the script ended with status {self.returncode}\n{self._tails()}"
            )
        return self

    def json(self) -> Any:
        """The value that the last non-empty line of stdout holds.

        Raises:
            AssertionError: The script failed, or that line is not JSON.
        """
        self.check()
        last_line = self.stdout.rstrip().rpartition("\n")[2]
        try:
            return json.loads(last_line)
        except json.JSONDecodeError as error:
            raise AssertionError(f"the last line is not JSON: {error}\n{self._tails()}") from error

    def _tails(self) -> str:
        return _show_tails(self.stdout[-4000:], self.stderr[-4000:])


class RunningScript:
    """A script in the background, in a session and process group of its own.

    Made by `start_script`. As a context manager it kills the whole group at the end. It is killed
    also when the thread that started it ends (see `leashed`).
    """

    def __init__(
        self, process: subprocess.Popen[bytes], directory: Path, started_s: float
    ) -> None:
        self._process = process
        self._stdout_path = directory / "stdout"
        self._stderr_path = directory / "stderr"
        self._started_s = started_s
        self._result: ScriptResult | None = None
        self._remove_directory = weakref.finalize(self, shutil.rmtree, directory, True)

    @property
    def pid(self) -> int:
        """The process id of the interpreter, which is its group's and session's id too."""
        return self._process.pid

    def poll(self) -> int | None:
        """The return code, or None while the script runs."""
        return self._process.poll()

    def wait(self, timeout_s: float) -> ScriptResult:
        """Waits for the end of the script itself (not of processes that it left).

        Raises:
            AssertionError: Not ended after ``timeout_s``; the group is killed then.
        """
        if self._result is None:
            try:
                returncode = self._process.wait(timeout_s)
            except subprocess.TimeoutExpired:
                self.kill_group()
                self._process.wait()
                raise AssertionError(
                    f"the script {self.pid} was killed after {timeout_s} s\n{self._tails()}"
                ) from None
            seconds = time.monotonic() - self._started_s
            self._result = ScriptResult(returncode, self.stdout(), self.stderr(), seconds)
        return self._result

    def wait_for_line(self, regex: str, timeout_s: float) -> re.Match[str]:
        """The match in the first complete line of stdout (of all of it) that has one.

        Raises:
            AssertionError: The script ended without such a line, or none came in ``timeout_s``.
        """
        pattern = re.compile(regex)
        deadline_s = time.monotonic() + timeout_s
        while True:
            # Asked before the read: what an ended script wrote is then all there.
            ended = self.poll() is not None
            lines = self.stdout().splitlines(keepends=True)
            for line in lines:
                match = pattern.search(line.rstrip("\n"))
                if match is not None and (ended or line.endswith("\n")):
                    return match
            if ended:
                raise AssertionError(
                    f"the script ended with status {self.poll()} without a line like"
                    f" {regex!r}\n{self._tails()}"
                )
            if time.monotonic() > deadline_s:
                raise AssertionError(
                    f"no line like {regex!r} in {timeout_s} s from the script {self.pid}\n"
                    f"{self._tails()}"
                )
            time.sleep(_POLL_S)

    def kill_group(self, signal_number: int = signal.SIGKILL) -> None:
        """Sends a signal to every process of the script's group, orphans too."""
        kill_group(self.pid, signal_number)

    def group_pids(self) -> list[int]:
        """The live processes of the script's group."""
        return group_pids(self.pid)

    def stdout(self) -> str:
        """All that was written so far; after the end of the script, what it was at that moment."""
        return self._read(self._stdout_path) if self._result is None else self._result.stdout

    def stderr(self) -> str:
        """As `stdout`."""
        return self._read(self._stderr_path) if self._result is None else self._result.stderr

    def close(self) -> None:
        """Kills the group and removes the files; the outputs stay readable."""
        self.kill_group()
        self.wait(10)
        self._remove_directory()

    def __enter__(self) -> RunningScript:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def _tails(self) -> str:
        return _show_tails(tail(self._stdout_path), tail(self._stderr_path))

    @staticmethod
    def _read(path: Path) -> str:
        return path.read_text(errors="replace")


def start_script(
    source: str | Path,
    *args: object,
    env: Mapping[str, str | None] | None = None,
    cwd: Path | None = None,
) -> RunningScript:
    """Starts Python code in the background; use the result as a context manager.

    Args:
        source: The code (dedented), or the path of a file with it. Code is run from a file, so
            that tracebacks show it and ``spawn`` can import it again.
        args: ``sys.argv[1:]``, each by ``str``.
        env: Added to this process's environment; None removes a variable. The repository is always
            on PYTHONPATH.
        cwd: The working directory; default this process's.
    """
    directory = Path(tempfile.mkdtemp(prefix="script-"))
    if isinstance(source, Path):
        path = source
    else:
        path = directory / "script.py"
        path.write_text(textwrap.dedent(source))
    command = [sys.executable, str(path), *map(str, args)]
    with (directory / "stdout").open("wb") as stdout, (directory / "stderr").open("wb") as stderr:
        started_s = time.monotonic()
        process = subprocess.Popen(
            leashed(command),
            stdin=subprocess.DEVNULL,
            stdout=stdout,
            stderr=stderr,
            env=_environment(env),
            cwd=cwd,
            start_new_session=True,
        )
    return RunningScript(process, directory, started_s)


def run_script(
    source: str | Path,
    *args: object,
    timeout_s: float = 60,
    env: Mapping[str, str | None] | None = None,
    cwd: Path | None = None,
) -> ScriptResult:
    """Runs Python code to its end; arguments as for `start_script`.

    Processes that the script leaves are not waited for, and not ended: some tests are about them.

    Raises:
        AssertionError: Not ended after ``timeout_s``; the group is killed and both outputs shown.
    """
    script = start_script(source, *args, env=env, cwd=cwd)
    try:
        return script.wait(timeout_s)
    except BaseException:
        # Also on Ctrl-C and on pytest's own timeout: nothing may stay behind.
        script.close()
        raise


def _environment(changes: Mapping[str, str | None] | None) -> dict[str, str]:
    environment = dict(os.environ)
    for name, value in (changes or {}).items():
        if value is None:
            environment.pop(name, None)
        else:
            environment[name] = value
    path = environment.get("PYTHONPATH")
    environment["PYTHONPATH"] = os.pathsep.join([str(REPO_ROOT), *([path] if path else [])])
    # wait_for_line must see a line as soon as it is printed.
    environment["PYTHONUNBUFFERED"] = "1"
    return environment


def _show_tails(stdout: str, stderr: str) -> str:
    return f"--- stdout\n{stdout}\n--- stderr\n{stderr}"
