"""A subclass of LanceStreamingDataset, and arguments that mean nothing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from torch.utils.data import DataLoader

from lance_stream import LanceStream, LanceStreamingDataset
from lance_stream.errors import PlanError, VersionNotFoundError
from tests.support.forked import run_forked
from tests.support.tables import write_table

OPTIONS: dict[str, Any] = {"batch_size": 4, "num_canonical_nodes": 1, "shuffle": True}


def build(uri: str, kind: type[LanceStreamingDataset], **host: Any) -> Any:
    """A shuffled dataset."""
    return kind(streams=[LanceStream(uri, shard_rows=10)], **{**OPTIONS, **host})


class Doubling(LanceStreamingDataset):
    """Makes its samples by itself, as the host's users do."""

    def __getitem__(self, at: Any) -> Any:
        return 2 * super().__getitem__(at)["i"]


class Named(LanceStreamingDataset):
    """The same one level below."""

    def get_item(self, sample_id: int, retry: int = 7) -> Any:
        return 2 * super().get_item(sample_id, retry)["i"]


@pytest.mark.parametrize("kind", [Doubling, Named])
@pytest.mark.parametrize("workers", [0, 2])
def test_a_subclass_makes_its_own_samples(table_100: str, kind: type, workers: int) -> None:
    """In every way to get at them, as in the stock class, and in mid-epoch."""

    def run() -> list[Any]:
        plain, own = build(table_100, LanceStreamingDataset), build(table_100, kind)
        options: dict[str, Any] = {"num_workers": workers, "collate_fn": list}
        seen = [one for batch in DataLoader(own, 4, **options) for one in batch]
        rows = [row["i"] for batch in DataLoader(plain, 4, **options) for row in batch]
        state = own.state_dict(40, from_beginning=True)
        rest = build(table_100, kind, resume={**state, "epoch": 0})
        return [own[3], plain[3]["i"], seen, rows, list(rest)]

    one, row, seen, rows, rest = run_forked(run)
    assert one == 2 * row
    assert seen == [2 * row for row in rows]
    assert sorted(rows) == list(range(100))
    if not workers:
        assert rest == seen[40:]


def test_batches_do_not_pass_a_subclass_by(table_100: str) -> None:
    with pytest.raises(PlanError, match="never asks Doubling for a sample"):
        build(table_100, Doubling, batched=True)


@pytest.mark.parametrize(
    "arguments",
    [
        {"prefetch_shards": "3"},
        {"prefetch_shards": 1.5},
        {"prefetch_shards": True},
        {"predownload": -1},
        {"batch_size": 0, "batched": True},
        {"batch_size": -1},
        {"resume": {}},
        {"resume": "x"},
        {"resume": {"epoch": 1}},
    ],
)
def test_odd_arguments_are_named(table_100: str, arguments: dict[str, Any]) -> None:
    with pytest.raises(PlanError, match=f"{next(iter(arguments))}=.* must be"):
        build(table_100, LanceStreamingDataset, **arguments)


def test_a_resumed_version_that_the_table_has_not(table_100: str, tmp_path: Path) -> None:
    """Nobody gave it: the error says where it comes from, and of which table."""
    other = str(tmp_path / "other.lance")
    for mode in ("create", "overwrite", "overwrite"):
        write_table(other, 20, 20, mode=mode)
    write_table(str(tmp_path / "few.lance"), 20, 20)

    def run() -> str:
        state = build(other, LanceStreamingDataset).state_dict(4, from_beginning=True)
        with pytest.raises(VersionNotFoundError) as caught:
            build(str(tmp_path / "few.lance"), LanceStreamingDataset, resume=state)
        return str(caught.value)

    said = run_forked(run)
    assert "few.lance version 3" in said
    assert f"the checkpoint, which is of {other} version 3" in said
