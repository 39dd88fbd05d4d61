"""What the download process counts."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from lance_stream.service.cache_files import ledger_path
from lance_stream.service.tallies import Tallies
from lance_stream.telemetry.board import read_boards
from lance_stream.telemetry.shared_counts import read_shared
from lance_stream.tiers.counts import SharedTierCounts, TierCounts


def register(directory: Path, stream: str = "s") -> Any:
    """What is looked at of a registration."""
    return SimpleNamespace(
        stream=stream,
        uri="s3://key:secret@b/t.lance?token=secret",
        version=3,
        directory=str(directory),
        ledger_path=ledger_path(str(directory), "token", "ab" * 16),
        stats_directory=str(directory / f"{stream}.stats"),
    )


INDEX: Any = SimpleNamespace(
    num_shards=4,
    num_rows=40,
    row_size=SimpleNamespace(mean_bytes=12.5),
    fingerprint="ab" * 16,
)


def test_counted_per_stream(tmp_path: Path) -> None:
    """And shown on the stream's board; what is not served is not counted."""
    tallies = Tallies(str(tmp_path / "status"))
    tallies.open(register(tmp_path), INDEX)
    tallies.add("s", "requested")
    tallies.add("s", "lance_bytes", 100)
    tallies.add("other", "requested")
    tallies.show({"s": (2, 1), "other": (9, 9)})
    (reading,) = read_boards(str(tmp_path / "s.stats"))
    assert reading.labels["role"] == "server"
    numbers = {name: value for name, value in reading.numbers.items() if value}
    assert numbers == {"requested": 1, "lance_bytes": 100, "waiting": 2, "running": 1}
    tallies.show({})
    (reading,) = read_boards(str(tmp_path / "s.stats"))
    assert reading.numbers["waiting"] == reading.numbers["running"] == 0


def test_nothing_waits_of_what_nobody_asks_for(tmp_path: Path) -> None:
    """Also where it is closed before the next look at what waits."""
    tallies = Tallies(str(tmp_path / "status"))
    tallies.open(register(tmp_path), INDEX)
    tallies.show({"s": (2, 1)})
    tallies.close("s")
    tallies.show({})
    (reading,) = read_boards(str(tmp_path / "s.stats"))
    assert reading.numbers["waiting"] == reading.numbers["running"] == 0


def test_what_shared_caches_did(tmp_path: Path) -> None:
    """Written when it changed, private, and read as it was."""
    path = tmp_path / "shared"
    tallies = Tallies(str(tmp_path / "status"), str(path))
    tallies.show_shared([])
    assert read_shared(str(path)) == ()
    counts = SharedTierCounts(taken=3, tiers=(TierCounts("redis://a", errors=2, get_seconds=0.5),))
    tallies.show_shared([counts])
    assert read_shared(str(path)) == (counts,)
    assert path.stat().st_mode & 0o777 == 0o600
    path.unlink()
    tallies.show_shared([counts])
    assert not path.exists()
    path.write_text('[{"tiers": 1}]')
    assert read_shared(str(path)) == ()


def test_the_status_file(tmp_path: Path) -> None:
    """Lists what is served, without secrets."""
    path = tmp_path / "status"
    tallies = Tallies(str(path))
    tallies.open(register(tmp_path), INDEX)
    tallies.open(register(tmp_path, "other"), INDEX)
    status = json.loads(path.read_text())
    assert [one["version"] for one in status["streams"]] == [3, 3]
    assert "secret" not in path.read_text()
    tallies.close("s")
    tallies.close("s")
    # Listed between its epochs too, until its boards are removed.
    assert [one["active"] for one in json.loads(path.read_text())["streams"]] == [False, True]
    shutil.rmtree(tmp_path / "s.stats")
    tallies.close("other")
    assert len(json.loads(path.read_text())["streams"]) == len(tallies.streams) == 1


def test_boards_that_are_gone_first(tmp_path: Path) -> None:
    """A trainer removes them before the process hears of it: closed all the same, and unlisted."""
    tallies = Tallies(str(tmp_path / "status"))
    for stream in ("one", "two"):
        tallies.open(register(tmp_path, stream), INDEX)
    shutil.rmtree(tmp_path / "one.stats")
    assert len(tallies.streams) == 1
    tallies.close("two")
    tallies.close("one")
    assert [one["active"] for one in tallies.streams] == [False]
    assert len(json.loads((tmp_path / "status").read_text())["streams"]) == 1
    assert (tmp_path / "status").stat().st_mode & 0o777 == 0o600


def test_a_stream_that_is_opened_again_goes_on(tmp_path: Path) -> None:
    """With its numbers and its time, also in the next process."""
    first = Tallies(str(tmp_path / "status"))
    first.open(register(tmp_path), INDEX)
    first.add("s", "requested", 5)
    since = first.streams[0]["since"]
    first.close("s")
    first.open(register(tmp_path), INDEX)
    first.show({"s": (2, 1)})
    second = Tallies(str(tmp_path / "status"))
    # Known, and told of, before anybody asks for it again.
    assert [one["active"] for one in second.streams] == [False]
    assert json.loads((tmp_path / "status").read_text())["streams"] == second.streams
    # What the process before was asked for when it died, nobody waits for here.
    (reading,) = read_boards(str(tmp_path / "s.stats"))
    assert (reading.numbers["waiting"], reading.numbers["running"]) == (0, 0)
    assert reading.numbers["requested"] == 5
    second.open(register(tmp_path), INDEX)
    assert [one["active"] for one in second.streams] == [True]
    second.add("s", "requested")
    (reading,) = read_boards(str(tmp_path / "s.stats"))
    assert reading.numbers["requested"] == 6
    assert first.streams[0]["since"] == second.streams[0]["since"] == since


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"streams": [{}]}', b"\xff"])
def test_a_status_that_cannot_be_read(tmp_path: Path, content: bytes) -> None:
    """Is that of no stream."""
    (tmp_path / "status").write_bytes(content)
    assert Tallies(str(tmp_path / "status")).streams == []


def test_a_status_that_cannot_be_written(tmp_path: Path) -> None:
    """Stops what is shown, not what is done."""
    tallies = Tallies(str(tmp_path / "missing" / "status"))
    tallies.open(register(tmp_path), INDEX)
    tallies.add("s", "failures")
    (reading,) = read_boards(str(tmp_path / "s.stats"))
    assert reading.numbers["failures"] == 1
