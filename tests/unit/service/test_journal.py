from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from lance_stream.service.events import Key, Lost
from lance_stream.service.journal import Journal

A, B = Key("s", 0), Key("with.dots", 123_456_789)


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    path = tmp_path / "directory"
    path.mkdir()
    return path


@pytest.fixture
def journal(directory: Path) -> Journal:
    return Journal(str(directory))


def lost(journal: Journal) -> list[Lost]:
    return sorted(journal.take_over(), key=lambda each: each.key)


def test_a_process_that_ended_in_order_leaves_nothing(journal: Journal, directory: Path) -> None:
    assert lost(journal) == []
    journal.begin(A, 1, 0)
    journal.end(A)
    assert lost(journal) == []
    assert list(directory.iterdir()) == []


def test_what_was_in_progress_died(journal: Journal) -> None:
    journal.begin(A, 1, 0)
    journal.begin(B, 3, 1)
    # The attempt in which the process died is no used-up attempt, but a death.
    assert lost(journal) == [Lost(A, attempts=0, deaths=1), Lost(B, attempts=2, deaths=2)]


def test_what_hung_did_not_die(journal: Journal) -> None:
    journal.hung(A, 2)
    assert lost(journal) == [Lost(A, attempts=2, deaths=0)]


def test_the_latest_note_counts(journal: Journal) -> None:
    journal.begin(A, 1, 0)
    journal.hung(A, 1)
    assert lost(journal) == [Lost(A, attempts=1, deaths=0)]
    journal.begin(A, 2, 0)
    assert lost(journal) == [Lost(A, attempts=1, deaths=1)]


def test_notes_stay_until_the_shard_is_fetched(journal: Journal, directory: Path) -> None:
    journal.begin(A, 1, 0)
    assert lost(journal) == lost(Journal(str(directory))) == [Lost(A, 0, 1)]
    journal.begin(A, 1, 1)
    assert lost(journal) == [Lost(A, 0, 2)]
    journal.end(A)
    assert lost(journal) == []


def test_the_end_of_what_did_not_begin_is_no_error(journal: Journal) -> None:
    journal.end(A)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("s.1", ""),
        ("s.1", "run"),
        ("s.1", "run 1"),
        ("s.1", "run 1 0 0"),
        ("s.1", "run x 0"),
        ("s.1", "run 1 x"),
        ("s.1", "\0" * 20),
        ("s.1", "run 1 é"),
        ("s.x", "run 1 0"),
        ("nodot", "run 1 0"),
    ],
)
def test_a_note_that_is_no_note_is_removed(
    journal: Journal, directory: Path, name: str, text: str
) -> None:
    journal.begin(A, 1, 0)
    (directory / name).write_text(text)
    assert lost(journal) == [Lost(A, 0, 1)]
    assert os.listdir(directory) == ["s.0"]


def test_bytes_that_are_no_text_are_removed(journal: Journal, directory: Path) -> None:
    (directory / "s.1").write_bytes(b"\xff\xfe run 1 0")
    assert lost(journal) == []
    assert os.listdir(directory) == []


def test_a_killed_process_leaves_its_notes(
    journal: Journal, directory: Path, run_python: Callable[..., str]
) -> None:
    script = """
import os, sys
from lance_stream.service.journal import Journal
from lance_stream.service.events import Key
journal = Journal(sys.argv[1])
journal.begin(Key("s", 0), 2, 0)
os._exit(0)
"""
    run_python(script, str(directory))
    assert lost(journal) == [Lost(A, attempts=1, deaths=1)]


def test_where_nothing_can_be_noted_work_goes_on(
    directory: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A full disk, here a file in the way; told once."""
    directory.rmdir()
    directory.touch()
    journal = Journal(str(directory))
    for attempt in (1, 2):
        journal.begin(A, attempt, 0)
        journal.hung(A, attempt)
        journal.end(A)
    assert caplog.text.count("cannot note which shards are fetched") == 1


def test_a_directory_that_was_tidied_away_is_made_again(journal: Journal, directory: Path) -> None:
    directory.rmdir()
    journal.begin(A, 1, 0)
    assert directory.stat().st_mode & 0o777 == 0o700
    assert lost(journal) == [Lost(A, attempts=0, deaths=1)]
