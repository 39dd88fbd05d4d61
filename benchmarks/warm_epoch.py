"""Warm shuffled epochs and random access: rows in MDS against the same rows through LanceStream.

Both sides are the stock ``StreamingDataset``, iterated in one process without DataLoader workers,
identity collate, every default but the shuffle. The page cache is warm and the cache directory
full: what is compared is reading samples, not fetching them.

Each round measures both sides, one after the other, each in a fresh process. On a shared machine
single rates move by tens of percent; the median of the ratios inside rounds moves far less. Every
process checks what it read, so that a fast wrong reader fails instead of winning.

    python benchmarks/warm_epoch.py [--rows N] [--rounds N] [--seconds S] [--directory DIR]
                                    [--shard-rows N] [--cache-limit SIZE]

Ends with status 1 if a goal is missed.
"""

from __future__ import annotations

import argparse
import array
import statistics
import sys
import tempfile
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import shape_m

GOALS = {"epoch": 2.0, "random": 5.0}
SIDES = ("mds", "lance")

_BATCH_SIZE = 64
_SHUFFLE_SEED = 9_176
# Every so many rows one is kept and compared with what was written, outside the clock.
_KEEP_EVERY = 499


def write_mds(directory: str, num_rows: int, shard_rows: int) -> None:
    """Task: the rows as MDS, with as many rows in a shard as the Lance side."""
    from streaming import MDSWriter

    columns = {"i": "int", "b": "bytes", "s": "str", "v": "ndarray:float32:128"}
    with MDSWriter(out=directory, columns=columns, size_limit=None) as writer:
        for i in range(num_rows):
            if i and i % shard_rows == 0:
                writer.flush_shard()
                writer._reset_cache()
            writer.write(shape_m.row(i))


def write_lance(uri: str, num_rows: int) -> None:
    """Task: the rows as a Lance table of several fragments."""
    shape_m.write_lance(uri, num_rows, 10_000)


def fill(directory: str, rows: int, **setting: Any) -> None:
    """Task: one epoch, after which the cache directory is full."""
    dataset = _dataset(directory, **setting)
    _check_ids([sample["i"] for sample in dataset], rows, complete=True)


def measure(
    directory: str, rows: int, seconds: float, seed: int, **setting: Any
) -> dict[str, float]:
    """Task: rates of random access and of shuffled epochs, and the memory it took."""
    _warm_page_cache(directory)
    dataset = _dataset(directory, **setting)
    result = {
        "random": _random_access(dataset, rows, seconds, seed),
        "epoch": _epochs(dataset, rows, seconds),
    }
    shape_m.require("lance" not in sys.modules, "the measuring process imported lance")
    return {**result, **_memory(), "shards": len(dataset.shards)}


def _dataset(directory: str, side: str, shard_rows: int, cache_limit: str | None) -> Any:
    from streaming import Stream, StreamingDataset

    if side == "mds":
        stream = Stream(local=f"{directory}/mds")
    else:
        from lance_stream import LanceStream

        stream = LanceStream(
            f"{directory}/table.lance", local=f"{directory}/cache", shard_rows=shard_rows
        )
    return StreamingDataset(
        streams=[stream],
        batch_size=_BATCH_SIZE,
        cache_limit=cache_limit,
        shuffle=True,
        shuffle_seed=_SHUFFLE_SEED,
    )


def _warm_page_cache(directory: str) -> None:
    for path in [*Path(directory, "mds").iterdir(), *Path(directory, "cache").iterdir()]:
        path.read_bytes()


def _random_access(dataset: Any, rows: int, seconds: float, seed: int) -> float:
    """Samples per second of ``dataset[i]``, i uniform over all rows."""
    chosen = np.random.default_rng(seed).integers(rows, size=1_000 * _KEEP_EVERY).tolist()
    sample = dataset[0]
    for i in np.cumsum([0, *(shard.samples for shard in dataset.shards[:-1])]).tolist():
        shape_m.check(dataset[i])
    kept: list[dict[str, Any]] = []
    ids, at = array.array("q"), 0
    started = time.perf_counter()
    stop = started + seconds
    while time.perf_counter() < stop:
        for i in chosen[at : at + _KEEP_EVERY]:
            sample = dataset[i]
            ids.append(sample["i"])
        kept.append(sample)
        at = (at + _KEEP_EVERY) % len(chosen)
    elapsed = time.perf_counter() - started
    right = np.array_equal(ids, np.resize(chosen, len(ids)))
    shape_m.require(right, "dataset[i] gave another row than i")
    _check_contents(kept)
    return len(ids) / elapsed


def _epochs(dataset: Any, rows: int, seconds: float) -> float:
    """Samples per second after the first batch of each epoch."""
    kept: list[dict[str, Any]] = []
    count, elapsed = 0, 0.0
    while elapsed < seconds:
        samples = iter(dataset)
        ids = array.array("q", [next(samples)["i"] for _ in range(_BATCH_SIZE)])
        complete = False
        started = time.perf_counter()
        stop = started + seconds - elapsed
        for sample in samples:
            ids.append(sample["i"])
            if not len(ids) % _KEEP_EVERY:
                kept.append(sample)
                if time.perf_counter() > stop:
                    break
        else:
            complete = True
        elapsed += time.perf_counter() - started
        count += len(ids) - _BATCH_SIZE
        _check_ids(ids.tolist(), rows, complete=complete)
    _check_contents(kept)
    return count / elapsed


def _check_ids(ids: list[int], rows: int, *, complete: bool) -> None:
    """See that an epoch was shuffled, gave no row twice and, if complete, every row."""
    shape_m.require(len(set(ids)) == len(ids), "a row came twice in an epoch")
    shape_m.require(ids != sorted(ids), "the rows were not shuffled")
    if complete:
        same = sorted(ids) == list(range(rows))
        shape_m.require(same, f"an epoch gave {len(ids)} rows, and not each of {rows} once")


def _check_contents(samples: Iterable[Mapping[str, Any]]) -> None:
    for sample in samples:
        shape_m.check(sample)


def _memory() -> dict[str, float]:
    """Peak resident and current anonymous memory of this process, in MB."""
    fields = dict(
        line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines()
    )
    return {name: int(fields[name].split()[0]) / 1024 for name in ("VmHWM", "RssAnon")}


def _prepare(directory: str, options: argparse.Namespace) -> None:
    """Write both data sets, unless an earlier run with --directory did; fill the cache."""
    written, rows = Path(directory, "written"), {"num_rows": options.rows}
    if not written.exists():
        table = {"uri": f"{directory}/table.lance", **rows}
        shape_m.run_child(__file__, "write_lance", table)
        mds = {"directory": f"{directory}/mds", "shard_rows": options.shard_rows, **rows}
        shape_m.run_child(__file__, "write_mds", mds)
        written.touch()
    for side in SIDES:
        shape_m.run_child(__file__, "fill", _setting(directory, side, options))


def _setting(directory: str, side: str, options: argparse.Namespace) -> dict[str, Any]:
    return {
        "directory": directory,
        "side": side,
        "rows": options.rows,
        "shard_rows": options.shard_rows,
        "cache_limit": options.cache_limit,
    }


def _run(directory: str, options: argparse.Namespace) -> bool:
    """All rounds; whether the goals were reached."""
    print(f"{options.rows} rows of shape M in {directory}; {shape_m.versions()}", flush=True)
    _prepare(directory, options)
    results: dict[str, list[dict[str, float]]] = {side: [] for side in SIDES}
    for number in range(options.rounds):
        for side in SIDES:
            clock = {"seconds": options.seconds, "seed": shape_m.SEED + number}
            arguments = {**_setting(directory, side, options), **clock}
            results[side].append(shape_m.run_child(__file__, "measure", arguments))
        mds, lance = (results[side][-1] for side in SIDES)
        rates = "; ".join(
            f"{what}: mds {mds[what]:,.0f}/s, lance {lance[what]:,.0f}/s, "
            f"ratio {lance[what] / mds[what]:.2f}"
            for what in GOALS
        )
        print(f"round {number + 1}: {rates}", flush=True)
    for side in SIDES:
        peak = max(r["VmHWM"] for r in results[side])
        anonymous = max(r["RssAnon"] for r in results[side])
        shards = results[side][0]["shards"]
        print(f"{side}: {shards} shards; VmHWM {peak:.0f} MB, anonymous {anonymous:.0f} MB")
    reached = True
    for what, goal in GOALS.items():
        pairs = zip(results["mds"], results["lance"], strict=True)
        ratio = statistics.median(lance[what] / mds[what] for mds, lance in pairs)
        reached = reached and ratio >= goal
        verdict = "reached" if ratio >= goal else "MISSED"
        print(f"{what}: median ratio {ratio:.2f}, goal >= {goal}: {verdict}")
    return reached


def main() -> None:
    shape_m.child_main(
        {"write_mds": write_mds, "write_lance": write_lance, "fill": fill, "measure": measure}
    )
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", type=int, default=40_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=4.0, help="clock of one measurement")
    parser.add_argument("--shard-rows", type=int, default=5_000)
    parser.add_argument("--cache-limit", help="of both data sets, such as 1gb; default: none")
    parser.add_argument("--directory", help="keep the data here, for further runs")
    options = parser.parse_args()
    if options.directory:
        directory = Path(options.directory, f"rows-{options.rows}-{options.shard_rows}").resolve()
        directory.mkdir(parents=True, exist_ok=True)
        reached = _run(str(directory), options)
    else:
        with tempfile.TemporaryDirectory(prefix="warm_epoch-") as temporary:
            reached = _run(temporary, options)
    sys.exit(0 if reached else 1)


if __name__ == "__main__":
    main()
