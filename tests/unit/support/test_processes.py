from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from tests.support.processes import group_pids, kill_group, leashed, tail
from tests.support.scripts import start_script


def wait_until_gone(pid: int, timeout_s: float) -> bool:
    deadline_s = time.monotonic() + timeout_s
    while group_pids(pid):
        if time.monotonic() > deadline_s:
            return False
        time.sleep(0.01)
    return True


def test_a_leashed_command_is_the_command_with_its_output_and_status() -> None:
    command = leashed(
        [sys.executable, "-c", "import sys; print(sys.argv[1:]); sys.exit(3)", "a b"]
    )
    result = subprocess.run(command, capture_output=True, text=True, timeout=20, check=False)
    assert (result.returncode, result.stdout, result.stderr) == (3, "['a b']\n", "")


def test_all_servers_die_with_a_killed_test_process(tmp_path: Path) -> None:
    source = """
        import sys, time
        from pathlib import Path
        from tests.support.fault_proxy import FaultProxy
        from tests.support.object_store import S3Server
        from tests.support.scripts import start_script

        server = S3Server.start(Path(sys.argv[1]))
        proxy = FaultProxy.start(server.port)
        script = start_script("import time; print('up'); time.sleep(600)")
        script.wait_for_line("up", 20)
        for path in server.socket_paths():
            print("socket", path)
        print("pids", server.pid, proxy.pid, script.pid)
        time.sleep(600)
    """
    # What the killed one cannot remove is then in a directory of this test.
    with start_script(source, tmp_path, env={"TMPDIR": str(tmp_path)}) as parent:
        line = parent.wait_for_line(r"^pids (\d+) (\d+) (\d+)$", 40)
        pids = [int(each) for each in line.groups()]
        assert [group_pids(pid) for pid in pids] == [[pid] for pid in pids]
        os.kill(parent.pid, signal.SIGKILL)
        assert [pid for pid in pids if not wait_until_gone(pid, 5)] == []
    for word, _, path in (each.partition(" ") for each in parent.stdout().splitlines()):
        if word == "socket":
            Path(path).unlink()


def test_nothing_is_started_for_a_parent_that_is_gone(tmp_path: Path) -> None:
    command = leashed([sys.executable, "-c", f"open({str(tmp_path / 'ran')!r}, 'w')"])
    position = command.index(str(os.getpid()))
    command[position] = "1" if os.getppid() != 1 else "2"
    result = subprocess.run(command, capture_output=True, text=True, timeout=20, check=False)
    assert result.returncode == 1
    assert "is gone" in result.stderr
    assert not (tmp_path / "ran").exists()


def test_a_group_is_listed_without_zombies_and_killed() -> None:
    source = """
        import subprocess, sys, time
        child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
        zombie = subprocess.Popen([sys.executable, "-c", ""])
        print("child", child.pid)
        time.sleep(600)
    """
    with start_script(source) as script:
        child = int(script.wait_for_line(r"child (\d+)", 20)[1])
        deadline_s = time.monotonic() + 10
        while group_pids(script.pid) != sorted([script.pid, child]):
            assert time.monotonic() < deadline_s, group_pids(script.pid)
            time.sleep(0.01)
        kill_group(script.pid)
        assert script.wait(10).returncode == -signal.SIGKILL
        assert wait_until_gone(script.pid, 5)
    kill_group(script.pid)  # a group that is gone is no error


def test_tail_shows_the_end_and_says_what_it_left_out(tmp_path: Path) -> None:
    path = tmp_path / "log"
    assert "no file" in tail(path)
    path.write_bytes(b"first\n" + b"\xff" + b"last\n")
    assert tail(path) == "first\n\N{REPLACEMENT CHARACTER}last\n"
    assert tail(path, max_bytes=5) == "... (last 5 of 12 bytes)\nlast\n"
