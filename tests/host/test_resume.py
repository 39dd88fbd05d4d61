"""A run that ends in the middle of an epoch goes on where it was, whatever the workers then.

The expectation is always the stock class over MDS files of the same rows and shard sizes: with
one seed and one ``num_canonical_nodes`` it gives one order of samples, for any number of workers.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from streaming import MDSWriter, StreamingDataLoader, StreamingDataset

from lance_stream import LanceStream
from tests.support.forked import run_forked
from tests.support.scripts import run_script
from tests.support.streams import batches, dataset, ids
from tests.support.tables import assert_row, expected_row, write_table

ROWS, SHARD_ROWS, BATCH = 103, 10, 4
WHOLE = list(range(ROWS))

_COMPACT_SCRIPT = """
import sys, lance
table = lance.dataset(sys.argv[1])
table.delete("i % 10 = 3")
table.optimize.compact_files()
"""


def columns(batch: list[dict[str, Any]]) -> dict[str, list[Any]]:
    """A collate function whose batches ``StreamingDataLoader`` can count; keeps the values."""
    return {name: [row[name] for row in batch] for name in batch[0]}


def write_mds(directory: Path, rows: int, shard_rows: int, first_row: int = 0) -> str:
    """Rows [first_row, first_row + rows) as MDS, with as many per shard as LanceStream has."""
    types = {"i": "int", "s": "str", "v": "ndarray:float32:8"}
    shards = []
    for first in range(0, rows, shard_rows):
        # One writer per shard: the stock writer cuts by bytes only.
        part = directory / f"{first:06d}"
        with MDSWriter(out=str(part), columns=types) as writer:
            for i in range(first, min(first + shard_rows, rows)):
                writer.write(expected_row(first_row + i))
        (shard,) = json.loads((part / "index.json").read_text())["shards"]
        raw = shard["raw_data"]
        raw["basename"] = f"{part.name}/{raw['basename']}"
        shards.append(shard)
        (part / "index.json").unlink()
    (directory / "index.json").write_text(json.dumps({"version": 2, "shards": shards}))
    return str(directory)


@pytest.fixture(scope="module")
def table(tables: Path) -> str:
    """The table T(103, 25): the last shard and the last batch are short."""
    uri = str(tables / "t103.lance")
    write_table(uri, ROWS, 25)
    return uri


@pytest.fixture(scope="module")
def mds(tables: Path) -> str:
    """The same rows for the stock class."""
    return write_mds(tables / "mds103", ROWS, SHARD_ROWS)


@pytest.fixture(scope="module")
def whole(mds: str) -> dict[bool, list[list[list[int]]]]:
    """Three uninterrupted epochs of the stock class, batch by batch; by ``shuffle``."""

    def run(shuffle: bool) -> Any:
        return run_forked(train, lambda: stock(mds, shuffle=shuffle), 0, [None] * 3)[0]

    return {False: run(False), True: run(True)}


def stock(directory: str, **host: Any) -> StreamingDataset:
    """The stock dataset of the same rows."""
    options = {"batch_size": BATCH, "num_canonical_nodes": 1, "shuffle_seed": 7, **host}
    return StreamingDataset(local=directory, **options)


def ours(uri: str, *, version: int | None = None, local: str | None = None, **host: Any):
    """The same dataset over the table."""
    stream = {"shard_rows": SHARD_ROWS, "version": version, "local": local}
    return dataset(uri, batch_size=host.pop("batch_size", BATCH), host=host, **stream)


def train(
    build: Callable[[], StreamingDataset],
    workers: int,
    epochs: list[int | None],
    state: str | None = None,
) -> list[Any]:
    """Iterate and save, as a training script does.

    Args:
        build: Makes the dataset.
        workers: Of the DataLoader.
        epochs: For each epoch, after how many batches to leave it; None: not before its end.
        state: JSON of an earlier run's state.

    Returns:
        The ids of each batch, by epoch, and the JSON of the state at the end.
    """
    data = build()
    loader = StreamingDataLoader(data, batch_size=BATCH, num_workers=workers, collate_fn=columns)
    if state is not None:
        loader.load_state_dict(json.loads(state))
    seen = []
    for stop in epochs:
        rows = []
        for batch in loader:
            for at, i in enumerate(batch["i"]):
                assert_row({name: values[at] for name, values in batch.items()}, i)
            rows.append(batch["i"])
            if len(rows) == stop:
                break
        seen.append(rows)
    return [seen, json.dumps(loader.state_dict())]


def flat(batches_of_ids: list[list[int]]) -> list[int]:
    """Ids in order."""
    return [i for batch in batches_of_ids for i in batch]


@pytest.mark.parametrize(
    "host",
    [
        {"shuffle": False},
        {"shuffle": True},
        {"shuffle": True, "num_canonical_nodes": 2, "batch_size": 7},
        {"shuffle": True, "shuffle_algo": "py1br", "shuffle_block_size": 30},
        {"shuffle": True, "shuffle_algo": "py2s"},
        {"shuffle": True, "shuffle_seed": 1234, "sampling_method": "fixed"},
        {"shuffle": True, "epoch_size": 60},
    ],
    ids=lambda host: "-".join(f"{value}" for value in host.values()),
)
def test_order_is_that_of_stock_mds(table: str, mds: str, host: dict[str, Any]) -> None:
    """Same rows, same shard sizes, same seed: the same order, in each of three epochs."""

    def run() -> list[Any]:
        data, reference = ours(table, **host), stock(mds, **host)
        sizes = [[shard.samples for shard in d.shards] for d in (data, reference)]
        orders = [[ids(batches(d, 0)) for _ in range(3)] for d in (data, reference)]
        return [sizes, orders]

    sizes, (got, expected) = run_forked(run)
    assert sizes[0] == sizes[1] == [10] * 10 + [3]
    assert got == expected
    if "epoch_size" not in host:
        # Two canonical nodes need an even number: the host repeats one of the 103 rows.
        assert [sorted(set(epoch)) for epoch in got] == [WHOLE] * 3
    if not host["shuffle"]:
        assert got == [WHOLE] * 3
    else:
        assert got[0] != got[1]


@pytest.mark.parametrize("workers", [2, 3])
def test_batches_are_those_of_stock_mds(
    table: str, mds: str, whole: dict[bool, Any], workers: int
) -> None:
    """With workers, batch by batch: the order does not depend on how many there are."""
    host = {"shuffle": True}
    got, _ = run_forked(train, lambda: ours(table, **host), workers, [None] * 3)
    expected, _ = run_forked(train, lambda: stock(mds, **host), workers, [None] * 3)
    assert got == expected == whole[True]


@pytest.mark.parametrize("shuffle", [False, True], ids=["in order", "shuffled"])
@pytest.mark.parametrize(("before", "after"), [(2, 0), (0, 2), (1, 3)])
def test_resume_with_other_workers(
    table: str, whole: dict[bool, Any], before: int, after: int, shuffle: bool
) -> None:
    """Rows before and after are together the uninterrupted epoch; the epochs after are whole."""
    host = {"shuffle": shuffle}
    head, state = run_forked(train, lambda: ours(table, **host), before, [7])
    assert len(state) < 4096
    assert json.loads(state)["sample_in_epoch"] == 7 * BATCH
    rest, _ = run_forked(train, lambda: ours(table, **host), after, [None] * 3, state)
    assert [head[0] + rest[0], *rest[1:]] == whole[shuffle]
    assert [sorted(flat(epoch)) for epoch in rest[1:]] == [WHOLE, WHOLE]


def test_resume_in_a_later_epoch_with_canonical_nodes(table: str, mds: str) -> None:
    """In the second epoch; seed and canonical nodes of the epoch are the state's."""
    host = {"shuffle": True, "num_canonical_nodes": 2}
    expected, _ = run_forked(train, lambda: stock(mds, **host), 0, [None] * 3)
    head, state = run_forked(train, lambda: ours(table, **host), 2, [None, 11])
    rest, _ = run_forked(train, lambda: ours(table, **host), 3, [None, None], state)
    assert head[0] == expected[0]
    assert [head[1] + rest[0], rest[1]] == expected[1:]
    other = {"shuffle": True, "num_canonical_nodes": None, "shuffle_seed": 99}
    again, _ = run_forked(train, lambda: ours(table, **other), 0, [None], state)
    assert again == rest[:1]


def test_a_resumed_run_is_resumed_again(table: str, whole: dict[bool, Any]) -> None:
    """Three runs share one epoch, with 0, 2 and 1 workers."""
    host = {"shuffle": True}
    first, state = run_forked(train, lambda: ours(table, **host), 0, [5])
    second, state = run_forked(train, lambda: ours(table, **host), 2, [6], state)
    assert json.loads(state)["sample_in_epoch"] == 11 * BATCH
    third, _ = run_forked(train, lambda: ours(table, **host), 1, [None, None], state)
    assert [first[0] + second[0] + third[0], third[1]] == whole[True][:2]


@pytest.mark.parametrize(
    ("stop", "before", "after"),
    [
        pytest.param(26, 0, 2, id="after the last batch"),
        pytest.param(26, 2, 0, id="after the last batch, with workers"),
        pytest.param(None, 2, 1, id="after the loop"),
    ],
)
def test_resume_at_the_end_of_an_epoch(
    table: str, mds: str, stop: int | None, before: int, after: int
) -> None:
    """Nothing is left of the epoch, and the next one is whole: as stock does."""
    host = {"shuffle": True}

    def both(build: Callable[[], StreamingDataset]) -> list[Any]:
        head, state = run_forked(train, build, before, [stop])
        rest, _ = run_forked(train, build, after, [None, None], state)
        return [head, rest]

    got = both(lambda: ours(table, **host))
    assert got == both(lambda: stock(mds, **host))
    (epoch,), (nothing, following) = got
    assert sorted(flat(epoch)) == sorted(flat(following)) == WHOLE
    assert nothing == []


def test_resume_after_every_batch(table: str, whole: dict[bool, Any]) -> None:
    """From each of the 26 places of an epoch, including its start and end."""
    host, expected = {"shuffle": True}, whole[True][0]

    def everywhere() -> list[int]:
        wrong = []
        for done in range(len(expected) + 1):
            state = {
                "epoch": 0,
                "sample_in_epoch": min(done * BATCH, ROWS),
                "num_canonical_nodes": 1,
                "shuffle_seed": 7,
                "initial_physical_nodes": 1,
            }
            (rest,), _ = train(lambda: ours(table, **host), 0, [None], json.dumps(state))
            if rest != expected[done:]:
                wrong.append(done)
        return wrong

    assert run_forked(everywhere) == []


def test_resume_with_a_plain_dataloader(table: str, whole: dict[bool, Any]) -> None:
    """torch's own loader: the script counts samples, the dataset saves and loads."""
    host = {"shuffle": True}

    def before() -> list[Any]:
        data, rows = ours(table, **host), []
        for batch in batches(data, 2):
            rows += ids([batch])
            if len(rows) == 5 * BATCH:
                break
        return [rows, json.dumps(data.state_dict(len(rows), from_beginning=True))]

    def after(state: str) -> list[int]:
        data = ours(table, **host)
        data.load_state_dict(json.loads(state))
        return ids(batches(data, 1))

    head, state = run_forked(before)
    assert len(state) < 4096
    assert head + run_forked(after, state) == flat(whole[True][0])


def test_resume_after_the_table_changed(whole: dict[bool, Any], tmp_path: Path) -> None:
    """Rows are appended, deleted and compacted between save and resume: the saved version's."""
    uri, host = str(tmp_path / "t.lance"), {"shuffle": True}
    write_table(uri, ROWS, 25)

    def before() -> list[Any]:
        data = ours(uri, **host)
        return [*train(lambda: data, 2, [9]), data.streams[0].version]

    head, state, version = run_forked(before)
    write_table(uri, 30, 30, first_row=ROWS, mode="append")
    run_script(_COMPACT_SCRIPT, uri).check()
    rest, _ = run_forked(train, lambda: ours(uri, version=version, **host), 0, [None], state)
    assert head[0] + rest[0] == whole[True][0]


def test_resume_with_a_cache_limit(table: str, whole: dict[bool, Any], tmp_path: Path) -> None:
    """The resumed run may have a cache limit, and evicts: the order is the same."""
    host = {"shuffle": True}
    head, state = run_forked(train, lambda: ours(table, **host), 0, [13])

    def limited() -> list[Any]:
        data = ours(table, **host)
        index = data.streams[0].get_index_size()
        limit = index + 4 * max(shard.get_raw_size() for shard in data.shards)
        del data
        data = ours(table, local=str(tmp_path / "c"), cache_limit=limit, **host)
        rest, _ = train(lambda: data, 2, [None, None], state)
        return [rest, data.streams[0].cache.ledger.evictions]

    rest, evictions = run_forked(limited)
    assert [head[0] + rest[0], rest[1]] == whole[True][:2]
    assert evictions


def test_two_streams_are_resumed(table: str, mds: str, tmp_path: Path) -> None:
    """A mixture with weights: counts, order and rest as of stock over two MDS directories."""
    second = write_mds(tmp_path / "mds40", 40, SHARD_ROWS)
    uri = str(tmp_path / "t40.lance")
    write_table(uri, 40, 25)
    host = {"batch_size": BATCH, "num_canonical_nodes": 1, "shuffle_seed": 7, "shuffle": True}

    def mixture() -> StreamingDataset:
        streams = [
            LanceStream(table, shard_rows=SHARD_ROWS, proportion=0.5),
            LanceStream(uri, shard_rows=SHARD_ROWS, proportion=0.5),
        ]
        return StreamingDataset(streams=streams, epoch_size=120, **host)

    def reference() -> StreamingDataset:
        from streaming import Stream

        streams = [Stream(local=path, proportion=0.5) for path in (mds, second)]
        return StreamingDataset(streams=streams, epoch_size=120, **host)

    expected, _ = run_forked(train, reference, 0, [None, None])
    head, state = run_forked(train, mixture, 2, [11])
    rest, _ = run_forked(train, mixture, 0, [None, None], state)
    assert [head[0] + rest[0], rest[1]] == expected


_SPAWNED = """
import json, sys
from streaming import StreamingDataLoader
from tests.host.test_resume import columns, ours, BATCH

if __name__ == "__main__":
    uri, method, stop, state = sys.argv[1:]
    loader = StreamingDataLoader(
        ours(uri, shuffle=True), batch_size=BATCH, num_workers=2, collate_fn=columns,
        multiprocessing_context=method, persistent_workers=True)
    if state != "null":
        loader.load_state_dict(json.loads(state))
    rows = []
    for batch in loader:
        rows.append(batch["i"])
        if len(rows) == int(stop):
            break
    print(json.dumps([rows, loader.state_dict()]))
"""


@pytest.mark.slow
@pytest.mark.timeout(420)
def test_resume_with_spawned_workers(table: str, whole: dict[bool, Any], tmp_path: Path) -> None:
    """Workers that share nothing by fork resume alike."""
    script = tmp_path / "train.py"
    script.write_text(_SPAWNED)
    head, state = run_script(script, table, "spawn", 9, "null", timeout_s=200).check().json()
    result = run_script(script, table, "spawn", 0, json.dumps(state), timeout_s=200)
    rest, _ = result.check().json()
    assert head + rest == whole[True][0]
