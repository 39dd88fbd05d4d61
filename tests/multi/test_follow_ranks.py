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
