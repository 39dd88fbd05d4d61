"""A cache directory on a file system that nodes share, where a pid means nothing to the other.

The nodes are mount and pid namespaces. The kernel's file locks are one for all of them, as on NFS;
where locks do not reach other nodes is simulated by another lock file at the same path.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.multi.two_nodes import launch, rows_of, start_node
from tests.support.mounts import as_root
from tests.support.scripts import RunningScript
from tests.support.tables import write_table

pytestmark = [as_root, pytest.mark.slow]

ROWS = 400

# A job of one process.
_JOB = """
import json, os, sys, time
from lance_stream import LanceStream, LanceStreamingDataset
from lance_stream.errors import LanceStreamError
from lance_stream.processes import this_node
from tests.support.streams import ORDER, batches, ids

uri, local, limit, stop = sys.argv[1:]
try:
    data = LanceStreamingDataset(
        streams=[LanceStream(uri, shard_rows=10, local=local)], batch_size=10, shuffle=True,
        predownload=20, cache_limit=limit or None, **{**ORDER, "shuffle_seed": os.getpid()},
    )
except LanceStreamError as error:
    print(json.dumps({"error": f"{type(error).__name__}: {error}"}), flush=True)
    sys.exit()
print("built", flush=True)
epochs, started = [], time.monotonic()
while len(epochs) < 3 or not os.path.exists(stop):
    epochs.append([])
    for batch in batches(data, 2):
        epochs[-1] += ids([batch])
        time.sleep(0.02)
    if time.monotonic() - started > 90:
        sys.exit("nobody told this job to stop")
print(json.dumps({"epochs": epochs, "node": this_node()}), flush=True)
"""


@pytest.fixture
def table(tmp_path: Path) -> str:
    """The table T(400, 100)."""
    uri = str(tmp_path / "t400.lance")
    write_table(uri, ROWS, 100)
    return uri


@pytest.fixture
def disk() -> Iterator[Path]:
    """Where each node has a disk of its own."""
    with tempfile.TemporaryDirectory(prefix="disk-", dir="/tmp") as path:
        yield Path(path)


def start(disk: Path, script: Path, *args: object, mounts: str = "") -> RunningScript:
    """A job on a node of its own."""
    script.write_text(_JOB)
    return start_node(disk, sys.executable, script, *args, mounts=mounts)


def test_jobs_whose_locks_do_not_reach_each_other(table: str, tmp_path: Path, disk: Path) -> None:
    """Two jobs evict from one directory, and do not know of each other: every row, and no damage.

    What each sweeps at its start is its own.
    """
    local = tmp_path / "cache"
    local.mkdir()
    (local / ".lance_stream.lock").touch()
    # Its own lock file, at the same path.
    other = f"touch {disk}/lock; mount --bind {disk}/lock {local}/.lance_stream.lock"
    stop = tmp_path / "stop"
    args = (table, local, "24kb", stop)
    with ExitStack() as stack:
        first = stack.enter_context(start(disk, tmp_path / "a.py", *args))
        first.wait_for_line("built", timeout_s=60)
        ledgers = {name for name in os.listdir(local) if name.startswith(".ledger")}
        second = stack.enter_context(start(disk, tmp_path / "b.py", *args, mounts=other))
        second.wait_for_line("built", timeout_s=60)
        # The second has swept what it holds to be left behind.
        assert ledgers < {name for name in os.listdir(local) if name.startswith(".ledger")}
        # Three epochs of the second at least, while the first goes on.
        time.sleep(5)
        assert first.poll() is None
        stop.touch()
        said = [job.wait(60).check().json() for job in (first, second)]
    assert said[0]["node"] != said[1]["node"]
    for job in said:
        assert {tuple(sorted(epoch)) for epoch in job["epochs"]} == {tuple(range(ROWS))}
        assert len(job["epochs"]) >= 3
    left = [name for name in os.listdir(local) if name.startswith((".tmp", ".ledger"))]
    assert left == []


def test_another_job_on_another_node_is_refused(table: str, tmp_path: Path, disk: Path) -> None:
    """Where locks reach: the error names the process, and that it is of another node."""
    local = tmp_path / "cache"
    with start(disk, tmp_path / "a.py", table, local, "", tmp_path / "stop") as first:
        first.wait_for_line("built", timeout_s=60)
        with start(disk, tmp_path / "b.py", table, local, "", "/") as second:
            said = second.wait(60).check().json()
    holder = Path(local, ".lance_stream.lock").read_text().split()[0]
    assert said["error"].startswith("CacheInUseError: "), said
    assert f"{str(local)!r} is in use by process {holder} of another node (" in said["error"]


@pytest.mark.timeout(500)
def test_nodes_of_one_job(tmp_path: Path) -> None:
    """Each takes a directory of its own in the one that is given, and finds it again."""
    uri, local = str(tmp_path / "t.lance"), tmp_path / "cache"
    write_table(uri, 320, 80)
    made: list[dict[str, Any]] = []
    for _ in range(2):
        seen = launch(tmp_path, uri, 2, [{"name": "epoch"}], local=str(local))["epoch"]
        rows = [row for rank in seen for row in rows_of(rank)]
        assert sorted(rows) == list(range(320))
        places = [str(local), str(local), f"{local}/node-1", f"{local}/node-1"]
        assert [rank["local"] for rank in seen] == places
        files = [path for path in local.rglob("*") if path.suffix == ".arrow"]
        made.append({str(path): path.stat().st_mtime_ns for path in files})
        hidden = [path.name for path in local.rglob(".*") if path.name != ".lance_stream.lock"]
        assert hidden == [], json.dumps(hidden)
    # Nothing was fetched again, at most what the other order of the workers needs besides.
    assert made[0].items() <= made[1].items()
