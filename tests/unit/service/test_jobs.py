"""What is made of the files that download processes keep."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from lance_stream.errors import DownloadProcessError
from lance_stream.service.jobs import find_jobs, rates
from lance_stream.telemetry.stats import StreamStats


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A runtime directory that is not there yet."""
    path = tmp_path / "run"
    monkeypatch.setenv("LANCE_STREAM_RUNTIME_DIR", str(path))
    return path


def test_no_directory_is_no_job_and_none_is_made(root: Path) -> None:
    """A look leaves nothing behind."""
    assert find_jobs() == []
    assert not root.exists()


def test_what_is_no_live_process_is_no_job(root: Path, tmp_path: Path) -> None:
    """Leftovers, other things, and links to elsewhere."""
    dead = root / ("ab" * 6)
    dead.mkdir(parents=True)
    (dead / "alive").write_text(str(os.getpid()))
    (dead / "status").write_text("not JSON")
    (root / ("cd" * 6)).symlink_to(tmp_path)
    (root / ("ef" * 6)).write_text("a file")
    (root / "cache").mkdir()
    assert find_jobs() == []


def test_a_directory_that_is_no_directory_of_ours(root: Path, tmp_path: Path) -> None:
    """It may be anybody's: refused."""
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    root.symlink_to(elsewhere)
    with pytest.raises(DownloadProcessError, match="is not a directory of this user"):
        find_jobs()


def test_rates_are_of_the_time_between_or_since_the_beginning() -> None:
    """Per second, of rows and bytes."""
    before = StreamStats("u", 4, rows=100, lance_bytes=1000, tier_bytes=50)
    now = StreamStats("u", 4, rows=300, lance_bytes=5000, tier_bytes=50)
    assert rates(now, before, 2.0).rows == 100
    assert rates(now, before, 2.0).lance_bytes == 2000
    assert rates(now, before, 2.0).tier_bytes == 0
    assert rates(now, None, 10.0).rows == 30
    assert rates(now, None, 0.0).rows > 0
