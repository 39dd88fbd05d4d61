"""Where workers begin an epoch, and those who die there."""

from __future__ import annotations

import os
import pickle
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from torch.utils.data import DataLoader, IterableDataset

from lance_stream.errors import LanceStreamError
from lance_stream.host import meeting as module
from lance_stream.host.meeting import BeginAgain, Meeting
from tests.support.streams import wait_until


@pytest.fixture
def meeting(tmp_path: Path) -> Meeting:
    """A meeting place of its own."""
    return Meeting(str(tmp_path / "lock"), f"lst_meeting_{os.getpid()}_{time.monotonic_ns()}")


def start(function: Callable[[], None]) -> int:
    """A forked child that runs a function."""
    pid = os.fork()
    if not pid:
        try:
            function()
        finally:
            os._exit(0)
    return pid


def steps(meeting: Meeting) -> list[int]:
    """What each member has reached."""
    return [one.step for one in meeting._table(module._MEMBERS)]


def test_all_go_on_together(meeting: Meeting, tmp_path: Path) -> None:
    """Nobody passes before all have come, five times in a row."""

    def come(number: int) -> None:
        meeting.__dict__.pop("lock", None)
        for turn in range(5):
            time.sleep(0.01 * number)
            (tmp_path / f"{turn}-{number}").touch()
            meeting.begin(3)
            assert len(list(tmp_path.glob(f"{turn}-*"))) == 3
        (tmp_path / f"passed-{number}").touch()

    pids = [start(lambda n=number: come(n)) for number in range(3)]
    for pid in pids:
        os.waitpid(pid, 0)
    assert len(list(tmp_path.glob("passed-*"))) == 3


def test_alone(meeting: Meeting) -> None:
    """One process need not wait."""
    for _ in range(3):
        meeting.begin(1)


def test_a_rank_that_has_ended_is_not_waited_for(tmp_path: Path) -> None:
    """Only one that has joined is known to have ended; what an earlier job left is forgotten."""
    name = f"lst_meeting_{os.getpid()}_{time.monotonic_ns()}"
    meeting = Meeting(str(tmp_path / "lock"), name, 0, 3)

    def join() -> None:
        meeting.__dict__.pop("lock", None)
        Meeting(str(tmp_path / "lock"), name, 2, 3)

    def missing() -> str:
        with pytest.raises(LanceStreamError) as raised:
            meeting.begin(3)
        return str(raised.value)

    ended = start(join)
    os.waitpid(ended, 0)
    said = missing()
    assert "1 of 3 processes of this node have come to the start of the epoch" in said
    assert f"rank 2 of this node, process {ended}, has ended" in said
    ended_again = start(join)
    os.waitid(os.P_PID, ended_again, os.WEXITED | os.WNOWAIT)
    assert f"process {ended_again}, has ended" in missing()
    os.waitpid(ended_again, 0)
    Meeting(str(tmp_path / "lock"), name, 1, 3)
    assert meeting._ended_rank() is None


@pytest.mark.parametrize("waited_for", [True, False], ids=["gone", "zombie"])
def test_the_dead_are_forgotten(meeting: Meeting, waited_for: bool) -> None:
    """Two come after one was killed while it waited: they wait for each other only."""

    def come() -> None:
        meeting.__dict__.pop("lock", None)
        meeting.begin(2)

    victim = start(come)
    deadline = time.monotonic() + 5
    while int(meeting._shared[module._WAITING]) != 1 and time.monotonic() < deadline:
        time.sleep(0.01)
    os.kill(victim, signal.SIGKILL)
    os.waitid(os.P_PID, victim, os.WEXITED | os.WNOWAIT)
    if waited_for:
        os.waitpid(victim, 0)
    other = start(lambda: (time.sleep(0.3), come())[1])
    started = time.monotonic()
    meeting.begin(2)
    assert time.monotonic() - started > 0.2
    os.waitpid(other, 0)


def test_left_out_while_others_pass(
    meeting: Meeting, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between two looks of a worker, those of a later iteration came and went on."""

    def come(iteration: int) -> None:
        meeting.__dict__.pop("lock", None)
        monkeypatch.setattr(module, "_iteration", lambda: iteration)
        monkeypatch.setattr(module, "_LOOK_EVERY_S", 1.0 if iteration == 1 else 0.001)
        try:
            meeting.begin(2)
            said = "passed"
        except LanceStreamError as error:
            said = str(error)
        (tmp_path / f"{iteration}-{os.getpid()}").write_text(said)

    old = start(lambda: come(1))
    wait_until(lambda: int(meeting._shared[module._WAITING]) == 1, 5, "the old worker to wait")
    # That the others began later is seen by the clock of the kernel, of 10 ms.
    time.sleep(0.05)
    new = [start(lambda: come(2)) for _ in range(2)]
    for pid in (*new, old):
        os.waitpid(pid, 0)
    assert [path.read_text() for path in tmp_path.glob("2-*")] == ["passed"] * 2
    assert "has begun another iteration" in next(tmp_path.glob("1-*")).read_text()


@pytest.mark.parametrize("waits_first", ["further", "first step"])
def test_who_is_further_begins_again(
    meeting: Meeting, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, waits_first: str
) -> None:
    """Where a process of another rank is replaced between two steps, the others go back."""

    def come(iteration: int, wait_s: float = 0.0) -> None:
        meeting.__dict__.pop("lock", None)
        monkeypatch.setattr(module, "_iteration", lambda: iteration)
        monkeypatch.setattr(os, "getppid", lambda: 1000 + min(iteration, 2))
        name, began = tmp_path / f"{iteration}-{os.getpid()}", 0
        while True:
            began += 1
            try:
                for step in range(1, 4):
                    meeting.begin(2) if step == 1 else meeting.reach(step)
                    Path(f"{name}-{began}-{step}").touch()
                    time.sleep(wait_s)
                    wait_s = 0.0
            except BeginAgain:
                continue
            name.write_text(str(began))
            return

    later = waits_first == "first step"
    # Of the rank that goes on; and of the other one, killed before the second step.
    stays = start(lambda: come(1, 0.5 if later else 0.0))
    killed = start(lambda: come(2, 60))
    passed = tmp_path / f"2-{killed}-1-1"
    wait_until(passed.exists, 5, "both to pass the first step")
    if not later:
        wait_until(lambda: 2 in steps(meeting), 5, "one to come to the second step")
    os.kill(killed, signal.SIGKILL)
    os.waitpid(killed, 0)
    replaced = start(lambda: come(3))
    for pid in (stays, replaced):
        wait_until(lambda pid=pid: os.waitpid(pid, os.WNOHANG)[0] == pid, 5, "it to pass")
    assert (tmp_path / f"1-{stays}").read_text() == "2"
    assert (tmp_path / f"3-{replaced}").read_text() == "1"


def test_who_comes_after_his_successor_is_let_go(
    meeting: Meeting, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker so slow that its rank has begun anew, and met, before it comes at all."""

    def come(iteration: int) -> None:
        meeting.__dict__.pop("lock", None)
        monkeypatch.setattr(module, "_iteration", lambda: iteration)
        if iteration == 1:
            wait_until((tmp_path / "2").exists, 20, "the others to go on")
        said = "passed"
        try:
            meeting.begin(2)
        except LanceStreamError as error:
            said = str(error)
        (tmp_path / f"{iteration}").write_text(said)

    late = start(lambda: come(1))
    # That the others began later is seen by the clock of the kernel, of 10 ms.
    time.sleep(0.05)
    for pid in (*[start(lambda: come(2)) for _ in range(2)], late):
        os.waitpid(pid, 0)
    assert (tmp_path / "2").read_text() == "passed"
    assert "has begun another iteration" in (tmp_path / "1").read_text()


def test_who_was_let_go_of_disturbs_nobody(
    meeting: Meeting, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It does not do what it was about to, since others do it by now."""

    def come(iteration: int) -> None:
        meeting.__dict__.pop("lock", None)
        monkeypatch.setattr(module, "_iteration", lambda: iteration)
        meeting.begin(1)
        if iteration == 1:
            (tmp_path / "begun").touch()
            wait_until((tmp_path / "2").exists, 20, "the other to go on")
        said = "done"
        try:
            with meeting.undisturbed():
                (tmp_path / f"did-{iteration}").touch()
        except LanceStreamError as error:
            said = str(error)
        (tmp_path / f"{iteration}").write_text(said)

    old = start(lambda: come(1))
    wait_until((tmp_path / "begun").exists, 20, "the old one to begin")
    time.sleep(0.05)
    for pid in (start(lambda: come(2)), old):
        os.waitpid(pid, 0)
    assert (tmp_path / "2").read_text() == "done"
    assert "has begun another iteration" in (tmp_path / "1").read_text()
    assert not (tmp_path / "did-1").exists()


@pytest.mark.parametrize("last", [2, 3])
def test_a_member_that_is_gone(meeting: Meeting, tmp_path: Path, last: int) -> None:
    """The meeting is over, before the last step was taken; what follows that is not done."""

    def come() -> None:
        meeting.__dict__.pop("lock", None)
        meeting.begin(2)
        if last == 3:
            meeting.reach(2)

    gone = start(come)
    meeting.begin(2)
    if last == 3:
        meeting.reach(2)
    os.waitpid(gone, 0)
    ended: list[int] = []
    started = time.monotonic()
    with pytest.raises(BeginAgain):
        meeting.reach(last, lambda: ended.append(last))
    assert time.monotonic() - started < 3
    assert not ended


def test_at_the_end_of_a_step(meeting: Meeting, tmp_path: Path) -> None:
    """Something is done once, before any goes on."""

    def come() -> None:
        meeting.__dict__.pop("lock", None)
        meeting.begin(3)
        meeting.reach(2)
        meeting.reach(3, (tmp_path / f"end-{os.getpid()}").touch)
        assert len(list(tmp_path.glob("end-*"))) == 1
        (tmp_path / f"passed-{os.getpid()}").touch()

    for pid in [start(come) for _ in range(3)]:
        os.waitpid(pid, 0)
    assert len(list(tmp_path.glob("end-*"))) == 1
    assert len(list(tmp_path.glob("passed-*"))) == 3


class Iterations(IterableDataset[int]):
    """The number of the iteration, as a worker sees it."""

    def __iter__(self) -> Iterator[int]:
        yield module._iteration()


@pytest.mark.parametrize("how", ["fork", "spawn"])
def test_iterations_of_one_seed_differ(how: str) -> None:
    """Also where torch is seeded before each."""
    loader = DataLoader(Iterations(), None, num_workers=2, multiprocessing_context=how)
    iterators = []
    for _ in range(3):
        torch.manual_seed(0)
        iterators.append(iter(loader))
    found = [list(iterator) for iterator in iterators]
    assert all(first == second != 0 for first, second in found)
    assert len({first for first, _ in found}) == 3
    assert module._iteration() == 0


def test_it_pickles_after_use(meeting: Meeting) -> None:
    """Its lock, which cannot be pickled, is made again."""
    meeting.begin(1)
    again = pickle.loads(pickle.dumps(meeting))
    again.begin(1)
    assert int(meeting._shared[module._NUMBER]) == 2


ORPHAN = """
import multiprocessing, os, signal, sys, time
from pathlib import Path
from lance_stream.host.meeting import BeginAgain, Meeting
from tests.support.streams import wait_until

folder = Path(sys.argv[1])
meeting = Meeting(str(folder / "lock"), f"lst_meeting_{os.getpid()}")

def come():
    os.close(1), os.close(2)
    (folder / "there").touch()
    try:
        meeting.__dict__.pop("lock", None)
        meeting.begin(2)
    except Exception as error:
        (folder / "part").write_text(str(error))
        (folder / "part").rename(folder / "error")
    os._exit(0)

multiprocessing.get_context("fork").Process(target=come).start()
while not (folder / "there").exists():
    time.sleep(0.01)
print(os.getpid(), flush=True)
meeting._shared.shm.shm.unlink()
os._exit(0)
"""


def test_the_trainer_is_gone(run_python: Callable[..., str], tmp_path: Path) -> None:
    """A worker whose trainer died does not wait for the other workers."""
    trainer = run_python(ORPHAN, str(tmp_path)).strip()
    wait_until((tmp_path / "error").exists, 20, "the worker to end")
    text = (tmp_path / "error").read_text()
    assert "1 of 2 processes of this node" in text
    assert f"process {trainer}, which started this, is gone" in text
