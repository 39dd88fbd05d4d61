"""Boards: one writes, others read, nobody waits and nothing fails."""

from __future__ import annotations

import logging
import os
import subprocess
import time
from pathlib import Path

import pytest

from lance_stream.telemetry import board
from lance_stream.telemetry.board import Board, Reading, read_board, read_boards


def test_written_and_read(tmp_path: Path) -> None:
    """Numbers by name, negative ones too; names added later; labels."""
    board = Board(str(tmp_path / "made"), "one", {"role": "worker"}, ("a", "b"))
    board.numbers[board.place("b")] -= 5
    board.numbers[board.place("later")] += 2**62
    board.label(pid=7)
    reading = read_board(board.path)
    assert reading is not None
    assert reading.labels == {"role": "worker", "pid": 7}
    assert reading.numbers == {"a": 0, "b": -5, "later": 2**62}
    assert os.stat(board.path).st_size == 4096


def test_gone_on_with(tmp_path: Path) -> None:
    """A board of the same name keeps its numbers: the download process that was started again."""
    first = Board(str(tmp_path), "server", {}, ("a",))
    first.numbers[0] = 4
    board = Board(str(tmp_path), "server", {}, ("a",))
    board.numbers[0] += 1
    (reading,) = read_boards(str(tmp_path))
    assert reading.numbers == {"a": 5}


def test_too_many_or_too_long_names(tmp_path: Path) -> None:
    """An error that says so; the board goes on."""
    board = Board(str(tmp_path), "one", {}, ())
    with pytest.raises(ValueError, match="names of 1 counters take more than 2048 bytes"):
        board.place("x" * 2100)
    for number in range(256):
        board.place(f"{number}")
    with pytest.raises(ValueError, match="'one more': a process can count at most 256 things"):
        board.place("one more")
    board.numbers[board.place("255")] += 1
    reading = read_board(board.path)
    assert reading is not None
    assert reading.numbers["255"] == 1


def test_what_cannot_be_read_is_left_out(tmp_path: Path) -> None:
    """Missing, empty, half made or foreign files."""
    assert read_boards(str(tmp_path / "nothing")) == []
    (tmp_path / "empty.board").write_bytes(b"")
    (tmp_path / "half.board").write_bytes(b'{"labels": {}, "na')
    (tmp_path / "short.board").write_bytes(b'{"labels": {}, "names": ["a"]}'.ljust(2048))
    (tmp_path / "other.board").write_bytes(b"[1, 2]".ljust(4096))
    (tmp_path / "notes.txt").write_text("x")
    Board(str(tmp_path), "one", {}, ("a",))
    assert [reading.numbers for reading in read_boards(str(tmp_path))] == [{"a": 0}]


def test_a_full_disk(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A warning that can be read, and counting goes on in the process."""
    small = tmp_path / "small"
    small.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=8k", "tmpfs", small], check=True)
    try:
        (small / "fill").write_bytes(bytes(8192))
        with caplog.at_level(logging.WARNING):
            board = Board(str(small), "one", {}, ("a",))
        assert f"stats are incomplete: cannot make {small}/one.board" in caplog.text
        assert "No space left" in caplog.text
        board.numbers[0] += 3
        board.place("b")
        assert board.numbers[0] == 3
        assert read_boards(str(small)) == []
    finally:
        subprocess.run(["umount", small], check=True)


def test_reading_is_quick(tmp_path: Path) -> None:
    """Less than 1 ms for the boards of eight workers and the download process."""
    for number in range(9):
        Board(str(tmp_path), f"{number}", {"pid": number}, ("a", "b"))
    seconds = []
    for _ in range(50):
        started = time.perf_counter()
        read_boards(str(tmp_path))
        seconds.append(time.perf_counter() - started)
    assert min(seconds) < 0.001


def test_a_board_that_is_taken_over_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the list and the look: its numbers are read all the same, and once."""
    Board(str(tmp_path), "w-1-1", {}, ["a"]).numbers[0] = 5
    real, moves = board.read_board, [("w-1-1", "w-2-2"), ("w-2-2", "w-0-0")]

    def moved(path: str) -> Reading | None:
        if moves:
            before, after = moves.pop(0)
            (tmp_path / f"{before}.board").rename(tmp_path / f"{after}.board")
        return real(path)

    monkeypatch.setattr(board, "read_board", moved)
    assert [reading.numbers for reading in read_boards(str(tmp_path))] == [{"a": 5}]
