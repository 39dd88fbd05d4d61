from __future__ import annotations

import fcntl
import os
import pickle
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from lance_stream.errors import DownloadProcessError
from lance_stream.processes import this_process
from lance_stream.service.directory import claim_default_directory
from lance_stream.service.runtime import (
    SERVER_BOARD,
    Endpoint,
    boards_are_needed,
    lock_is_held,
    locked,
    new_endpoint,
    private_directory,
    runtime_root,
    sweep_stale_endpoints,
)
from lance_stream.telemetry.board import Board
from tests.support.mounts import as_root
from tests.unit.conftest import ROOT


def _mode(path: str | Path) -> int:
    return stat.S_IMODE(os.lstat(path).st_mode)


def _age(path: str | Path, seconds: float = 1000.0) -> None:
    at = os.stat(path).st_mtime - seconds
    os.utime(path, (at, at))


@pytest.fixture
def root(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A runtime directory of its own, with a short path."""
    path = tmp_path_factory.mktemp("run")
    monkeypatch.setenv("LANCE_STREAM_RUNTIME_DIR", str(path))
    return path


@pytest.fixture
def short_path() -> Iterator[Path]:
    """A directory that a unix socket's path has room for, whatever the temporary directory."""
    with tempfile.TemporaryDirectory(prefix="lst-", dir="/tmp") as path:
        yield Path(path)


@pytest.fixture
def endpoint(root: Path) -> Endpoint:
    return new_endpoint()


@contextmanager
def _held(path: str) -> Iterator[int]:
    """The lock that a download process has on its ``alive`` file; gives the file, open."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    ready, tell = os.pipe()
    holder = os.fork()
    if not holder:
        fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.write(tell, b"!")
        signal.pause()
    try:
        os.read(ready, 1)
        yield descriptor
    finally:
        os.kill(holder, signal.SIGKILL)
        os.waitpid(holder, 0)
        for each in (descriptor, ready, tell):
            os.close(each)


HOLDER = """
import sys
from lance_stream.service.runtime import locked
with locked(sys.argv[1], 0.0):
    print("held", flush=True)
    sys.stdin.readline()
print("free", flush=True)
sys.stdin.readline()
"""


@contextmanager
def _locked_elsewhere(path: str) -> Iterator[subprocess.Popen[str]]:
    """Another process inside ``locked``; leaves at a line of input, is killed at the end."""
    with subprocess.Popen(
        [sys.executable, "-c", HOLDER, path],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as holder:
        assert holder.stdout is not None
        try:
            assert holder.stdout.readline() == "held\n"
            yield holder
        finally:
            holder.kill()


def _leave(holder: subprocess.Popen[str]) -> None:
    assert holder.stdin is not None
    assert holder.stdout is not None
    holder.stdin.write("\n")
    holder.stdin.flush()
    assert holder.stdout.readline() == "free\n"


ATTEMPT = """
import sys
from lance_stream.errors import DownloadProcessError
from lance_stream.service.runtime import locked
try:
    with locked(sys.argv[1], 0.0):
        print("free")
except DownloadProcessError:
    print("held")
"""


@pytest.fixture
def attempt(run_python: Callable[..., str]) -> Callable[[object], str]:
    """What another process finds the lock to be: held or free."""
    return lambda path: run_python(ATTEMPT, str(path)).strip()


# --- private directories ---


def test_a_private_directory_is_made(tmp_path: Path) -> None:
    path = str(tmp_path / "a" / "b")
    before = os.umask(0)
    try:
        assert private_directory(path) == path
    finally:
        os.umask(before)
    assert _mode(path) == 0o700
    assert private_directory(path) == path


@pytest.mark.parametrize("mode", [0o777, 0o750, 0o701, 0o755])
def test_a_directory_that_is_open_to_others_is_closed(tmp_path: Path, mode: int) -> None:
    path = tmp_path / "loose"
    path.mkdir()
    path.chmod(mode)
    private_directory(str(path))
    assert _mode(path) == 0o700


def test_a_link_is_refused(tmp_path: Path) -> None:
    (tmp_path / "target").mkdir(mode=0o755)
    (tmp_path / "link").symlink_to(tmp_path / "target")
    with pytest.raises(DownloadProcessError, match="link is not a directory of this user"):
        private_directory(str(tmp_path / "link"))
    assert _mode(tmp_path / "target") == 0o755


def test_a_link_to_nowhere_is_refused(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "none")
    with pytest.raises(DownloadProcessError, match=r"cannot make the private directory .*link"):
        private_directory(str(tmp_path / "link"))
    assert not (tmp_path / "none").exists()


def test_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(DownloadProcessError, match=r"cannot make the private directory .*file"):
        private_directory(str(tmp_path / "file"))
    with pytest.raises(DownloadProcessError, match=r"cannot make the private directory .*below"):
        private_directory(str(tmp_path / "file" / "below"))


@as_root
@pytest.mark.parametrize("mode", [0o700, 0o777])
def test_a_directory_of_somebody_else_is_refused(tmp_path: Path, mode: int) -> None:
    path = tmp_path / "theirs"
    path.mkdir()
    path.chmod(mode)
    os.chown(path, 12345, 12345)
    with pytest.raises(DownloadProcessError, match=r"not a directory of this user \(uid 0\); "):
        private_directory(str(path))
    assert _mode(path) == mode


@as_root
def test_another_user_is_refused_ours(tmp_path: Path) -> None:
    # A child of root gives up its rights and meets a directory of root's.
    path = tmp_path / "ours"
    path.mkdir(mode=0o700)
    for above in (tmp_path, *tmp_path.parents):
        if str(above).startswith("/tmp/"):
            above.chmod(above.stat().st_mode | 0o011)
    script = """
import os, sys
from lance_stream.errors import DownloadProcessError
from lance_stream.service.runtime import private_directory
os.setgid(12345)
os.setuid(12345)
try:
    private_directory(sys.argv[1])
except DownloadProcessError as error:
    print(error)
"""
    done = subprocess.run(
        [sys.executable, "-c", script, str(path)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert "is not a directory of this user (uid 12345)" in done.stdout


# --- the root and endpoints ---


def test_the_root_may_be_chosen(root: Path) -> None:
    root.chmod(0o755)
    assert runtime_root() == str(root)
    assert _mode(root) == 0o700


def test_a_root_that_is_too_long_for_a_socket_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / ("x" * 100)
    monkeypatch.setenv("LANCE_STREAM_RUNTIME_DIR", str(path))
    with pytest.raises(
        DownloadProcessError, match=r"too long for a unix socket .*set LANCE_STREAM_RUNTIME_DIR"
    ):
        new_endpoint()


def test_the_longest_root_that_is_taken_works(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import socket

    path = f"{tmp_path}/"
    path += "x" * (83 - len(path))
    monkeypatch.setenv("LANCE_STREAM_RUNTIME_DIR", path)
    endpoint = new_endpoint()
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(endpoint.socket_path)
    monkeypatch.setenv("LANCE_STREAM_RUNTIME_DIR", path + "x")
    with pytest.raises(DownloadProcessError, match="too long for a unix socket"):
        new_endpoint()


def test_an_endpoint_is_private_and_new(root: Path) -> None:
    before = os.umask(0)
    try:
        endpoints = {new_endpoint() for _ in range(20)}
    finally:
        os.umask(before)
    assert len(endpoints) == 20
    for endpoint in endpoints:
        assert os.path.dirname(endpoint.directory) == str(root)
        for path in (endpoint.directory, endpoint.running_directory, endpoint.plans_directory):
            assert _mode(path) == 0o700


def test_paths_of_an_endpoint_are_inside_and_differ(endpoint: Endpoint) -> None:
    paths = [
        endpoint.socket_path,
        endpoint.alive_path,
        endpoint.starting_path,
        endpoint.log_path,
        endpoint.running_directory,
        endpoint.plans_directory,
    ]
    assert len(set(paths)) == 6
    assert {os.path.dirname(path) for path in paths} == {endpoint.directory}


def test_an_endpoint_pickles_and_is_a_key(endpoint: Endpoint) -> None:
    assert pickle.loads(pickle.dumps(endpoint)) == endpoint
    assert {endpoint: 1}[Endpoint(endpoint.directory)] == 1


def test_what_is_missing_of_an_endpoint_is_made_again(endpoint: Endpoint) -> None:
    os.rmdir(endpoint.running_directory)
    endpoint.make_directories()
    endpoint.make_directories()
    assert os.path.isdir(endpoint.running_directory)


def test_the_pid_is_that_of_the_living(endpoint: Endpoint) -> None:
    assert endpoint.pid() is None
    with _held(endpoint.alive_path) as descriptor:
        assert endpoint.pid() is None  # It has not written it yet.
        os.write(descriptor, b"4711")
        assert endpoint.pid() == 4711
    assert endpoint.pid() is None


# --- locks ---


def test_lock_is_held(tmp_path: Path) -> None:
    path = str(tmp_path / "lock")
    assert not lock_is_held(path)
    assert not os.path.exists(path)
    with _held(path):
        assert lock_is_held(path)
        assert lock_is_held(path)
    assert not lock_is_held(path)
    assert os.path.exists(path)


def test_looking_at_a_lock_does_not_take_it(tmp_path: Path) -> None:
    # A daemon that is refused its lock ends at once: it believes that another one lives.
    path = str(tmp_path / "lock")
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    looker = os.fork()
    if not looker:
        while True:
            lock_is_held(path)
    refused = 0
    for _ in range(5000):
        try:
            fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            fcntl.lockf(descriptor, fcntl.LOCK_UN)
        except BlockingIOError:
            refused += 1
    os.kill(looker, signal.SIGKILL)
    os.waitpid(looker, 0)
    os.close(descriptor)
    assert refused == 0


def test_the_lock_of_a_killed_process_is_free(tmp_path: Path) -> None:
    path = str(tmp_path / "lock")
    with _locked_elsewhere(path) as holder:
        with (
            pytest.raises(DownloadProcessError, match=r"waited 0\.1 s for another process"),
            locked(path, 0.1),
        ):
            pass
        holder.kill()
        holder.wait(20)
        with locked(path, 0.0):
            pass


def test_locked_makes_the_file_private_and_keeps_others_out(
    tmp_path: Path, attempt: Callable[[object], str]
) -> None:
    path = tmp_path / "new" / "lock"
    with locked(str(path), 0.0):
        assert _mode(path) == 0o600
        assert _mode(path.parent) == 0o700
        assert attempt(path) == "held"
    assert attempt(path) == "free"


def test_locked_frees_the_lock_after_an_error(
    tmp_path: Path, attempt: Callable[[object], str]
) -> None:
    path = str(tmp_path / "lock")
    with pytest.raises(KeyError, match="mine"), locked(path, 0.0):
        raise KeyError("mine")
    assert attempt(path) == "free"


@pytest.mark.parametrize("timeout_s", [0.0, 0.05])
def test_locked_gives_up_in_time(tmp_path: Path, timeout_s: float) -> None:
    path = str(tmp_path / "lock")
    with _locked_elsewhere(path):
        message = f"waited {timeout_s:g} s for another process to release {path}"
        with pytest.raises(DownloadProcessError, match=message), locked(path, timeout_s):
            pass


def test_locked_gives_up_in_time_on_another_thread_too(tmp_path: Path) -> None:
    path, failed = str(tmp_path / "lock"), threading.Event()

    def wait() -> None:
        try:
            with locked(path, 0.05):
                pass
        except DownloadProcessError:
            failed.set()

    thread = threading.Thread(target=wait)
    with locked(path, 0.0):
        thread.start()
        in_time = failed.wait(2)
    thread.join(20)
    assert in_time


def test_one_lock_may_be_taken_inside_another(
    tmp_path: Path, run_python: Callable[..., str]
) -> None:
    # The starter of a process sweeps the directories of dead ones, each under its own lock.
    script = """
import faulthandler, sys
from lance_stream.service.runtime import locked
faulthandler.dump_traceback_later(5, exit=True)
with locked(sys.argv[1], 0.0), locked(sys.argv[2], 0.0):
    print("both")
"""
    assert run_python(script, str(tmp_path / "a"), str(tmp_path / "b")) == "both\n"


def test_a_child_that_is_forked_meanwhile_does_not_hold_the_lock(
    tmp_path: Path, attempt: Callable[[object], str]
) -> None:
    script = """
import os, signal, sys
from lance_stream.service.runtime import locked
with locked(sys.argv[1], 0.0):
    child = os.fork()
    if not child:
        signal.pause()
print(child, flush=True)
sys.stdin.readline()
"""
    path = str(tmp_path / "lock")
    with subprocess.Popen(
        [sys.executable, "-c", script, path],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as parent:
        assert parent.stdout is not None
        child = int(parent.stdout.readline())
        try:
            assert attempt(path) == "free"
        finally:
            os.kill(child, signal.SIGKILL)
            parent.kill()


def _waiter(path: str) -> tuple[threading.Thread, threading.Event, threading.Event]:
    """A thread that waits for the lock and keeps it; events: it has it, and let it go."""
    has, let_go = threading.Event(), threading.Event()

    def wait() -> None:
        with locked(path, 30.0):
            has.set()
            let_go.wait(30)

    thread = threading.Thread(target=wait)
    thread.start()
    return thread, has, let_go


def test_who_waits_gets_the_lock_next(tmp_path: Path, attempt: Callable[[object], str]) -> None:
    path = str(tmp_path / "lock")
    with _locked_elsewhere(path) as holder:
        thread, has, let_go = _waiter(path)
        assert not has.wait(0.1)
        _leave(holder)
        assert has.wait(20)
        assert attempt(path) == "held"
        let_go.set()
        thread.join(20)
    assert attempt(path) == "free"


def test_the_lock_of_a_removed_file_is_none(
    tmp_path: Path, attempt: Callable[[object], str]
) -> None:
    # The process that ends removes its directory under the lock: who waited must not believe to
    # hold a lock that nobody else can see.
    path = tmp_path / "endpoint" / "starting"
    path.parent.mkdir()
    with _locked_elsewhere(str(path)):
        thread, has, let_go = _waiter(str(path))
        path.unlink()
        assert has.wait(20)
        assert attempt(path) == "held"
        let_go.set()
        thread.join(20)


def test_a_lock_file_that_is_replaced_again_and_again_is_still_one_lock(
    tmp_path: Path, run_python: Callable[..., str]
) -> None:
    script = """
import os, sys
from lance_stream.service.runtime import locked
path, counter = sys.argv[1:]
for _ in range(40):
    with locked(path, 60.0):
        with open(counter) as file:
            number = int(file.read())
        with open(counter, "w") as file:
            file.write(str(number + 1))
        os.unlink(path)
"""
    counter = tmp_path / "counter"
    counter.write_text("0")
    errors = []

    def work() -> None:
        try:
            run_python(script, str(tmp_path / "lock"), str(counter))
        except AssertionError as error:
            errors.append(error)

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(90)
    assert errors == []
    assert counter.read_text() == "120"


def test_many_threads_hold_a_lock_one_at_a_time(tmp_path: Path) -> None:
    path = str(tmp_path / "lock")
    inside, most, turns = 0, 0, 0

    def work() -> None:
        nonlocal inside, most, turns
        for _ in range(3):
            with locked(path, 60.0):
                inside += 1
                most = max(most, inside)
                turns += 1
                if turns % 4 == 0:
                    os.unlink(path)
                inside -= 1

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert (inside, most, turns) == (0, 1, 12)


# --- the sweep ---


def test_only_the_directories_of_the_dead_are_swept(root: Path) -> None:
    dead, young, alive, starting = (new_endpoint() for _ in range(4))
    for endpoint in (dead, young, alive, starting):
        Path(endpoint.log_path).write_text("log")
    Path(dead.alive_path).write_text("4711")
    with _held(alive.alive_path), _locked_elsewhere(starting.starting_path):
        for endpoint in (dead, alive, starting):
            _age(endpoint.directory)
        sweep_stale_endpoints()
        assert {str(path) for path in root.iterdir()} == {
            young.directory,
            alive.directory,
            starting.directory,
        }
        assert os.path.exists(alive.log_path)


def test_boards_that_a_dataset_counts_on_are_not_swept(root: Path) -> None:
    pid, started = this_process()
    needed, ended, foreign = (new_endpoint() for _ in range(3))
    owners = {needed: (pid, started), ended: (pid, started - 5000), foreign: None}
    for endpoint, owner in owners.items():
        directory = endpoint.boards_directory("s")
        os.makedirs(directory)
        Board(directory, SERVER_BOARD, {"owner": owner}, ["n"])
        _age(endpoint.directory)
    assert [boards_are_needed(endpoint) for endpoint in owners] == [True, False, False]
    sweep_stale_endpoints()
    assert list(root.iterdir()) == [Path(needed.directory)]
    # As its dataset does in the end.
    shutil.rmtree(needed.boards_directory("s"))
    assert not boards_are_needed(needed)
    _age(needed.directory)
    sweep_stale_endpoints()
    assert not os.path.exists(needed.directory)


def test_the_starter_of_a_process_may_sweep(root: Path, run_python: Callable[..., str]) -> None:
    # As the launcher does: inside the lock of its own endpoint.
    stale = new_endpoint()
    _age(stale.directory)
    script = """
import faulthandler
from lance_stream.service.runtime import locked, new_endpoint, sweep_stale_endpoints
faulthandler.dump_traceback_later(5, exit=True)
with locked(new_endpoint().starting_path, 0.0):
    sweep_stale_endpoints()
"""
    run_python(script)
    assert not os.path.exists(stale.directory)


def test_an_empty_root_has_nothing_to_sweep(root: Path) -> None:
    sweep_stale_endpoints()
    assert list(root.iterdir()) == []


def test_a_file_of_somebody_else_in_the_root_does_no_harm(root: Path) -> None:
    (root / "notes.txt").write_text("mine")
    _age(root / "notes.txt")
    sweep_stale_endpoints()
    assert (root / "notes.txt").read_text() == "mine"


def test_a_directory_of_another_kind_in_the_root_is_left_alone(root: Path) -> None:
    other = root / "not-an-endpoint"
    other.mkdir()
    (other / "data").write_text("mine")
    _age(other)
    sweep_stale_endpoints()
    assert (other / "data").read_text() == "mine"


def test_the_default_cache_directories_are_not_swept(
    short_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # By default both lie in /tmp/lance-stream-<uid>; here as if /tmp were somewhere else.
    monkeypatch.setattr(tempfile, "tempdir", str(short_path))
    monkeypatch.delenv("LANCE_STREAM_CACHE_DIR", raising=False)
    monkeypatch.setenv("LANCE_STREAM_RUNTIME_DIR", f"{short_path}/lance-stream-{os.getuid()}")
    claim = claim_default_directory("0123456789abcdef0123456789abcdef")
    shard = Path(claim.path) / "0123456789abcdef0123.00000000.arrow"
    shard.write_bytes(b"rows")
    _age(Path(claim.path).parent)
    try:
        sweep_stale_endpoints()
        assert shard.exists(), "starting a download process removed the cache of a live job"
    finally:
        claim.close()


def test_the_default_root_is_not_in_tmpdir(run_python: Callable[..., str], tmp_path: Path) -> None:
    script = """
import os, sys, tempfile
os.environ.pop("LANCE_STREAM_RUNTIME_DIR", None)
os.environ["TMPDIR"] = sys.argv[1]
from lance_stream.service.runtime import runtime_root
print(runtime_root())
"""
    assert run_python(script, str(tmp_path)) == f"/tmp/lance-stream-{os.getuid()}\n"
