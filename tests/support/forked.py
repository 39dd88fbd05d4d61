"""Run a function in a forked child of its own, under a watchdog.

The pytest process has torch and streaming loaded (5 s), so a fork gives each test a fresh process,
with its own process group, for a few milliseconds. The pytest process never imports lance.
"""

from __future__ import annotations

import contextlib
import faulthandler
import json
import os
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from lance_stream.host import settling

__all__ = ["Forked", "fork", "run_forked"]

_GROUP_ENDS_WITHIN_S = 2.0


class Forked:
    """A function that runs in a child process."""

    def __init__(self, pid: int, directory: Path) -> None:
        """Keep the child's pid and where its output goes."""
        self.pid = pid
        self._directory = directory
        self._status: int | None = None

    def wait(self, timeout_s: float) -> Any:
        """The function's result.

        Raises:
            AssertionError: It raised, died or took too long: with its traceback and stacks.
        """
        deadline = time.monotonic() + timeout_s
        while self.poll() is None:
            if time.monotonic() > deadline:
                self._signal(signal.SIGUSR1)
                time.sleep(0.5)
                self.kill()
                msg = f"still running after {timeout_s:g} s; its stacks:\n{self.output()}"
                raise AssertionError(msg)
            time.sleep(0.02)
        self._wait_for_group(_GROUP_ENDS_WITHIN_S)
        self.kill()
        result = self._directory / "result"
        if not result.exists():
            msg = f"died with status {self._status}:\n{self.output()}"
            raise AssertionError(msg)
        return json.loads(result.read_text())

    def poll(self) -> int | None:
        """Its exit status; None while it runs."""
        if self._status is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self._status = os.waitstatus_to_exitcode(status)
        return self._status

    def kill(self) -> None:
        """End it and all of its process group."""
        self._signal(signal.SIGKILL)
        if self._status is None:
            _, status = os.waitpid(self.pid, 0)
            self._status = os.waitstatus_to_exitcode(status)

    def output(self) -> str:
        """What it printed so far, at most the last 20,000 characters."""
        return (self._directory / "output").read_text(errors="replace")[-20000:]

    def _wait_for_group(self, timeout_s: float) -> None:
        """Python's resource tracker removes the shared memory of the child after it."""
        deadline = time.monotonic() + timeout_s
        while _has_live_process(self.pid) and time.monotonic() < deadline:
            time.sleep(0.005)

    def _signal(self, number: int) -> None:
        try:
            os.killpg(self.pid, number)
        except (ProcessLookupError, PermissionError):
            pass


def _has_live_process(group: int) -> bool:
    """Whether any process of a group runs: who adopts orphans may be slow to bury them."""
    for pid in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError):
            # After the name, which may hold anything: state, parent, group.
            state, _, pgid = Path("/proc", pid, "stat").read_text().rpartition(")")[2].split()[:3]
            if int(pgid) == group and state not in "ZX":
                return True
    return False


def fork(function: Callable[..., Any], *args: Any) -> Forked:
    """Start a function in a forked child; its result must be JSON."""
    directory = Path(tempfile.mkdtemp(prefix="forked-"))
    sys.stdout.flush()
    sys.stderr.flush()
    pid = os.fork()
    if pid:
        # Also from this side, so that the group exists before anybody signals it.
        try:
            os.setpgid(pid, pid)
        except (PermissionError, ProcessLookupError):
            pass
        return Forked(pid, directory)
    try:
        os.setpgid(0, 0)
        output = os.open(directory / "output", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        os.dup2(output, 1)
        os.dup2(output, 2)
        sys.stdout = os.fdopen(1, "w", buffering=1, closefd=False)
        sys.stderr = os.fdopen(2, "w", buffering=1, closefd=False)
        # A job of its own, whatever the pytest process has done.
        settling._Job.endpoint = None
        faulthandler.register(signal.SIGUSR1, file=2, all_threads=True)
        result = json.dumps(function(*args))
        temporary = directory / "result.tmp"
        temporary.write_text(result)
        temporary.rename(directory / "result")
    except BaseException:  # noqa: BLE001
        traceback.print_exc()
        os._exit(1)
    # As a program ends, so that what threads and exit handlers do is part of the test.
    import threading

    threading._shutdown()
    os._exit(0)


def run_forked(function: Callable[..., Any], *args: Any, timeout_s: float = 60.0) -> Any:
    """Run a function in a forked child and give its result, which must be JSON."""
    return fork(function, *args).wait(timeout_s)
