"""``pin=True``: a tag holds the version while somebody trains on it, and goes afterwards."""

from __future__ import annotations

import gc
import logging
import os
import re
import shutil
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from lance_stream.errors import LanceStreamError
from tests.multi.ranks import environment, free_port
from tests.support.fault_proxy import FaultProxy
from tests.support.faults import Fault
from tests.support.forked import Forked, fork, run_forked
from tests.support.object_store import S3Server
from tests.support.scripts import run_script
from tests.support.streams import batches, dataset, ids, wait_until
from tests.support.tables import write_table

PIN = re.compile(r"lance_stream\.pin\.([0-9a-f]{12}\.){3}\d+\.\d+\.[0-9a-f]{8}")

_CHANGE = """
import sys, lance
from datetime import timedelta
from tests.support.tables import write_table_here
uri, *changes = sys.argv[1:]
for change in changes:
    table = lance.dataset(uri)
    if change == "overwrite":
        write_table_here(uri, 100, 25, first_row=1000, mode="overwrite")
    elif change == "clean up":
        table.cleanup_old_versions(
            older_than=timedelta(0), delete_unverified=True, error_if_tagged_old_versions=False
        )
    elif change == "tag":
        table.tags.create("v1", 1)
    elif change == "branch":
        write_table_here(table.create_branch("exp").uri, 10, 10, first_row=100, mode="append")
    else:
        raise ValueError(change)
"""


def change(uri: str, *changes: str) -> None:
    """Change a table in a process of its own."""
    run_script(_CHANGE, uri, *changes).check()


@pytest.fixture(scope="module")
def original(tables: Path) -> str:
    """The table T(100, 25) with a tag of its owner's, to be copied."""
    uri = str(tables / "pinned.lance")
    write_table(uri, 100, 25)
    change(uri, "tag")
    return uri


@pytest.fixture
def table(original: str, tmp_path: Path) -> str:
    """A copy of one's own."""
    return str(shutil.copytree(original, tmp_path / "t.lance"))


def tags(uri: str) -> list[str]:
    """Names of a table's tags."""
    directory = Path(uri, "_refs", "tags")
    return sorted(path.stem for path in directory.glob("*.json"))


def pins(uri: str) -> list[str]:
    """Those that are ours; each of the form that we promise."""
    found = [name for name in tags(uri) if name != "v1"]
    assert all(PIN.fullmatch(name) for name in found), found
    assert "v1" in tags(uri)
    return found


def gone(uri: str) -> None:
    """Wait until no pin is left."""
    wait_until(lambda: not pins(uri), 15, f"the pins of {uri} are gone")


def _train(uri: str, ready: Path, stop: Path, **stream: Any) -> list[Any]:
    """Train until told to stop; what was read, and the pins then."""
    data = dataset(uri, pin=True, shard_rows=10, **stream)
    ready.with_suffix(".new").write_text(str(data.streams[0].download_process_pid))
    ready.with_suffix(".new").rename(ready)
    wait_until(stop.exists, 60, "told to stop")
    return [ids(batches(data, 2)), data.streams[0].version]


class Job:
    """A training job that holds a version."""

    def __init__(self, uri: str, directory: Path, name: str, **stream: Any) -> None:
        self.ready, self.stop = directory / f"{name}.ready", directory / f"{name}.stop"
        self.forked: Forked = fork(
            lambda: _train(uri, self.ready, self.stop, local=str(directory / name), **stream)
        )

    def start(self) -> Job:
        """Wait until it holds its version."""
        wait_until(
            lambda: self.ready.exists() or self.forked.poll() is not None, 30, "the job trains"
        )
        assert self.ready.exists(), self.forked.output()
        return self

    @property
    def download_process(self) -> int:
        """Pid of its download process."""
        return int(self.ready.read_text())

    def end(self) -> list[Any]:
        """Have it read everything and end."""
        self.stop.touch()
        return self.forked.wait(60)


def test_a_version_is_held_while_somebody_trains(table: str, tmp_path: Path) -> None:
    """A cleanup leaves it alone; without a pin it takes it. The tag goes with the job."""
    job = Job(table, tmp_path, "held").start()
    assert len(pins(table)) == 1
    change(table, "overwrite", "clean up")
    assert job.end() == [list(range(100)), 1]
    gone(table)

    # The owner's own tag holds version 1 still; what holds nothing is cleaned up.
    def unheld() -> str:
        data = dataset(table, version=2, shard_rows=10)
        change(table, "overwrite", "clean up")
        with pytest.raises(LanceStreamError, match=r"version 2.*cleaned up") as caught:
            ids(batches(data, 0))
        return str(caught.value)

    assert "pin=True holds a version" in run_forked(unheld)


def test_the_tag_goes_with_the_dataset(table: str) -> None:
    """Also in a program that goes on; a new dataset on the stream has one of its own."""

    def run() -> list[Any]:
        data = dataset(table, pin=True, shard_rows=10)
        counts = [len(pins(table))]
        first = pins(table)
        assert ids(batches(data, 2)) == list(range(100))
        counts.append(len(pins(table)))
        stream = data.streams[0]
        from streaming import StreamingDataset

        again = StreamingDataset(streams=[stream], batch_size=4)
        wait_until(lambda: pins(table) and pins(table) != first, 10, "another tag")
        wait_until(lambda: len(pins(table)) == 1, 10, "one tag")
        assert again[5]["i"] == 5
        del data, again, stream
        gc.collect()
        gone(table)
        return counts

    assert run_forked(run) == [1, 1]


@pytest.mark.parametrize("how", ["SIGTERM", "SIGKILL", "SIGINT"])
def test_the_tag_goes_with_a_job_that_is_killed(table: str, tmp_path: Path, how: str) -> None:
    """The download process sees it go, whatever became of it."""
    job = Job(table, tmp_path, "killed").start()
    assert len(pins(table)) == 1
    os.kill(job.forked.pid, getattr(signal, how))
    gone(table)
    job.forked.kill()


def test_a_stale_tag_goes_at_the_next_start(table: str, tmp_path: Path) -> None:
    """Job and download process both killed: nobody is left to remove it but the next."""
    job = Job(table, tmp_path, "stale").start()
    (stale,) = pins(table)
    os.kill(job.download_process, signal.SIGKILL)
    job.forked.kill()
    time.sleep(0.5)
    assert pins(table) == [stale]
    after = Job(table, tmp_path, "after").start()
    assert len(pins(table)) == 1
    assert pins(table) != [stale]
    assert after.end()[0] == list(range(100))
    gone(table)


def test_two_jobs_hold_the_same_version(table: str, tmp_path: Path) -> None:
    """Each has its tag; that of the one is not stale to the other."""
    first = Job(table, tmp_path, "first").start()
    (held,) = pins(table)
    second = Job(table, tmp_path, "second").start()
    assert len(pins(table)) == 2
    assert held in pins(table)
    assert first.end() == [list(range(100)), 1]
    wait_until(lambda: len(pins(table)) == 1, 15, "the first tag is gone")
    assert held not in pins(table)
    change(table, "overwrite", "clean up")
    assert second.end() == [list(range(100)), 1]
    gone(table)


def test_the_download_process_may_be_killed(table: str, tmp_path: Path) -> None:
    """The version is held on by the tag that is there."""
    job = Job(table, tmp_path, "job").start()
    os.kill(job.download_process, signal.SIGKILL)
    change(table, "overwrite", "clean up")
    assert len(pins(table)) == 1
    assert job.end() == [list(range(100)), 1]


def test_a_branch_is_held(table: str, tmp_path: Path) -> None:
    """By a tag of the table that names the branch."""
    change(table, "branch")
    job = Job(table, tmp_path, "branch", version="exp").start()
    (name,) = pins(table)
    content = Path(table, "_refs", "tags", f"{name}.json").read_text()
    assert '"exp"' in content
    assert job.end() == [list(range(110)), 2]
    gone(table)


def test_one_tag_for_all_ranks(table: str, tmp_path: Path) -> None:
    """Rank 0 holds it."""
    port = free_port()

    def rank(number: int) -> list[Any]:
        os.environ.update(environment(number, 2, port))
        data = dataset(table, pin=True, shard_rows=10, local=str(tmp_path / "c"))
        return [len(pins(table)), ids(batches(data, 1))]

    ranks = [fork(rank, number) for number in range(2)]
    try:
        (count, mine), (other_count, theirs) = [each.wait(60) for each in ranks]
    finally:
        for each in ranks:
            each.kill()
    assert count == other_count == 1
    assert set(mine) | set(theirs) == set(range(100))
    gone(table)


def test_without_pin_there_is_no_tag(table: str) -> None:
    """The default writes nothing into a table."""

    def run() -> list[int]:
        data = dataset(table, shard_rows=10)
        assert pins(table) == []
        return ids(batches(data, 0))

    assert run_forked(run) == list(range(100))


# --- where no tag can be written ---


class _Warnings(logging.Handler):
    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.texts: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.texts.append(record.getMessage())


def _warned(uri: str, **stream: Any) -> list[Any]:
    """Two epochs with a pin, and two more pins; what was read, and the warnings."""
    handler = _Warnings()
    logging.getLogger("lance_stream").addHandler(handler)
    data = dataset(uri, pin=True, shard_rows=10, **stream)
    rows = [ids(batches(data, 2)) for _ in range(2)]
    # A table is warned of once, however many streams of it there are.
    for size in (11, 12):
        dataset(uri, pin=True, shard_rows=size, **stream)
    return [rows, handler.texts]


def test_a_table_that_cannot_be_written(table: str, tmp_path: Path) -> None:
    """One warning that says what it means; training goes on."""
    uri = str(tmp_path / "u.lance")
    shutil.copytree(table, uri)
    # Root may write everywhere, but not below a file.
    shutil.rmtree(Path(uri, "_refs"))
    Path(uri, "_refs").write_text("")
    rows, warnings = run_forked(lambda: _warned(uri))
    assert rows == [list(range(100))] * 2
    (warning,) = warnings
    assert f"pin=True: version 1 of {uri} is not held with a tag, a cleanup may remove" in warning


def test_a_key_that_may_only_read(
    s3_server: S3Server, s3_bucket: str, fault_proxy: FaultProxy
) -> None:
    """The store refuses the tag: one warning, without the key; training goes on."""
    uri = f"s3://{s3_bucket}/pins/t.lance"
    options = s3_server.storage_options(fault_proxy.endpoint)
    write_table(uri, 100, 25, storage_options=s3_server.storage_options())
    fault_proxy.set(Fault(path="/_refs/tags/", fail_rate=1, fail_status=403))
    rows, warnings = run_forked(lambda: _warned(uri, storage_options=options))
    assert rows == [list(range(100))] * 2
    (warning,) = warnings
    assert f"pin=True: version 1 of {uri} is not held with a tag" in warning
    assert "403" in warning or "Forbidden" in warning or "AccessDenied" in warning
    assert s3_server.secret_key not in warning


def test_a_tag_in_an_object_store(s3_server: S3Server, s3_bucket: str, tmp_path: Path) -> None:
    """Made and removed there as well."""
    uri = f"s3://{s3_bucket}/pins/u.lance"
    options = s3_server.storage_options()
    write_table(uri, 100, 25, storage_options=options)

    def stored() -> list[str]:
        client = s3_server.client()
        found = client.list_objects_v2(Bucket=s3_bucket, Prefix="pins/u.lance/_refs/tags/")
        return [Path(entry["Key"]).stem for entry in found.get("Contents", [])]

    job = Job(uri, tmp_path, "s3", storage_options=options).start()
    (name,) = stored()
    assert PIN.fullmatch(name)
    assert job.end() == [list(range(100)), 1]
    wait_until(lambda: not stored(), 15, "the tag is gone")
