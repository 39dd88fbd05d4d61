"""LanceStreamingDataset gives the samples of the stock class, in the same order.

The expectation is always the stock ``StreamingDataset``: over the very same streams, or over MDS
files of the same rows and shard sizes.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from streaming import Stream, StreamingDataset

from lance_stream import LanceStream, LanceStreamingDataset
from lance_stream.host import dataset as dataset_module
from tests.host.test_resume import write_mds
from tests.support.forked import run_forked
from tests.support.scripts import run_script
from tests.support.streams import batches, ids
from tests.support.tables import write_table

ROWS = 103
OTHER_FIRST, MDS_FIRST = 1000, 2000
SMALL = {"batch_size": 4, "num_canonical_nodes": 1, "shuffle_seed": 7}


@pytest.fixture(scope="module")
def sources(tables: Path) -> list[str]:
    """T(103, 25), a second table of 40 rows, and 50 rows in MDS; ids of their own."""
    first, second = str(tables / "order-a.lance"), str(tables / "order-b.lance")
    write_table(first, ROWS, 25)
    write_table(second, 40, 15, first_row=OTHER_FIRST)
    return [first, second, write_mds(tables / "order-mds", 50, 10, MDS_FIRST)]


def build(
    kind: type[StreamingDataset],
    sources: list[str],
    weights: list[dict[str, Any]] | None = None,
    **host: Any,
) -> StreamingDataset:
    """A dataset of the first table; with weights, of all three sources."""
    first, second, mds = sources
    mine, others, last = [{}, {}, {}] if weights is None else weights
    streams: list[Stream] = [LanceStream(first, shard_rows=10, **mine)]
    if weights is not None:
        streams += [LanceStream(second, shard_rows=7, **others), Stream(local=mds, **last)]
    return kind(streams=streams, **{**SMALL, **host})


def epochs(data: StreamingDataset, workers: int, count: int = 2) -> list[list[int]]:
    """Ids of some epochs, every row compared with what was written."""
    loader = batches(data, workers)
    return [ids(loader) for _ in range(count)]


def both(sources: list[str], workers: int, **options: Any) -> list[Any]:
    """The epochs of ours and of the stock class, each in a process of its own."""
    return [
        run_forked(lambda kind=kind: epochs(build(kind, sources, **options), workers))
        for kind in (LanceStreamingDataset, StreamingDataset)
    ]


@pytest.mark.parametrize("workers", [0, pytest.param(1, marks=pytest.mark.slow), 2, 3])
@pytest.mark.parametrize(
    "shuffle", [pytest.param(False, marks=pytest.mark.slow, id="in order"), True]
)
def test_workers(sources: list[str], workers: int, shuffle: bool) -> None:
    """For any number of workers."""
    got, expected = both(sources, workers, shuffle=shuffle)
    assert got == expected
    assert [sorted(set(epoch)) for epoch in got] == [list(range(ROWS))] * 2
    assert (got[0] == got[1]) is (not shuffle)


@pytest.mark.parametrize("algo", ["naive", "py1br", "py1e", "py1s", "py2s"])
def test_shuffle_algorithms(sources: list[str], algo: str) -> None:
    """Every shuffle of the host, with two canonical nodes and small blocks."""
    host = {"shuffle": True, "shuffle_algo": algo, "shuffle_block_size": 30}

    def run() -> list[Any]:
        return [
            epochs(build(kind, sources, **host, num_canonical_nodes=2), 0)
            for kind in (LanceStreamingDataset, StreamingDataset)
        ]

    got, expected = run_forked(run)
    assert got == expected


@pytest.mark.parametrize(
    "host",
    [
        {"epoch_size": 61},
        {"epoch_size": 300, "sampling_method": "fixed"},
        {"predownload": 4},
        {"predownload": 1, "batch_size": 1},
        {"batch_size": 200},
        {"partition_algo": "orig", "batch_size": 7},
        {"num_canonical_nodes": 4},
    ],
    ids=lambda host: "-".join(f"{name}={value}" for name, value in host.items()),
)
@pytest.mark.parametrize("workers", [0, pytest.param(2, marks=pytest.mark.slow)])
def test_arguments(sources: list[str], host: dict[str, Any], workers: int) -> None:
    """Arguments of the host that change which samples come, or how soon they are asked for."""
    got, expected = both(sources, workers, shuffle=True, **host)
    assert got == expected


@pytest.mark.parametrize("prefetch", [None, 0, 1, 3])
def test_parts_and_prefetch(
    sources: list[str], monkeypatch: pytest.MonkeyPatch, prefetch: int | None
) -> None:
    """However large the parts are in which the loop works, and however few shards it asks for."""

    def run() -> list[Any]:
        host = {"shuffle": True, "shuffle_block_size": 40}
        result = [epochs(build(StreamingDataset, sources, **host), 0)]
        for samples, shards in [(1, 512), (3, 1), (4, 512), (5, 2), (64, 2)]:
            monkeypatch.setattr(dataset_module, "_PART_SAMPLES", samples)
            monkeypatch.setattr(dataset_module, "_PART_SHARDS", shards)
            ours = build(LanceStreamingDataset, sources, **host, prefetch_shards=prefetch)
            result.append(epochs(ours, 0))
        return result

    expected, *got = run_forked(run)
    assert got == [expected] * 5


@pytest.mark.parametrize(
    ("weights", "host"),
    [
        ([{}, {}, {}], {}),
        (
            [{"proportion": 0.5}, {"proportion": 0.25}, {"proportion": 0.25}],
            {"epoch_size": 120},
        ),
        ([{"repeat": 1.5}, {"choose": 11}, {}], {"sampling_granularity": 3}),
        ([{}, {}, {}], {"batching_method": "stratified", "batch_size": 10}),
        ([{}, {}, {}], {"batching_method": "per_stream"}),
        ([{}, {}, {}], {"batching_method": "device_per_stream"}),
    ],
    ids=["whole", "proportion", "repeat and choose", "stratified", "per_stream", "device"],
)
@pytest.mark.parametrize("workers", [pytest.param(0, marks=pytest.mark.slow), 2])
def test_mixed_with_mds(
    sources: list[str], weights: list[dict[str, Any]], host: dict[str, Any], workers: int
) -> None:
    """Two tables and an MDS stream, weighted and batched in every way of the host."""
    got, expected = both(sources, workers, shuffle=True, weights=weights, **host)
    assert got == expected


@pytest.mark.parametrize("workers", [0, 2])
def test_a_cache_limit(sources: list[str], tmp_path: Path, workers: int) -> None:
    """With room for a few shards, evicted all the time: the same order."""

    def run(limit: int | None, kind: type[StreamingDataset]) -> list[Any]:
        streams = [LanceStream(sources[0], shard_rows=3, local=f"{tmp_path}/{limit}")]
        host = {"shuffle": True, "shuffle_block_size": 40, "cache_limit": limit}
        data = kind(streams=streams, **SMALL, **host)
        seen = epochs(data, workers)
        evictions = data.streams[0].cache.ledger.evictions
        largest = max(shard.get_raw_size() for shard in data.shards)
        index = sum(stream.get_index_size() for stream in data.streams)
        return [seen, evictions, data.cache_usage, index + 5 * largest]

    expected, _, _, limit = run_forked(run, None, StreamingDataset)
    got, evictions, usage, _ = run_forked(run, limit, LanceStreamingDataset)
    assert got == expected
    assert evictions
    # As in the stock class, each process may add a shard on top after it made room.
    assert usage <= limit * 7 / 5


def test_an_mds_stream_that_is_downloaded(sources: list[str], tmp_path: Path) -> None:
    """A remote MDS stream alone and with a cache limit: downloaded in the background, exact."""

    def run(kind: type[StreamingDataset], local: str, limit: str | None) -> list[Any]:
        streams = [Stream(remote=sources[2], local=str(tmp_path / local))]
        data = kind(streams=streams, shuffle=True, cache_limit=limit, **SMALL)
        return epochs(data, 2)

    expected = run_forked(run, StreamingDataset, "stock", None)
    assert run_forked(run, LanceStreamingDataset, "ours", None) == expected
    assert run_forked(run, LanceStreamingDataset, "limited", "4kb") == expected


@pytest.mark.parametrize("rows", [1, pytest.param(2, marks=pytest.mark.slow), 3])
@pytest.mark.parametrize("batched", [False, True])
def test_fewer_samples_than_workers(tmp_path: Path, rows: int, batched: bool) -> None:
    """Workers without a sample give none, and the others theirs."""
    uri = str(tmp_path / "t.lance")
    write_table(uri, rows, 2)

    def run(kind: type[StreamingDataset]) -> list[Any]:
        host = {"batched": True} if batched and kind is LanceStreamingDataset else {}
        data = kind(streams=[LanceStream(uri, shard_rows=1)], **SMALL, **host)
        if not host:
            return epochs(data, 3)
        from torch.utils.data import DataLoader

        return [
            [i for batch in DataLoader(data, batch_size=None, num_workers=3) for i in _ints(batch)]
            for _ in range(2)
        ]

    assert run_forked(run, LanceStreamingDataset) == run_forked(run, StreamingDataset)


def _ints(batch: dict[str, Any]) -> list[int]:
    return batch["i"].tolist()


def _with(action: Callable[[LanceStreamingDataset], Any], sources: list[str]) -> Any:
    return run_forked(lambda: action(build(LanceStreamingDataset, sources)))


def test_two_iterators(sources: list[str]) -> None:
    """A second iterator begins the next epoch and ends the first, as in the stock class."""

    def run(data: LanceStreamingDataset) -> list[Any]:
        first = iter(data)
        seen = [next(first)["i"] for _ in range(5)]
        second = iter(data)
        begun = next(second)["i"]
        rest = [row["i"] for row in first]
        left = [row["i"] for row in second]
        third = [row["i"] for row in data]
        return [seen, begun, rest, len(left), len(third), data.next_epoch]

    assert _with(run, sources) == [list(range(5)), 0, [], ROWS - 1, ROWS, 3]


def test_an_iterator_that_is_closed(sources: list[str]) -> None:
    """Leaving the loop, closing it, dropping it: the next epoch is whole."""

    def run(data: LanceStreamingDataset) -> list[Any]:
        seen = []
        for at, row in enumerate(data):
            seen.append(row["i"])
            if at == 6:
                break
        iterator = iter(data)
        next(iterator)
        iterator.close()
        dropped = iter(data)
        next(dropped)
        del dropped
        return [seen, [row["i"] for row in data]]

    assert _with(run, sources) == [list(range(7)), list(range(ROWS))]


def test_in_this_process_and_then_in_workers(sources: list[str]) -> None:
    """What the stock class refuses: iterate here, then with forked workers, in mid-epoch too."""

    def run(data: LanceStreamingDataset) -> list[Any]:
        here = ids(batches(data, 0))
        iterator = iter(data)
        next(iterator)
        there = ids(batches(data, 2))
        return [here, sorted(there), len(list(iterator))]

    here, there, _ = _with(run, sources)
    assert here == there == list(range(ROWS))


def test_it_is_a_streaming_dataset(sources: list[str]) -> None:
    """Access by number, length, size and type are those of the stock class."""

    def run(data: LanceStreamingDataset) -> list[Any]:
        assert isinstance(data, StreamingDataset)
        rows = [data[0]["i"], data[102]["i"], data[-1]["i"], [row["i"] for row in data[3:5]]]
        return [rows, len(data), data.size]

    assert _with(run, sources) == [[0, 102, 102, [3, 4]], ROWS, ROWS]


def test_replication(sources: list[str]) -> None:
    """Ranks that replicate each other see the same samples; see also tests/multi."""
    got, expected = both(sources, 2, shuffle=True, replication=1)
    assert got == expected


_SPAWNED = """
import json, sys
from streaming import Stream, StreamingDataset
from lance_stream import LanceStream, LanceStreamingDataset
from tests.support.streams import batches, ids

if __name__ == "__main__":
    first, second, mds, here = sys.argv[1:]
    streams = [LanceStream(first, shard_rows=10), LanceStream(second, shard_rows=7, choose=9)]
    streams.append(Stream(local=mds))
    data = LanceStreamingDataset(
        streams=streams, batch_size=4, num_canonical_nodes=1, shuffle_seed=7, shuffle=True
    )
    seen = []
    if here == "here":
        seen.append(ids(batches(data, 0)))
        iterator = iter(data)
        next(iterator)
    loader = batches(data, 2, multiprocessing_context="spawn", persistent_workers=True)
    print(json.dumps([*seen, ids(loader), ids(loader)]))
"""


@pytest.mark.slow
@pytest.mark.timeout(200)
@pytest.mark.parametrize("here", ["", "here"], ids=["", "after an epoch in this process"])
def test_spawned_workers(sources: list[str], tmp_path: Path, here: str) -> None:
    """It crosses to spawned workers, also when it was iterated before."""
    script = tmp_path / "train.py"
    script.write_text(_SPAWNED)
    result = run_script(script, *sources, here, timeout_s=180).check().json()
    weights = [{}, {"choose": 9}, {}]
    reference = run_forked(
        lambda: epochs(build(StreamingDataset, sources, weights, shuffle=True), 0, 4)
    )
    # The second epoch was begun here, and belongs to nobody.
    assert result == ([reference[0], *reference[2:]] if here else reference[:2])
