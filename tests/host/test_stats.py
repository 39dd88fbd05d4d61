"""stats(), counters and progress: right, cheap, and in nobody's way."""

from __future__ import annotations

import itertools
import os
import signal
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from streaming import Stream, StreamingDataset
from torch.utils.data import DataLoader

import lance_stream
from lance_stream import LanceStream, LanceStreamingDataset
from lance_stream.errors import PlanError
from lance_stream.host.settling import _Job
from tests.host.test_resume import write_mds
from tests.support.forked import run_forked
from tests.support.scripts import run_script
from tests.support.streams import batches, dataset, identity, ids, wait_until

# What only ever grows.
GROWING = (
    *("epoch", "rows", "bytes", "seconds_waited", "requested", "in_cache", "from_tier"),
    *("from_lance", "lance_bytes", "lance_seconds", "retries", "failures"),
)
OPTIONS: dict[str, Any] = {"batch_size": 4, "num_canonical_nodes": 1, "shuffle_seed": 7}


@pytest.fixture(autouse=True)
def own_job(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every fork is a job of its own, also where other tests have made this process one."""
    monkeypatch.setattr(_Job, "endpoint", None)


def build(uri: str, **host: Any) -> LanceStreamingDataset:
    """A dataset of ten shards of ten rows."""
    return LanceStreamingDataset(
        streams=[LanceStream(uri, shard_rows=10)], **{**OPTIONS, "shuffle": True, **host}
    )


def counting(batch: list[Any]) -> list[Any]:
    """A collate function that counts."""
    lance_stream.counter("samples").add(len(batch))
    return batch


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("kind", ["stock", "ours", "batched"])
def test_rows_and_shards(table_100: str, workers: int, kind: str) -> None:
    """Each row once, however it is read; epoch, shards and workers."""

    def run() -> list[Any]:
        if kind == "stock":
            data = dataset(table_100, shard_rows=10)
        else:
            data = build(table_100, batched=kind == "batched")
        before = lance_stream.stats(data)
        size = None if kind == "batched" else 4
        collate = None if kind == "batched" else identity
        found = []
        for _ in range(2):
            for _ in DataLoader(data, size, num_workers=workers, collate_fn=collate):
                pass
            wanted = 100 * (len(found) + 1)
            wait_until(lambda w=wanted: lance_stream.stats(data).rows >= w, 5, "rows are counted")
            one = lance_stream.stats(data)
            found.append([one.rows, one.epoch, one.shards, one.from_lance, one.failures])
        last = lance_stream.stats(data.streams[0])
        return [[before.rows, before.epoch], found, last.rows, len(last.workers)]

    before, found, rows, processes = run_forked(run)
    assert before == [0, -1]
    assert found == [[100, 0, 10, 10, 0], [200, 1, 10, 10, 0]]
    assert rows == 200
    # Workers of the second epoch go on with the boards of those that are gone.
    assert processes == (1 if workers == 0 else 2)


def test_rows_are_counted_once_whatever_ends(table_100: str) -> None:
    """Iterators that are left, ended by another, or resumed: only what was given out."""

    def run() -> list[int]:
        data = build(table_100)
        found = []
        iterator = iter(data)
        for _ in range(7):
            next(iterator)
        state = data.state_dict()
        iterator.close()
        found.append(lance_stream.stats(data).rows)
        first = iter(data)
        for _ in range(5):
            next(first)
        second = iter(data)
        next(second)
        list(first)
        second.close()
        found.append(lance_stream.stats(data).rows)
        again = build(table_100)
        again.load_state_dict(state)
        found += [len(list(again)), lance_stream.stats(again).rows]
        return found

    assert run_forked(run) == [7, 13, 93, 93]


def test_a_fork_in_mid_epoch(table_100: str) -> None:
    """A child that ends, with a copy of the iterator, counts nothing of the parent's."""

    def run() -> list[int]:
        data = build(table_100)
        iterator = iter(data)
        for _ in range(10):
            next(iterator)
        pid = os.fork()
        if not pid:
            iterator.close()
            os._exit(0)
        os.waitpid(pid, 0)
        rest = len(list(iterator))
        return [rest, lance_stream.stats(data).rows]

    assert run_forked(run) == [90, 100]


def test_counters(table_100: str) -> None:
    """Summed over workers that stay, workers of another loader, and the trainer."""

    def run() -> list[Any]:
        data = build(table_100)
        lance_stream.counter("samples").add(1000)
        loader = DataLoader(data, 4, num_workers=2, collate_fn=counting, persistent_workers=True)
        for _ in range(2):
            list(loader)
        list(DataLoader(data, 4, num_workers=1, collate_fn=counting))
        stats = lance_stream.stats(data)
        text = stats.to_prometheus()
        return [stats.counters, 'lance_stream_counter_total{name="samples"} 1300' in text]

    assert run_forked(run) == [{"samples": 1300}, True]


def test_a_killed_worker(table_100: str) -> None:
    """What it counted stays; reading goes on, and so do the workers of the next loader."""

    def run() -> list[Any]:
        data = build(table_100)
        iterator = iter(DataLoader(data, 4, num_workers=2, collate_fn=counting))
        for _ in range(5):
            next(iterator)
        os.kill(iterator._workers[0].pid, signal.SIGKILL)
        with pytest.raises(RuntimeError, match="DataLoader worker"):
            list(iterator)
        del iterator
        before = lance_stream.stats(data)
        list(DataLoader(data, 4, num_workers=2, collate_fn=counting))
        after = lance_stream.stats(data)
        return [before.counters["samples"], after.counters["samples"]]

    before, after = run_forked(run)
    assert before >= 20
    assert after == before + 100


def test_reading_is_cheap_and_takes_no_locks(table_100: str) -> None:
    """Under 1 ms, also while another holds the host's locks."""

    def run() -> list[Any]:
        data = build(table_100)
        loader = DataLoader(data, 4, num_workers=2, collate_fn=identity, persistent_workers=True)
        list(loader)
        seconds = []
        with data._lock():
            for _ in range(50):
                started_s = time.perf_counter()
                lance_stream.stats(data)
                seconds.append(time.perf_counter() - started_s)
        return sorted(seconds)

    seconds = run_forked(run)
    assert seconds[5] < 0.001


def test_polling_while_workers_read(table_5000: str) -> None:
    """A hundred times a second: no number ever goes back, whoever writes them."""

    def run() -> list[Any]:
        data = build(table_5000, batch_size=50)
        loader = DataLoader(data, 50, num_workers=2, collate_fn=counting, persistent_workers=True)
        ended, seen, seconds = threading.Event(), [], []

        def poll() -> None:
            while not ended.wait(0.01):
                started_s = time.thread_time()
                one = lance_stream.stats(data)
                seconds.append(time.thread_time() - started_s)
                numbers = [one.as_dict()[name] for name in GROWING]
                workers = {f"{w.worker} of {w.pid}": w.rows for w in one.workers}
                seen.append([numbers, one.counters.get("samples", 0), workers])

        thread = threading.Thread(target=poll)
        thread.start()
        rows = sum(len(batch) for _ in range(2) for batch in loader)
        ended.set()
        thread.join()
        last = lance_stream.stats(data)
        return [rows, last.rows, last.counters, seen, sorted(seconds)]

    rows, last, counters, seen, seconds = run_forked(run)
    assert rows == last == counters["samples"] == 10_000
    assert len(seen) > 20
    for (before, samples, workers), (after, more, others) in itertools.pairwise(seen):
        assert all(a <= b for a, b in zip(before, after, strict=True)), (before, after)
        assert samples <= more
        assert all(workers[name] <= others[name] for name in workers)
    # Of the processor: what the machine does meanwhile is not the call's.
    assert seconds[len(seconds) // 2] < 0.001


def test_progress(table_100: str, capfd: pytest.CaptureFixture[str]) -> None:
    """Rows since it was made; closing is enough; the total is an epoch's."""

    def run() -> list[Any]:
        data = build(table_100)
        with lance_stream.progress(data) as bar:
            before = bar.rows
            list(batches(data, 2))
            wait_until(lambda: bar.rows == 100, 5, "all rows are shown")
            total = bar._bar.total
        return [before, total, bar._bar.n]

    assert run_forked(run) == [0, 100, 100]


def test_what_has_no_stats(tmp_path: Path) -> None:
    """Errors that say so."""
    data = StreamingDataset(local=write_mds(tmp_path / "mds", 10, 5), batch_size=2)
    with pytest.raises(PlanError, match="has no LanceStream to give stats of"):
        lance_stream.stats(data)
    with pytest.raises(PlanError, match="name must be text"):
        lance_stream.counter("")


def test_mixed_with_mds(table_100: str, tmp_path: Path) -> None:
    """Rows of other streams are not counted."""
    mds = write_mds(tmp_path / "mds", 50, 10, 1000)

    def run() -> list[int]:
        data = LanceStreamingDataset(
            streams=[LanceStream(table_100, shard_rows=10), Stream(local=mds)],
            shuffle=True,
            **OPTIONS,
        )
        seen = ids(batches(data, 0))
        return [len(seen), lance_stream.stats(data).rows]

    assert run_forked(run) == [150, 100]


_SPAWNED = """
import json, sys
import lance_stream
from tests.host.test_stats import build, counting
from torch.utils.data import DataLoader

if __name__ == "__main__":
    data = build(sys.argv[1])
    loader = DataLoader(
        data, 4, num_workers=2, collate_fn=counting, multiprocessing_context="spawn"
    )
    list(loader)
    stats = lance_stream.stats(data)
    print(json.dumps([stats.rows, stats.counters, len(stats.workers)]))
"""


@pytest.mark.slow
@pytest.mark.timeout(150)
def test_spawned_workers(table_100: str, tmp_path: Path) -> None:
    """They count for the same job."""
    script = tmp_path / "train.py"
    script.write_text(_SPAWNED)
    result = run_script(script, table_100, timeout_s=120).check().json()
    assert result == [100, {"samples": 100}, 2]


@pytest.mark.parametrize("n", [1.5, "x", None, 1 << 63, -(1 << 63) - 1])
def test_what_cannot_be_counted_names_the_counter(n: Any) -> None:
    with pytest.raises(PlanError, match=r"counter\('tokens'\)\.add\(.*whole number"):
        lance_stream.counter("tokens").add(n)


@pytest.mark.parametrize("name", ["", None, "a\ud800", "a\nb"])
def test_what_is_no_name_of_a_counter(name: Any) -> None:
    with pytest.raises(PlanError, match="the name must be text"):
        lance_stream.counter(name)


def test_of_something_that_is_no_dataset() -> None:
    with pytest.raises(PlanError, match=r"stats\(\) takes a StreamingDataset"):
        lance_stream.stats(None)  # type: ignore[arg-type]
    with pytest.raises(PlanError, match=r"progress\(\) takes a StreamingDataset"):
        lance_stream.progress(object())  # type: ignore[arg-type]
