"""``cache_policy="epoch"``: the same samples as ever, with fewer reads when the cache is small."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from lance_stream import LanceStream, LanceStreamingDataset, stats
from lance_stream.errors import PlanError
from tests.support.forked import run_forked
from tests.support.streams import batches, ids
from tests.support.tables import write_table

ROWS, SHARD_ROWS = 600, 15
SHARDS = ROWS // SHARD_ROWS
EPOCHS = 4


@pytest.fixture(scope="module")
def table(tables: Path) -> str:
    """The table T(600, 600)."""
    uri = str(tables / "t600.lance")
    write_table(uri, ROWS, ROWS)
    return uri


def build(uri: str, local: Path, cache_limit: int | None, policy: str) -> Any:
    """A dataset whose epochs use each shard for a while, in another order each."""
    return LanceStreamingDataset(
        streams=[LanceStream(uri, local=str(local), shard_rows=SHARD_ROWS)],
        batch_size=5,
        num_canonical_nodes=1,
        shuffle=True,
        shuffle_algo="py1br",
        shuffle_block_size=2 * SHARD_ROWS,
        shuffle_seed=7,
        predownload=SHARD_ROWS,
        cache_limit=cache_limit,
        cache_policy=policy,
    )


@pytest.mark.parametrize("workers", [0, 2])
def test_fewer_reads_of_the_same_samples(table: str, tmp_path: Path, workers: int) -> None:
    """A cache of half the shards: LRU reads most of them in every epoch, this policy the rest."""

    def run() -> Any:
        data = build(table, tmp_path / "whole", None, "lru")
        ids(batches(data, 0))
        limit = int(data.cache_usage) // 2
        found = {}
        for policy in ("lru", "epoch"):
            data = build(table, tmp_path / policy, limit, policy)
            epochs, reads = [], []
            for _ in range(EPOCHS):
                before = stats(data).from_lance
                epochs.append(ids(batches(data, workers)))
                reads.append(stats(data).from_lance - before)
            found[policy] = epochs, reads
        return found

    found = run_forked(run)
    assert found["epoch"][0] == found["lru"][0]
    assert all(sorted(seen) == list(range(ROWS)) for seen in found["epoch"][0])
    lru, epoch = (sum(found[policy][1][1:]) / (EPOCHS - 1) for policy in ("lru", "epoch"))
    # None can do with less than half. LRU reads about five sixths.
    assert SHARDS / 2 - 1 <= epoch < 0.9 * lru, (epoch, lru)


def test_a_limit_of_a_few_shards(table: str, tmp_path: Path) -> None:
    """Everything that is there is needed: something goes all the same, and no row is lost."""

    def run() -> list[list[int]]:
        data = build(table, tmp_path / "whole", None, "lru")
        ids(batches(data, 0))
        limit = int(data.cache_usage) // SHARDS * 6
        data = build(table, tmp_path / "limited", limit, "epoch")
        return [ids(batches(data, workers)) for workers in (2, 0)]

    assert [sorted(seen) for seen in run_forked(run)] == [list(range(ROWS))] * 2


def test_another_policy_is_refused(table: str, tmp_path: Path) -> None:
    """By name, with what there is."""
    with pytest.raises(PlanError, match="cache_policy='mru' must be one of lru, epoch"):
        build(table, tmp_path, None, "mru")
