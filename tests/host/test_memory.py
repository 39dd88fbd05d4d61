"""Memory and maps of a long run stay where they were."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import psutil
import pytest

from lance_stream import LanceStream, LanceStreamingDataset
from tests.support.forked import run_forked
from tests.support.streams import identity
from tests.support.tables import write_table

EPOCHS, SETTLED = 20, 5


@pytest.fixture(scope="module")
def table(tables: Path) -> str:
    """The table T(4000, 1000)."""
    uri = str(tables / "t4000.lance")
    write_table(uri, 4_000, 1_000)
    return uri


@pytest.mark.slow
@pytest.mark.parametrize("batched", [False, True])
@pytest.mark.parametrize("limited", [False, True])
def test_flat_over_twenty_epochs(table: str, batched: bool, limited: bool) -> None:
    """Private memory and mapped shards of persistent workers, fifth epoch and last."""

    def run() -> list[Any]:
        from torch.utils.data import DataLoader

        data = LanceStreamingDataset(
            streams=[LanceStream(table, shard_rows=20)],
            batch_size=16,
            shuffle=True,
            num_canonical_nodes=1,
            batched=batched,
            cache_limit=3_000_000 if limited else None,
        )
        options: dict[str, Any] = (
            {"batch_size": None} if batched else {"batch_size": 16, "collate_fn": identity}
        )
        loader = DataLoader(data, num_workers=2, persistent_workers=True, **options)
        found = []
        for _ in range(EPOCHS):
            rows = sum(len(batch["i"]) if batched else len(batch) for batch in loader)
            assert rows == 4_000
            workers = psutil.Process().children()
            workers = [one for one in workers if "lance_stream" not in " ".join(one.cmdline())]
            found.append([(one.memory_full_info().uss, _mapped(one)) for one in workers])
        return found

    found = run_forked(run, timeout_s=300)
    assert all(len(workers) >= 2 for workers in found)
    for before, after in zip(found[SETTLED - 1], found[-1], strict=True):
        assert after[0] < before[0] + (6 << 20), found
        # 200 shards; what one worker may have open at a time is bounded all the same.
        assert after[1] <= 200, found


def _mapped(process: psutil.Process) -> int:
    return sum(".arrow" in one.path for one in process.memory_maps(grouped=False))
