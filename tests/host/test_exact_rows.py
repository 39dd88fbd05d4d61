"""Every row once per epoch, for every number of workers and every way to start them."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.support.forked import run_forked
from tests.support.scripts import run_script
from tests.support.streams import batches, dataset, ids
from tests.support.tables import write_table

_UNEVEN = """
import sys, lance
from tests.support.tables import write_table_here
uri = sys.argv[1]
write_table_here(uri, 20_000, 20_000)
write_table_here(uri, 540 * 37, 37, first_row=20_000, mode="append")
table = lance.dataset(uri)
table.delete("i % 11 = 3")
# One fragment of 37 rows, wholly: it holds rows 20,037 to 20,073.
table.delete("i >= 20037 and i < 20074")
assert len(lance.dataset(uri).get_fragments()) in (540, 541)
"""


@pytest.fixture(scope="module")
def uneven(tables: Path) -> str:
    """540 fragments of 37 rows beside one of 20,000; deletions, one fragment wholly deleted."""
    uri = str(tables / "uneven.lance")
    run_script(_UNEVEN, uri).check()
    return uri


def _uneven_rows() -> list[int]:
    return [i for i in range(20_000 + 540 * 37) if i % 11 != 3 and not 20_037 <= i < 20_074]


def _epochs(uri: str, workers: int, start_method: str | None) -> dict[str, object]:
    data = dataset(uri, shard_rows=700, host={"shuffle": True}, batch_size=16)
    options = {}
    if workers:
        options = {"multiprocessing_context": start_method, "persistent_workers": True}
    loader = batches(data, workers, **options)
    epochs = [ids(loader) for _ in range(2)]
    return {
        "len": len(data),
        "epochs": [sorted(epoch) for epoch in epochs],
        "reshuffled": epochs[0] != epochs[1],
        "lance": "lance" in sys.modules,
    }


@pytest.mark.parametrize("workers", [0, 1, 2, 3])
def test_uneven_fragments_and_deletions(uneven: str, workers: int) -> None:
    """With deletions, a fragment without rows, and fragments of very different sizes."""
    result = run_forked(_epochs, uneven, workers, "fork")
    expected = _uneven_rows()
    assert result["len"] == len(expected)
    assert result["epochs"] == [expected, expected]
    assert result["reshuffled"]
    assert not result["lance"]


_WORKER_MODULES = """
import json, sys, torch
from tests.support.streams import batches, dataset, identity, ids

class Watched(torch.utils.data.IterableDataset):
    '''Adds to each sample whether its process has loaded lance.'''
    def __init__(self, data):
        self.data, self.batch_size = data, data.batch_size
    def __iter__(self):
        for row in self.data:
            yield {"row": row, "lance": "lance" in sys.modules}

if __name__ == "__main__":
    uri, method, counts = sys.argv[1:]
    out = []
    for workers in map(int, counts.split(",")):
        data = dataset(uri, shard_rows=300, host={"shuffle": True}, batch_size=16)
        loader = torch.utils.data.DataLoader(
            Watched(data), batch_size=16, num_workers=workers, collate_fn=identity,
            multiprocessing_context=method, persistent_workers=True)
        for _ in range(2):
            rows = [sample for batch in loader for sample in batch]
            out.append([
                sorted(ids([[s["row"] for s in rows]])) == list(range(5000)),
                any(s["lance"] for s in rows) or "lance" in sys.modules,
                len(data),
            ])
        del loader, data
    print(json.dumps(out))
"""


@pytest.mark.timeout(240)
@pytest.mark.parametrize(
    ("method", "counts"),
    [
        ("fork", "1,2,3"),
        ("spawn", "2"),
        ("forkserver", "2"),
        pytest.param("spawn", "1,3", marks=pytest.mark.slow),
        pytest.param("forkserver", "1,3", marks=pytest.mark.slow),
    ],
)
def test_start_methods(table_5000: str, tmp_path: Path, method: str, counts: str) -> None:
    """Two epochs for each number of workers; no worker and no trainer has lance loaded."""
    script = tmp_path / "train.py"
    script.write_text(_WORKER_MODULES)
    result = run_script(script, table_5000, method, counts, timeout_s=200).check().json()
    assert result == [[True, False, 5000]] * 2 * len(counts.split(","))


def test_shards_span_tiny_fragments(tmp_path: Path) -> None:
    """2,000 fragments of one row, 100 rows per shard: 20 shards, every row."""
    uri = str(tmp_path / "tiny.lance")
    write_table(uri, 2000, 1)

    def run() -> list[object]:
        data = dataset(uri, shard_rows=100)
        return [data.num_shards, ids(batches(data, 0)) == list(range(2000))]

    assert run_forked(run) == [20, True]


def test_order_is_golden(table_100: str) -> None:
    """The order of samples that checkpoints of users rest on: a change here breaks resuming."""

    def run() -> list[int]:
        data = dataset(table_100, shard_rows=10, host={"shuffle": True})
        return ids(batches(data, 0))

    order = run_forked(run)
    assert sorted(order) == list(range(100))
    assert order[:8] == [3, 29, 93, 2, 41, 18, 53, 27]
