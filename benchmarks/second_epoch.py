"""Shards read per epoch with ``cache_limit`` below the data: ``cache_policy`` "lru" and "epoch".

Shuffled epochs of a table of 60 shards with a cache of a quarter, a half and three quarters of
it, in one process and in a DataLoader with 2 workers. What counts is what the download process
read from Lance in every epoch but the first. The fewest reads that any policy can reach, as the
order of the next epoch is not known, are the shards that do not fit.

    python benchmarks/second_epoch.py [--epochs N]

Ends with status 1 if "epoch" does not read less than "lru".
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
from typing import Any

import shape_m

SHARDS, SHARD_ROWS = 60, 100
LIMITS = (0.25, 0.5, 0.75)
WORKERS = (0, 2)
_BATCH_SIZE = 10


def write(uri: str) -> None:
    """Task: write the table."""
    shape_m.write_lance(uri, SHARDS * SHARD_ROWS, SHARDS * SHARD_ROWS)


def reads(uri: str, policy: str, limit: float, workers: int, epochs: int) -> list[int]:
    """Task: shards read from Lance in each epoch."""
    from torch.utils.data import DataLoader

    from lance_stream import LanceStream, LanceStreamingDataset, stats

    with tempfile.TemporaryDirectory(prefix="second-epoch-") as directory:
        shard_bytes = _shard_bytes(uri, f"{directory}/whole")
        dataset = LanceStreamingDataset(
            streams=[LanceStream(uri, local=f"{directory}/limited", shard_rows=SHARD_ROWS)],
            batch_size=_BATCH_SIZE,
            shuffle=True,
            # Blocks of some shards: with one of all rows, every shard is needed all the time.
            shuffle_algo="py1br",
            shuffle_block_size=4 * SHARD_ROWS,
            num_canonical_nodes=1,
            predownload=2 * SHARD_ROWS,
            cache_limit=int(limit * SHARDS * shard_bytes) + 1,
            cache_policy=policy,
        )
        found, before = [], 0
        for _ in range(epochs):
            items: Any = DataLoader(dataset, _BATCH_SIZE, num_workers=workers, collate_fn=list)
            ids = [sample["i"] for batch in items for sample in batch]
            complete = sorted(ids) == list(range(SHARDS * SHARD_ROWS))
            shape_m.require(complete and ids != sorted(ids), "not every row once, in a new order")
            now = stats(dataset).from_lance
            found.append(now - before)
            before = now
        return found


def _shard_bytes(uri: str, local: str) -> int:
    """Bytes that a shard takes in the cache."""
    from lance_stream import LanceStream, LanceStreamingDataset

    stream = LanceStream(uri, local=local, shard_rows=SHARD_ROWS)
    dataset = LanceStreamingDataset(streams=[stream], batch_size=_BATCH_SIZE)
    for _sample in dataset:
        pass
    return int(dataset.cache_usage) // SHARDS


def main() -> None:
    shape_m.child_main({"write": write, "reads": reads})
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--epochs", type=int, default=6)
    options = parser.parse_args()
    print(f"{SHARDS} shards; {shape_m.versions()}", flush=True)
    reached = True
    with tempfile.TemporaryDirectory(prefix="second-epoch-") as directory:
        uri = f"{directory}/table.lance"
        shape_m.run_child(__file__, "write", {"uri": uri})
        for limit in LIMITS:
            for workers in WORKERS:
                task = {"uri": uri, "limit": limit, "workers": workers, "epochs": options.epochs}
                lru, epoch = (
                    statistics.fmean(
                        shape_m.run_child(__file__, "reads", {**task, "policy": policy})[1:]
                    )
                    for policy in ("lru", "epoch")
                )
                reached &= epoch < lru
                print(
                    f"cache of {limit:.0%}, {workers} workers: shards read per epoch: lru "
                    f"{lru:.1f}, epoch {epoch:.1f}, least {SHARDS * (1 - limit):.0f}; ratio "
                    f"{epoch / lru:.2f}: {'fewer' if epoch < lru else 'MISSED'}",
                    flush=True,
                )
    sys.exit(0 if reached else 1)


if __name__ == "__main__":
    main()
