"""Warm shuffled epochs: ``LanceStreamingDataset`` against the stock class over MDS.

Both have the same rows and shards.

One process or two DataLoader workers; samples as dicts, torch's default collate, or whole batches.
The page cache is warm and the cache directory full. Every measurement is a fresh process; a round
measures all sides one after the other, and what counts is the median of the ratios inside rounds.

    python benchmarks/streaming_dataset.py [--shapes S,M,T,L] [--rounds N] [--seconds S]
                                           [--modes dict,collate,...] [--peers litdata,hf,...]
                                           [--filelock DIR] [--directory DIR]

Modes (the peer in brackets): ``dict`` (stock), ``zero_copy`` (stock), ``collate`` (stock),
``batched`` (stock with default collate), ``workers`` (stock; and a DataLoader that gives constant
samples of the shape, the ceiling), ``batched_workers`` (stock with default collate).

Beside ``dict`` the stock class is also shown with ``predownload=8192``, as our class has it, and,
with ``--filelock``, with another version of filelock, which bounds the stock class (``pip install
--target DIR filelock==3.16.1``). ``--peers``: other loaders, of the extra ``bench``; see peers.py.
Ends with status 1 if a goal is missed.
"""

from __future__ import annotations

import argparse
import itertools
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import peers
import shape_m
import shapes

_BATCH_SIZE = 64
_CONSTANT_SAMPLES = 1024

# By mode and shape: at least so many times the peer.
GOALS: dict[str, dict[str, float]] = {
    "dict": {"S": 20, "M": 20, "T": 30, "L": 8},
    "zero_copy": {"T": 60},
    "collate": {"S": 15, "M": 15, "T": 15},
    "batched": {"S": 25, "M": 25, "T": 25},
    "workers": {"S": 1, "M": 1, "T": 1, "L": 1},
    "batched_workers": {"S": 40, "M": 12, "T": 6},
}
# What a mode is compared with.
PEERS = {
    "dict": "stock_dict",
    "zero_copy": "stock_dict",
    "collate": "stock_collate",
    "batched": "stock_collate",
    "workers": "stock_workers",
    "batched_workers": "stock_collate_workers",
}
CEILING_SHARE = 0.6
# Other loaders: the mode that is compared with each, and by shape how many times faster it is.
PEER_GOALS: dict[str, tuple[str, dict[str, float]]] = {
    "litdata": ("dict", {"S": 1.5, "M": 1.5, "T": 1.5, "L": 1.5}),
    "hf": ("dict", {"L": 1}),
    "lance": ("batched", {"S": 1, "M": 1, "T": 1}),
    "lancedb": ("dict", {"M": 10}),
}
_STOCK_PREDOWNLOAD = "stock_dict_predownload_8192"
_STOCK_FILELOCK = "stock_dict_filelock"


def measure(directory: str, shape: str, side: str, seconds: float, path: str = "") -> float:
    """Task: samples per second after the first batch, over as many epochs as fit."""
    if path:
        sys.path.insert(0, path)
    _warm(directory, shape, side)
    count, elapsed = 0, 0.0
    loader, per_item = _loader(directory, shape, side)
    while elapsed < seconds:
        items = iter(loader)
        for _ in range(1 if per_item > 1 else _BATCH_SIZE):
            next(items)
        started = time.perf_counter()
        stop = started + seconds - elapsed
        number = 0
        for number, _item in enumerate(items, 1):
            if number % 16 == 0 and time.perf_counter() > stop:
                break
        elapsed += time.perf_counter() - started
        count += number * per_item
        del items
    if side not in peers.PEERS:
        shape_m.require("lance" not in sys.modules, "the measuring process imported lance")
    return count / elapsed


def _loader(directory: str, shape: str, side: str) -> tuple[Any, int]:
    """What is iterated, and how many samples an item is."""
    from torch.utils.data import DataLoader

    if side in peers.PEERS:
        return peers.loader(directory, shape, side, _BATCH_SIZE)
    workers = {"num_workers": 2, "persistent_workers": True}
    if side == "constant_workers":
        samples = _constant(directory, shape)
        return DataLoader(samples, _BATCH_SIZE, collate_fn=list, **workers), _BATCH_SIZE
    batched = side.startswith("batched")
    data = dataset(directory, shape, side, batched=batched)
    if side in ("dict", "zero_copy") or side.startswith("stock_dict"):
        return data, 1
    if side == "batched":
        return data, _BATCH_SIZE
    if side == "batched_workers":
        return DataLoader(data, batch_size=None, **workers), _BATCH_SIZE
    if side in ("workers", "stock_workers"):
        return DataLoader(data, _BATCH_SIZE, collate_fn=list, **workers), _BATCH_SIZE
    if side == "stock_collate_workers":
        return DataLoader(data, _BATCH_SIZE, **workers), _BATCH_SIZE
    return DataLoader(data, _BATCH_SIZE), _BATCH_SIZE


def dataset(directory: str, shape: str, side: str, *, batched: bool = False) -> Any:
    """The dataset of a side, over the rows of a shape."""
    from streaming import Stream, StreamingDataset

    common: dict[str, Any] = {"batch_size": _BATCH_SIZE, "shuffle": True}
    if side.startswith("stock"):
        stream = Stream(local=f"{directory}/{shape}.mds")
        if side == _STOCK_PREDOWNLOAD:
            common["predownload"] = 8192
        return StreamingDataset(streams=[stream], **common)
    from lance_stream import LanceStream, LanceStreamingDataset

    ours = LanceStream(
        f"{directory}/{shape}.lance",
        local=f"{directory}/{shape}.cache",
        shard_rows=shapes.SHAPES[shape].shard_rows,
        zero_copy=side == "zero_copy",
    )
    return LanceStreamingDataset(streams=[ours], batched=batched, **common)


def _constant(directory: str, shape: str) -> Any:
    """Samples that cost nothing: what a DataLoader itself can do. Distinct, or pickle cheats."""
    from torch.utils.data import IterableDataset

    samples = list(itertools.islice(dataset(directory, shape, "dict"), _CONSTANT_SAMPLES))

    class Constant(IterableDataset[Any]):
        def __iter__(self) -> Iterator[Any]:
            return itertools.cycle(samples)

    return Constant()


def _warm(directory: str, shape: str, side: str) -> None:
    kind = "mds" if side.startswith("stock") else "cache"
    if side in peers.PEERS:
        kind = "lance" if side == "lancedb" else side
    for path in Path(directory, f"{shape}.{kind}").rglob("*"):
        if path.is_file():
            path.read_bytes()


def fill(directory: str, shape: str) -> None:
    """Task: one epoch of each side, which fills the cache, in the same order and complete."""
    ours = [sample["i"] for sample in dataset(directory, shape, "dict")]
    stock = [int(sample["i"]) for sample in dataset(directory, shape, "stock_dict")]
    shape_m.require(ours == stock, "another order of samples than the stock class")
    rows = shapes.SHAPES[shape].rows
    shape_m.require(sorted(ours) == list(range(rows)), "not every row once")


def _prepare(directory: str, names: list[str]) -> None:
    for name in names:
        done = shapes.written(directory, name)
        if not done.exists():
            shape_m.run_child(__file__, "write_lance", {"directory": directory, "name": name})
            shape_m.run_child(__file__, "write_mds", {"directory": directory, "name": name})
            done.touch()
        shape_m.run_child(__file__, "fill", {"directory": directory, "shape": name})


def _run(directory: str, options: argparse.Namespace) -> bool:
    names, modes = options.shapes.split(","), options.modes.split(",")
    others = [peer for peer in options.peers.split(",") if peer]
    print(f"shapes {names} in {directory}; {shape_m.versions()}", flush=True)
    if others:
        print(f"peers: {peers.versions()}", flush=True)
    _prepare(directory, names)
    reached = True
    for name in names:
        wanted = [mode for mode in modes if name in GOALS[mode]]
        rivals = [peer for peer in others if name in PEER_GOALS[peer][1]]
        for peer in rivals:
            task = {"directory": directory, "name": name, "peer": peer}
            shape_m.run_child(__file__, "write_peer", task)
        rates = _rounds(directory, name, wanted, rivals, options)
        for side, found in rates.items():
            print(f"{name} {side}: {statistics.median(found):,.0f} samples/s", flush=True)
        for mode in wanted:
            ratio = _ratio(rates[mode], rates[PEERS[mode]])
            reached &= _verdict(f"{name} {mode}", ratio, GOALS[mode][name], PEERS[mode])
        if "workers" in wanted:
            share = _ratio(rates["workers"], rates["constant_workers"])
            reached &= _verdict(f"{name} workers", share, CEILING_SHARE, "constant samples")
        for peer in rivals:
            mode, goals = PEER_GOALS[peer]
            ratio = _ratio(rates[mode], rates[peer])
            reached &= _verdict(f"{name} {mode}", ratio, goals[name], peer)
    return reached


def _rounds(
    directory: str, name: str, modes: list[str], rivals: list[str], options: argparse.Namespace
) -> dict[str, list[float]]:
    """Samples per second of every side in every round."""
    wanted = {*modes, *(PEERS[mode] for mode in modes)}
    wanted |= {*rivals, *(PEER_GOALS[peer][0] for peer in rivals)}
    if "dict" in modes:
        wanted |= {_STOCK_PREDOWNLOAD, *([_STOCK_FILELOCK] if options.filelock else [])}
    if "workers" in modes:
        wanted.add("constant_workers")
    rates: dict[str, list[float]] = {side: [] for side in sorted(wanted)}
    for _ in range(options.rounds):
        for side, found in rates.items():
            arguments = {"directory": directory, "shape": name, "side": side}
            arguments["seconds"] = options.seconds
            if side == _STOCK_FILELOCK:
                arguments["path"] = os.path.abspath(options.filelock)
            found.append(shape_m.run_child(__file__, "measure", arguments))
    return rates


def _ratio(ours: list[float], theirs: list[float]) -> float:
    return statistics.median(a / b for a, b in zip(ours, theirs, strict=True))


def _verdict(what: str, ratio: float, goal: float, peer: str) -> bool:
    verdict = "reached" if ratio >= goal else "MISSED"
    print(f"{what}: median ratio to {peer} {ratio:.2f}, goal >= {goal}: {verdict}", flush=True)
    return ratio >= goal


def main() -> None:
    shape_m.child_main(
        {
            "write_lance": shapes.write_lance,
            "write_mds": shapes.write_mds,
            "write_peer": peers.write,
            "fill": fill,
            "measure": measure,
        }
    )
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--shapes", default="S,M,T,L")
    parser.add_argument("--modes", default=",".join(GOALS))
    parser.add_argument("--peers", default="", help="of " + ",".join(peers.PEERS))
    parser.add_argument("--filelock", help="directory with another filelock")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=4.0, help="clock of one measurement")
    parser.add_argument("--directory", help="keep the data here, for further runs")
    options = parser.parse_args()
    if options.directory:
        Path(options.directory).mkdir(parents=True, exist_ok=True)
        reached = _run(str(Path(options.directory).resolve()), options)
    else:
        with tempfile.TemporaryDirectory(prefix="streaming_dataset-") as temporary:
            reached = _run(temporary, options)
    sys.exit(0 if reached else 1)


if __name__ == "__main__":
    main()
