"""Many shards, fragments, streams and rows: what they cost when a dataset is built."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from lance_stream import ShardIndex
from lance_stream.planning.chosen import RowBits
from lance_stream.planning.layout import Layout, shard_stops
from lance_stream.planning.rows import FragmentRows
from lance_stream.planning.selection import Selection
from lance_stream.planning.sizing import RowSize
from tests.support.forked import run_forked
from tests.support.scripts import run_script

_WRITE = """
import sys, lance
import numpy as np
import pyarrow as pa
uri, rows, per_file, count = sys.argv[1], *map(int, sys.argv[2:])
for number in range(count):
    name = uri if count == 1 else f"{uri}{number}.lance"
    lance.write_dataset(pa.table({"i": np.arange(rows)}), name, max_rows_per_file=per_file)
"""

# One side in a process of its own: seconds and megabytes of building a dataset.
_BUILD = """
import json, pickle, sys, time
from streaming import Stream, StreamingDataset
from lance_stream import LanceStream

def resident_mb():
    with open("/proc/self/status") as file:
        return next(int(l.split()[1]) / 1024 for l in file if l.startswith("VmRSS"))

def main():
    side, where, index = sys.argv[1:]
    stream = LanceStream(where, index=index) if side == "lance" else Stream(local=where)
    before, started = resident_mb(), time.perf_counter()
    data = StreamingDataset(streams=[stream], batch_size=8, num_canonical_nodes=1)
    seconds = time.perf_counter() - started
    size = len(pickle.dumps(stream)) if side == "lance" else 0
    print(json.dumps([seconds, resident_mb() - before, data.num_shards, size]))

if __name__ == "__main__":
    main()
"""


def huge_index(rows: int, shard_rows: int, layout: Layout, *, chosen: bool = False) -> ShardIndex:
    """An index of a table that is not there."""
    fragments = FragmentRows.from_counts([(i, 1_000_000) for i in range(rows // 1_000_000)])
    picked = None
    if chosen:
        bits = RowBits(rows)
        bits.bits[:] = 0b00010001
        picked = bits.chosen()
        rows = picked.count
    return ShardIndex(
        uri="s3://bucket/t.lance",
        version=1,
        identity="0123456789abcdef0123456789abcdef",
        selection=Selection(filter="i % 4 = 0" if chosen else None),
        layout=layout,
        schema=pa.schema([("i", pa.int64())]),
        fragments=fragments,
        chosen=picked,
        shard_stops=shard_stops(rows, shard_rows),
        row_size=RowSize(8.0, 0.0, 1000),
    )


@pytest.mark.parametrize("layout", [Layout(), Layout("scattered", 64, 3)], ids=lambda x: x.kind)
def test_an_index_of_a_million_shards(tmp_path: Path, layout: Layout) -> None:
    """Under 100 MB, loaded in under 3 s; a shard is found at once."""
    index = huge_index(1_000_000_000, 1000, layout)
    assert index.num_shards >= 970_000
    path = tmp_path / "x.idx"
    index.save(path)
    assert os.path.getsize(path) < 100_000_000
    started = time.perf_counter()
    loaded = ShardIndex.load(path)
    assert time.perf_counter() - started < 3
    assert loaded.fingerprint == index.fingerprint
    started = time.perf_counter()
    for shard in range(0, loaded.num_shards, 20_000):
        assert sum(map(len, loaded.selected_ranges(shard))) == loaded.shards[shard].rows
    assert time.perf_counter() - started < 3


def test_a_billion_rows_without_memory_for_each(tmp_path: Path) -> None:
    """Unfiltered, rows cost nothing; with a filter an eighth of a byte."""

    def run() -> list[float]:
        def resident_mb() -> float:
            with open("/proc/self/status") as file:
                return next(int(x.split()[1]) / 1024 for x in file if x.startswith("VmHWM"))

        Path("/proc/self/clear_refs").write_text("5")
        before = resident_mb()
        plain = huge_index(1_000_000_000, 100_000, Layout("scattered", 64, 3))
        assert len(plain.table_rows(7)) > 90_000
        between = resident_mb()
        filtered = huge_index(1_000_000_000, 100_000, Layout(), chosen=True)
        assert filtered.num_rows == 250_000_000
        rows = filtered.table_rows(1234)
        assert isinstance(rows, np.ndarray)
        assert rows[:3].tolist() == [493_600_000, 493_600_004, 493_600_008]
        return [between - before, resident_mb() - between]

    plain_mb, filtered_mb = run_forked(run)
    assert plain_mb < 60
    # The bits, and what counts them.
    assert filtered_mb < 700


def test_twenty_thousand_fragments(tmp_path: Path) -> None:
    """Planned from the manifest alone, in under 2 s."""
    uri = str(tmp_path / "t.lance")
    run_script(_WRITE, uri, 60_000, 3, 1, timeout_s=100).check()

    def run() -> list[Any]:
        from lance_stream import build_index
        from lance_stream.host.settling import job_endpoint
        from lance_stream.service.holds import Lease

        lease = Lease(job_endpoint())
        said = []
        for more in ({}, {"layout": "scattered", "run_rows": 5}):
            started = time.perf_counter()
            index = build_index(uri, shard_rows=100, **more)
            said.append([time.perf_counter() - started, index.num_rows, index.num_shards])
        lease.close()
        return said

    for seconds, rows, shards in run_forked(run):
        assert (rows, shards) == (60_000, 600)
        assert seconds < 2


@pytest.mark.parametrize("count", [20, pytest.param(200, marks=pytest.mark.slow)])
def test_many_streams_in_one_dataset(tmp_path: Path, count: int) -> None:
    """One download process for all of them; built in under 20 s; every row of each."""
    uri = str(tmp_path / "t")
    run_script(_WRITE, uri, 100, 100, 20).check()

    def run() -> list[Any]:
        from streaming import StreamingDataset

        from lance_stream import LanceStream

        started = time.perf_counter()
        streams = [
            LanceStream(
                f"{uri}{i % 20}.lance", filter=f"i <> {i % 100}", local=str(tmp_path / f"c{i}")
            )
            for i in range(count)
        ]
        data = StreamingDataset(streams=streams, batch_size=8, num_canonical_nodes=1)
        seconds = time.perf_counter() - started
        rows = sum(1 for _ in data)
        return [seconds, rows, len({stream.download_process_pid for stream in streams})]

    seconds, rows, processes = run_forked(run, timeout_s=110)
    assert (rows, processes) == (count * 99, 1)
    assert seconds < 20


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_many_shards_against_as_many_of_mds(tmp_path: Path) -> None:
    """Far below the host's time for MDS shards, and a third of its memory.

    How far is measured by benchmarks/scale.py; here another job may have the second core.
    """
    shards = 200_000
    uri, index, mds = str(tmp_path / "t.lance"), str(tmp_path / "t.idx"), tmp_path / "mds"
    run_script(_WRITE, uri, shards, 100_000, 1).check()

    def build() -> None:
        from lance_stream import build_index

        build_index(uri, shard_rows=1).save(index)

    run_forked(build)
    mds.mkdir()
    entry = {
        "column_encodings": ["int64"],
        "column_names": ["i"],
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
        {**entry, "raw_data": {"basename": f"shard.{i:06}.mds", "bytes": 100, "hashes": {}}}
        for i in range(shards)
    ]
    (mds / "index.json").write_text(json.dumps({"shards": entries, "version": 2}))
    theirs = run_script(_BUILD, "mds", mds, "", timeout_s=300).json()
    ours = run_script(_BUILD, "lance", uri, index, timeout_s=300).json()
    assert ours[2] == theirs[2] == shards
    assert ours[0] <= theirs[0] / 2
    assert ours[1] <= theirs[1] / 3
    # Whatever the number of shards.
    assert ours[3] < 6000
