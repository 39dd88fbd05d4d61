"""A lock that another process holds for too long is an error, not a wait."""

from __future__ import annotations

from pathlib import Path

import pytest
from filelock import FileLock

from lance_stream.errors import LanceStreamError
from lance_stream.host import locks
from lance_stream.host.locks import locked


def test_held_and_let_go(tmp_path: Path) -> None:
    """It is free again afterwards, also after an error inside."""
    lock = FileLock(tmp_path / "lock")
    with locked(lock, "the cache"):
        assert lock.is_locked
    with pytest.raises(ZeroDivisionError), locked(lock, "the cache"):
        raise ZeroDivisionError
    assert not lock.is_locked


def test_held_by_another(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error says what of, which file and how long."""
    monkeypatch.setattr(locks, "_DEADLINE_S", 0.2)
    path = tmp_path / "lock"
    with (
        FileLock(path),
        pytest.raises(LanceStreamError, match=rf"the cache: .*{path} for 0 s"),
        locked(FileLock(path), "the cache"),
    ):
        pass
