"""Tell whether a process that left its mark somewhere is still the same one, alive."""

from __future__ import annotations

import os

import psutil

__all__ = ["is_alive", "start_time", "this_process"]


def start_time(pid: int) -> int | None:
    """When a live process started, in 1/100 s; None if there is none (or a zombie)."""
    try:
        process = psutil.Process(pid)
        if process.status() == psutil.STATUS_ZOMBIE:
            return None
        return round(process.create_time() * 100)
    except psutil.NoSuchProcess:
        return None


def is_alive(pid: int, started: int) -> bool:
    """Whether the process with that pid is the one that started then.

    The start time guards against a pid that was given to another process since. It may be off
    by a few hundredths when the wall clock was set.
    """
    now = start_time(pid)
    return now is not None and abs(now - started) <= 100


def this_process() -> tuple[int, int]:
    """Pid and start time of the calling process."""
    pid = os.getpid()
    return pid, start_time(pid) or 0
