from __future__ import annotations

import os
import subprocess
import sys
import time

import psutil
import pytest

from lance_stream.processes import (
    is_alive,
    start_ticks,
    start_time,
    this_node,
    this_process,
    this_writer,
)
from tests.support.mounts import as_root


@pytest.fixture
def child():
    with subprocess.Popen(
        [sys.executable, "-S", "-c", "print(); input()"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()
        yield process
        process.kill()


def test_this_process_is_alive() -> None:
    pid, started = this_process()
    assert pid == os.getpid()
    assert started == start_time(pid)
    assert is_alive(pid, started)
    assert abs(started / 100 - time.time()) < 3600


def test_ticks_put_processes_in_order() -> None:
    """Also one whose name looks like the fields that follow it."""
    name = "(a) S 1 2"
    script = (
        "import sys; from lance_stream.processes import start_ticks; "
        f"open('/proc/self/comm', 'w').write({name!r}); "
        "assert open('/proc/self/comm').read().strip() == sys.argv[1]; print(start_ticks())"
    )
    done = subprocess.run([sys.executable, "-c", script, name], capture_output=True, text=True)
    now = (time.time() - psutil.boot_time()) * os.sysconf("SC_CLK_TCK")
    assert start_ticks() < int(done.stdout) < now + 100, done.stderr


def test_another_process_is_alive_until_it_is_killed(child: subprocess.Popen[bytes]) -> None:
    started = start_time(child.pid)
    assert started is not None
    assert is_alive(child.pid, started)
    child.kill()
    # Not reaped: a zombie is dead.
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    assert start_time(child.pid) is None
    assert not is_alive(child.pid, started)
    child.wait(20)
    assert start_time(child.pid) is None
    assert not is_alive(child.pid, started)


@pytest.mark.parametrize(
    ("off_by", "alive"), [(0, True), (5, True), (-5, True), (1000, False), (-1000, False)]
)
def test_a_pid_that_was_given_to_another_process_is_not_alive(off_by: int, alive: bool) -> None:
    pid, started = this_process()
    assert is_alive(pid, started + off_by) is alive


@pytest.mark.parametrize("pid", [0, 2**22 + 1, 2**31 - 1])
def test_there_is_no_such_process(pid: int) -> None:
    assert start_time(pid) is None
    assert not is_alive(pid, 0)


def test_a_process_of_another_user_is_alive() -> None:
    started = start_time(1)
    assert started is not None
    assert is_alive(1, started)


def test_a_node_is_named_alike_by_its_processes() -> None:
    code = "from lance_stream.processes import this_node; print(this_node())"
    other = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert other.stdout.strip() == this_node()
    assert this_writer() == (*this_process(), this_node())


@as_root
def test_a_pid_namespace_is_another_node() -> None:
    code = "from lance_stream.processes import this_node; print(this_node())"
    command = ["unshare", "--pid", "--fork", sys.executable, "-c", code]
    other = subprocess.run(command, capture_output=True, text=True, check=True)
    assert len(other.stdout.strip()) == len(this_node()) == 12
    assert other.stdout.strip() != this_node()
