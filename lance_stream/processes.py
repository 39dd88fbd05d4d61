"""Tell whether a process that left its mark somewhere is still the same one, alive."""

from __future__ import annotations

import functools
import hashlib
import os
import socket

import psutil

__all__ = ["is_alive", "start_ticks", "start_time", "this_node", "this_process", "this_writer"]


def start_time(pid: int) -> int | None:
    """When a live process started, in 1/100 s; None if there is none (or a zombie)."""
    try:
        process = psutil.Process(pid)
        if process.status() == psutil.STATUS_ZOMBIE:
            return None
        return round(process.create_time() * 100)
    except psutil.NoSuchProcess:
        return None


def start_ticks() -> int:
    """When this process started, in ticks since the machine did.

    Unlike `start_time` it puts processes in order also where the wall clock was set between them
    (proc_pid_stat(5), ``starttime``).
    """
    with open("/proc/self/stat") as file:
        # "pid (name) state parent ...": the name may hold spaces and parentheses.
        return int(file.read().rpartition(")")[2].split()[19])


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


def this_node() -> str:
    """Names where a pid means something: this machine since its start, and the container on it.

    Returns:
        12 hex characters.
    """
    # A container is another node although its machine is not.
    return _node(_read_link("/proc/self/ns/pid"))


def this_writer() -> tuple[int, int, str]:
    """Pid and start time of the calling process, and its node: for names on shared disks."""
    return (*this_process(), this_node())


@functools.cache
def _node(namespace: str) -> str:
    try:
        with open("/proc/sys/kernel/random/boot_id") as file:
            boot = file.read().strip()
    except OSError:
        boot = ""
    text = "\0".join((socket.gethostname(), boot, namespace))
    return hashlib.blake2b(text.encode(), digest_size=6).hexdigest()


def _read_link(path: str) -> str:
    try:
        return os.readlink(path)
    except OSError:
        return ""
