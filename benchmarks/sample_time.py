"""Where the time of a sample goes in ``LanceStreamingDataset``, with a warm cache.

Whole shuffled epochs of the shapes of shapes.py in one process: microseconds per sample in all; of
these, finding and opening the shards of each part; and beginning an epoch (its order, its first
part). The rest is making samples, or gathering batches. Beside it, what one core copies, since a
batch is copied twice: out of the shards, and into itself.

    python benchmarks/sample_time.py --directory DIR [--shapes S,M,T,L] [--seconds S]

``--directory`` is one that streaming_dataset.py was given.
"""

from __future__ import annotations

import argparse
import time
from typing import Any
from unittest.mock import patch

import numpy as np
import streaming_dataset

_COPY_BYTES = 64 << 20
_BATCH_SIZE = 64


def _copied_bytes_per_s() -> float:
    source = np.ones(_COPY_BYTES, np.uint8)
    target = np.empty_like(source)
    started = time.perf_counter()
    for _ in range(10):
        np.copyto(target, source)
    return 10 * _COPY_BYTES / (time.perf_counter() - started)


def _measure(directory: str, shape: str, kind: str, seconds: float) -> None:
    from lance_stream import LanceStreamingDataset

    spent = 0.0
    next_part = LanceStreamingDataset._next_part

    def timed(*arguments: Any) -> Any:
        nonlocal spent
        started = time.perf_counter()
        result = next_part(*arguments)
        spent += time.perf_counter() - started
        return result

    batched = kind == "batched"
    side = kind if kind == "zero_copy" else "dict"
    dataset = streaming_dataset.dataset(directory, shape, side, batched=batched)
    for _ in dataset:
        pass
    count, begun, started = 0, 0.0, time.perf_counter()
    with patch.object(LanceStreamingDataset, "_next_part", timed):
        while time.perf_counter() - started < seconds:
            epoch_started = time.perf_counter()
            items = iter(dataset)
            next(items)
            begun += time.perf_counter() - epoch_started
            count += (1 + sum(1 for _ in items)) * (_BATCH_SIZE if batched else 1)
    total = time.perf_counter() - started
    found = [f"{1e6 * value / count:.2f}" for value in (total, spent, begun)]
    print(f"| {shape} | {kind} | {' | '.join(found)} |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--directory", required=True)
    parser.add_argument("--shapes", default="S,M,T,L")
    parser.add_argument("--seconds", type=float, default=4.0)
    options = parser.parse_args()
    print(f"one core copies {_copied_bytes_per_s() / 1e9:.1f} GB/s")
    print("| shape | what | us per sample | parts | beginnings of epochs |\n|---|---|---|---|---|")
    for shape in options.shapes.split(","):
        for kind in ("dict", "zero_copy", "batched"):
            _measure(options.directory, shape, kind, options.seconds)


if __name__ == "__main__":
    main()
