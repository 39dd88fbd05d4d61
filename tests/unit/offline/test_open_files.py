from __future__ import annotations

import fcntl
import mmap
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from lance_stream.offline.open_files import OpenFiles, unused

HOLD = """
import mmap, os, sys
file = open(sys.argv[1], sys.argv[2])
if sys.argv[3] == "mapped":
    access = mmap.PROT_READ | (mmap.PROT_WRITE if "+" in sys.argv[2] else 0)
    mapped = mmap.mmap(file.fileno(), 0, prot=access)
    file.close()
print("held", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def file() -> Iterator[Path]:
    path = Path(f"/dev/shm/test-open-files-{os.getpid()}")
    path.write_bytes(b"x" * 100)
    yield path
    path.unlink(missing_ok=True)


def hold(path: Path, mode: str, how: str) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-c", HOLD, str(path), mode, how]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stdout.readline() == b"held\n"
    return process


@pytest.mark.parametrize("how", ["open", "mapped"])
@pytest.mark.parametrize("mode", ["rb", "r+b"])
def test_another_process_has_it(file: Path, mode: str, how: str) -> None:
    process = hold(file, mode, how)
    try:
        files = OpenFiles()
        assert files.users(str(file)) == {process.pid}
        assert process.pid in files.users_below(str(file.parent))
        with unused([str(file)], files) as why:
            assert why == f"in use by process {process.pid}"
    finally:
        process.communicate()
    with unused([str(file)], OpenFiles()) as why:
        assert why is None
    assert OpenFiles().users(str(file)) == set()


def test_a_process_that_the_scan_does_not_see(file: Path, tmp_path: Path) -> None:
    # As one of another container: only the kernel knows of it.
    process = hold(file, "r+b", "mapped")
    try:
        with unused([str(file)], OpenFiles(str(tmp_path))) as why:
            assert why == "in use by a process that cannot be seen from here"
    finally:
        process.communicate()


def test_nobody_can_open_it_meanwhile(file: Path) -> None:
    with unused([str(file)], OpenFiles()) as why:
        assert why is None
        with pytest.raises(BlockingIOError):
            os.open(file, os.O_RDWR | os.O_NONBLOCK)
    os.close(os.open(file, os.O_RDWR))


def test_where_there_are_no_leases_the_scan_must_do(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_descriptor: int, _command: int, _argument: int) -> int:
        raise OSError(22, "Invalid argument")

    monkeypatch.setattr(fcntl, "fcntl", refuse)
    files = OpenFiles()
    files.unseen.clear()
    with unused([str(file)], files) as why:
        assert why is None
    files.unseen.add(17)
    with unused([str(file)], files) as why:
        assert why == "perhaps in use by process 17, which may not be looked at"


def test_what_is_gone_is_not_used(tmp_path: Path) -> None:
    with unused([str(tmp_path / "none")], OpenFiles()) as why:
        assert why is None


def test_this_process_does_not_count_itself(file: Path) -> None:
    with file.open("r+b") as handle, mmap.mmap(handle.fileno(), 0):
        assert OpenFiles().users(str(file)) == set()
