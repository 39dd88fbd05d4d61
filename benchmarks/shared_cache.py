"""A cold epoch from the shared cache against one from Lance, on S3 with 20 ms for each request.

SeaweedFS behind a proxy that lets each request wait, and Redis, all on loopback. Each round has a
fresh local cache: an epoch from Lance, then one from Redis, which an epoch before has filled. Then
two jobs at once that want the same shards in the same order, with an empty Redis: how many shards
are read from Lance, and how long it takes, against one job alone.

    python benchmarks/shared_cache.py [--rows N] [--shard-rows N] [--rounds N] [--latency-ms N]

Ends with status 1 if a goal is missed.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import shape_m

# The servers are those of the tests.
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

# How much faster the shared cache is than Lance, at least.
GOAL = 1.0
_START_S = 60.0


def write(uri: str, rows: int, options: dict[str, str]) -> None:
    """Task: write the table, in four fragments."""
    shape_m.write_lance(uri, rows, rows // 4, options)


def epoch(
    uri: str,
    shard_rows: int,
    options: dict[str, str],
    shared_cache: str | None,
    start_at: float = 0.0,
) -> dict[str, float]:
    """Task: an epoch with an empty local cache and two workers; every row once."""
    from streaming import StreamingDataset
    from torch.utils.data import DataLoader

    import lance_stream

    with tempfile.TemporaryDirectory(prefix="shared_cache-") as directory:
        stream = lance_stream.LanceStream(
            uri,
            local=directory,
            shard_rows=shard_rows,
            storage_options=options,
            shared_cache=shared_cache,
        )
        dataset = StreamingDataset(streams=[stream], batch_size=64, shuffle=True, shuffle_seed=7)
        loader = DataLoader(dataset, batch_size=64, num_workers=2, collate_fn=_ids)
        time.sleep(max(0.0, start_at - time.time()))
        started = time.perf_counter()
        ids = [i for batch in loader for i in batch]
        seconds = time.perf_counter() - started
        found = lance_stream.stats(dataset)
        complete = sorted(ids) == list(range(stream.index.num_rows))
        shape_m.require(complete, "an epoch is every row once")
        result = {
            "seconds": seconds,
            "lance": found.from_lance,
            "tier": found.from_tier,
            "bytes": found.lance_bytes + found.tier_bytes,
            "shards": found.shards,
        }
        del loader, dataset, stream
    return result


def _ids(batch: list[dict[str, Any]]) -> list[int]:
    return [row["i"] for row in batch]


def _from_each(arguments: dict[str, Any], redis: str, rounds: int) -> bool:
    """Epochs from Lance and from the shared cache in turn; whether the goal was reached."""
    shared = f"{redis}?prefix=filled"
    shape_m.run_child(__file__, "epoch", {**arguments, "shared_cache": shared})
    # The last shards are put in the second after the epoch.
    time.sleep(1.0)
    ratios = []
    for number in range(rounds):
        lance = shape_m.run_child(__file__, "epoch", {**arguments, "shared_cache": None})
        tier = shape_m.run_child(__file__, "epoch", {**arguments, "shared_cache": shared})
        shape_m.require(tier["lance"] == 0, f"{tier['lance']} shards were read from Lance")
        shape_m.require(lance["tier"] == 0, f"{lance['tier']} shards were not read from Lance")
        ratios.append(lance["seconds"] / tier["seconds"])
        print(
            f"round {number + 1}: {lance['shards']} shards, {lance['bytes'] / 1e6:.0f} MB; from "
            f"Lance {lance['seconds']:.2f} s, from Redis {tier['seconds']:.2f} s, "
            f"ratio {ratios[-1]:.2f}",
            flush=True,
        )
    median = statistics.median(ratios)
    verdict = "reached" if median >= GOAL else "MISSED"
    print(f"cold epoch, Lance / shared cache: median {median:.2f}; goal >= {GOAL}: {verdict}")
    return median >= GOAL


def _at_once(arguments: dict[str, Any], redis: str, rounds: int) -> bool:
    """Two jobs that want the same shards at the same time; whether each shard is read once."""
    reached = True
    for number in range(rounds):
        alone = {**arguments, "shared_cache": f"{redis}?prefix=alone-{number}"}
        one = shape_m.run_child(__file__, "epoch", alone)
        both = {**arguments, "shared_cache": f"{redis}?prefix=both-{number}"}
        both["start_at"] = time.time() + _START_S / 3
        with ThreadPoolExecutor(2) as pool:
            jobs = [
                job.result()
                for job in [
                    pool.submit(shape_m.run_child, __file__, "epoch", both) for _ in range(2)
                ]
            ]
        reads, shards = sum(job["lance"] for job in jobs), jobs[0]["shards"]
        slowest = max(job["seconds"] for job in jobs)
        reached &= reads <= 1.1 * shards
        print(
            f"two jobs at once, round {number + 1}: {reads:.0f} reads from Lance of {shards} "
            f"shards, {slowest:.2f} s; one job alone {one['seconds']:.2f} s",
            flush=True,
        )
    verdict = "reached" if reached else "MISSED"
    print(f"reads from Lance of two jobs at once; goal <= 1.1 of the shards: {verdict}")
    return reached


def main() -> None:
    shape_m.child_main({"write": write, "epoch": epoch})
    from tests.support.fault_proxy import FaultProxy
    from tests.support.faults import Fault
    from tests.support.object_store import S3Server
    from tests.support.servers import start_redis

    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", type=int, default=40_000, help="a multiple of 4")
    parser.add_argument("--shard-rows", type=int, default=1_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--latency-ms", type=float, default=20.0)
    options = parser.parse_args()
    print(shape_m.versions())
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="shared_cache-")))
        (folder / "s3").mkdir()
        server = stack.enter_context(S3Server.start(folder / "s3"))
        server.create_bucket("benchmark")
        proxy = stack.enter_context(FaultProxy.start(server.port))
        redis = stack.enter_context(start_redis(folder))
        uri = "s3://benchmark/table.lance"
        arguments = {"uri": uri, "options": server.storage_options(), "rows": options.rows}
        shape_m.run_child(__file__, "write", arguments)
        proxy.set(Fault(latency_ms=options.latency_ms))
        arguments = {
            "uri": uri,
            "options": server.storage_options(proxy.endpoint),
            "shard_rows": options.shard_rows,
        }
        url = f"redis://{redis.address}"
        reached = _from_each(arguments, url, options.rounds)
        reached &= _at_once(arguments, url, options.rounds)
    sys.exit(0 if reached else 1)


if __name__ == "__main__":
    main()
