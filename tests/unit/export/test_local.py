from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from lance_stream.errors import CacheInUseError
from lance_stream.export.local import LocalDestination
from lance_stream.export.plan import STATE_NAME, Found


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return tmp_path / "deep" / "out"


def put(destination: LocalDestination, name: str, text: str = "x") -> None:
    path = destination.temporary_path(name)
    Path(path).write_text(text)
    destination.publish(path, name)


def test_what_is_there(out: Path) -> None:
    destination = LocalDestination(str(out))
    assert destination.look() == Found({}, None, None)
    assert not out.exists()
    out.mkdir(parents=True)
    (out / "a").write_text("123")
    (out / "index.json").write_text("[]")
    (out / ".tmp-1-2-x").write_text("")
    assert destination.look() == Found({"a": 3, "index.json": 2}, None, {})
    (out / "index.json").write_text('{"x": 1}')
    assert destination.look().index == {"x": 1}


def test_an_export_from_beginning_to_end(out: Path) -> None:
    destination = LocalDestination(str(out))
    destination.claim()
    assert destination.look() == Found({}, None, None)
    destination.begin({"x": 1})
    put(destination, "shard.00000.mds", "abc")
    destination.record(0, {"y": 2})
    assert destination.look() == Found({"shard.00000.mds": 3}, {"x": 1}, None)
    assert destination.records() == {0: {"y": 2}}
    destination.publish_index('{"z": 3}')
    destination.clean_up()
    destination.release()
    assert destination.look() == Found({"shard.00000.mds": 3, "index.json": 8}, None, {"z": 3})
    assert sorted(os.listdir(out)) == ["index.json", "shard.00000.mds"]


def test_what_another_run_finished(out: Path) -> None:
    one = LocalDestination(str(out))
    one.claim()
    one.begin({"x": 1})
    one.record(12, {"y": 2})
    (out / STATE_NAME / "00000013.json").write_text("cut sho")
    (out / STATE_NAME / "notes").write_text("x")
    one.release()
    other = LocalDestination(str(out))
    other.claim()
    assert other.look().state == {"x": 1}
    assert other.records() == {12: {"y": 2}, 13: {}}
    other.release()


def test_one_at_a_time(out: Path) -> None:
    one, other = LocalDestination(str(out)), LocalDestination(str(out))
    one.claim()
    message = f"another export to {out} is running, with pid {os.getpid()}:"
    with pytest.raises(CacheInUseError, match=message):
        other.claim()
    other.release()
    one.begin({})
    one.record(0, {})
    one.release()
    other.claim()
    other.release()


def test_leftovers_are_swept_by_who_holds_it(out: Path) -> None:
    out.mkdir(parents=True)
    (out / f".tmp-{os.getpid()}-1-0-shard.00000.mds").write_text("x")
    (out / ".tmp-somebody").write_text("x")
    destination = LocalDestination(str(out))
    destination.claim()
    assert sorted(os.listdir(out)) == [STATE_NAME, ".tmp-somebody"]
    destination.begin({})
    destination.record(0, {})
    Path(destination.temporary_path("x")).write_text("x")
    destination.release()
    destination.release()
    assert sorted(os.listdir(out)) == [STATE_NAME, ".tmp-somebody"]


@pytest.mark.parametrize("existed", [True, False])
def test_without_a_finished_shard_nothing_stays(out: Path, existed: bool) -> None:
    if existed:
        out.mkdir(parents=True)
    destination = LocalDestination(str(out))
    destination.claim()
    destination.begin({})
    destination.release()
    assert out.exists() == existed
    assert out.parent.exists()
    assert not existed or os.listdir(out) == []


def test_temporary_paths_are_distinct_and_beside(out: Path) -> None:
    destination = LocalDestination(str(out))
    paths = {destination.temporary_path("x") for _ in range(10)}
    assert len(paths) == 10
    assert {os.path.dirname(path) for path in paths} == {str(out)}


def test_records_are_whole_or_not_there(out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    destination = LocalDestination(str(out))
    destination.claim()
    monkeypatch.setattr(json, "dumps", lambda _value: "\ud800")
    with pytest.raises(UnicodeEncodeError):
        destination.record(0, {})
    assert destination.records() == {}
    assert not [name for name in os.listdir(out) if name.startswith(".tmp-")]
    destination.release()
