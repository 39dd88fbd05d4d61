"""LanceStreams beside each other and beside the host's own MDS streams, in one dataset.

What the host promises of weights is checked against a dataset of the same streams in MDS: the
same number of samples per source, and the same order.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from streaming import Stream, StreamingDataset

from lance_stream import LanceStream
from tests.host.test_resume import write_mds
from tests.support.forked import run_forked
from tests.support.scripts import run_script
from tests.support.streams import batches, ids
from tests.support.tables import assert_row, write_table

SHARD_ROWS = 10
# Rows of the two tables and of the MDS directory; each source has ids of its own.
SIZES = (60, 40, 50)
FIRST = (0, 100, 200)


@pytest.fixture(scope="module")
def sources(tables: Path) -> dict[str, str]:
    """Two tables ``a`` and ``b``, and MDS directories with the same rows; ``c`` only as MDS."""
    directory = tables / "mixing"
    found = {}
    for name, rows, first in zip("abc", SIZES, FIRST, strict=True):
        found[f"mds {name}"] = write_mds(directory / f"mds-{name}", rows, SHARD_ROWS, first)
        if name != "c":
            found[name] = str(directory / f"{name}.lance")
            write_table(found[name], rows, 25, first_row=first)
    return found


def _streams(sources: dict[str, str], weights: list[dict[str, Any]], *, lance: bool) -> list[Any]:
    """The streams a, b and c; a and b from Lance or all three from MDS."""
    first = [
        LanceStream(sources[name], shard_rows=SHARD_ROWS, **weight)
        if lance
        else Stream(local=sources[f"mds {name}"], **weight)
        for name, weight in zip("ab", weights, strict=False)
    ]
    return [*first, Stream(local=sources["mds c"], **weights[2])]


def _mixture(
    sources: dict[str, str], weights: list[dict[str, Any]], *, lance: bool, **host: Any
) -> StreamingDataset:
    options = {"batch_size": 4, "num_canonical_nodes": 1, "shuffle_seed": 7, **host}
    return StreamingDataset(streams=_streams(sources, weights, lance=lance), **options)


def _per_source(rows: list[int]) -> list[int]:
    return [sum(first <= i < first + 100 for i in rows) for first in FIRST]


def _whole() -> list[int]:
    return [
        i for first, size in zip(FIRST, SIZES, strict=True) for i in range(first, first + size)
    ]


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("shuffle", [False, True], ids=["in order", "shuffled"])
def test_without_weights_the_union(sources: dict[str, str], workers: int, shuffle: bool) -> None:
    """Each row of each source once per epoch, in the order of stock MDS; every value exact."""

    def run(lance: bool) -> list[Any]:
        data = _mixture(sources, [{}] * 3, lance=lance, shuffle=shuffle)
        loader = batches(data, workers)
        return [len(data), data.size, ids(loader), ids(loader)]

    length, size, *epochs = got = run_forked(run, True)
    assert length == size == sum(SIZES)
    assert [sorted(epoch) for epoch in epochs] == [_whole()] * 2
    assert got == run_forked(run, False)


@pytest.mark.parametrize(
    ("weights", "host", "counts"),
    [
        pytest.param(
            [{"proportion": 0.5}, {"proportion": 0.25}, {"proportion": 0.25}],
            {"epoch_size": 200},
            [100, 50, 50],
            id="proportion",
        ),
        pytest.param(
            [{"repeat": 2}, {"repeat": 0.5}, {"repeat": 1}], {}, [120, 20, 50], id="repeat"
        ),
        pytest.param(
            [{"choose": 90}, {"choose": 7}, {"choose": 13}], {}, [90, 7, 13], id="choose"
        ),
        pytest.param([{"repeat": 1.5}, {"choose": 11}, {}], {}, [90, 11, 50], id="all kinds"),
        pytest.param(
            [{"choose": 30}, {"choose": 30}, {"choose": 30}],
            {"sampling_method": "fixed", "sampling_granularity": 5},
            [30, 30, 30],
            id="fixed",
        ),
    ],
)
@pytest.mark.parametrize("shuffle", [False, True], ids=["in order", "shuffled"])
def test_weights(
    sources: dict[str, str],
    weights: list[dict[str, Any]],
    host: dict[str, Any],
    counts: list[int],
    shuffle: bool,
) -> None:
    """The promised number of samples per source, and the order of stock MDS, for two epochs."""

    def run() -> list[Any]:
        result = []
        for lance in (True, False):
            data = _mixture(sources, weights, lance=lance, shuffle=shuffle, **host)
            loader = batches(data, 0)
            result.append([len(data), ids(loader), ids(loader)])
        return result

    got, expected = run_forked(run)
    assert got == expected
    length, *epochs = got
    assert length == sum(counts)
    for epoch in epochs:
        assert _per_source(epoch) == counts
        # No row comes more often than its source's weight makes necessary.
        for first, size, count in zip(FIRST, SIZES, counts, strict=True):
            times = Counter(i for i in epoch if first <= i < first + 100)
            assert max(times.values()) <= -(-count // size) + 1


@pytest.mark.parametrize("batching_method", ["stratified", "per_stream", "device_per_stream"])
def test_batching_methods(sources: dict[str, str], batching_method: str) -> None:
    """The host's other ways to make batches of several streams, with workers."""

    def run(lance: bool) -> list[Any]:
        host = {"shuffle": True, "batching_method": batching_method, "batch_size": 10}
        data = _mixture(sources, [{}] * 3, lance=lance, **host)
        return [[row["i"] for row in batch] for batch in batches(data, 2)]

    got = run_forked(run, True)
    assert got == run_forked(run, False)
    for batch in got:
        counts = _per_source(batch)
        assert sum(counts) == 10
        assert max(counts) == (4 if batching_method == "stratified" else 10)


def test_streams_of_one_table(sources: dict[str, str]) -> None:
    """One table as three streams: other columns, other shards, another version's name."""

    def run() -> list[Any]:
        streams = [
            LanceStream(sources["a"], shard_rows=10),
            LanceStream(sources["a"], shard_rows=7, columns=["v", "i"]),
            LanceStream(sources["a"], shard_rows=10, version=1, columns={"i": "i + 1000"}),
        ]
        data = StreamingDataset(streams=streams, batch_size=4, shuffle=True, shuffle_seed=7)
        rows = [row for batch in batches(data, 2) for row in batch]
        for row in rows:
            if len(row) > 1:
                assert_row(row, row["i"], list(row))
        kinds = Counter("".join(row) for row in rows)
        return [len(data), kinds, sorted(row["i"] for row in rows)]

    length, kinds, rows = run_forked(run)
    assert length == 180
    assert kinds == {"isv": 60, "vi": 60, "i": 60}
    assert rows == sorted([*range(60), *range(60), *range(1000, 1060)])


def _digests(*directories: str | Path) -> dict[str, str]:
    return {
        str(path): hashlib.sha256(path.read_bytes()).hexdigest()
        for directory in directories
        for path in sorted(Path(directory).rglob("*"))
        if path.is_file()
    }


@pytest.mark.parametrize("workers", [0, 2])
def test_a_cache_limit_spares_the_only_copy(tmp_path: Path, workers: int) -> None:
    """Local-only MDS files and the table's files are never evicted; the rest is, and is exact."""
    mds = write_mds(tmp_path / "mds", 60, 3)
    table, local = str(tmp_path / "t.lance"), str(tmp_path / "cache")
    write_table(table, 60, 20, first_row=1000)
    before = _digests(mds, table)

    def run(limit: int | None) -> list[Any]:
        streams = [Stream(local=mds), LanceStream(table, local=local, shard_rows=3)]
        options = {"shuffle": True, "shuffle_seed": 7, "num_canonical_nodes": 1}
        data = StreamingDataset(streams=streams, batch_size=4, cache_limit=limit, **options)
        if limit is None:
            sizes = [shard.get_raw_size() for shard in data.shards]
            return [sum(sizes[:20]), sizes[20], streams[1].get_index_size()]
        loader = batches(data, workers)
        epochs = [sorted(ids(loader)) for _ in range(2)]
        return [epochs, streams[1].cache.ledger.evictions]

    mds_bytes, shard_bytes, index_bytes = run_forked(run, None)
    # Room for the local-only files and for eight of the table's twenty shards.
    limit = mds_bytes + index_bytes + 8 * shard_bytes
    refused, result = "", []
    try:
        result = run_forked(run, limit, timeout_s=30)
    except AssertionError as error:
        refused = str(error)
    assert _digests(mds, table) == before
    if refused:
        # To refuse the mixture when the dataset is built would do too, if it says why.
        assert "PlanError" in refused
        assert "cache_limit" in refused
        assert mds in refused
    else:
        epochs, evictions = result
        assert epochs == [[*range(60), *range(1000, 1060)]] * 2
        assert evictions


def test_a_cache_limit_with_a_remote_mds_stream(tmp_path: Path) -> None:
    """A stream that the host downloads, and a table: both evicted and fetched again, exact."""
    remote = write_mds(tmp_path / "mds", 200, SHARD_ROWS)
    table = str(tmp_path / "t.lance")
    write_table(table, 200, 50, first_row=1000)
    before = _digests(remote, table)

    def run(local: str, limit: int | None) -> list[Any]:
        streams = [
            Stream(remote=remote, local=f"{local}/mds"),
            LanceStream(table, local=f"{local}/lance", shard_rows=10),
        ]
        options = {"shuffle": True, "shuffle_seed": 7, "num_canonical_nodes": 1}
        data = StreamingDataset(streams=streams, batch_size=4, cache_limit=limit, **options)
        epoch = ids(batches(data, 0))
        index = sum(stream.get_index_size() for stream in streams)
        largest = max(shard.get_raw_size() for shard in data.shards)
        left = len(list(Path(local).rglob("*.mds")))
        return [epoch, index, largest, data.cache_usage, left]

    expected, index, largest, _, left = run_forked(run, str(tmp_path / "one"), None)
    assert left == 20
    limit = index + 12 * largest
    got, *_, usage, left = run_forked(run, str(tmp_path / "two"), limit)
    assert got == expected
    assert sorted(got) == [*range(200), *range(1000, 1200)]
    assert usage <= limit
    assert left < 20
    assert _digests(remote, table) == before


def test_a_cache_limit_for_two_tables(sources: dict[str, str]) -> None:
    """Two tables share one limit: each evicts the other's shards, and all rows are exact."""

    def run() -> list[Any]:
        streams = [LanceStream(sources[name], shard_rows=5) for name in "ab"]
        options = {"shuffle": True, "shuffle_seed": 7, "num_canonical_nodes": 1}
        data = StreamingDataset(streams=streams, batch_size=4, cache_limit="16kb", **options)
        loader = batches(data, 2)
        epochs = [sorted(ids(loader)) for _ in range(2)]
        return [epochs, [stream.cache.ledger.evictions for stream in streams]]

    before = _digests(sources["a"], sources["b"])
    epochs, evictions = run_forked(run)
    assert epochs == [[*range(60), *range(100, 140)]] * 2
    assert all(evictions)
    assert _digests(sources["a"], sources["b"]) == before


def test_one_directory_for_two_streams_is_refused(sources: dict[str, str], tmp_path: Path) -> None:
    """The same explicit ``local`` twice, for one table or two: an error that names it."""
    local = str(tmp_path / "cache")
    for names in ("aa", "ab"):
        with pytest.raises(ValueError, match=f"Reused local directory: .*{local}"):
            StreamingDataset(
                streams=[LanceStream(sources[name], local=local) for name in names], batch_size=4
            )
    # And the directory is free again at once.
    rows = run_forked(
        lambda: [
            row["i"]
            for row in StreamingDataset(
                streams=[LanceStream(sources["a"], local=local)], batch_size=4
            )
        ]
    )
    assert rows == list(range(60))


def test_one_stream_object_twice_is_refused(sources: dict[str, str]) -> None:
    """One object as two streams: an error, not a dataset that counts it twice."""
    stream = LanceStream(sources["a"])
    with pytest.raises(ValueError, match="Reused local directory"):
        StreamingDataset(streams=[stream, stream], batch_size=4)


def test_local_of_the_dataset(sources: dict[str, str], tmp_path: Path) -> None:
    """A stream without ``local`` takes that of the dataset which makes it."""
    local = str(tmp_path / "cache")

    def run() -> list[Any]:
        data = StreamingDataset(
            stream_name="lance", remote=sources["a"], local=local, batch_size=4
        )
        return [data.streams[0].local, [row["i"] for row in data]]

    assert run_forked(run) == [local, list(range(60))]


_WEIGHTED_WORKERS = """
import json, sys
from streaming import Stream, StreamingDataset
from lance_stream import LanceStream
from tests.support.streams import batches, ids

if __name__ == "__main__":
    a, b, c = sys.argv[1:]
    streams = [LanceStream(a, shard_rows=10, repeat=2), LanceStream(b, choose=7), Stream(local=c)]
    data = StreamingDataset(streams=streams, batch_size=4, shuffle=True)
    loader = batches(data, 2, multiprocessing_context="spawn", persistent_workers=True)
    print(json.dumps([len(data), ids(loader), ids(loader)]))
"""


@pytest.mark.slow
@pytest.mark.timeout(180)
def test_weights_with_spawned_workers(sources: dict[str, str], tmp_path: Path) -> None:
    """A mixture crosses to spawned workers whole."""
    script = tmp_path / "train.py"
    script.write_text(_WEIGHTED_WORKERS)
    arguments = (sources["a"], sources["b"], sources["mds c"])
    result = run_script(script, *arguments, timeout_s=150).check().json()
    assert result[0] == 177
    assert [_per_source(epoch) for epoch in result[1:]] == [[120, 7, 50]] * 2
