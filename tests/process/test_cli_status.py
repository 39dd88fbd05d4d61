"""``lance-stream status``: what runs on this node, told by a process that joins nothing."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import psutil
import pytest

import lance_stream
from lance_stream.host.settling import _Job
from tests.support.commands import lance_stream as command
from tests.support.commands import refusal, start_lance_stream
from tests.support.forked import run_forked
from tests.support.mounts import as_root
from tests.support.scripts import run_script
from tests.support.streams import batches, dataset, endpoint, identity, ids, wait_until

LOADED = """
import sys
from lance_stream.cli.main import main
status = main()
wrong = {"torch", "streaming", "lance", "pyarrow", "numpy"} & set(sys.modules)
sys.exit(f"loaded {sorted(wrong)}" if wrong else status)
"""


@pytest.fixture(autouse=True)
def runtime(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Path:
    """A runtime directory of this test's own: other tests' jobs are not in it."""
    root = Path(os.environ["LANCE_STREAM_RUNTIME_DIR"]) / f"s{os.urandom(3).hex()}"
    monkeypatch.setenv("LANCE_STREAM_RUNTIME_DIR", str(root))
    # Nor is the job of this process, if other tests have made it one, that of its forks.
    monkeypatch.setattr(_Job, "endpoint", None)
    return root


def counted(batch: list[Any]) -> list[Any]:
    """A collate function that counts."""
    lance_stream.counter("samples").add(len(batch))
    return identity(batch)


def test_nothing_runs(runtime: Path) -> None:
    """No failure; nothing is made."""
    assert command("status").check().stdout == "no job runs on this node\n"
    found = command("status", "--json").json()
    assert found["jobs"] == []
    assert not runtime.exists()


def test_a_job(table_100: str) -> None:
    """Streams, rows, rates, counters; also while the process is stopped. Nothing heavy loaded."""

    def run() -> dict[str, Any]:
        data = dataset(table_100, shard_rows=10)
        before = command("status", "--json").json()
        loader = batches(data, 2)
        loader.collate_fn = counted
        ids(loader)
        pid = endpoint(data).pid()
        assert pid is not None
        os.kill(pid, signal.SIGSTOP)
        try:
            stopped = run_script(LOADED, "status", "--json", timeout_s=30).json()
        finally:
            os.kill(pid, signal.SIGCONT)
        text = command("status").check().stdout
        return {"pid": pid, "before": before, "stopped": stopped, "text": text}

    found = run_forked(run)
    (job,) = found["before"]["jobs"]
    assert (job["pid"], job["state"], job["errors"]) == (found["pid"], "running", [])
    assert job["streams"] == []  # announced with the first request
    (job,) = found["stopped"]["jobs"]
    assert job["state"] == "stopped"
    assert job["counters"] == {"samples": 100}
    (stream,) = job["streams"]
    told = ("uri", "version", "rows", "table_rows", "shards", "from_lance", "queue_depth")
    assert [stream[name] for name in told] == [table_100, 1, 100, 100, 10, 10, 0]
    assert stream["rates"]["rows"] * stream["rates"]["seconds"] == pytest.approx(100)
    assert len(stream["workers"]) == 2
    for part in (f"download process {found['pid']}: running", table_100, "counters: samples 100"):
        assert part in found["text"]


def test_errors_are_kept(table_100: str, tmp_path: Path) -> None:
    """Of a shard that could not be had; and the log is lines of JSON."""
    folder = tmp_path / "copy.lance"

    def run() -> dict[str, Any]:
        os.system(f"cp -r {table_100} {folder}")
        data = dataset(str(folder), shard_rows=10, download_retry=0, download_timeout=5)
        for file in (folder / "data").iterdir():
            file.unlink()
        with pytest.raises(lance_stream.LanceStreamError, match="shard"):
            ids(batches(data, 0))
        lines = Path(endpoint(data).log_path).read_text().splitlines()
        kinds = [type(json.loads(line)).__name__ for line in lines if line.startswith("{")]
        return {
            "jobs": command("status", "--json").json()["jobs"],
            "text": command("status").check().stdout,
            "lines": kinds,
        }

    found = run_forked(run)
    (job,) = found["jobs"]
    assert job["streams"][0]["failures"] >= 1
    assert job["errors"]
    last = job["errors"][-1]
    assert last["error"].endswith("Error")
    assert f"of {folder} version 1" in last["message"]
    assert isinstance(last["shard"], int)
    assert "last errors" in found["text"]
    assert set(found["lines"]) == {"dict"}


def test_watch(table_100: str) -> None:
    """A line per look, with rates since the last; Ctrl-C ends it; jobs come and go."""
    with start_lance_stream("status", "--watch", "--interval", "0.1", "--json") as watching:
        watching.wait_for_line(r'"jobs": \[\]', 30)

        def run() -> None:
            data = dataset(table_100, shard_rows=10)
            for batch in batches(data, 0):
                assert batch
                time.sleep(0.02)

        run_forked(run)
        seen = len(watching.stdout().splitlines())
        wait_until(lambda: len(watching.stdout().splitlines()) > seen + 3, 10, "it goes on")
        watching.kill_group(signal.SIGINT)
        result = watching.wait(20)
    assert result.returncode == 130
    looks = [json.loads(line) for line in result.stdout.splitlines()]
    streams = [s for look in looks for job in look["jobs"] for s in job["streams"]]
    rows = [stream["rows"] for stream in streams]
    assert rows == sorted(rows)
    assert any(stream["rates"]["rows"] > 0 for stream in streams)
    assert all(stream["rates"]["seconds"] < 5 for stream in streams)


@as_root
def test_a_directory_of_somebody_else(runtime: Path) -> None:
    """Refused: what lies in it may be made up."""
    runtime.mkdir(mode=0o700)
    os.chown(runtime, 12345, 12345)
    assert "is not a directory of this user" in refusal(command("status"))


def test_wrong_arguments() -> None:
    """Told as of every command."""
    assert "number of seconds" in refusal(command("status", "--interval", "0"), 2)


def test_it_starts_within_a_second() -> None:
    """Of processor time: a machine may be busy with something else."""
    children = psutil.Process().cpu_times()
    command("status", "--json").check()
    after = psutil.Process().cpu_times()
    used = after.children_user + after.children_system
    assert used - children.children_user - children.children_system < 1.0, sys.version
