"""Counters of the training code in one process."""

from __future__ import annotations

import os
import shutil
import threading
from pathlib import Path

import pytest

from lance_stream.telemetry.board import read_boards
from lance_stream.telemetry.counters import Counters


def values(directory: Path) -> list[dict[str, int]]:
    """What each process counted."""
    return [reading.numbers for reading in read_boards(str(directory))]


def test_added_up(tmp_path: Path) -> None:
    """By name; several threads lose nothing."""
    counters = Counters()

    def add() -> None:
        for _ in range(500):
            counters.add(str(tmp_path), "tokens", 2)

    threads = [threading.Thread(target=add) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    counters.add(str(tmp_path), "other", -7)
    assert values(tmp_path) == [{"tokens": 4000, "other": -7}]


def test_another_directory(tmp_path: Path) -> None:
    """One whose name begins alike is another."""
    counters = Counters()
    counters.add(str(tmp_path / "job"), "a", 1)
    counters.add(str(tmp_path / "job2"), "a", 2)
    assert values(tmp_path / "job") == [{"a": 1}]
    assert values(tmp_path / "job2") == [{"a": 2}]


def test_a_forked_child_counts_for_itself(tmp_path: Path) -> None:
    """Also where the lock was held when it was forked."""
    counters = Counters()
    counters.add(str(tmp_path), "a", 1)
    with counters._lock:
        pid = os.fork()
        if not pid:
            counters.after_fork()
            counters.add(str(tmp_path), "a", 10)
            os._exit(0)
    assert os.waitpid(pid, 0)[1] == 0
    counters.add(str(tmp_path), "a", 1)
    assert sorted(numbers["a"] for numbers in values(tmp_path)) == [2, 10]


def test_too_many(tmp_path: Path) -> None:
    """An error that says so."""
    counters = Counters()
    for number in range(256):
        counters.add(str(tmp_path), f"{number}", 1)
    with pytest.raises(ValueError, match="at most 256"):
        counters.add(str(tmp_path), "more", 1)


def test_workers_that_come_and_go_leave_one_board(tmp_path: Path) -> None:
    """What the dead have counted stays in the sum, under the names that they gave."""
    directory = str(tmp_path / "counters")
    for number in range(10):
        child = os.fork()
        if not child:
            counters = Counters()
            counters.add(directory, f"own {number % 2}", 1)
            counters.add(directory, "tokens", 10)
            os._exit(0)
        os.waitpid(child, 0)
    assert len(os.listdir(directory)) == 1
    assert values(Path(directory)) == [{"own 0": 5, "tokens": 100, "own 1": 5}]


def test_what_cannot_be_written_is_told_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """It is not tried again at each count, of which there may be thousands a second."""
    (tmp_path / "counters").touch()
    counters = Counters()
    for _ in range(100):
        counters.add(str(tmp_path / "counters"), "tokens", 1)
    assert len(caplog.records) == 1


def test_a_directory_that_went_and_came_again(tmp_path: Path) -> None:
    """A download process that ended took it along; what this process counted is not lost."""
    endpoint = tmp_path / "endpoint"
    directory, counters = str(endpoint / "counters"), Counters()
    endpoint.mkdir()
    counters.add(directory, "tokens", 2000)
    shutil.rmtree(endpoint)
    counters.add(directory, "tokens", 30)
    assert not endpoint.exists()
    endpoint.mkdir()
    counters.add(directory, "rows", 1)
    assert values(Path(directory)) == [{"tokens": 2030, "rows": 1}]
