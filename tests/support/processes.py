"""Child processes that cannot outlive the tests, and the end of their logs.

Run as a program (``python processes.py PARENT_PID COMMAND...``) this module is the leash: it asks
the kernel to kill it when its parent dies and then becomes the command. Doing that in a process of
its own avoids ``preexec_fn``, which may deadlock in a parent that has threads.

This module imports only the standard library, so that the leash starts in about 20 ms.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

_PR_SET_PDEATHSIG = 1


def leashed(command: Sequence[str]) -> list[str]:
    """The command line that runs ``command`` until its parent ends.

    The kernel's promise is about the parent *thread*: start such a process from a thread that
    lives as long as the process is wanted (the main thread, as a rule). Only the process itself
    is killed, not its children.
    """
    # -I -S: no site-packages and no environment, which makes the detour cheap.
    return [sys.executable, "-I", "-S", __file__, str(os.getpid()), *command]


def kill_group(group_id: int, signal_number: int = signal.SIGKILL) -> None:
    """Sends a signal to a process group; a group that is already gone is fine."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(group_id, signal_number)


def group_pids(group_id: int) -> list[int]:
    """The live (not zombie) processes of a process group, from /proc."""
    pids = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        # A process may end between the listing and the read.
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            # "pid (name) state ppid pgrp ...": the name may hold spaces and parentheses.
            state, _, group = (entry / "stat").read_text().rpartition(")")[2].split()[:3]
            if int(group) == group_id and state not in "ZX":
                pids.append(int(entry.name))
    return sorted(pids)


def tail(path: Path, max_bytes: int = 4000) -> str:
    """The end of a text file, for error messages; says so if the file is missing."""
    try:
        with path.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - max_bytes))
            text = file.read().decode(errors="replace")
    except FileNotFoundError:
        return f"(no file {path})"
    return text if size <= max_bytes else f"... (last {max_bytes} of {size} bytes)\n{text}"


def _become_leashed(parent_pid: int, command: list[str]) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG) failed")
    # The parent may have died before the request: then no signal will ever come.
    if os.getppid() != parent_pid:
        sys.exit(f"the parent {parent_pid} is gone: {command[0]} is not started")
    os.execvp(command[0], command)


if __name__ == "__main__":
    _become_leashed(int(sys.argv[1]), sys.argv[2:])
