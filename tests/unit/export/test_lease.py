from __future__ import annotations

import json
import os
import threading
from typing import Any

import pytest

from lance_stream.errors import CacheInUseError
from lance_stream.export import lease
from lance_stream.export.lease import StoreLease, is_free
from lance_stream.processes import this_process

HELD = {"machine": "here 1", "pid": 7, "started": 70, "renewed": 1000.0}


def runs(pid: int, started: int) -> bool:
    return (pid, started) == (7, 70)


@pytest.mark.parametrize(
    ("held", "now_s", "free"),
    [
        (None, 0.0, True),
        ({}, 0.0, True),
        ({"x": 1}, 0.0, True),
        (HELD, 1001.0, False),
        (HELD, 1119.0, False),
        (HELD, 1121.0, True),
        ({**HELD, "pid": 8}, 1001.0, True),
        ({**HELD, "started": 71}, 1001.0, True),
        ({**HELD, "machine": "there 1", "pid": 8}, 1001.0, False),
        ({**HELD, "machine": "there 1", "pid": 8}, 1121.0, True),
        ({**HELD, "renewed": "x"}, 1001.0, True),
    ],
)
def test_when_a_lease_is_free(held: dict[str, Any] | None, now_s: float, free: bool) -> None:
    assert is_free(held, "here 1", now_s, runs) is free


class Store:
    """One object."""

    def __init__(self) -> None:
        self.text: str | None = None
        self.writes = 0

    def read(self, name: str) -> dict[str, Any] | None:
        assert name == ".lance_stream_export/lock.json"
        return None if self.text is None else json.loads(self.text)

    def write(self, name: str, text: str) -> None:
        assert name == ".lance_stream_export/lock.json"
        self.text, self.writes = text, self.writes + 1

    def lease(self) -> StoreLease:
        return StoreLease(self.read, self.write, "s3://b/out", threading.Event())


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lease, "_SETTLE_S", 0.01)
    monkeypatch.setattr(lease, "_RENEW_S", 0.01)


def test_it_is_renewed_until_it_is_stopped() -> None:
    store = Store()
    held = store.lease()
    held.take()
    while store.writes < 4:
        pass
    held.stop()
    writes = store.writes
    assert json.loads(store.text or "")["pid"] == os.getpid()
    held.require()
    assert not [t for t in threading.enumerate() if t.name == "lance-stream-lease"]
    assert store.writes == writes


def test_one_that_is_held_is_refused() -> None:
    store = Store()
    held = store.lease()
    held.take()
    try:
        message = rf"another export to s3://b/out is running, with pid {os.getpid()} on "
        with pytest.raises(CacheInUseError, match=message):
            store.lease().take()
    finally:
        held.stop()


def test_one_of_a_process_that_is_gone_is_taken() -> None:
    store = Store()
    pid, started = this_process()
    mine = {"machine": lease._machine(), "pid": pid, "started": started - 500, "renewed": 9e9}
    store.text = json.dumps(mine)
    held = store.lease()
    held.take()
    held.stop()
    assert json.loads(store.text)["started"] == started


def test_of_two_in_the_same_moment_one_gives_way() -> None:
    store = Store()

    def write(name: str, text: str) -> None:
        store.write(name, json.dumps({**HELD, "renewed": 9e9}))

    late = StoreLease(store.read, write, "s3://b/out", threading.Event())
    with pytest.raises(CacheInUseError, match="with pid 7 on here"):
        late.take()


def test_one_that_was_taken_over_is_noticed() -> None:
    store = Store()
    held = store.lease()
    held.take()
    other = json.dumps({**HELD, "renewed": 9e9})
    deadline = 1000
    while held._lost is None and deadline:
        # Again and again: a renewal may just be on its way.
        store.text = other
        threading.Event().wait(0.005)
        deadline -= 1
    with pytest.raises(CacheInUseError, match="with pid 7 on here"):
        held.require()
    held.stop()
