"""What it costs a training loop that its trainer calls ``stats()`` 100 times a second.

Two DataLoader workers read a local table of shape M from a full cache; the trainer takes the
batches and works on each for a while, as a step does that waits for an accelerator. Rounds with
and without a polling thread alternate; the median of their ratios is judged. Also: how long a call
takes, by the wall and by the processor (on a busy machine the former is mostly waiting).

    python benchmarks/polling.py [--rows N] [--rounds N] [--step-ms N] [--hz N]

Ends with status 1 if a goal is missed.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import threading
import time
from typing import Any

import shape_m

CALL_GOAL_S = 0.001
SLOWER_GOAL = 0.02
_BATCH_SIZE = 64


def write(uri: str, rows: int) -> None:
    """Task: write the table."""
    shape_m.write_lance(uri, rows, 10_000)


def measure(uri: str, local: str, rounds: int, step_s: float, hz: float) -> dict[str, list[float]]:
    """Task: seconds of epochs with and without polling, and of calls."""
    from streaming import StreamingDataset
    from torch.utils.data import DataLoader

    import lance_stream

    stream = lance_stream.LanceStream(uri, local=local, shard_rows=1_000)
    dataset = StreamingDataset(streams=[stream], batch_size=_BATCH_SIZE, shuffle=True)
    loader = DataLoader(
        dataset, _BATCH_SIZE, num_workers=2, collate_fn=len, persistent_workers=True
    )
    calls: list[float] = []
    processor: list[float] = []

    def poll(ended: threading.Event) -> None:
        before = lance_stream.stats(dataset)
        while not ended.wait(1 / hz):
            started, used = time.perf_counter(), time.thread_time()
            now = lance_stream.stats(dataset)
            calls.append(time.perf_counter() - started)
            processor.append(time.thread_time() - used)
            shape_m.require(now.rows >= before.rows, "rows went backwards")
            before = now

    def train() -> float:
        started = time.perf_counter()
        rows = 0
        for size in loader:
            rows += size
            time.sleep(step_s)
        shape_m.require(rows == stream.index.num_rows, "an epoch is every row once")
        return time.perf_counter() - started

    train()
    result: dict[str, list[float]] = {"plain": [], "polled": []}
    for number in range(2 * rounds):
        # In turns, each first as often as the other.
        kind = ("plain", "polled")[(number + number // 2) % 2]
        ended = threading.Event()
        thread = threading.Thread(target=poll, args=(ended,))
        if kind == "polled":
            thread.start()
        result[kind].append(train())
        ended.set()
        if kind == "polled":
            thread.join()
    return {**result, "calls": sorted(calls), "processor": sorted(processor)}


def main() -> None:
    shape_m.child_main({"write": write, "measure": measure})
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", type=int, default=40_000)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--step-ms", type=float, default=5.0)
    parser.add_argument("--hz", type=float, default=100.0)
    options = parser.parse_args()
    print(shape_m.versions())
    with tempfile.TemporaryDirectory(prefix="polling-") as directory:
        uri = f"{directory}/table.lance"
        shape_m.run_child(__file__, "write", {"uri": uri, "rows": options.rows})
        arguments: dict[str, Any] = {
            "uri": uri,
            "local": f"{directory}/cache",
            "rounds": options.rounds,
            "step_s": options.step_ms / 1000,
            "hz": options.hz,
        }
        found = shape_m.run_child(__file__, "measure", arguments)
    ratios = [b / a for a, b in zip(found["plain"], found["polled"], strict=True)]
    slower = statistics.median(ratios) - 1
    call, used = statistics.median(found["calls"]), statistics.median(found["processor"])
    most = found["processor"][int(0.99 * len(found["processor"]))]
    reached = call < CALL_GOAL_S and slower <= SLOWER_GOAL
    print(
        f"{len(found['calls'])} calls: median {call * 1e6:.0f} us, of the processor median "
        f"{used * 1e6:.0f} us and 99 % below {most * 1e6:.0f} us; epochs with polling "
        f"{slower:+.1%} (of {min(ratios) - 1:+.1%} to {max(ratios) - 1:+.1%}); goals < "
        f"{CALL_GOAL_S * 1e6:.0f} us and <= {SLOWER_GOAL:.0%}: "
        f"{'reached' if reached else 'MISSED'}"
    )
    sys.exit(0 if reached else 1)


if __name__ == "__main__":
    main()
