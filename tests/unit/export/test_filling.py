from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from lance_stream.errors import CacheInUseError, PlanError
from lance_stream.export.filling import fill
from lance_stream.export.local import LocalDestination
from lance_stream.export.plan import ExportPlan, Found
from tests.support.new_threads import NewThreads
from tests.unit.export.plans import content, export_plan, writer


def fill_here(
    destination: LocalDestination, plan: ExportPlan, workers: int = 1, **options: Any
) -> tuple[dict[int, Any], int]:
    run = options.get("run") or writer(destination, plan)
    progress = options.get("progress", lambda _rows, _of: None)
    return fill(destination, plan, run, workers, threading.Event(), progress)


def assert_complete(out: Path, plan: ExportPlan) -> None:
    names = [plan.stored_name(shard) for shard in range(plan.index.num_shards)]
    assert sorted(os.listdir(out)) == ["index.json", *names]
    for shard, name in enumerate(names):
        assert (out / name).read_bytes() == content(shard)
    index = json.loads((out / "index.json").read_text())
    assert [entry["raw_data"]["basename"] for entry in index["shards"]] == names


class Crash(BaseException):
    """The process is killed."""


class Crashing(LocalDestination):
    """A directory whose process is killed in front of, or right after, its nth operation."""

    def __init__(self, path: str, moment: int) -> None:
        super().__init__(path)
        self.left = moment

    def _step(self) -> None:
        if self.left == 0:
            # The system lets go of what a dead process held.
            self._unlock()
            raise Crash
        self.left -= 1

    def claim(self) -> None:
        self._step()
        super().claim()
        self._step()

    def begin(self, identity: Mapping[str, Any]) -> None:
        self._step()
        super().begin(identity)
        self._step()

    def publish(self, path: str, name: str) -> None:
        self._step()
        super().publish(path, name)
        self._step()

    def record(self, shard: int, entry: Mapping[str, Any]) -> None:
        self._step()
        super().record(shard, entry)
        self._step()

    def publish_index(self, text: str) -> None:
        self._step()
        super().publish_index(text)
        self._step()

    def clean_up(self) -> None:
        self._step()
        # In the middle: the plan is removed, and some of the records.
        os.unlink(os.path.join(self.name, ".lance_stream_export", "plan.json"))
        self._step()
        Path(self.name, ".lance_stream_export", "plan.json").write_text("")
        super().clean_up()
        self._step()


def test_killed_at_every_moment(tmp_path: Path) -> None:
    plan, moment = export_plan(), 0
    while True:
        out = tmp_path / f"out{moment}"
        killed = Crashing(str(out), moment)
        try:
            fill_here(killed, plan)
        except Crash:
            pass
        else:
            break
        if (out / "index.json").exists():
            assert len(os.listdir(out)) >= 4
        again = LocalDestination(str(out))
        fill_here(again, plan)
        again.release()
        assert_complete(out, plan)
        moment += 1
    assert moment > 20


@pytest.mark.parametrize("workers", [1, 2, 8])
def test_progress_and_result(tmp_path: Path, workers: int) -> None:
    plan, told = export_plan(105, 10), []
    destination = LocalDestination(str(tmp_path / "out"))
    entries, kept = fill_here(
        destination, plan, workers, progress=lambda rows, of: told.append((rows, of))
    )
    assert (sorted(entries), kept) == (list(range(11)), 0)
    assert told[0] == (0, 105)
    assert sorted(told[1:]) == [(5, 105), *[(10, 105)] * 10]
    told.clear()
    again = LocalDestination(str(tmp_path / "out"))
    assert fill_here(again, plan, progress=lambda *rows: told.append(rows)) == (entries, 11)
    assert told == [(105, 105)]
    assert_complete(tmp_path / "out", plan)


def test_as_many_at_a_time_as_workers(tmp_path: Path) -> None:
    plan = export_plan(100, 10)
    destination = LocalDestination(str(tmp_path / "out"))
    inner, running, most, lock = writer(destination, plan), [0], [0], threading.Lock()

    def run(shard: int) -> dict[str, Any]:
        with lock:
            running[0] += 1
            most[0] = max(most[0], running[0])
        time.sleep(0.02)
        with lock:
            running[0] -= 1
        return inner(shard)

    fill_here(destination, plan, 3, run=run)
    assert most == [3]


def test_the_first_error_ends_it(tmp_path: Path) -> None:
    plan = export_plan(1000, 10)
    destination = LocalDestination(str(tmp_path / "out"))
    inner = writer(destination, plan)

    def run(shard: int) -> dict[str, Any]:
        if shard == 7:
            raise ValueError("seven")
        time.sleep(0.005)
        return inner(shard)

    started = NewThreads()
    with pytest.raises(ValueError, match="seven"):
        fill_here(destination, plan, 2, run=run)
    assert len(started) == 0
    assert 5 <= len(destination.records()) < 50
    assert not (tmp_path / "out" / "index.json").exists()
    destination.release()
    again = LocalDestination(str(tmp_path / "out"))
    _, kept = fill_here(again, plan)
    assert kept >= 5
    assert_complete(tmp_path / "out", plan)


def test_an_interrupt_while_progress_is_shown(tmp_path: Path) -> None:
    plan = export_plan(1000, 10)
    destination = LocalDestination(str(tmp_path / "out"))
    calls = []

    def progress(_rows: int, _of: int) -> None:
        calls.append(1)
        if len(calls) == 5:
            raise KeyboardInterrupt

    started = NewThreads()
    with pytest.raises(KeyboardInterrupt):
        fill_here(destination, plan, 4, progress=progress)
    assert len(started) == 0
    destination.release()


def _flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[3] ^= 1
    path.write_bytes(data)


def test_a_damaged_shard_of_a_finished_export_is_written_again(tmp_path: Path) -> None:
    """One that has a hash in the index."""
    plan, out = export_plan(hashes=("sha1", "xxh64")), tmp_path / "out"
    fill_here(LocalDestination(str(out)), plan, 2)
    for number in (0, 2):
        _flip(out / f"shard.{number:05}.mds")
    written: list[int] = []
    destination = LocalDestination(str(out))
    inner = writer(destination, plan)

    def run(shard: int) -> dict[str, Any]:
        written.append(shard)
        return inner(shard)

    entries, kept = fill_here(destination, plan, run=run)
    assert (sorted(entries), kept, written) == ([0, 1, 2], 1, [0, 2])
    assert_complete(out, plan)
    assert fill_here(LocalDestination(str(out)), plan)[1] == 3


def test_a_damaged_shard_of_an_unfinished_export_is_written_again(tmp_path: Path) -> None:
    """Whatever hashes were asked for: its record has one."""
    plan, out = export_plan(), tmp_path / "out"
    killed = Crashing(str(out), 13)
    with pytest.raises(Crash):
        fill_here(killed, plan)
    assert len(killed.records()) == 2
    _flip(out / "shard.00001.mds")
    assert fill_here(LocalDestination(str(out)), plan)[1] == 1
    assert_complete(out, plan)


def test_a_file_that_vanished_meanwhile(tmp_path: Path) -> None:
    plan, out = export_plan(), tmp_path / "out"
    destination = LocalDestination(str(out))
    inner = writer(destination, plan)

    def run(shard: int) -> dict[str, Any]:
        told = inner(shard)
        if shard == 2:
            (out / "shard.00001.mds").unlink()
        return told

    with pytest.raises(PlanError, match=r"shard\.00001\.mds should have 16 bytes but has gone"):
        fill_here(destination, plan, run=run)
    assert not (out / "index.json").exists()


def test_an_index_that_is_not_what_was_written(tmp_path: Path) -> None:
    class Lying(LocalDestination):
        def look(self) -> Found:
            found = super().look()
            index = {**found.index, "shards": found.index["shards"][:1]} if found.index else None
            return Found(found.sizes, found.state, index)

    with pytest.raises(
        PlanError, match=r"index\.json has 10 rows in 1 shards, but the table has 25"
    ):
        fill_here(Lying(str(tmp_path / "out")), export_plan())


def test_what_is_there_is_looked_at_before_anything_is_made(tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    (out / "thesis").write_text("x")
    with pytest.raises(PlanError, match="is not empty"):
        fill_here(LocalDestination(str(out)), export_plan())
    assert os.listdir(out) == ["thesis"]


def test_another_export_of_the_same_process(tmp_path: Path) -> None:
    held = LocalDestination(str(tmp_path / "out"))
    held.claim()
    with pytest.raises(CacheInUseError, match="another export"):
        fill_here(LocalDestination(str(tmp_path / "out")), export_plan())
    held.release()
