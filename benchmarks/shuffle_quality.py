"""How well a table that is sorted by label is shuffled, and what that costs to read.

Rows of shape M with a label, 100 labels one after the other, are streamed through the stock
``StreamingDataset`` in the contiguous layout and in scattered ones of several run lengths. Shards
have one label's rows, and a shuffle block four shards: the table is much larger than what the host
mixes at a time, as large tables are. Judged are batches: the entropy of their labels, in bits,
against that of batches of a true global shuffle. Beside it the price: requests and bytes per
shard, as Lance counts them, and the speed of reading all shards once, four at a time.

    python benchmarks/shuffle_quality.py [--rows N] [--plot FILE.png] [--endpoint URL --bucket B]

Prints a table in Markdown. The plot needs matplotlib. With ``--endpoint``, on an S3 server
instead; credentials come from AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY. Everything written
there is removed. Ends with status 1 if a goal is missed.
"""

from __future__ import annotations

import argparse
import math
import os
import secrets
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import shape_m
from numpy.typing import NDArray

# Entropy of the default scattered layout, as a share of that of a true shuffle.
GOAL = 0.8
RUNS = (256, 64, 16, 4, 1)
GLOBAL = "global shuffle"

_LABELS = 100
_BATCH_SIZE = 256
_BLOCK_SHARDS = 4
_FRAGMENTS = 10
_READ_AHEAD = 4
_DEFAULT_RUN = 64


def _batches(rows: int) -> Iterator[pa.RecordBatch]:
    """Rows of shape M, with their label."""
    for batch in shape_m.batches(rows):
        labels = batch["i"].to_numpy() * _LABELS // rows
        yield batch.append_column("label", pa.array(labels.astype(np.int32)))


def write(uri: str, rows: int, options: dict[str, str] | None) -> None:
    """Task: write the table, sorted by label."""
    import lance

    schema = shape_m.SCHEMA.append(pa.field("label", pa.int32()))
    reader = pa.RecordBatchReader.from_batches(schema, _batches(rows))
    lance.write_dataset(
        reader, uri, max_rows_per_file=-(-rows // _FRAGMENTS), storage_options=options
    )


def drop(uri: str, options: dict[str, str] | None) -> None:
    """Task: remove the table and all its files."""
    import lance

    lance.LanceDataset.drop(uri, storage_options=options)


def labels_of(
    uri: str, rows: int, layout: dict[str, Any], options: dict[str, str] | None, directory: str
) -> list[int]:
    """Task: labels in the order in which a shuffled epoch gives them."""
    from streaming import StreamingDataset

    from lance_stream import LanceStream

    shard_rows = rows // _LABELS
    stream = LanceStream(
        uri,
        columns=["label"],
        shard_rows=shard_rows,
        storage_options=options,
        local=directory,
        **layout,
    )
    data = StreamingDataset(
        streams=[stream],
        batch_size=_BATCH_SIZE,
        shuffle=True,
        shuffle_seed=shape_m.SEED,
        shuffle_block_size=_BLOCK_SHARDS * shard_rows,
        num_canonical_nodes=1,
    )
    found = [int(sample["label"]) for sample in data]
    counts = np.bincount(found, minlength=_LABELS)
    shape_m.require(bool((counts == rows // _LABELS).all()), "not every row came once")
    return found


def read_all(
    uri: str, rows: int, layout: dict[str, Any], options: dict[str, str] | None
) -> dict[str, float]:
    """Task: read every shard once, all columns; requests, bytes and speed."""
    from lance_stream.planning.layout import Layout
    from lance_stream.planning.selection import Selection
    from lance_stream.service.indexing import Order, make_index, no_news
    from lance_stream.source.table import Table, TableAddress

    table = Table(TableAddress(uri, None, 60.0), options or {})
    selection = Selection()
    kind = layout.get("layout", "contiguous")
    order = Order(selection, Layout(kind, layout.get("run_rows", 64)), rows // _LABELS, 1)
    index = make_index(uri, table, order, uri, no_news)

    def read(shard: int) -> int:
        wanted = index.table_rows(shard)
        found = table.read(index.fragments, wanted, selection, index.row_size.mean_bytes)
        shape_m.require(found.num_rows == len(index.shard_rows(shard)), "a shard is short")
        return found.nbytes

    for shard in range(min(index.num_shards, _FRAGMENTS)):
        read(shard)  # footers, which are read once
    table.dataset.io_stats_incremental()
    started = time.perf_counter()
    with ThreadPoolExecutor(_READ_AHEAD) as pool:
        total = sum(pool.map(read, range(index.num_shards)))
    seconds = time.perf_counter() - started
    stats = table.dataset.io_stats_incremental()
    return {
        "requests": stats.read_iops / index.num_shards,
        "amplification": stats.read_bytes / total,
        "mb_per_s": total / seconds / 1e6,
    }


def entropies(labels: list[int]) -> NDArray[np.float64]:
    """Bits of the labels of each whole batch."""
    batches = np.array(labels[: len(labels) // _BATCH_SIZE * _BATCH_SIZE]).reshape(-1, _BATCH_SIZE)
    found = []
    for batch in batches:
        counts = np.bincount(batch, minlength=_LABELS)
        shares = counts[counts > 0] / _BATCH_SIZE
        found.append(float(-(shares * np.log2(shares)).sum()))
    return np.array(found)


def _plot(path: str, found: dict[str, NDArray[np.float64]], price: dict[str, Any]) -> None:
    import matplotlib as mpl

    mpl.use("agg")
    from matplotlib import pyplot as plt

    figure, (left, right) = plt.subplots(1, 2, figsize=(11, 4.8), constrained_layout=True)
    for name, bits in found.items():
        style = {"color": "black", "linewidth": 2} if name == GLOBAL else {}
        left.plot(np.sort(bits), np.linspace(0, 1, len(bits)), label=name, **style)
    left.set_xlabel(f"entropy of the labels of a batch of {_BATCH_SIZE} (bits)")
    left.set_ylabel("share of batches below")
    figure.legend(loc="outside lower center", ncols=4, fontsize=8)
    for name, cost in price.items():
        at = (cost["requests"], float(found[name].mean()))
        right.scatter(*at)
        short = name.removeprefix("scattered, ")
        right.annotate(
            short, at, textcoords="offset points", xytext=(0, -14), ha="center", fontsize=8
        )
    right.axhline(float(found[GLOBAL].mean()), color="black", linewidth=1)
    right.set_xscale("log")
    right.margins(x=0.15, y=0.12)
    right.set_xlabel("requests per shard")
    right.set_ylabel("mean entropy (bits)")
    figure.suptitle("A table sorted by label, shuffled by shards: what the layout gives and costs")
    figure.savefig(path, dpi=110)


def _measure(uri: str, rows: int, options: dict[str, str] | None, plot: str | None) -> bool:
    table = {"uri": uri, "rows": rows, "options": options}
    shape_m.run_child(__file__, "write", table)
    layouts: dict[str, dict[str, Any]] = {"contiguous": {}}
    for run in RUNS:
        layouts[f"scattered, run_rows={run}"] = {"layout": "scattered", "run_rows": run}
    found, price = {}, {}
    try:
        for name, layout in layouts.items():
            with tempfile.TemporaryDirectory(prefix="shuffle_quality-") as directory:
                labels = shape_m.run_child(
                    __file__, "labels_of", {**table, "layout": layout, "directory": directory}
                )
            found[name] = entropies(labels)
            price[name] = shape_m.run_child(__file__, "read_all", {**table, "layout": layout})
    finally:
        shape_m.run_child(__file__, "drop", {"uri": uri, "options": options})
    shuffled = np.random.default_rng(shape_m.SEED).permutation(rows) * _LABELS // rows
    found[GLOBAL] = entropies(shuffled.tolist())
    best = float(found[GLOBAL].mean())
    print(
        "\n| layout | entropy of a batch (bits) | of a global shuffle's | requests per shard "
        "| bytes read per byte | MB/s |\n|---|---|---|---|---|---|"
    )
    for name, bits in found.items():
        mean, least = float(bits.mean()), float(bits.min())
        cost = price.get(name)
        words = "| | |"
        if cost is not None:
            words = (
                f"{cost['requests']:,.0f} | {cost['amplification']:.2f} "
                f"| {cost['mb_per_s']:,.0f} |"
            )
        print(f"| {name} | {mean:.2f} (least {least:.2f}) | {mean / best:.0%} | {words}")
    if plot:
        _plot(plot, found, price)
        print(f"\nplot: {plot}")
    share = float(found[f"scattered, run_rows={_DEFAULT_RUN}"].mean()) / best
    reached = share >= GOAL and not math.isnan(share)
    verdict = "reached" if reached else "MISSED"
    print(f"\nrun_rows={_DEFAULT_RUN}: {share:.3f} of a global shuffle's entropy, goal >= {GOAL}: "
          f"{verdict}")  # fmt: skip
    return reached


def main() -> None:
    tasks = (write, drop, labels_of, read_all)
    shape_m.child_main({task.__name__: task for task in tasks})
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", type=int, default=200_000, help=f"a multiple of {_LABELS}")
    parser.add_argument("--plot", help="write a plot to this PNG file")
    parser.add_argument("--endpoint", help="URL of an S3 server")
    parser.add_argument("--bucket", default="lance-stream-benchmarks", help="must exist")
    parser.add_argument("--region", default="us-east-1")
    options = parser.parse_args()
    if options.rows % _LABELS:
        parser.error(f"--rows must be a multiple of {_LABELS}")
    plot = options.plot and str(Path(options.plot).resolve())
    print(f"{options.rows:,} rows; {shape_m.versions()}", flush=True)
    if options.endpoint:
        reached = _measure(
            f"s3://{options.bucket}/shuffle_quality-{secrets.token_hex(4)}.lance",
            options.rows,
            {
                "endpoint": options.endpoint,
                "region": options.region,
                "allow_http": "true",
                "access_key_id": os.environ["AWS_ACCESS_KEY_ID"],
                "secret_access_key": os.environ["AWS_SECRET_ACCESS_KEY"],
            },
            plot,
        )
    else:
        with tempfile.TemporaryDirectory(prefix="shuffle_quality-") as directory:
            reached = _measure(f"{directory}/table.lance", options.rows, None, plot)
    sys.exit(0 if reached else 1)


if __name__ == "__main__":
    main()
