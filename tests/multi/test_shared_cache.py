"""One Redis for two nodes, each with shared memory, cache and download process of its own."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import lance_stream
from tests.multi.ranks import ForkedRanks, environment, free_port
from tests.support.mounts import as_root
from tests.support.servers import LoopbackServer, start_redis
from tests.support.streams import batches, dataset, ids, wait_until

# Nodes are made by mounting.
pytestmark = as_root

ROWS, SHARDS = 5000, 50
HOST: dict[str, Any] = {"shuffle": True}
# Else nearly every sample is of another shard, and all of them are evicted all the time.
BLOCKS: dict[str, Any] = {"shuffle_algo": "py1br", "shuffle_block_size": 300}


@pytest.fixture
def redis_server(tmp_path: Path) -> Iterator[LoopbackServer]:
    """One that is empty."""
    with start_redis(tmp_path) as running:
        yield running


def shards_of(data: Any) -> list[int]:
    """Read from Lance, and taken from the shared cache, on this node."""
    found = lance_stream.stats(data)
    return [found.from_lance, found.from_tier]


def test_each_shard_is_read_once_for_all_nodes_and_epochs(
    redis_server: LoopbackServer, table_5000: str, tmp_path: Path
) -> None:
    """Three shuffled epochs under a quarter of the data: the reads stay at the shards."""
    done = [tmp_path / "done-0", tmp_path / "done-1"]

    def run(rank: int) -> dict[str, Any]:
        data = dataset(
            table_5000,
            shard_rows=ROWS // SHARDS,
            shared_cache=f"redis://{redis_server.address}",
            local=str(tmp_path / f"node-{rank}"),
            host={**HOST, **BLOCKS, "cache_limit": limit},
        )
        epochs = [ids(batches(data, 2)) for _ in range(3)]
        done[rank].touch()
        # The first to end must not take its process from under the barrier of the other.
        wait_until(lambda: all(path.exists() for path in done), 60, "both nodes are done")
        return {"epochs": epochs, "shards": shards_of(data)}

    limit = _data_bytes(table_5000, tmp_path) // 4
    with ForkedRanks(run, 2, per_node=1) as job:
        first, second = job.results(100)
    for mine, theirs in zip(first["epochs"], second["epochs"], strict=True):
        assert sorted({*mine, *theirs}) == list(range(ROWS))
        assert len(mine) + len(theirs) <= ROWS + 4
    assert first["shards"][0] + second["shards"][0] == SHARDS
    # The other epochs came from somewhere.
    assert first["shards"][1] + second["shards"][1] > SHARDS


@pytest.mark.slow
def test_two_jobs_that_want_the_same_shards_at_the_same_time(
    redis_server: LoopbackServer, table_5000: str, tmp_path: Path
) -> None:
    """In one order, from one moment on: who comes second waits for who reads."""
    ready = [tmp_path / "ready-0", tmp_path / "ready-1"]

    def run(rank: int) -> dict[str, Any]:
        # Each a job of its own.
        os.environ.update(environment(0, 1, free_port()))
        data = dataset(
            table_5000,
            shard_rows=ROWS // SHARDS,
            shared_cache=f"redis://{redis_server.address}",
            local=str(tmp_path / f"node-{rank}"),
            host=HOST,
        )
        ready[rank].touch()
        wait_until(lambda: all(path.exists() for path in ready), 30, "both are ready")
        started = time.monotonic()
        seen = ids(batches(data, 2))
        return {
            "ids": sorted(seen),
            "shards": shards_of(data),
            "seconds": time.monotonic() - started,
        }

    with ForkedRanks(run, 2, per_node=1) as job:
        results = job.results(100)
    for result in results:
        assert result["ids"] == list(range(ROWS))
        assert sum(result["shards"]) == SHARDS
        assert result["seconds"] < 30
    assert sum(result["shards"][0] for result in results) == SHARDS


@pytest.mark.slow
def test_a_node_that_is_killed_while_it_reads(
    redis_server: LoopbackServer, table_5000: str, tmp_path: Path
) -> None:
    """Its claims are obeyed for some seconds; then the other reads, everything, once."""
    began = tmp_path / "began"

    def run(rank: int) -> dict[str, Any]:
        os.environ.update(environment(0, 1, free_port()))
        if rank == 0:
            import redis

            # A node that has claimed every shard and is gone.
            client = redis.Redis(port=redis_server.port)
            data = dataset(table_5000, shard_rows=100, local=str(tmp_path / "node-0"))
            for name in _stored_names(data):
                client.set(f"lance-stream:#claim:{name}", "f" * 32, px=10_000)
            began.touch()
            return {}
        wait_until(began.exists, 30, "the other has claimed")
        started = time.monotonic()
        data = dataset(
            table_5000,
            shard_rows=100,
            local=str(tmp_path / "node-1"),
            shared_cache=f"redis://{redis_server.address}",
        )
        seen = ids(batches(data, 2))
        return {"ids": sorted(seen), "seconds": time.monotonic() - started}

    with ForkedRanks(run, 2, per_node=1) as job:
        _, result = job.results(100)
    assert result["ids"] == list(range(ROWS))
    # Nobody waits longer than a claim lasts, all of them together not much longer.
    assert 5 < result["seconds"] < 45


def _data_bytes(uri: str, tmp_path: Path) -> int:
    """Bytes of all shards."""

    def run(_: int) -> int:
        os.environ.update(environment(0, 1, free_port()))
        data = dataset(uri, shard_rows=ROWS // SHARDS, local=str(tmp_path / "whole"))
        ids(batches(data, 0))
        return data.cache_usage

    with ForkedRanks(run, 1) as job:
        return job.results()[0]


def _stored_names(data: Any) -> list[str]:
    """Names of the shards in the server."""
    from lance_stream.tiers.frame import stored_name
    from lance_stream.tiers.shared_tier import shard_key

    stream = data.streams[0]
    names = [shard_key(stream.fingerprint, shard, "arrow") for shard in range(SHARDS)]
    return [stored_name(name) for name in names]
