"""Hundreds of rounds in one process: nothing is left of those that are over."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Any

import psutil
import pytest
from streaming import StreamingDataset
from torch.utils.data import DataLoader

from lance_stream import LanceStreamingDataset, follow
from tests.support.forked import run_forked
from tests.support.producer import Producer
from tests.support.streams import ORDER, identity

ROWS = 8


def held(pid: int) -> dict[str, int]:
    """What a process holds."""
    process = psutil.Process(pid)
    return {
        "fds": process.num_fds(),
        "maps": len(Path(f"/proc/{pid}/maps").read_text().splitlines()),
        "threads": process.num_threads(),
        "kb": process.memory_info().rss >> 10,
    }


def train(uri: str, local: str, rounds: int, every: int) -> list[dict[str, Any]]:
    """Two epochs of each round, most with workers; what is held now and then."""
    said = []
    temporary = tempfile.gettempdir()
    with Producer(uri) as producer:
        producer.append(ROWS)
        follower = follow(
            uri, rows_per_round=ROWS, window_rounds=2, poll_seconds=0.01, timeout=60, shard_rows=3
        )
        for each in follower:
            kind = StreamingDataset if each.number % 5 == 4 else LanceStreamingDataset
            stream = each.stream(local)
            data = kind(streams=[stream], batch_size=4, shuffle=True, **ORDER)
            for _ in range(2):
                workers = 0 if each.number % 5 == 3 else 1
                loader = DataLoader(data, 4, num_workers=workers, collate_fn=identity)
                rows = sorted(row["i"] for batch in loader for row in batch)
                assert rows == list(range(*each.rows))
            if each.number % every == every - 1:
                pid = stream.download_process_pid
                assert pid is not None
                said.append(
                    {
                        "round": each.number,
                        "trainer": held(os.getpid()),
                        "download process": held(pid),
                        "pid": pid,
                        "names": len(os.listdir("/dev/shm")),
                        "locks": len([n for n in os.listdir(temporary) if n.endswith("lock")]),
                        "cached": len(os.listdir(local)),
                    }
                )
            if each.number == rounds - 1:
                return said
            producer.append(ROWS)
    raise AssertionError("there are more rounds")


@pytest.mark.timeout(900)
@pytest.mark.parametrize("rounds", [20, pytest.param(500, marks=pytest.mark.slow)])
def test_rounds_that_are_over_hold_nothing(tmp_path: Path, rounds: int) -> None:
    every = rounds // 5
    uri, local = str(tmp_path / "t.lance"), str(tmp_path / "cache")
    said = run_forked(train, uri, local, rounds, every, timeout_s=800)
    for line in said:
        print(line)  # noqa: T201
    first, *others = said
    for other in others:
        assert other["pid"] == first["pid"]
        assert other["names"] <= first["names"]
        assert other["locks"] <= first["locks"]
        assert other["cached"] <= first["cached"]
        for process in ("trainer", "download process"):
            for what, slack in (("fds", 4), ("maps", 40), ("threads", 6)):
                assert other[process][what] <= first[process][what] + slack, (process, what)
    if rounds >= 500:
        for process in ("trainer", "download process"):
            grown = said[-1][process]["kb"] - said[0][process]["kb"]
            # Fragments of the table: some hundred bytes for each append.
            assert grown < 24 << 10, (process, grown)
