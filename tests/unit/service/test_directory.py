from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from lance_stream.errors import CacheInUseError, DownloadProcessError, PlanError
from lance_stream.processes import this_node, this_process
from lance_stream.service.directory import claim_default_directory, claim_directory
from tests.unit.conftest import ROOT

FINGERPRINT = "0123456789abcdef0123456789abcdef"

CLAIM = """
import sys
from lance_stream.service.directory import claim_directory
claim = claim_directory(sys.argv[1])
print("claimed", flush=True)
sys.stdin.readline()
claim.close()
print("closed", flush=True)
sys.stdin.readline()
"""

CLAIM_DEFAULT = """
import sys
from lance_stream.service.directory import claim_default_directory
print(claim_default_directory(sys.argv[1]).path, flush=True)
sys.stdin.readline()
"""

TRY = """
import sys
from lance_stream.errors import LanceStreamError
from lance_stream.service.directory import claim_directory
try:
    claim_directory(sys.argv[1])
except LanceStreamError as error:
    print(type(error).__name__, error)
else:
    print("claimed")
"""


@contextmanager
def process(script: str, *arguments: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A process that runs a script, once it has said its first line; killed at the end."""
    child = subprocess.Popen(
        [sys.executable, "-c", script, *arguments],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with child:
        assert child.stdout is not None
        try:
            yield child, child.stdout.readline().rstrip("\n")
        finally:
            child.kill()


def say(child: subprocess.Popen[str], text: str = "\n") -> str:
    """Give a process a line; what it says to that."""
    assert child.stdin is not None
    assert child.stdout is not None
    child.stdin.write(text)
    child.stdin.flush()
    return child.stdout.readline()


def test_a_directory_is_made_and_its_lock_names_the_holder(tmp_path: Path) -> None:
    path = tmp_path / "a" / "b"
    claim = claim_directory(str(path))
    assert claim.path == str(path)
    pid, started = this_process()
    words = (path / ".lance_stream.lock").read_text().split()
    assert words == [str(pid), str(started), this_node(), socket.gethostname()]
    claim.close()


def test_another_process_is_refused_and_told_the_pid(
    tmp_path: Path, run_python: Callable[..., str]
) -> None:
    with process(CLAIM, str(tmp_path)) as (holder, said):
        assert said == "claimed"
        message = f"local='{re.escape(str(tmp_path))}' is in use by process {holder.pid}: .*local="
        with pytest.raises(CacheInUseError, match=message):
            claim_directory(str(tmp_path))
        refusal = run_python(TRY, str(tmp_path))
        assert refusal.startswith("CacheInUseError ")
        assert f"process {holder.pid}:" in refusal
        # It is free once it was given up, though the process lives on.
        assert say(holder) == "closed\n"
        claim_directory(str(tmp_path)).close()


def test_a_refused_claim_leaves_the_holder_alone(
    tmp_path: Path, run_python: Callable[..., str]
) -> None:
    claim = claim_directory(str(tmp_path))
    for _ in range(2):
        assert run_python(TRY, str(tmp_path)).startswith("CacheInUseError ")
    assert (
        (tmp_path / ".lance_stream.lock").read_text().startswith("{} {} ".format(*this_process()))
    )
    claim.close()
    assert run_python(TRY, str(tmp_path)) == "claimed\n"


def test_one_process_may_claim_a_directory_several_times(
    tmp_path: Path, run_python: Callable[..., str]
) -> None:
    first, second = claim_directory(str(tmp_path)), claim_directory(str(tmp_path))
    first.close()
    first.close()  # Once is enough: the second time does nothing.
    assert run_python(TRY, str(tmp_path)).startswith("CacheInUseError ")
    second.close()
    assert run_python(TRY, str(tmp_path)) == "claimed\n"


def test_a_directory_is_the_same_by_another_name(
    tmp_path: Path, run_python: Callable[..., str]
) -> None:
    real, link = tmp_path / "real", tmp_path / "link"
    real.mkdir()
    link.symlink_to(real)
    claim = claim_directory(str(link))
    assert claim.path == str(real)
    again = claim_directory(f"{real}/../real/")
    assert again.path == str(real)
    assert run_python(TRY, str(real)).startswith("CacheInUseError ")
    claim.close()
    again.close()


def test_a_killed_holder_has_let_go(tmp_path: Path) -> None:
    with process(CLAIM, str(tmp_path)) as (holder, said):
        assert said == "claimed"
        holder.send_signal(signal.SIGKILL)
        holder.wait(20)
        claim_directory(str(tmp_path)).close()


def test_a_stopped_holder_still_holds(tmp_path: Path) -> None:
    with process(CLAIM, str(tmp_path)) as (holder, said):
        assert said == "claimed"
        holder.send_signal(signal.SIGSTOP)
        with pytest.raises(CacheInUseError, match=f"in use by process {holder.pid}"):
            claim_directory(str(tmp_path))


def test_the_word_of_a_dead_holder_is_overwritten(tmp_path: Path) -> None:
    (tmp_path / ".lance_stream.lock").write_text("123456789 9876543210123 and more of it")
    claim = claim_directory(str(tmp_path))
    assert (
        (tmp_path / ".lance_stream.lock").read_text().startswith("{} {} ".format(*this_process()))
    )
    claim.close()


FORK = """
import os, sys
from lance_stream.service.directory import claim_directory
claim = claim_directory(sys.argv[1])
read, write = os.pipe()
child = os.fork()
if not child:
    os.close(write)
    claim.close()  # Not its own: does nothing.
    os.read(read, 1)  # Until the parent is gone, and then as long as standard input is open.
    sys.stdin.readline()
    os._exit(0)
print(child, flush=True)
sys.stdin.readline()
"""


def test_a_forked_child_does_not_hold_the_claim(
    tmp_path: Path, run_python: Callable[..., str]
) -> None:
    with process(FORK, str(tmp_path)) as (parent, said):
        child = int(said)
        try:
            # Nor does its closing take it from the parent.
            assert f"in use by process {parent.pid}" in run_python(TRY, str(tmp_path))
            parent.send_signal(signal.SIGKILL)
            parent.wait(20)
            os.kill(child, 0)
            claim_directory(str(tmp_path)).close()
            os.kill(child, 0)
        finally:
            os.kill(child, signal.SIGKILL)


FORK_CLAIMS = """
import os, sys
from lance_stream.errors import CacheInUseError
from lance_stream.service.directory import claim_directory
claim = claim_directory(sys.argv[1])
if not os.fork():
    try:
        claim_directory(sys.argv[1])
    except CacheInUseError as error:
        print(error, flush=True)
    os._exit(0)
os.wait()
"""


def test_a_forked_child_is_another_process(tmp_path: Path, run_python: Callable[..., str]) -> None:
    assert "is in use by process" in run_python(FORK_CLAIMS, str(tmp_path))


RANK = """
import multiprocessing, sys
from lance_stream.service.directory import claim_directory, join_directory

def rank(path, number, barrier, alone):
    for _ in range(200):
        if number == 0:
            claim = claim_directory(path)
        barrier.wait(20)
        if number:
            claim = join_directory(path)
        barrier.wait(20)
        alone[number] = claim.close()
        barrier.wait(20)
        if number == 0:
            assert any(alone), list(alone)
        barrier.wait(20)

context = multiprocessing.get_context("fork")
barrier, alone = context.Barrier(3), context.Array("b", 3, lock=False)
ranks = [context.Process(target=rank, args=(sys.argv[1], n, barrier, alone)) for n in range(3)]
for process in ranks:
    process.start()
for process in ranks:
    process.join(60)
print([process.exitcode for process in ranks])
"""


def test_one_of_those_that_let_go_at_once_is_the_last(
    tmp_path: Path, run_python: Callable[..., str]
) -> None:
    """Ranks that end in the same moment: one of them removes what they shared."""
    assert run_python(RANK, str(tmp_path)) == "[0, 0, 0]\n"


def test_what_cannot_be_a_directory_names_the_argument(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for path in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(PlanError, match=r"local=.*file.* cannot be used as a cache directory"):
            claim_directory(str(path))
    with pytest.raises(PlanError, match=r"local='/proc/none' cannot be used"):
        claim_directory("/proc/none")


# --- default directories ---


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("LANCE_STREAM_CACHE_DIR", str(tmp_path / "cache"))
    return tmp_path / "cache"


def test_default_directories_are_distinct_and_found_again(root: Path) -> None:
    first = claim_default_directory(FINGERPRINT)
    second = claim_default_directory(FINGERPRINT)
    other = claim_default_directory("f" * 32)
    assert first.path == str(root / FINGERPRINT[:20])
    assert second.path == first.path + ".1"
    assert other.path == str(root / ("f" * 20))
    for path in (root, first.path, second.path, other.path):
        assert os.stat(path).st_mode & 0o777 == 0o700
    for claim in (first, second, other):
        claim.close()
    again = claim_default_directory(FINGERPRINT)
    assert again.path == first.path
    again.close()


def test_one_that_is_held_comes_before_one_that_is_free(root: Path) -> None:
    first = claim_default_directory(FINGERPRINT)
    second = claim_default_directory(FINGERPRINT)
    first.close()
    again = claim_default_directory(FINGERPRINT, again=True)
    assert again.path == second.path
    again.close()
    second.close()
    free = claim_default_directory(FINGERPRINT, again=True)
    assert free.path == first.path
    free.close()


def test_jobs_get_default_directories_of_their_own(root: Path) -> None:
    with process(CLAIM_DEFAULT, FINGERPRINT) as (holder, first):
        assert first == str(root / FINGERPRINT[:20])
        with process(CLAIM_DEFAULT, FINGERPRINT) as (_, second):
            assert second == first + ".1"
            mine = claim_default_directory(FINGERPRINT)
            assert mine.path == first + ".2"
            mine.close()
            holder.kill()
            holder.wait(20)
            mine = claim_default_directory(FINGERPRINT)
            assert mine.path == first
            mine.close()


def test_the_number_of_default_directories_is_bounded(root: Path) -> None:
    claims = [claim_default_directory(FINGERPRINT) for _ in range(64)]
    assert len({claim.path for claim in claims}) == 64
    with pytest.raises(CacheInUseError, match=r"64 jobs already use .*: give local="):
        claim_default_directory(FINGERPRINT)
    claims[17].close()
    assert claim_default_directory(FINGERPRINT).path == claims[17].path
    for claim in [*claims[:17], *claims[18:]]:
        claim.close()


def test_a_directory_that_the_user_has_chosen_stays_as_it_is(root: Path) -> None:
    """What is made in it is private; where anybody could replace that, it is refused."""
    root.mkdir()
    for mode in (0o755, 0o775):
        root.chmod(mode)
        claim = claim_default_directory(FINGERPRINT)
        assert root.stat().st_mode & 0o777 == mode
        assert os.stat(claim.path).st_mode & 0o777 == 0o700
        claim.close()
    root.chmod(0o777)
    with pytest.raises(DownloadProcessError, match="anybody can write to"):
        claim_default_directory(FINGERPRINT)
    assert root.stat().st_mode & 0o777 == 0o777


def test_without_a_setting_they_lie_in_a_private_directory_of_the_user(
    tmp_path: Path, run_python: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("LANCE_STREAM_CACHE_DIR", raising=False)
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    with process(CLAIM_DEFAULT, FINGERPRINT) as (_, said):
        mine = tmp_path / f"lance-stream-{os.getuid()}"
        assert said == str(mine / "cache" / FINGERPRINT[:20])
        assert mine.stat().st_mode & 0o777 == 0o700
