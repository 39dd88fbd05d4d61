"""A subclass of LanceStreamingDataset, and arguments that mean nothing."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from torch.utils.data import DataLoader

import lance_stream
from lance_stream import LanceStream, LanceStreamingDataset
from lance_stream.errors import PlanError, StateMismatchError, VersionNotFoundError
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


@pytest.mark.parametrize("kind", [LanceStreamingDataset, Doubling, Named])
@pytest.mark.parametrize("workers", [0, 2])
def test_rows_are_counted_once(table_100: str, kind: type, workers: int) -> None:
    """Whoever makes the samples."""

    def run() -> list[int]:
        data = build(table_100, kind)
        found = []
        for _ in range(2):
            for _ in DataLoader(data, 4, num_workers=workers, collate_fn=list):
                pass
            found.append(lance_stream.stats(data).rows)
        return found

    assert run_forked(run) == [100, 200]


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


@pytest.mark.parametrize("by_name", [False, True], ids=["streams", "stream_name"])
def test_a_resumed_version_that_is_not_there(tmp_path: Path, by_name: bool) -> None:
    """Of another table: both are named. Gone: the error says whose version it is."""
    versions, few = str(tmp_path / "versions.lance"), str(tmp_path / "few.lance")
    for mode in ("create", "overwrite", "overwrite"):
        write_table(versions, 20, 20, mode=mode)
    write_table(few, 20, 20)

    def make(uri: str, **host: Any) -> Any:
        if not by_name:
            return build(uri, LanceStreamingDataset, **host)
        config = {"shard_rows": 10}
        return LanceStreamingDataset(
            stream_name="lance", remote=uri, stream_config=config, **OPTIONS, **host
        )

    def run() -> list[str]:
        state = make(versions).state_dict(4, from_beginning=True)
        with pytest.raises(StateMismatchError) as other:
            make(few, resume=state)
        shutil.rmtree(versions)
        shutil.copytree(few, versions)
        with pytest.raises(VersionNotFoundError) as gone:
            make(versions, resume=state)
        return [str(other.value), str(gone.value)]

    other, gone = run_forked(run)
    assert f"checkpoint that resume= names is of {versions} version 3" in other
    assert few in other
    assert "versions.lance version 3" in gone
    assert f"that of the checkpoint, which is of {versions} version 3" in gone
    assert "begin anew without resume=" in gone


def test_a_split_is_resumed(tmp_path: Path) -> None:
    """The table of a split is the one that the state names."""
    write_table(str(tmp_path / "train.lance"), 20, 20)

    def run() -> list[Any]:
        def make(**host: Any) -> Any:
            streams = [LanceStream(str(tmp_path), split="train", shard_rows=10)]
            return LanceStreamingDataset(streams=streams, **OPTIONS, **host)

        state = make().state_dict(4, from_beginning=True)
        write_table(str(tmp_path / "train.lance"), 20, 20, mode="append")
        return [make(resume=state).streams[0].version, make().streams[0].version]

    assert run_forked(run) == [1, 2]


def test_streams_are_given_again(tmp_path: Path) -> None:
    """``resume=`` holds for one dataset: a stream then takes another state, or the latest."""
    uri, other = str(tmp_path / "grows.lance"), str(tmp_path / "other.lance")
    write_table(uri, 20, 20)
    write_table(other, 20, 20)

    def run() -> list[Any]:
        def make(*streams: LanceStream, **host: Any) -> LanceStreamingDataset:
            return LanceStreamingDataset(streams=list(streams), **OPTIONS, **host)

        def new() -> LanceStream:
            return LanceStream(uri, shard_rows=10)

        first = make(new()).state_dict(0)
        both = make(new(), LanceStream(other)).state_dict(0)
        write_table(uri, 20, 20, mode="append")
        second = make(new()).state_dict(0)
        stream, named = new(), LanceStream(uri, version=1, shard_rows=10)
        rows = [make(stream, resume=state).num_samples for state in (first, second, first)]
        rows += [make(stream).num_samples]
        # Refused by the second stream, or while it is built: the first one is as it was.
        with pytest.raises(StateMismatchError, match="stream 1"):
            make(stream, new(), resume=both)
        rows += [make(stream).num_samples]
        gone = json.loads(json.dumps(first))
        gone["lance_stream"]["streams"][0][1] = 77
        with pytest.raises(VersionNotFoundError):
            make(stream, resume=gone)
        rows += [make(stream).num_samples]
        return [*rows, *(make(named, **one).num_samples for one in ({"resume": first}, {}))]

    assert run_forked(run) == [20, 40, 20, 40, 40, 40, 20, 20]
