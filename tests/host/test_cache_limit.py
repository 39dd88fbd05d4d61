"""``cache_limit`` holds on disk although the size of a shard is only estimated beforehand.

The bound that is asserted: the files of the cache directory, together with evicted files that some
process still maps, never take more than

    cache_limit + IN_FLIGHT_SHARDS x the largest shard.

Why not the limit itself: the host makes room for what a shard is *expected* to take and counts
what it was *charged*. Beyond that lie, at any one moment,

- files being published: a fetch that runs when its shard is evicted has a file (temporary, or
  renamed and about to be removed) that nobody is charged for. The download process runs up to 16
  fetches, but only those evicted while they run count, and a fetch takes a few milliseconds
  against the 30 ms that a shard stays at least: one or two;
- the difference between charge and size of shards that arrived in the last 20 ms (or since the
  last sample of an idle worker), when estimates are low;
- mappings of evicted shards, which each process drops before its next sample, or after 100 ms if
  it is idle: about one per process that reads.
"""

from __future__ import annotations

import os
import re
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from lance_stream.planning.sizing import RowSize
from tests.support.forked import fork, run_forked
from tests.support.scripts import run_script
from tests.support.streams import batches, cached_files, dataset, disk_bytes

ROWS, SHARD_ROWS, LIMIT_SHARDS = 400, 10, 5
IN_FLIGHT_SHARDS = 4

_SCRIPT = """
import sys, lance, pyarrow as pa
from tests.host.test_cache_limit import ROWS, text
table = pa.table({"i": pa.array(range(ROWS), pa.int64()), "s": [text(i) for i in range(ROWS)]})
lance.write_dataset(table, sys.argv[1], max_rows_per_file=100)
"""

def text(i: int) -> str:
    """A string of 1 to 5,000 letters, always the same for a row."""
    length = 1 + (i * 7919 + 13) % 9973 * 5000 // 9973
    return (f"{i}-" * length)[:length]


@pytest.fixture(scope="module")
def table(tables: Path) -> str:
    """400 rows of very different sizes."""
    uri = str(tables / "uneven-rows.lance")
    run_script(_SCRIPT, uri).check()
    return uri


@pytest.fixture(scope="module")
def sizes(table: str, tmp_path_factory: pytest.TempPathFactory) -> list[int]:
    """True bytes of each shard file."""
    local = tmp_path_factory.mktemp("whole")

    def run() -> list[int]:
        data = dataset(table, shard_rows=SHARD_ROWS, local=str(local))
        assert _texts(batches(data, 0)) == list(range(ROWS))
        files = cached_files(data)
        return [files[name] for name in sorted(files)]

    found = run_forked(run)
    assert len(found) == ROWS // SHARD_ROWS
    assert max(found) > 1.2 * min(found)
    return found


def _texts(loader: Any) -> list[int]:
    """Ids in order, every string checked."""
    seen = []
    for batch in loader:
        for row in batch:
            assert row["s"] == text(row["i"]), row["i"]
            seen.append(row["i"])
    return seen


class DiskSampler(threading.Thread):
    """Looks every 50 ms how much disk a job's cache takes, evicted files that are mapped too."""

    def __init__(self, directory: Path, group: int) -> None:
        """Watch a directory and the processes of a group."""
        super().__init__(daemon=True)
        self.peak_bytes = 0
        self.samples = 0
        self._directory, self._group = directory, group
        self._prefix = os.fsencode(f"{directory}/")
        self._stopped = threading.Event()

    def run(self) -> None:
        """Sample until told to stop."""
        while not self._stopped.wait(0.05):
            self.peak_bytes = max(self.peak_bytes, self._used_bytes())
            self.samples += 1

    def stop(self) -> int:
        """The most bytes that were seen."""
        self._stopped.set()
        self.join()
        return self.peak_bytes

    def _used_bytes(self) -> int:
        """Bytes by inode, so that a file which goes while we look is not counted twice."""
        used = self._mapped_bytes()
        if self._directory.exists():
            for entry in os.scandir(self._directory):
                try:
                    if not entry.name.endswith(".lock"):
                        used[entry.inode()] = entry.stat().st_size
                except FileNotFoundError:
                    continue
        return sum(used.values())

    def _mapped_bytes(self) -> dict[int, int]:
        """What is mapped by a process of the job although it was removed, in whole pages."""
        mapped = {}
        for pid in filter(str.isdigit, os.listdir("/proc")):
            try:
                if os.getpgid(int(pid)) != self._group:
                    continue
                lines = Path("/proc", pid, "maps").read_bytes().splitlines()
            except OSError:
                continue
            for line in lines:
                if line.endswith(b" (deleted)") and self._prefix in line:
                    addresses, _, _, _, inode, _ = line.split(maxsplit=5)
                    start, stop = (int(address, 16) for address in addresses.split(b"-"))
                    mapped[int(inode)] = stop - start
        return mapped


def _limited_epochs(
    table: str, local: Path, limit: int, workers: int, epochs: int, estimate: int | None
) -> list[Any]:
    """Epochs under a limit: their rows, seconds, usage and disk after each, and evictions."""
    if estimate is not None:
        RowSize.shard_bytes = lambda self, num_rows: estimate  # type: ignore[method-assign]
    host = {"shuffle": True, "cache_limit": limit}
    data = dataset(table, shard_rows=SHARD_ROWS, local=str(local), host=host)
    result = []
    for _ in range(epochs):
        started = time.monotonic()
        rows = _texts(batches(data, workers))
        seconds = time.monotonic() - started
        time.sleep(0.5)
        result.append([rows, seconds, data.cache_usage, disk_bytes(local)])
    return [result, data.streams[0].cache.ledger.evictions]


def _check_limited(
    table: str, local: Path, sizes: list[int], workers: int, epochs: int, estimate: int | None
) -> None:
    largest = max(sizes)
    limit = LIMIT_SHARDS * largest
    child = fork(_limited_epochs, table, local, limit, workers, epochs, estimate)
    sampler = DiskSampler(local, child.pid)
    sampler.start()
    try:
        result, evictions = child.wait(timeout_s=90)
    finally:
        peak = sampler.stop()
    print(
        f"peak: limit + {(peak - limit) / largest:.2f} shards in {sampler.samples} samples; "
        f"{evictions} evictions; seconds: {[round(e[1], 1) for e in result]}"
    )
    print([(u, d, (u - d) / largest) for _, _, u, d in result])
    for rows, _, usage, disk in result:
        assert sorted(rows) == list(range(ROWS))
        assert usage == disk
        assert usage <= limit
    assert evictions > ROWS // SHARD_ROWS
    assert peak <= limit + IN_FLIGHT_SHARDS * largest
    assert peak > limit / 2


@pytest.mark.parametrize("workers", [0, 2])
def test_rows_of_very_different_sizes(
    table: str, tmp_path: Path, sizes: list[int], workers: int
) -> None:
    """Two shuffled epochs at five shards: exact rows, bounded disk, exact accounting."""
    _check_limited(table, tmp_path / "cache", sizes, workers, epochs=2, estimate=None)


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("factor", [0.5, 1.1])
def test_estimates_that_are_wrong(
    table: str, tmp_path: Path, sizes: list[int], factor: float, workers: int
) -> None:
    """The same if shards are expected to take half, or a tenth more than the largest does."""
    true = sum(sizes) / len(sizes) if factor < 1 else max(sizes)
    _check_limited(
        table, tmp_path / "cache", sizes, workers, epochs=1, estimate=int(factor * true)
    )
