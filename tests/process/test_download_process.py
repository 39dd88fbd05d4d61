"""The download process: one per job, restarted when it dies, gone with its clients."""

from __future__ import annotations

import gc
import json
import os
import signal
import stat
import threading
import time
from pathlib import Path
from typing import Any

import psutil
import pytest

import lance_stream
from lance_stream.errors import ShardUnavailableError
from lance_stream.service.runtime import Endpoint
from tests.support.fault_proxy import FaultProxy
from tests.support.faults import Fault
from tests.support.forked import fork, run_forked
from tests.support.object_store import S3Server
from tests.support.streams import (
    batches,
    cached_files,
    dataset,
    disk_bytes,
    endpoint,
    ids,
    wait_until,
)
from tests.support.tables import write_table


@pytest.fixture(scope="module")
def table_20000(tables: Path) -> str:
    """The table T(20000, 5000)."""
    uri = str(tables / "t20000.lance")
    write_table(uri, 20_000, 5_000)
    return uri


@pytest.fixture(scope="module")
def s3_table(s3_server: S3Server, s3_bucket: str) -> str:
    """The table T(100, 25) on the S3 server."""
    uri = f"s3://{s3_bucket}/process.lance"
    write_table(uri, 100, 25, storage_options=s3_server.storage_options())
    return uri


def put(path: Path, value: Any) -> None:
    """Write ``value`` so that whoever sees the file sees all of it."""
    whole = path.with_suffix(".tmp")
    whole.write_text(json.dumps(value))
    whole.replace(path)


@pytest.mark.parametrize("workers", [0, 2])
def test_killed_every_4000_rows(table_20000: str, workers: int) -> None:
    """SIGKILL again and again: every row of both epochs, and a fresh process each time."""

    def run() -> dict[str, Any]:
        data = dataset(table_20000, shard_rows=100, host={"shuffle": True}, batch_size=10)
        pids, epochs = set(), []
        for _ in range(2):
            seen: list[int] = []
            for batch in batches(data, workers, persistent_workers=workers > 0):
                seen += [row["i"] for row in batch]
                pid = endpoint(data).pid()
                if len(seen) % 4000 == 0 and pid is not None:
                    pids.add(pid)
                    os.kill(pid, signal.SIGKILL)
            epochs.append(sorted(seen) == list(range(20_000)))
        return {"epochs": epochs, "killed": len(pids)}

    result = run_forked(run, timeout_s=90)
    assert result["epochs"] == [True, True]
    assert result["killed"] >= 1


def test_one_process_for_many_streams(tmp_path: Path) -> None:
    """200 streams in one dataset: one process, few descriptors, every row."""
    root = tmp_path / "many"
    for number in range(4):
        write_table(str(root / f"{number}.lance"), 20, 20, first_row=1000 * number)

    def run() -> dict[str, Any]:
        from streaming import StreamingDataset

        from lance_stream import LanceStream

        started = time.monotonic()
        streams = [
            # Different row counts make the same table 50 different streams.
            LanceStream(str(root / f"{k % 4}.lance"), shard_rows=1 + k // 4, columns=["i"])
            for k in range(200)
        ]
        data = StreamingDataset(streams=streams, batch_size=10)
        seconds = time.monotonic() - started
        seen = [row["i"] for row in data]
        runtime = Path(os.environ["LANCE_STREAM_RUNTIME_DIR"])
        ours = {endpoint(data).directory}
        assert {s._cache.address.endpoint.directory for s in streams if s._cache} == ours
        assert str(runtime) in next(iter(ours))
        return {
            "seconds": seconds,
            "rows": len(seen),
            "distinct": len(set(seen)),
            "descriptors": psutil.Process().num_fds(),
        }

    result = run_forked(run, timeout_s=90)
    assert (result["rows"], result["distinct"]) == (4000, 80)
    assert result["seconds"] < 20
    assert result["descriptors"] < 500


def test_killed_job_leaves_nothing(table_20000: str, tmp_path: Path) -> None:
    """SIGKILL of the whole job: no process after 10 s; a rerun is exact and sweeps leftovers."""
    local, marker = tmp_path / "cache", tmp_path / "pid"

    def train() -> None:
        data = dataset(table_20000, shard_rows=50, local=str(local), batch_size=10)
        for number, _ in enumerate(batches(data, 2)):
            if number == 20:
                put(marker, [endpoint(data).pid(), endpoint(data).directory])

    job = fork(train)
    wait_until(marker.exists, 60, "the job trains")
    pid, directory = json.loads(marker.read_text())
    workers = psutil.Process(job.pid).children(recursive=True)
    job.kill()
    wait_until(lambda: not psutil.pid_exists(pid), 10, "the download process has ended")
    wait_until(lambda: not any(w.is_running() for w in workers), 10, "workers have ended")
    assert not os.path.exists(directory)
    (local / ".tmp-999999-1-left.arrow").write_bytes(b"half a shard")

    def again() -> list[int]:
        data = dataset(table_20000, shard_rows=50, local=str(local), batch_size=10)
        return ids(batches(data, 2))

    assert sorted(run_forked(again)) == list(range(20_000))
    assert [p.name for p in local.iterdir() if p.name.startswith((".tmp", ".ledger"))] == []


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
def test_what_was_counted_outlives_the_process(table_5000: str, how: signal.Signals) -> None:
    """Also when only workers reached the fresh one, and left; with the dataset all of it goes."""

    def run() -> list[Any]:
        data = dataset(table_5000, shard_rows=50, batch_size=10)
        first, seen = endpoint(data), []
        for number, _ in enumerate(batches(data, 2)):
            if number == 20:
                os.kill(first.pid() or 0, how)
                wait_until(lambda: not first.pid(), 10, "the download process has ended")
            lance_stream.counter("batches").add(1)
        for _ in range(2):
            stats = lance_stream.stats(data)
            seen += [stats.rows, stats.counters["batches"], stats.from_lance >= 50]
            # Longer than a process lingers without clients.
            time.sleep(3)
        fresh = psutil.Process(first.pid() or 0)
        del data
        gc.collect()
        wait_until(lambda: not fresh.is_running(), 10, "the fresh one ended with the dataset")
        return [*seen, os.path.exists(first.directory)]

    assert run_forked(run) == [5000, 500, True, 5000, 500, True, False]


def test_killed_after_its_download_process(table_5000: str, tmp_path: Path) -> None:
    """A trainer that is not connected to the fresh process: that ends with it all the same."""
    marker = tmp_path / "pid"

    def train() -> None:
        data = dataset(table_5000, shard_rows=50, batch_size=10)
        first = endpoint(data)
        for number, _ in enumerate(batches(data, 2)):
            if number == 20:
                os.kill(first.pid() or 0, signal.SIGKILL)
        time.sleep(3)
        put(marker, [first.pid(), first.directory])
        time.sleep(60)

    job = fork(train)
    wait_until(marker.exists, 60, "the job has trained")
    pid, directory = json.loads(marker.read_text())
    job.kill()
    wait_until(lambda: not psutil.pid_exists(pid), 10, "the download process has ended")
    assert not os.path.exists(directory)


@pytest.mark.parametrize("how", ["interrupt", "terminate", "return", "raise"])
def test_ended_job_leaves_nothing(table_100: str, tmp_path: Path, how: str) -> None:
    """However a job ends: no process, no socket, no ledger."""
    marker, local = tmp_path / "pid", tmp_path / "cache"

    def train() -> None:
        data = dataset(table_100, shard_rows=10, local=str(local))
        for _ in batches(data, 2):
            put(marker, [endpoint(data).pid(), endpoint(data).directory])
            if how in ("interrupt", "terminate"):
                time.sleep(30)
            if how == "raise":
                raise ValueError("in the loop")

    job = fork(train)
    wait_until(marker.exists, 60, "the job trains")
    pid, directory = json.loads(marker.read_text())
    assert psutil.pid_exists(pid)
    if how == "interrupt":
        os.killpg(job.pid, signal.SIGINT)
        time.sleep(0.2)
        os.killpg(job.pid, signal.SIGINT)
    if how == "terminate":
        os.kill(job.pid, signal.SIGTERM)
    wait_until(lambda: job.poll() is not None, 20, "the job has ended")
    wait_until(lambda: not psutil.pid_exists(pid), 10, "the download process has ended")
    assert not os.path.exists(directory)
    job.kill()


def test_stopped_for_a_while(s3_server: S3Server, s3_table: str, fault_proxy: FaultProxy) -> None:
    """SIGSTOP, then SIGCONT: the same process goes on, every row."""
    fault_proxy.set(Fault(latency_ms=100))
    options = s3_server.storage_options(fault_proxy.endpoint)

    def run() -> dict[str, Any]:
        data = dataset(s3_table, shard_rows=5, storage_options=options)
        pid = endpoint(data).pid()
        assert pid is not None
        seen: list[int] = []
        for number, batch in enumerate(batches(data, 2)):
            seen += [row["i"] for row in batch]
            if number == 3:
                os.kill(pid, signal.SIGSTOP)
                threading.Timer(6, os.kill, (pid, signal.SIGCONT)).start()
        return {"exact": sorted(seen) == list(range(100)), "same": endpoint(data).pid() == pid}

    assert run_forked(run) == {"exact": True, "same": True}


def test_a_shard_that_kills_the_process(
    s3_server: S3Server, s3_table: str, fault_proxy: FaultProxy
) -> None:
    """Reported by name after three deaths; the others are read, and nobody waits for ever."""
    options = s3_server.storage_options(fault_proxy.endpoint)

    def run() -> list[Any]:
        data = dataset(s3_table, shard_rows=25, storage_options=options)
        place = endpoint(data)
        fault_proxy.set(Fault(latency_ms=300))
        killed: dict[int, int] = {}

        def assassin() -> None:
            while True:
                # The journal's file is written anew by each attempt.
                began = _began(place, ".2")
                pid = place.pid()
                if began is not None and began not in killed and pid is not None:
                    killed[began] = pid
                    os.kill(pid, signal.SIGKILL)
                time.sleep(0.005)

        threading.Thread(target=assassin, daemon=True).start()
        started = time.monotonic()
        try:
            seen = ids(batches(data, 0))
        except ShardUnavailableError as error:
            return [str(error), len(killed), time.monotonic() - started]
        return ["no error", len(killed), seen]

    message, deaths, seconds = run_forked(run)
    assert "shard 2 (rows [50, 75))" in message
    assert "died 3 times" in message
    assert deaths == 3
    assert seconds < 20


def _began(place: Endpoint, suffix: str) -> int | None:
    """When the attempt at a shard began; None if none is under way."""
    try:
        for entry in os.scandir(place.running_directory):
            if entry.name.endswith(suffix):
                return entry.stat().st_mtime_ns
    except FileNotFoundError:
        pass
    return None


@pytest.mark.parametrize("persistent", [False, True])
def test_break_with_shards_in_flight(
    s3_server: S3Server, s3_table: str, fault_proxy: FaultProxy, persistent: bool
) -> None:
    """Leaving the loop while shards take 5 s each: the next epochs are whole and prompt."""
    options = s3_server.storage_options(fault_proxy.endpoint)

    def run() -> list[Any]:
        data = dataset(s3_table, shard_rows=10, storage_options=options)
        loader = batches(data, 2, persistent_workers=persistent)
        fault_proxy.set(Fault(latency_ms=2500, path="/data/"))
        for number, _ in enumerate(loader):
            if number == 1:
                break
        fault_proxy.clear()
        started = time.monotonic()
        first = sorted(ids(loader)) == list(range(100))
        seconds = time.monotonic() - started
        again = sorted(ids(batches(data, 2, persistent_workers=True))) == list(range(100))
        return [first, seconds, again, sorted(set(data._shard_states.numpy().tolist()))]

    first, seconds, again, states = run_forked(run, timeout_s=100)
    assert first
    assert again
    assert seconds < 20
    assert states == [3]


def test_a_worker_killed_while_it_prepares(table_5000: str) -> None:
    """A shard that a killed worker left half prepared is prepared by the others."""

    def run() -> list[Any]:
        from streaming.base.dataset import _ShardState

        data = dataset(table_5000, shard_rows=100)
        # Not the very first shard of a worker: until it has prepared one, nobody looks after it.
        for shard in (3, 7, 40):
            data._shard_states[shard] = _ShardState.PREPARING
        started = time.monotonic()
        exact = sorted(ids(batches(data, 2))) == list(range(5000))
        return [exact, time.monotonic() - started]

    exact, seconds = run_forked(run)
    assert exact
    assert seconds < 25


def test_process_is_small_and_private(table_20000: str, tmp_path: Path) -> None:
    """No torch in it, under 300 MB when idle after work, and its files are the user's alone."""

    def run() -> dict[str, Any]:
        data = dataset(table_20000, local=str(tmp_path / "cache"), shard_rows=500, batch_size=10)
        ids(batches(data, 0))
        place = endpoint(data)
        process = psutil.Process(place.pid())
        wait_until(lambda: process.memory_info().rss < 300 << 20, 5, "memory is given back")
        maps = Path(f"/proc/{process.pid}/maps").read_text()
        return {
            "torch": "torch" in maps,
            "directory": stat.S_IMODE(os.stat(place.directory).st_mode),
            "socket": stat.S_IMODE(os.stat(place.socket_path).st_mode),
            "log": stat.S_IMODE(os.stat(place.log_path).st_mode),
            "accounted": disk_bytes(data.streams[0].local) - data.cache_usage,
            "files": len(cached_files(data)),
        }

    assert run_forked(run) == {
        "torch": False,
        "directory": 0o700,
        "socket": 0o600,
        "log": 0o600,
        "accounted": 0,
        "files": 40,
    }


def test_streams_made_again_and_again(table_100: str, tmp_path: Path) -> None:
    """30 datasets in one process on one directory: exact, and descriptors do not pile up."""

    def run() -> list[Any]:
        import gc

        counts, exact = [], True
        for number in range(30):
            data = dataset(table_100, shard_rows=10, local=str(tmp_path / "cache"))
            exact = exact and len(ids(batches(data, 0))) == 100
            del data
            gc.collect()
            if number in (9, 29):
                counts.append(_our_descriptors())
        return [exact, *counts]

    exact, early, late = run_forked(run)
    assert exact
    assert late <= early + 3


def _our_descriptors() -> int:
    """Open sockets and files of ours; the host leaves shared memory open for each dataset."""
    opened = []
    for number in os.listdir("/proc/self/fd"):
        try:
            opened.append(os.readlink(f"/proc/self/fd/{number}"))
        except FileNotFoundError:
            continue
    return len([n for n in opened if n.startswith("socket:") or "pytest-" in n])


def test_forks_while_the_client_is_busy(table_5000: str) -> None:
    """A fork inherits neither client nor lock: workers made while the trainer reads never hang."""

    def run() -> bool:
        data = dataset(table_5000, shard_rows=20, columns=["i"])
        stop = threading.Event()

        def read() -> None:
            cache = data.streams[0]._cache
            while not stop.is_set():
                for shard in range(cache.index.num_shards):
                    cache.ledger.charge(shard, 1)
                    cache.client.request(cache.address.stream, shard)
                    # Locks of files are not fair: leave the workers their turn.
                    time.sleep(0.001)

        thread = threading.Thread(target=read, daemon=True)
        thread.start()
        for _ in range(15):
            for number, _batch in enumerate(batches(data, 2)):
                if number == 2:
                    break
        stop.set()
        thread.join()
        return True

    assert run_forked(run, timeout_s=60)
