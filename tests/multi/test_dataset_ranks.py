"""LanceStreamingDataset on two ranks of one node."""

from __future__ import annotations

import json
import os
import signal
import time
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from torch.utils.data import DataLoader

import lance_stream
from lance_stream import LanceStream, LanceStreamingDataset
from lance_stream.errors import LanceStreamError
from tests.multi.ranks import ForkedRanks, free_port
from tests.support.scripts import start_script
from tests.support.streams import identity
from tests.support.tables import write_table

ROWS = 103
OPTIONS: dict[str, Any] = {"batch_size": 4, "num_canonical_nodes": 1, "shuffle_seed": 7}


@pytest.fixture(scope="module")
def table(tables: Path) -> str:
    """The table T(103, 25)."""
    uri = str(tables / "dataset-ranks103.lance")
    write_table(uri, ROWS, 25)
    return uri


def epochs(uri: str, *, batched: bool, workers: int, count: int, **host: Any) -> list[list[int]]:
    """Ids of some epochs on this rank."""
    data = LanceStreamingDataset(
        streams=[LanceStream(uri, shard_rows=10)],
        shuffle=True,
        batched=batched,
        **{**OPTIONS, **host},
    )
    if batched:
        loader = DataLoader(data, batch_size=None, num_workers=workers)
        return [[i for batch in loader for i in batch["i"].tolist()] for _ in range(count)]
    loader = DataLoader(data, 4, num_workers=workers, collate_fn=identity)
    return [[row["i"] for batch in loader for row in batch] for _ in range(count)]


_SCRIPT = """
import json, os, sys
from pathlib import Path
from torch import distributed as dist
from tests.multi.test_dataset_ranks import epochs

uri, out = sys.argv[1:]
dist.init_process_group("gloo")
said = [epochs(uri, batched=batched, workers=2, count=2) for batched in (False, True)]
dist.barrier()
Path(out, os.environ["RANK"]).write_text(json.dumps(said))
dist.destroy_process_group()
"""
_TORCHRUN = """
import os, sys
os.execv(sys.executable, [sys.executable, "-m", "torch.distributed.run", *sys.argv[1:]])
"""


def test_two_ranks_by_torchrun(table: str, tmp_path: Path) -> None:
    """Every row, by samples and by batches, the same on each rank; each rank its own part."""
    script = tmp_path / "train.py"
    script.write_text(_SCRIPT)
    arguments = ["--nproc-per-node", 2, "--master-addr", "127.0.0.1", "--master-port", free_port()]
    environ = {"GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}
    with start_script(_TORCHRUN, *arguments, script, table, tmp_path, env=environ) as job:
        job.wait(100).check()
    first, second = (json.loads((tmp_path / f"{rank}").read_text()) for rank in range(2))
    for rank in (first, second):
        assert rank[0] == rank[1]
    for mine, theirs in zip(first[0], second[0], strict=True):
        rows = Counter(mine + theirs)
        assert sorted(rows) == list(range(ROWS))
        # What fills up the last batches.
        assert rows.total() <= ROWS + 4


def test_replicated_ranks(table: str) -> None:
    """Both ranks have the samples of one."""

    def run(rank: int) -> Any:
        return epochs(table, batched=False, workers=1, count=1, replication=2)

    with ForkedRanks(run, 2) as job:
        first, second = job.results(60)
    assert first == second
    assert sorted(first[0]) == list(range(ROWS))


def test_stats_are_of_the_node(table: str) -> None:
    """Rows of both ranks, with their rank."""

    def run(rank: int) -> Any:
        from torch import distributed as dist

        dist.init_process_group("gloo")
        data = LanceStreamingDataset(streams=[LanceStream(table, shard_rows=10)], **OPTIONS)
        seen = [row["i"] for row in data]
        lance_stream.counter("rows").add(len(seen))
        dist.barrier()
        stats = lance_stream.stats(data)
        dist.barrier()
        dist.destroy_process_group()
        return [len(seen), stats.rows, stats.counters, [one.rank for one in stats.workers]]

    with ForkedRanks(run, 2) as job:
        first, second = job.results(60)
    total = first[0] + second[0]
    assert first[1:] == second[1:] == [total, {"rows": total}, [0, 1]]


def test_weights_may_be_numbers_of_numpy(table: str) -> None:
    """Ranks tell each other their arguments."""

    def run(_: int) -> list[int]:
        stream = LanceStream(table, shard_rows=10, choose=np.int64(60))
        return [row["i"] for row in LanceStreamingDataset(streams=[stream], **OPTIONS)]

    with ForkedRanks(run, 2) as job:
        first, second = job.results(60)
    assert len(first) + len(second) == len({*first, *second}) == 60


def test_one_rank_fails(table: str) -> None:
    """An exception in one rank's loop: the other ends its epoch, exactly."""

    def run(rank: int) -> Any:
        data = LanceStreamingDataset(
            streams=[LanceStream(table, shard_rows=5)], predownload=8, **OPTIONS
        )
        seen = []
        for row in data:
            seen.append(row["i"])
            if rank and len(seen) == 5:
                os._exit(3)
        return seen

    with ForkedRanks(run, 2) as job:
        seen = job.ranks[0].wait(60)
        with pytest.raises(AssertionError, match="died with status 3"):
            job.ranks[1].wait(20)
    assert len(seen) == len(set(seen)) == 52


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("ends", [0, 1])
def test_no_epoch_begins_without_a_rank_that_has_ended(
    table: str, ends: int, workers: int
) -> None:
    """The other rank is told at once who is missing; the rest of its epoch it still gets."""

    def run(rank: int) -> Any:
        data = LanceStreamingDataset(streams=[LanceStream(table, shard_rows=5)], **OPTIONS)
        loader = DataLoader(data, batch_size=4, num_workers=workers)
        seen = [i for batch in loader for i in batch["i"].tolist()]
        if rank == ends:
            os._exit(3)
        started_s = time.monotonic()
        with pytest.raises(LanceStreamError) as raised:
            list(loader)
        return [len(seen), time.monotonic() - started_s, str(raised.value)]

    with ForkedRanks(run, 2) as job:
        rows, seconds, message = job.ranks[1 - ends].wait(60)
        with pytest.raises(AssertionError, match="died with status 3"):
            job.ranks[ends].wait(20)
    assert rows == 52
    assert seconds < 15
    assert f"rank {ends} of this node, process {job.ranks[ends].pid}, has ended" in message


class KilledAsItBegins(LanceStreamingDataset):
    """Its leader is killed once, between two of the steps by which an epoch begins."""

    marker: Path

    def _share_work(self, sample_ids: Any) -> Any:
        if not self.marker.exists():
            self.marker.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return super()._share_work(sample_ids)


def test_a_worker_killed_as_an_epoch_begins(table: str, tmp_path: Path) -> None:
    """Its rank begins anew; the workers of the other rank, which wait, begin with it."""

    def run(rank: int) -> Any:
        data = KilledAsItBegins(
            streams=[LanceStream(table, shard_rows=10)], shuffle=True, batched=True, **OPTIONS
        )
        data.marker = tmp_path / "killed"
        loader = DataLoader(data, batch_size=None, num_workers=2)
        if rank == 0:
            with pytest.raises(RuntimeError, match="DataLoader worker"):
                list(loader)
        return [[i for batch in loader for i in batch["i"].tolist()] for _ in range(2)]

    with ForkedRanks(run, 2) as job:
        first, second = job.results(60)
    for mine, theirs in zip(first, second, strict=True):
        assert sorted(set(mine + theirs)) == list(range(ROWS))
        assert len(mine) == len(theirs) <= ROWS // 2 + 4


def test_a_resumed_epoch_outlives_a_killed_leader(table: str, tmp_path: Path) -> None:
    """It is begun again where it was left, also by the rank that saw no error."""

    def run(rank: int) -> Any:
        data = KilledAsItBegins(
            streams=[LanceStream(table, shard_rows=10)], shuffle=True, batched=True, **OPTIONS
        )
        data.marker = tmp_path / "killed"
        data.marker.touch()
        loader = DataLoader(data, batch_size=None, num_workers=2)
        whole = [batch["i"].tolist() for batch in loader]
        state = data.state_dict(4 * 2 * 5, True)
        assert state["epoch"] == 0
        del loader, data
        data = KilledAsItBegins(
            streams=[LanceStream(table, shard_rows=10)], shuffle=True, batched=True, **OPTIONS
        )
        data.marker = tmp_path / "killed-resumed"
        data.load_state_dict(state)
        loader = DataLoader(data, batch_size=None, num_workers=2)
        if rank == 0:
            with pytest.raises(RuntimeError, match="DataLoader worker"):
                list(loader)
        rest = [batch["i"].tolist() for batch in loader]
        return [whole, rest]

    with ForkedRanks(run, 2) as job:
        ranks = job.results(90)
    seen = [i for whole, rest in ranks for batch in (*whole[:5], *rest) for i in batch]
    assert sorted(set(seen)) == list(range(ROWS))
    assert len(seen) <= ROWS + 8
