"""LanceStreamingDataset where something dies: the others go on, or fail with the real error."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from streaming import Stream
from streaming.base.dataset import _ShardState
from torch.utils.data import DataLoader

from lance_stream import LanceStream, LanceStreamingDataset
from lance_stream.errors import ShardUnavailableError
from tests.host.test_failures import _file_of_fragment
from tests.host.test_resume import write_mds
from tests.support.fault_proxy import FaultProxy
from tests.support.faults import Fault
from tests.support.forked import run_forked
from tests.support.object_store import S3Server
from tests.support.streams import batches, identity, ids, wait_until
from tests.support.tables import write_table

ROWS = list(range(100))
OPTIONS: dict[str, Any] = {"batch_size": 4, "num_canonical_nodes": 1, "shuffle_seed": 7}


def build(uri: str, *, host: dict[str, Any] | None = None, **stream: Any) -> Any:
    """A shuffled dataset."""
    stream = {"shard_rows": 10, **stream}
    return LanceStreamingDataset(
        streams=[LanceStream(uri, **stream)], shuffle=True, **{**OPTIONS, **(host or {})}
    )


def a_dead_pid() -> int:
    """Of a process that has ended and was waited for."""
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    return process.pid


def a_zombie() -> int:
    """Of a child that was killed, and that nobody has waited for yet."""
    pid = os.fork()
    if not pid:
        time.sleep(60)
    os.kill(pid, signal.SIGKILL)
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    return pid


@pytest.mark.parametrize("workers", [pytest.param(0, marks=pytest.mark.slow), 2])
@pytest.mark.parametrize("kind", ["lance", "mds"])
@pytest.mark.parametrize("who", ["dead", "zombie", "nobody"])
def test_left_half_prepared(
    table_100: str, tmp_path: Path, workers: int, kind: str, who: str
) -> None:
    """Every shard is PREPARING for a process that is gone: taken over at once."""
    remote = write_mds(tmp_path / "mds", 100, 10)

    def run() -> list[Any]:
        streams: list[Stream] = (
            [LanceStream(table_100, shard_rows=10)]
            if kind == "lance"
            else [Stream(remote=remote, local=str(tmp_path / "cache"))]
        )
        data = LanceStreamingDataset(streams=streams, shuffle=True, **OPTIONS)
        pid = {"dead": a_dead_pid, "zombie": a_zombie, "nobody": lambda: 0}[who]()
        for shard in range(data.num_shards):
            data._preparers[shard] = pid
            data._shard_states[shard] = _ShardState.PREPARING
        started_s = time.monotonic()
        return [sorted(ids(batches(data, workers))), time.monotonic() - started_s]

    seen, seconds = run_forked(run)
    assert seen == ROWS
    assert seconds < 15


def test_half_prepared_by_a_live_process(tmp_path: Path) -> None:
    """It is waited for, and if it dies meanwhile, taken over."""
    remote = write_mds(tmp_path / "mds", 100, 10)

    def run() -> list[Any]:
        data = LanceStreamingDataset(
            streams=[Stream(remote=remote, local=str(tmp_path / "cache"))], **OPTIONS
        )
        holder = subprocess.Popen(["sleep", "60"])
        data._preparers[0] = holder.pid
        data._shard_states[0] = _ShardState.PREPARING
        threading.Timer(1.0, holder.kill).start()
        started_s = time.monotonic()
        return [[row["i"] for row in data], time.monotonic() - started_s]

    seen, seconds = run_forked(run)
    assert seen == ROWS
    assert 0.9 < seconds < 15


@pytest.mark.parametrize("persistent", [False, True])
@pytest.mark.parametrize("after", [0, 3])
def test_a_killed_worker(table_100: str, persistent: bool, after: int) -> None:
    """The trainer is told within seconds; a new loader over the same dataset is whole."""

    def run() -> list[Any]:
        data = build(table_100)
        loader = DataLoader(
            data, 4, num_workers=2, collate_fn=identity, persistent_workers=persistent
        )
        iterator = iter(loader)
        for _ in range(after):
            next(iterator)
        started_s = time.monotonic()
        os.kill(iterator._workers[1].pid, signal.SIGKILL)
        message = "ended"
        try:
            list(iterator)
        except RuntimeError as error:
            message = str(error)
        seconds = time.monotonic() - started_s
        del iterator, loader
        return [message, seconds, [sorted(ids(batches(data, 2))) for _ in range(2)]]

    message, seconds, later = run_forked(run, timeout_s=60)
    assert "is killed by signal" in message or "exited unexpectedly" in message
    assert seconds < 20
    assert later == [ROWS, ROWS]


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("batched", [False, True])
def test_a_shard_that_fails_and_is_there_again(
    tmp_path: Path, workers: int, batched: bool
) -> None:
    """The real error in the first epoch, and whole ones after."""
    uri = str(tmp_path / "t.lance")
    write_table(uri, 100, 25)
    lost, hidden = _file_of_fragment(uri, 2), tmp_path / "hidden"

    def epoch(data: Any) -> list[int]:
        if not batched:
            return sorted(ids(batches(data, workers)))
        loader = DataLoader(data, batch_size=None, num_workers=workers)
        return sorted(i for batch in loader for i in batch["i"].tolist())

    def run() -> list[Any]:
        data = build(uri, host={"batched": batched})
        shutil.move(lost, hidden)
        message, started_s = "", time.monotonic()
        try:
            epoch(data)
        except ShardUnavailableError as error:
            message = str(error)
        seconds = time.monotonic() - started_s
        shutil.move(hidden, lost)
        return [message, seconds, epoch(data), epoch(data)]

    message, seconds, *later = run_forked(run)
    assert f"of {uri} version 1" in message
    assert seconds < 20
    assert later == [ROWS, ROWS]


def test_an_mds_stream_whose_download_fails(tmp_path: Path) -> None:
    """The host's own error, raised in the loop; when the file is back, whole epochs."""
    remote = Path(write_mds(tmp_path / "mds", 100, 10))
    lost = next((remote / "000050").iterdir())

    def run(workers: int) -> list[Any]:
        local = str(tmp_path / f"cache{workers}")
        stream = Stream(remote=str(remote), local=local, download_retry=1)
        data = LanceStreamingDataset(streams=[stream], shuffle=True, **OPTIONS)
        hidden = lost.rename(tmp_path / "hidden")
        message = ""
        try:
            ids(batches(data, workers))
        except Exception as error:  # noqa: BLE001
            message = f"{type(error).__name__}: {error}"
        hidden.rename(lost)
        return [message, sorted(ids(batches(data, workers)))]

    for workers in (0, 2):
        message, later = run_forked(run, workers)
        assert str(lost.name) in message
        assert later == ROWS


@pytest.mark.parametrize("batched", [False, True])
def test_break_with_shards_in_flight(table_100: str, batched: bool) -> None:
    """Left early again and again with workers that stay: then a whole epoch."""

    def run() -> list[Any]:
        data = build(table_100, shard_rows=3, host={"batched": batched})
        size = None if batched else 4
        loader = DataLoader(
            data,
            size,
            num_workers=2,
            persistent_workers=True,
            collate_fn=None if batched else identity,
        )
        for count in (1, 2, 5):
            for number, _ in enumerate(loader, 1):
                if number == count:
                    break
        if batched:
            return sorted(i for batch in loader for i in batch["i"].tolist())
        return sorted(ids(loader))

    assert run_forked(run) == ROWS


def test_an_exception_of_the_consumer(table_100: str) -> None:
    """In the training loop, in collate_fn here and in a worker: itself; then whole epochs."""

    def run(workers: int) -> list[Any]:
        data = build(table_100)
        said = []
        for _ in range(2):
            try:
                for number, _batch in enumerate(batches(data, workers)):
                    if number == 3:
                        raise ZeroDivisionError("mine")
            except ZeroDivisionError as error:
                said.append(str(error))
            try:
                list(DataLoader(data, 4, num_workers=workers, collate_fn=_fails))
            except KeyError as error:
                said.append("mine too" in str(error))
        return [said, sorted(ids(batches(data, workers)))]

    for workers in (0, 2):
        assert run_forked(run, workers) == [["mine", True, "mine", True], ROWS]


def _fails(batch: list[Any]) -> Any:
    raise KeyError("mine too")


@pytest.mark.parametrize("pause_s", [0.0, 0.02, 0.1])
def test_a_loader_begun_anew_at_once(table_100: str, pause_s: float) -> None:
    """Workers of the iteration that is let go of come to the epoch together with the new ones."""

    def run() -> list[Any]:
        loader = DataLoader(build(table_100), 4, num_workers=2, collate_fn=identity)
        seen = []
        for _ in range(4):
            iterator = iter(loader)
            time.sleep(pause_s)
            iterator = iter(loader)
            seen.append(sorted(ids(iterator, check=False)))
        return seen

    assert run_forked(run) == [ROWS] * 4


def test_a_worker_killed_while_it_shares_an_epoch(table_100: str, tmp_path: Path) -> None:
    """What it leaves in shared memory is in the way of no later epoch."""
    died = tmp_path / "died"

    class Dying(LanceStreamingDataset):
        def _share_work(self, sample_ids: Any) -> Any:
            shared = super()._share_work(sample_ids)
            if not died.exists():
                died.touch()
                os.kill(os.getpid(), signal.SIGKILL)
            return shared

    def run() -> list[Any]:
        stream = LanceStream(table_100, shard_rows=10)
        data = Dying(streams=[stream], shuffle=True, **OPTIONS)
        with pytest.raises(RuntimeError, match=r"exited unexpectedly|killed by signal"):
            list(batches(data, 2))
        return [sorted(ids(batches(data, 2))) for _ in range(2)]

    assert run_forked(run) == [ROWS, ROWS]
    assert died.exists()


@pytest.mark.parametrize("workers", [0, 2])
def test_a_killed_download_process(table_100: str, workers: int) -> None:
    """It is started again, and no row is lost."""

    def run() -> list[Any]:
        data = build(table_100, shard_rows=2, host={"predownload": 8})
        seen = []
        for number, batch in enumerate(batches(data, workers)):
            seen += ids([batch])
            if number in (2, 12):
                os.kill(data.streams[0].download_process_pid, signal.SIGKILL)
        return sorted(seen)

    assert run_forked(run) == ROWS


@pytest.mark.slow
@pytest.mark.timeout(180)
def test_a_shard_that_hangs_and_heals(
    s3_server: S3Server, s3_bucket: str, fault_proxy: FaultProxy
) -> None:
    """One file hangs: after its timeout the attempt is given up, and the epoch is whole."""
    uri = f"s3://{s3_bucket}/faults/t100.lance"
    options = s3_server.storage_options()
    write_table(uri, 100, 25, storage_options=options)
    options = s3_server.storage_options(fault_proxy.endpoint)

    def run() -> list[Any]:
        data = build(uri, storage_options=options, download_timeout=3, download_retry=3)
        fault_proxy.set(
            Fault(method="GET", path=r"/data/[^/?]+\.lance$", action="hang", action_next=2)
        )
        started_s = time.monotonic()
        return [sorted(ids(batches(data, 2))), time.monotonic() - started_s]

    seen, seconds = run_forked(run)
    assert seen == ROWS
    assert seconds < 40


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_killed_at_random_moments(tmp_path: Path) -> None:
    """A worker dies at any moment, also while it begins: the next loader is whole, each time."""
    uri = str(tmp_path / "t.lance")
    write_table(uri, 100, 25)

    def run() -> list[Any]:
        data = build(uri, shard_rows=4)
        found = []
        for number in range(12):
            loader = DataLoader(data, 4, num_workers=2, collate_fn=identity)
            iterator = iter(loader)
            timer = threading.Timer(
                0.02 * number, os.kill, (iterator._workers[number % 2].pid, signal.SIGKILL)
            )
            timer.start()
            try:
                for _ in iterator:
                    time.sleep(0.02)
            except (RuntimeError, ProcessLookupError):
                pass
            timer.cancel()
            del iterator, loader
            found.append(sorted(ids(batches(data, 2))) == ROWS)
        return found

    assert run_forked(run, timeout_s=240) == [True] * 12


def test_what_a_killed_job_left(table_100: str, tmp_path: Path) -> None:
    """A job of few shards was killed with its group; the next one, of more, finds its memory."""

    def die() -> None:
        data = build(table_100, shard_rows=50)
        next(iter(data))
        os.killpg(os.getpid(), signal.SIGKILL)

    with pytest.raises(AssertionError, match="died with status -9"):
        run_forked(die)

    def run() -> list[Any]:
        from streaming.base.util import clean_stale_shared_memory

        clean_stale_shared_memory()
        return [row["i"] for row in build(table_100, shard_rows=1)]

    assert sorted(run_forked(run)) == ROWS


class SlowFirstLeader(LanceStreamingDataset):
    """The leader of the first iteration is slow: others have begun when it comes to share work."""

    marker: Path

    def _get_work(self, epoch: int, sample_in_epoch: int) -> Any:
        if self._unique_worker_world.is_local_leader and not self.marker.exists():
            self.marker.touch()
            wait_until(Path(f"{self.marker}-shared").exists, 20, "the second leader to share")
        return super()._get_work(epoch, sample_in_epoch)

    def _share_work(self, sample_ids: Any) -> Any:
        shared = super()._share_work(sample_ids)
        Path(f"{self.marker}-shared").touch()
        return shared

    def _attach_work(self) -> Any:
        # As on a machine that is busy.
        time.sleep(0.5)
        return super()._attach_work()


def test_iterated_anew_while_the_first_iteration_begins(table_5000: str, tmp_path: Path) -> None:
    """What the workers of the first one are about to share does not get into the second."""

    def run() -> Any:
        data = SlowFirstLeader(
            streams=[LanceStream(table_5000, shard_rows=100)],
            **{**OPTIONS, "batch_size": 50},
            shuffle=True,
            batched=True,
        )
        data.marker = tmp_path / "first"
        loader = DataLoader(data, batch_size=None, num_workers=2)
        first = iter(loader)
        wait_until(data.marker.exists, 20, "the first leader to begin")
        second = iter(loader)
        del first
        return sorted(i for batch in second for i in batch["i"].tolist())

    assert run_forked(run, timeout_s=90) == list(range(5000))
