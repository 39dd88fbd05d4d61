"""Batches of ``lance_stream.collate`` in the host's own loader: exact, counted, resumed."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from streaming import MDSWriter, StreamingDataLoader, StreamingDataset

import lance_stream
from tests.support.forked import run_forked
from tests.support.scripts import run_script
from tests.support.streams import dataset

ROWS, BATCH, STOP = 50, 4, 5

_WRITE = """
import sys
import lance
import pyarrow as pa
from tests.host.test_collate import ROWS, expected

rows = [expected(i) for i in range(ROWS)]
schema = pa.schema({
    "text": pa.string(), "when": pa.timestamp("us"), "u": pa.uint64(), "f": pa.float32(),
    "ragged": pa.list_(pa.int16()), "vector": pa.list_(pa.float32(), 3), "i": pa.int64(),
})
lance.write_dataset(pa.Table.from_pylist(rows, schema), sys.argv[1], max_rows_per_file=20)
"""


def expected(i: int) -> dict[str, Any]:
    """Row ``i`` of the table; what default_collate refuses comes first."""
    return {
        "text": None if i % 7 == 0 else f"row {i}",
        "when": dt.datetime(2024, 1, 1) + dt.timedelta(hours=i),  # noqa: DTZ001 - no zone
        "u": 2**63 + i,
        "f": i / 8,
        "ragged": None if i % 5 == 0 else list(range(i % 4)),
        "vector": [i, i + 0.5, i + 0.25],
        "i": i,
    }


@pytest.fixture(scope="module")
def table(tables: Path) -> str:
    """The rows as a Lance table."""
    uri = str(tables / "collate.lance")
    run_script(_WRITE, uri).check()
    return uri


@pytest.fixture(scope="module")
def mds(tables: Path) -> str:
    """MDS with a struct as its first column: the writer sorts them by name."""
    directory = str(tables / "collate-mds")
    with MDSWriter(out=directory, columns={"a": "json", "i": "int"}) as writer:
        for i in range(ROWS):
            writer.write({"a": {"x": i, "y": [i], "z": None}, "i": i})
    return directory


def train(
    build: Callable[[], StreamingDataset],
    stop: int | None = None,
    state: dict[str, Any] | None = None,
) -> list[Any]:
    """The rows of one epoch from ``state`` on, ``stop`` batches of it, and the state then."""
    loader = StreamingDataLoader(
        build(), batch_size=BATCH, num_workers=2, collate_fn=lance_stream.collate
    )
    if state is not None:
        loader.load_state_dict(state)
    ids: list[int] = []
    for number, batch in enumerate(loader, 1):
        assert {len(values) for values in batch.values()} == {len(batch["i"])}
        for at, i in enumerate(batch["i"].tolist()):
            if "text" in batch:
                check_row(batch, at, expected(i))
            else:
                assert batch["a"][at] == {"x": i, "y": [i], "z": None}
            ids.append(i)
        if number == stop:
            break
    return [ids, loader.state_dict()]


def check_row(batch: dict[str, Any], at: int, row: dict[str, Any]) -> None:
    """One row of a batch of the table, types included."""
    assert list(batch) == list(row)
    dtypes = {"u": torch.uint64, "f": torch.float64, "vector": torch.float32, "i": torch.int64}
    for name, value in row.items():
        entry = batch[name][at]
        if name in dtypes:
            assert batch[name].dtype is dtypes[name]
            assert entry.tolist() == value
        elif name == "ragged" and value is not None:
            assert (entry.dtype, entry.tolist()) == (torch.int16, value)
        else:
            assert (type(entry), entry) == (type(value), value)


@pytest.mark.parametrize("source", ["lance", "mds"])
def test_an_epoch_resumes_where_it_was(source: str, table: str, mds: str) -> None:
    """Whatever the first column is, the state counts the samples that came."""

    def build() -> StreamingDataset:
        host = {"shuffle": True, "num_canonical_nodes": 1, "shuffle_seed": 7}
        if source == "mds":
            return StreamingDataset(local=mds, batch_size=BATCH, **host)
        return dataset(table, batch_size=BATCH, host=host, shard_rows=10)

    whole, _ = run_forked(train, build)
    assert sorted(whole) == list(range(ROWS))
    head, state = run_forked(train, build, STOP)
    assert state["sample_in_epoch"] == STOP * BATCH
    rest, _ = run_forked(train, build, None, state)
    assert head + rest == whole
