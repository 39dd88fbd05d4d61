"""Many shards, fragments and streams: what building a dataset costs, against MDS.

Shards: a table of as many rows as shards, one row each, by an index file; and an MDS dataset of
as many shards, of which only ``index.json`` is needed to build a ``StreamingDataset``. Each round
builds both, one after the other, in fresh processes; the ratios inside rounds count. Memory is
what is resident after building, over what it was before.

Then, without comparison: the size of an index of a million shards and the time to load it; a table
of 20,000 fragments planned; 200 streams in one dataset.

    python benchmarks/scale.py [--shards N] [--rounds N] [--fragments N] [--streams N]

Ends with status 1 if a goal is missed.
"""

from __future__ import annotations

import argparse
import json
import os
import pickle
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import shape_m

TIME_GOAL = 5.0
MEMORY_GOAL = 3.0
INDEX_BYTES_GOAL = 100e6
LOAD_GOAL_S = 3.0
FRAGMENTS_GOAL_S = 2.0
STREAMS_GOAL_S = 20.0

_MILLION = 1_000_000
_STREAM_ROWS = 100


def write_table(uri: str, rows: int, per_fragment: int, count: int = 1) -> None:
    """Task: tables ``uri``, or ``uri`` and a number, of one column."""
    import lance

    for number in range(count):
        lance.write_dataset(
            pa.table({"id": np.arange(rows)}),
            uri if count == 1 else f"{uri}{number}.lance",
            max_rows_per_file=per_fragment,
        )


def write_mds(directory: str, shards: int) -> None:
    """Task: the index of an MDS dataset of one column and one row per shard."""
    Path(directory).mkdir(parents=True)
    shared = {
        "column_encodings": ["int64"],
        "column_names": ["id"],
        "column_sizes": [8],
        "compression": None,
        "format": "mds",
        "hashes": [],
        "samples": 1,
        "size_limit": 1 << 26,
        "version": 2,
        "zip_data": None,
    }
    entries = [
        {
            **shared,
            "raw_data": {"basename": f"shard.{i:07}.mds", "bytes": 100, "hashes": {}},
        }
        for i in range(shards)
    ]
    Path(directory, "index.json").write_text(json.dumps({"shards": entries, "version": 2}))


def make_index(uri: str, path: str) -> dict[str, float]:
    """Task: plan a row per shard, save and load the index."""
    from lance_stream import ShardIndex, build_index

    started = time.perf_counter()
    index = build_index(uri, shard_rows=1)
    planned = time.perf_counter()
    index.save(path)
    saved = time.perf_counter()
    loaded = ShardIndex.load(path)
    shape_m.require(loaded.fingerprint == index.fingerprint, "another index was loaded")
    shape_m.require(loaded.num_shards == index.num_rows, "not a row per shard")
    started_loading = time.perf_counter()
    ShardIndex.load(path)
    return {
        "plan_s": planned - started,
        "save_s": saved - planned,
        "load_s": time.perf_counter() - started_loading,
        "bytes": os.path.getsize(path),
    }


def build(side: str, where: str, index: str, shards: int) -> dict[str, float]:
    """Task: build a dataset; seconds, megabytes and the size of a pickled stream."""
    from streaming import Stream, StreamingDataset

    if side == "lance":
        from lance_stream import LanceStream

        stream = LanceStream(where, index=index, local=f"{where}.cache")
    else:
        stream = Stream(local=where)
    before, started = _resident_mb(), time.perf_counter()
    data = StreamingDataset(streams=[stream], batch_size=8, num_canonical_nodes=1)
    seconds = time.perf_counter() - started
    shape_m.require(data.num_shards == shards, f"{data.num_shards} shards")
    return {
        "seconds": seconds,
        "mb": _resident_mb() - before,
        "pickle_bytes": len(pickle.dumps(stream)) if side == "lance" else 0,
    }


def plan_fragments(uri: str) -> dict[str, float]:
    """Task: plan tables of many fragments; the second time, with the process at hand."""
    from lance_stream import build_index
    from lance_stream.host.settling import job_endpoint
    from lance_stream.service.holds import Lease

    lease = Lease(job_endpoint())
    seconds = {}
    ways: dict[str, dict[str, Any]] = {
        "contiguous": {},
        "scattered": {"layout": "scattered", "run_rows": 4},
        "filter": {"filter": "id % 2 = 0"},
    }
    for name, more in ways.items():
        started = time.perf_counter()
        build_index(uri, shard_rows=100, **more)
        seconds[name] = time.perf_counter() - started
    lease.close()
    return seconds


def build_streams(uri: str, count: int, directory: str) -> dict[str, float]:
    """Task: a dataset of many streams; seconds to build it and to read it once."""
    import psutil
    from streaming import StreamingDataset

    from lance_stream import LanceStream

    started = time.perf_counter()
    streams = [
        LanceStream(f"{uri}{i % 20}.lance", filter=f"id <> {i % 100}", local=f"{directory}/{i}")
        for i in range(count)
    ]
    data = StreamingDataset(streams=streams, batch_size=8, num_canonical_nodes=1)
    built = time.perf_counter()
    rows = sum(1 for _ in data)
    read = time.perf_counter()
    shape_m.require(rows == count * (_STREAM_ROWS - 1), f"{rows} rows came")
    pids = {stream.download_process_pid for stream in streams}
    shape_m.require(len(pids) == 1, f"{len(pids)} download processes")
    memory = psutil.Process(pids.pop()).memory_info().rss / 1e6
    return {"build_s": built - started, "read_s": read - built, "download_process_mb": memory}


def _resident_mb() -> float:
    fields = dict(
        line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines()
    )
    return int(fields["VmRSS"].split()[0]) * 1024 / 1e6


def _compare(directory: str, shards: int, rounds: int) -> bool:
    table, index, mds = f"{directory}/t.lance", f"{directory}/t.idx", f"{directory}/mds"
    shape_m.run_child(
        __file__, "write_table", {"uri": table, "rows": shards, "per_fragment": 100_000}
    )
    shape_m.run_child(__file__, "write_mds", {"directory": mds, "shards": shards})
    shape_m.run_child(__file__, "make_index", {"uri": table, "path": index})
    ratios: dict[str, list[float]] = {"seconds": [], "mb": []}
    for number in range(rounds):
        found = {}
        for side, where in (("mds", mds), ("lance", table)):
            arguments = {"side": side, "where": where, "index": index, "shards": shards}
            found[side] = shape_m.run_child(__file__, "build", arguments)
        for what, values in ratios.items():
            values.append(found["mds"][what] / max(found["lance"][what], 1e-9))
        print(
            f"round {number + 1}, {shards:,} shards: "
            + "; ".join(
                f"{side} {found[side]['seconds']:.2f} s, {found[side]['mb']:.0f} MB"
                for side in ("mds", "lance")
            )
            + f"; a pickled stream {found['lance']['pickle_bytes']:,} bytes",
            flush=True,
        )
    reached = _judge("time, MDS over Lance", statistics.median(ratios["seconds"]), TIME_GOAL)
    return _judge("memory, MDS over Lance", statistics.median(ratios["mb"]), MEMORY_GOAL) & reached


def _alone(directory: str, fragments: int, streams: int) -> bool:
    table = {"uri": f"{directory}/million.lance", "rows": _MILLION, "per_fragment": 100_000}
    shape_m.run_child(__file__, "write_table", table)
    made = shape_m.run_child(
        __file__, "make_index", {"uri": table["uri"], "path": f"{directory}/million.idx"}
    )
    print(
        f"index of {_MILLION:,} shards: planned in {made['plan_s']:.2f} s, saved in "
        f"{made['save_s']:.2f} s, {made['bytes'] / 1e6:.1f} MB, loaded in {made['load_s']:.3f} s"
    )
    reached = made["bytes"] < INDEX_BYTES_GOAL and made["load_s"] < LOAD_GOAL_S
    table = {"uri": f"{directory}/fragments.lance", "rows": 3 * fragments, "per_fragment": 3}
    shape_m.run_child(__file__, "write_table", table)
    seconds = shape_m.run_child(__file__, "plan_fragments", {"uri": table["uri"]})
    words = ", ".join(f"{name} {value:.2f} s" for name, value in seconds.items())
    print(f"{fragments:,} fragments planned: {words}")
    reached &= max(seconds["contiguous"], seconds["scattered"]) < FRAGMENTS_GOAL_S
    many = {
        "uri": f"{directory}/many",
        "rows": _STREAM_ROWS,
        "per_fragment": _STREAM_ROWS,
        "count": 20,
    }
    shape_m.run_child(__file__, "write_table", many)
    built = shape_m.run_child(
        __file__,
        "build_streams",
        {"uri": many["uri"], "count": streams, "directory": f"{directory}/caches"},
    )
    print(
        f"{streams} streams: built in {built['build_s']:.1f} s, read in {built['read_s']:.1f} s, "
        f"one download process of {built['download_process_mb']:.0f} MB"
    )
    reached &= built["build_s"] < STREAMS_GOAL_S
    print(f"sizes and times: {'reached' if reached else 'MISSED'}")
    return reached


def _judge(what: str, ratio: float, goal: float) -> bool:
    reached = ratio >= goal
    print(
        f"{what}: median ratio {ratio:.1f}, goal >= {goal}: {'reached' if reached else 'MISSED'}"
    )
    return reached


def main() -> None:
    tasks = (write_table, write_mds, make_index, build, plan_fragments, build_streams)
    shape_m.child_main({task.__name__: task for task in tasks})
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--shards", type=int, default=_MILLION, help="of each side")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--fragments", type=int, default=20_000)
    parser.add_argument("--streams", type=int, default=200)
    options = parser.parse_args()
    print(shape_m.versions())
    with tempfile.TemporaryDirectory(prefix="scale-") as directory:
        reached = _compare(directory, options.shards, options.rounds)
        reached &= _alone(directory, options.fragments, options.streams)
    sys.exit(0 if reached else 1)


if __name__ == "__main__":
    main()
