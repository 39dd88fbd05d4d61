from __future__ import annotations

import os
import random
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from lance_stream.shards.ledger import Ledger, create_ledger
from tests.unit.conftest import ROOT

SHARDS = 8


@pytest.fixture
def path(tmp_path: Path) -> str:
    path = str(tmp_path / ".ledger")
    create_ledger(path, SHARDS)
    return path


@pytest.fixture
def ledger(path: str) -> Ledger:
    return Ledger(path)


def test_a_new_ledger_is_empty(ledger: Ledger, path: str) -> None:
    assert ledger.evictions == ledger.held == 0
    assert [ledger.charged(shard) for shard in range(SHARDS)] == [0] * SHARDS
    assert os.stat(path).st_size == 8 * (3 + 2 * SHARDS)
    assert [n for n in os.listdir(os.path.dirname(path)) if "ledger" in n] == [".ledger"]


def test_a_new_ledger_is_private_and_not_sparse(path: str) -> None:
    status = os.stat(path)
    assert status.st_mode & 0o777 == 0o600
    assert status.st_blocks * 512 >= status.st_size


def test_a_ledger_takes_the_place_of_an_older_one(ledger: Ledger, path: str) -> None:
    ledger.charge(1, 5)
    create_ledger(path, 3)
    fresh = Ledger(path)
    assert fresh.charged(1) == 0
    assert ledger.charged(1) == 5


def test_a_ledger_that_is_gone(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="none"):
        Ledger(str(tmp_path / "none"))
    with pytest.raises(FileNotFoundError, match="none"):
        create_ledger(str(tmp_path / "none" / "ledger"), 1)


def test_charge_returns_the_change(ledger: Ledger) -> None:
    assert ledger.charge(3, 100) == 100
    assert ledger.charge(3, 100) == 0
    assert ledger.charge(3, 70) == -30
    assert ledger.charge(4, 1 << 60) == 1 << 60
    assert ledger.charged(3) == 70
    assert ledger.charge(3, 0) == -70
    assert ledger.evictions == 0


def test_correct_takes_the_size_of_the_file(ledger: Ledger, tmp_path: Path) -> None:
    file = tmp_path / "shard"
    file.write_bytes(bytes(123))
    ledger.charge(0, 200)
    assert ledger.correct(0, str(file)) == -77
    assert ledger.charged(0) == 123
    assert ledger.correct(0, str(file)) == 0


def test_correct_leaves_a_charge_without_a_file(ledger: Ledger, tmp_path: Path) -> None:
    ledger.charge(0, 200)
    assert ledger.correct(0, str(tmp_path / "none")) == 0
    assert ledger.charged(0) == 200


def test_correct_does_not_charge_what_is_not_wanted(ledger: Ledger, tmp_path: Path) -> None:
    file = tmp_path / "shard"
    file.write_bytes(bytes(123))
    assert ledger.correct(0, str(file)) == 0
    assert ledger.charged(0) == 0


def test_release_removes_the_file_and_returns_the_charge(ledger: Ledger, tmp_path: Path) -> None:
    file = tmp_path / "shard"
    file.write_bytes(bytes(10))
    ledger.charge(5, 77)
    assert ledger.release(5, str(file)) == 77
    assert not file.exists()
    assert ledger.charged(5) == 0
    assert ledger.evictions == 1
    assert ledger.release(5, str(file)) == 0
    assert ledger.evictions == 2
    assert [ledger.releases(shard) for shard in range(SHARDS)] == [0, 0, 0, 0, 0, 2, 0, 0]


def test_what_goes_in_comes_out(ledger: Ledger, tmp_path: Path) -> None:
    chosen = random.Random(1)
    usage = 0
    for _ in range(2000):
        shard = chosen.randrange(SHARDS)
        file = tmp_path / str(shard)
        match chosen.randrange(4):
            case 0:
                usage += ledger.charge(shard, chosen.randrange(1, 1000))
            case 1:
                file.write_bytes(bytes(chosen.randrange(1, 1000)))
            case 2:
                usage += ledger.correct(shard, str(file))
            case _:
                usage -= ledger.release(shard, str(file))
        assert usage == sum(map(ledger.charged, range(SHARDS)))
        assert ledger.held == sum(ledger.charged(shard) > 0 for shard in range(SHARDS))
    for shard in range(SHARDS):
        usage -= ledger.release(shard, str(tmp_path / str(shard)))
    assert usage == ledger.held == 0


def test_held_counts_the_shards_that_are_charged(ledger: Ledger, tmp_path: Path) -> None:
    for shard in (1, 2, 2, 5):
        ledger.charge(shard, 10)
    assert ledger.held == 3
    ledger.charge(2, 0)
    ledger.charge(2, 0)
    assert ledger.held == 2
    ledger.release(5, str(tmp_path / "none"))
    ledger.release(5, str(tmp_path / "none"))
    assert ledger.held == 1


def test_evictions_are_spaced_so_that_a_shard_stays_for_a_while(
    ledger: Ledger, tmp_path: Path
) -> None:
    second = 1_000_000_000
    ledger.note_prepared(10 * second)
    # Nothing was evicted: preparing need not wait.
    assert ledger.pause_before_eviction_s(10 * second, 0.5) == 0.0
    ledger.release(0, str(tmp_path / "none"))
    for held, spacing_s in ((0, 0.5), (1, 0.5), (2, 0.5), (3, 0.5), (4, 0.25), (7, 0.1)):
        for shard in range(SHARDS):
            ledger.charge(shard, int(shard < held))
        assert ledger.pause_before_eviction_s(10 * second, 0.5) == pytest.approx(spacing_s)
        late = 10 * second + second // 20
        assert ledger.pause_before_eviction_s(late, 0.5) == pytest.approx(spacing_s - 0.05)
        assert ledger.pause_before_eviction_s(11 * second, 0.5) == 0.0
    ledger.note_prepared(11 * second)
    assert ledger.pause_before_eviction_s(11 * second, 0.5) == pytest.approx(0.1)


def test_an_open_ledger_keeps_no_descriptor(path: str) -> None:
    # A dataset of many streams has as many ledgers.
    before = len(os.listdir("/proc/self/fd"))
    ledgers = [Ledger(path) for _ in range(20)]
    for ledger in ledgers:
        ledger.charge(0, 1)
    assert len(os.listdir("/proc/self/fd")) == before


def test_two_openings_see_the_same_words(ledger: Ledger, path: str) -> None:
    other = Ledger(path)
    ledger.charge(2, 9)
    assert other.charged(2) == 9
    assert other.release(2, path + ".none") == 9
    assert ledger.charged(2) == 0
    assert ledger.evictions == 1


WORKER = """
import random, sys
from pathlib import Path
from lance_stream.shards.ledger import Ledger
path, directory, seed, operations = sys.argv[1:]
ledger, chosen = Ledger(path), random.Random(int(seed))
change = releases = 0
print("ready", flush=True)
sys.stdin.readline()
for _ in range(int(operations)):
    shard = chosen.randrange(3)
    file = f"{directory}/{shard}"
    match chosen.randrange(6):
        case 0 | 1:
            change += ledger.charge(shard, chosen.randrange(1, 1000))
        case 2:
            Path(file).write_bytes(bytes(chosen.randrange(1, 1000)))
        case 3 | 4:
            change += ledger.correct(shard, file)
        case _:
            change -= ledger.release(shard, file)
            releases += 1
print(change, releases)
"""


def test_four_processes_lose_no_byte(ledger: Ledger, path: str, tmp_path: Path) -> None:
    workers = [
        subprocess.Popen(
            [sys.executable, "-c", WORKER, path, str(tmp_path), str(seed), "5000"],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for seed in range(4)
    ]
    for worker in workers:
        assert worker.stdout is not None
        assert worker.stdout.readline() == "ready\n"
    for worker in workers:
        assert worker.stdin is not None
        worker.stdin.write("go\n")
        worker.stdin.flush()
    said = [worker.communicate(timeout=60)[0].split() for worker in workers]
    assert [worker.returncode for worker in workers] == [0] * 4
    assert sum(int(change) for change, _ in said) == sum(map(ledger.charged, range(SHARDS)))
    releases = sum(int(releases) for _, releases in said)
    assert releases == ledger.evictions == sum(map(ledger.releases, range(SHARDS))) > 2000
    assert ledger.held == sum(ledger.charged(shard) > 0 for shard in range(SHARDS))


def _race(ledgers: list[Ledger], directory: Path) -> tuple[int, int]:
    """Random operations in a thread for each ledger; the sum of changes, and the releases."""
    changes, releases = [0] * len(ledgers), [0] * len(ledgers)
    gate = threading.Barrier(len(ledgers))

    def work(number: int) -> None:
        ledger, chosen = ledgers[number], random.Random(number)
        gate.wait(30)
        for _ in range(5000):
            if chosen.random() < 0.5:
                changes[number] += ledger.charge(0, chosen.randrange(1, 1000))
            else:
                changes[number] -= ledger.release(0, str(directory / "none"))
                releases[number] += 1

    threads = [threading.Thread(target=work, args=(i,)) for i in range(len(ledgers))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    return sum(changes), sum(releases)


@pytest.fixture
def eager_switches() -> Iterator[None]:
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


@pytest.mark.usefixtures("eager_switches")
def test_threads_of_one_ledger_lose_no_byte(ledger: Ledger, tmp_path: Path) -> None:
    assert _race([ledger] * 4, tmp_path) == (ledger.charged(0), ledger.evictions)


class _Inside:
    """A path whose use, inside the lock, calls back."""

    def __init__(self, path: str, call: Callable[[], None]) -> None:
        self._path, self._call = path, call

    def __fspath__(self) -> str:
        self._call()
        return self._path


def test_a_thread_with_another_opening_is_kept_out(ledger: Ledger, path: str) -> None:
    # As two unpickled copies of a stream in one process would have.
    other, entered = Ledger(path), threading.Event()

    def enter() -> None:
        other.charge(1, 1)
        entered.set()

    thread = threading.Thread(target=enter)

    def inside() -> None:
        thread.start()
        assert not entered.wait(0.2), "two threads held the ledger's lock at the same time"

    try:
        ledger.release(0, _Inside(path + ".none", inside))  # type: ignore[arg-type]
    finally:
        thread.join(30)


LOOK = """
import fcntl, os, sys
descriptor = os.open(sys.argv[1], os.O_RDWR)
for lock in (fcntl.lockf, fcntl.flock):
    try:
        lock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        print("held")
        break
else:
    print("free")
"""


def test_the_lock_keeps_other_processes_out(
    ledger: Ledger, path: str, run_python: Callable[..., str]
) -> None:
    said = []
    inside = _Inside(path + ".none", lambda: said.append(run_python(LOOK, path)))
    ledger.release(0, inside)  # type: ignore[arg-type]
    assert said == ["held\n"]
    assert run_python(LOOK, path) == "free\n"


def test_another_opening_that_goes_away_does_not_let_go_of_the_lock(
    ledger: Ledger, path: str, run_python: Callable[..., str]
) -> None:
    # Closing a descriptor of a file drops the process's lock on it: an opening must wait.
    said = []
    thread = threading.Thread(target=lambda: Ledger(path))

    def inside() -> None:
        thread.start()
        thread.join(0.2)
        said.append(run_python(LOOK, path))

    ledger.release(0, _Inside(path + ".none", inside))  # type: ignore[arg-type]
    thread.join(20)
    assert said == ["held\n"]
    assert not thread.is_alive()


def test_a_child_that_is_forked_meanwhile_does_not_hold_the_lock(
    ledger: Ledger, path: str, run_python: Callable[..., str]
) -> None:
    # A DataLoader worker, forked while a thread of the trainer corrects a charge.
    script = """
import os, signal, subprocess, sys
from lance_stream.shards.ledger import Ledger
children = []
class Inside:
    def __fspath__(self):
        child = os.fork()
        if not child:
            os.close(1)
            os.close(2)
            signal.pause()
        children.append(child)
        return sys.argv[1] + ".none"
Ledger(sys.argv[1]).release(0, Inside())
subprocess.run([sys.executable, "-c", sys.argv[2], sys.argv[1]], check=True)
os.kill(children[0], signal.SIGKILL)
"""
    assert run_python(script, path, LOOK) == "free\n"
    assert ledger.evictions == 1


def test_the_lock_of_a_holder_that_died_is_free(
    path: str, ledger: Ledger, run_python: Callable[..., str]
) -> None:
    script = """
import os, sys
from lance_stream.shards.ledger import Ledger
class Inside:
    def __fspath__(self):
        print("inside", flush=True)
        os._exit(0)
ledger = Ledger(sys.argv[1])
ledger.charge(0, 5)
ledger.release(0, Inside())
"""
    assert run_python(script, path) == "inside\n"
    assert ledger.charged(0) == 0
    assert ledger.charge(0, 3) == 3
