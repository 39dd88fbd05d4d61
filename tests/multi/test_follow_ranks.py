"""Ranks that follow one table: the same rounds, each row on one rank, nothing left behind."""

from __future__ import annotations

import gc
import os
import time
from pathlib import Path
from typing import Any

import pytest
from torch import distributed as dist
from torch.utils.data import DataLoader

from lance_stream import LanceStreamingDataset, StateMismatchError, follow
from lance_stream.host.settling import job_endpoint
from tests.multi.ranks import ForkedRanks
from tests.support.producer import Producer
from tests.support.streams import identity

ROUNDS, ROWS = 6, 12


@pytest.mark.parametrize("per_node", [2, 1], ids=["one node", "two nodes"])
def test_ranks_share_each_round(tmp_path: Path, per_node: int) -> None:
    """Rank 1 looks later than rank 0, at another version; one is slower to drop its datasets."""
    uri = str(tmp_path / "t.lance")
    producer = Producer(uri)

    def rank(number: int) -> list[Any]:
        dist.init_process_group("gloo")
        follower = follow(
            uri, rows_per_round=ROWS, window_rounds=2, poll_seconds=0.02, timeout=30, shard_rows=5
        )
        said = []
        kept: list[Any] = []
        for each in follower:
            if number:
                time.sleep(0.3)
            stream = each.stream()
            data = LanceStreamingDataset(
                streams=[stream], batch_size=4, shuffle=True, num_canonical_nodes=1
            )
            rows = [
                row["i"]
                for batch in DataLoader(data, 4, num_workers=1, collate_fn=identity)
                for row in batch
            ]
            names = len(os.listdir("/dev/shm"))
            said.append(
                [list(each.rows), stream.version, rows, stream.download_process_pid, names]
            )
            if number:
                kept = [data, *kept[:1]]
            del data
            gc.collect()
            if each.number == ROUNDS - 1:
                break
        dist.barrier()
        dist.destroy_process_group()
        return said

    with producer:
        producer.append(ROWS)
        with ForkedRanks(rank, 2, per_node=per_node) as ranks:
            for _ in range(ROUNDS - 1):
                time.sleep(0.5)
                producer.append(3, times=ROWS // 3)
            said = ranks.results(110)
    pids = {pid for each in said for _, _, _, pid, _ in each}
    assert len(pids) == 2 // per_node
    for number, (first, second) in enumerate(zip(*said, strict=True)):
        window = [max(0, number - 1) * ROWS, (number + 1) * ROWS]
        assert first[0] == second[0] == window
        assert first[1] == second[1]
        assert sorted(first[2] + second[2]) == list(range(*window))
    names = [each[4] for each in said[0]]
    assert max(names[3:]) <= max(names[:3]), names


@pytest.mark.parametrize("how", ["assign", "del"])
def test_ranks_leave_nothing_of_finished_rounds(tmp_path: Path, how: str) -> None:
    """Also where the next dataset is made before the last one goes."""
    uri, local = str(tmp_path / "t.lance"), str(tmp_path / "cache")
    rounds = 8

    def rank(number: int) -> list[Any]:
        dist.init_process_group("gloo")
        follower = follow(
            uri, rows_per_round=ROWS, window_rounds=2, timeout=30, shard_rows=5, local=local
        )
        said, data = [], None
        for each in follower:
            if how == "del":
                data = None
                gc.collect()
            data = LanceStreamingDataset(
                streams=[each.stream()], batch_size=4, num_canonical_nodes=1
            )
            assert list(data)
            dist.barrier()
            names = os.listdir(local)
            ledgers = [name for name in names if name.startswith(".ledger-")]
            indexes = [name for name in names if "index" in name]
            boards = os.listdir(f"{job_endpoint().directory}/boards")
            said.append([len(ledgers), len(indexes), len(boards)])
            dist.barrier()
            if each.number == rounds - 1:
                break
        dist.destroy_process_group()
        return said

    with Producer(uri) as producer:
        producer.append(rounds * ROWS)
        with ForkedRanks(rank, 2, per_node=2) as ranks:
            said = ranks.results(110)
    assert max(max(each) for one in said for each in one) <= 2
    assert not [name for name in os.listdir(local) if name.startswith(".ledger-")]


def test_ranks_that_follow_differently_are_told(tmp_path: Path) -> None:
    uri = str(tmp_path / "t.lance")
    with Producer(uri) as producer:
        producer.append(20)

    def rank(number: int) -> None:
        dist.init_process_group("gloo")
        follower = follow(uri, rows_per_round=5 + number, timeout=5)
        with pytest.raises(StateMismatchError, match=r"rows_per_round=5.*rows_per_round=6"):
            next(follower)
        dist.destroy_process_group()

    with ForkedRanks(rank, 2) as ranks:
        ranks.results(60)
