"""Checkpoints of LanceStreamingDataset: exact remainders, and never over other data."""

from __future__ import annotations

import gc
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from streaming import Stream, StreamingDataLoader, StreamingDataset
from torch.utils.data import DataLoader
from torchdata.stateful_dataloader import StatefulDataLoader

from lance_stream import LanceStream, LanceStreamingDataset
from lance_stream.errors import StateMismatchError
from lance_stream.shards.paths import is_shard_name
from tests.host.test_resume import write_mds
from tests.support.forked import run_forked
from tests.support.streams import identity
from tests.support.tables import write_table

# Torchdata's loader, on a torch that is newer.
pytestmark = pytest.mark.filterwarnings("ignore:'set_vital' is deprecated")

ROWS, BATCH = 103, 4
OPTIONS: dict[str, Any] = {"batch_size": BATCH, "num_canonical_nodes": 1, "shuffle_seed": 7}


@pytest.fixture(scope="module")
def table(tables: Path) -> str:
    """The table T(103, 25)."""
    uri = str(tables / "checkpoints103.lance")
    write_table(uri, ROWS, 25)
    return uri


def build(uri: str, kind: type = LanceStreamingDataset, **host: Any) -> Any:
    """A shuffled dataset."""
    return kind(streams=[LanceStream(uri, shard_rows=10)], **{**OPTIONS, "shuffle": True, **host})


@pytest.fixture(scope="module")
def whole(table: str) -> list[list[int]]:
    """Three uninterrupted epochs of the stock class."""

    def run() -> list[Any]:
        data = build(table, StreamingDataset)
        return [[row["i"] for row in data] for _ in range(3)]

    return run_forked(run)


def _ints(batch: Any) -> list[int]:
    return batch["i"].tolist() if isinstance(batch, dict) else [row["i"] for row in batch]


def _columns(batch: list[dict[str, Any]]) -> dict[str, list[Any]]:
    return {name: [row[name] for row in batch] for name in batch[0]}


def take(loader: Any, count: int | None) -> list[int]:
    """Ids of the first batches of an epoch; None: of all."""
    seen: list[int] = []
    if count == 0:
        return seen
    for number, batch in enumerate(loader, 1):
        found = batch["i"] if isinstance(batch, dict) else [row["i"] for row in batch]
        seen += found.tolist() if hasattr(found, "tolist") else found
        if number == count:
            break
    return seen


def streaming_loader(uri: str, workers: int, *, batched: bool, **host: Any) -> Any:
    """The host's loader."""
    data = build(uri, batched=batched, **host)
    if batched:
        return StreamingDataLoader(data, batch_size=None, num_workers=workers)
    return StreamingDataLoader(data, batch_size=BATCH, num_workers=workers, collate_fn=_columns)


@pytest.mark.parametrize("batched", [False, True], ids=["samples", "batches"])
@pytest.mark.parametrize(
    ("before", "after", "count"),
    [
        (2, 0, 7),
        (3, 1, 26),
        *(
            pytest.param(*one, marks=pytest.mark.slow)
            for one in [(0, 2, 7), (1, 3, None), (2, 2, 1)]
        ),
    ],
)
def test_streaming_dataloader(
    table: str, whole: list[list[int]], batched: bool, before: int, after: int, count: int | None
) -> None:
    """With other workers: the exact remainder, then whole epochs; twice in a row."""

    def head() -> list[Any]:
        loader = streaming_loader(table, before, batched=batched)
        return [take(loader, count), json.dumps(loader.state_dict())]

    def rest(state: str, epochs: list[int | None]) -> list[Any]:
        loader = streaming_loader(table, after, batched=batched)
        loader.load_state_dict(json.loads(state))
        return [[take(loader, stop) for stop in epochs], json.dumps(loader.state_dict())]

    seen, state = run_forked(head)
    ((middle,), again) = run_forked(rest, state, [3])
    (last, following), _ = run_forked(rest, again, [None, None])
    if count in (26, None):
        # Nothing was left of the first epoch: the host's loader gives an empty one.
        assert seen == whole[0]
        assert middle == last == []
        assert following == whole[1]
    else:
        assert seen + middle + last == whole[0]
        assert following == whole[1]


def stateful(uri: str, workers: int, *, batched: bool, **options: Any) -> Any:
    """Torchdata's loader."""
    data = build(uri, batched=batched)
    if batched:
        return StatefulDataLoader(data, batch_size=None, num_workers=workers, **options)
    return StatefulDataLoader(
        data, batch_size=BATCH, num_workers=workers, collate_fn=identity, **options
    )


@pytest.mark.parametrize("batched", [False, True], ids=["samples", "batches"])
@pytest.mark.parametrize(("workers", "count"), [(0, 9), (1, 25), (2, 1), (2, 9)])
def test_stateful_dataloader(
    table: str, whole: list[list[int]], batched: bool, workers: int, count: int
) -> None:
    """Saved in mid-epoch, resumed, saved again, resumed: no row lost, none twice."""

    def head() -> list[Any]:
        loader = stateful(table, workers, batched=batched)
        return [take(loader, count), loader.state_dict()]

    def rest(state: Any, epochs: list[int | None]) -> list[Any]:
        loader = stateful(table, workers, batched=batched)
        loader.load_state_dict(state)
        # As in training: the state before anything was read is the one that was loaded.
        return [[take(loader, stop) for stop in epochs], loader.state_dict()]

    def run() -> list[Any]:
        seen, state = head()
        (middle,), again = rest(state, [1])
        (last, following), _ = rest(again, [None, None])
        return [seen, middle, last, following]

    seen, middle, last, following = run_forked(run)
    assert seen + middle + last == whole[0]
    assert following == whole[1]


@pytest.mark.parametrize("persistent", [False, True])
@pytest.mark.parametrize("again", [False, True])
@pytest.mark.parametrize("workers", [0, 1, 2])
def test_stateful_dataloader_between_epochs(
    table: str, whole: list[list[int]], workers: int, again: bool, persistent: bool
) -> None:
    """Saved after the last batch: the next epoch is the second, whole, at once."""
    options = {"persistent_workers": persistent and workers > 0}

    def run() -> list[Any]:
        loader = stateful(table, workers, batched=False, **options)
        first = take(loader, None)
        state = loader.state_dict()
        for _ in range(1 + again):
            loader = stateful(table, workers, batched=False, **options)
            loader.load_state_dict(state)
            state = loader.state_dict() if again else state
        return [first, *(take(loader, None) for _ in range(len(whole) - 1))]

    for _ in range(3):
        assert run_forked(run) == whole


@pytest.mark.parametrize(
    ("workers", "batched", "options"),
    [
        (0, False, {}),
        (2, True, {}),
        (2, False, {"persistent_workers": True}),
        *(
            pytest.param(*one, marks=pytest.mark.slow)
            for one in [
                (0, True, {}),
                (2, False, {"snapshot_every_n_steps": 3}),
                (2, True, {"persistent_workers": True, "snapshot_every_n_steps": 3}),
                (3, False, {}),
                (3, True, {"snapshot_every_n_steps": 3}),
                (3, True, {"persistent_workers": True}),
            ]
        ),
    ],
)
def test_stateful_dataloader_in_later_epochs(
    table: str, whole: list[list[int]], workers: int, batched: bool, options: dict[str, Any]
) -> None:
    """Saved early, when the state of a worker may be the one before its first batch."""
    places = [(epoch, count) for epoch in (1, 2) for count in (0, 1, 2, 9)]

    def make(state: Any = None) -> Any:
        loader = stateful(table, workers, batched=batched, **options)
        if state is not None:
            loader.load_state_dict(state)
        return loader

    def head(loader: Any, count: int) -> list[Any]:
        # The loader begins the epoch before it is asked for the state, as in training.
        iterator = iter(loader)
        seen = take([next(iterator) for _ in range(count)], None)
        return [seen, loader.state_dict()]

    def run() -> list[Any]:
        results = []
        for epoch, count in places:
            loader = make()
            for _ in range(epoch):
                take(loader, None)
            seen, state = head(loader, count)
            again, second = head(make(state), 1)
            results.append([seen, again, take(make(second), None)])
        return results

    for (epoch, count), (seen, again, rest) in zip(places, run_forked(run), strict=True):
        assert seen + again + rest == whole[epoch], (epoch, count)


@pytest.mark.parametrize("workers", [0, 2])
def test_a_plain_dataloader(table: str, whole: list[list[int]], workers: int) -> None:
    """The training loop counts its samples: ``state_dict(samples, from_beginning=...)``."""

    def run() -> list[Any]:
        data = build(table)
        head = take(DataLoader(data, BATCH, num_workers=workers, collate_fn=identity), 8)
        state = data.state_dict(len(head), from_beginning=True)
        data = build(table, resume=json.loads(json.dumps(state)))
        rest = take(DataLoader(data, BATCH, num_workers=workers, collate_fn=identity), 5)
        state = data.state_dict(len(rest), from_beginning=False)
        data = build(table, resume=state)
        return [head, rest, take(DataLoader(data, BATCH, collate_fn=identity), None)]

    head, middle, rest = run_forked(run)
    assert head + middle + rest == whole[0]


def test_iterated_without_a_loader(table: str, whole: list[list[int]]) -> None:
    """``state_dict()`` without arguments, at every kind of moment, in one process."""

    def run() -> list[Any]:
        data, seen = build(table), []
        before = data.state_dict()
        iterator = iter(data)
        states = []
        for at in range(ROWS):
            seen.append(next(iterator)["i"])
            if at in (0, 40, 41, ROWS - 1):
                states.append([at + 1, data.state_dict(), data.state_dict()])
        del iterator
        result = []
        for at, state, again in [[0, before, before], *states]:
            assert state == again
            data = build(table)
            data.load_state_dict(state)
            # What was loaded is what is saved, until something is read.
            assert data.state_dict() == state, (at, data.state_dict(), state)
            rest = [row["i"] for row in data]
            result.append([seen[:at] + rest, [row["i"] for row in data]])
        return result

    for first, second in run_forked(run):
        assert first == whole[0]
        assert second == whole[1]


def test_a_state_that_is_over_is_not_gone_on_with(table: str, whole: list[list[int]]) -> None:
    """As in the stock class: a dataset that is further goes on where it is, with every row."""

    def run() -> list[Any]:
        data = build(table)
        iterator = iter(data)
        for _ in range(30):
            next(iterator)
        state = data.state_dict()
        iterator.close()
        epochs = [[row["i"] for row in data]]
        data.load_state_dict(state)
        return [*epochs, [row["i"] for row in data]]

    assert run_forked(run) == whole[1:]


def test_a_state_of_the_past_is_told(table: str, caplog: pytest.LogCaptureFixture) -> None:
    """Rather than that an epoch goes on where nobody expects it."""

    def run() -> list[str]:
        data = build(table)
        state = data.state_dict(8, True)
        data.load_state_dict(state)
        first = caplog.text
        list(data)
        data.load_state_dict({**state, "epoch": 0})
        return [first, caplog.text]

    first, told = run_forked(run)
    assert first == ""
    assert "state of epoch 0 is not gone on with, since this dataset has begun epoch 0" in told


@pytest.mark.parametrize("workers", [1, 2])
def test_a_state_of_one_process_is_for_as_many(table: str, workers: int) -> None:
    """With others, each would leave out what none of them gave: refused."""

    def run() -> list[Any]:
        data = build(table)
        iterator = iter(data)
        seen = [next(iterator)["i"] for _ in range(10)]
        state = json.loads(json.dumps(data.state_dict()))
        iterator.close()
        again = build(table)
        again.load_state_dict(state)
        try:
            loader = DataLoader(again, BATCH, num_workers=workers, collate_fn=_columns)
            return [seen + take(loader, None), ""]
        except StateMismatchError as error:
            return [seen, str(error)]

    seen, said = run_forked(run)
    if workers == 1:
        # One worker does what the trainer alone does.
        assert sorted(seen) == list(range(len(seen)))
        assert len(seen) > 10
    else:
        assert "saved by one of 1 workers on each of 1 ranks, and here are 2 on each of 1" in said


def test_workers_of_a_fork_server(table: str) -> None:
    """They are no children of the trainer, whom they do not take for gone."""

    def run() -> list[list[int]]:
        data = build(table)
        loader = DataLoader(
            data,
            BATCH,
            num_workers=2,
            collate_fn=_columns,
            multiprocessing_context="forkserver",
        )
        return [take(loader, None) for _ in range(2)]

    assert [sorted(set(epoch)) for epoch in run_forked(run)] == [list(range(ROWS))] * 2


def test_a_sibling_in_the_same_directory_keeps_its_shards(table: str, tmp_path: Path) -> None:
    """With a cache limit, what no dataset of this process counts is removed; only that."""

    def run() -> list[int]:
        def build_with(**stream: Any) -> Any:
            streams = [LanceStream(table, local=str(tmp_path / "cache"), shard_rows=5, **stream)]
            return LanceStreamingDataset(streams=streams, batch_size=BATCH, cache_limit="10mb")

        def on_disk() -> int:
            return sum(is_shard_name(path.name) for path in (tmp_path / "cache").iterdir())

        train = build_with(filter="i < 50")
        list(train)
        found = [on_disk()]
        other = build_with(filter="i >= 50")
        found.append(on_disk())
        del train
        gc.collect()
        another = build_with(filter="i >= 60")
        return [*found, on_disk(), len(other), len(another)]

    before, beside, after, *_ = run_forked(run)
    assert before == beside == 10
    assert after == 0


def test_loaded_in_mid_epoch(table: str, whole: list[list[int]]) -> None:
    """What is saved next is the state that was loaded, not that of what is in progress."""

    def run() -> list[Any]:
        data = build(table)
        iterator = iter(data)
        for _ in range(10):
            next(iterator)
        state = data.state_dict()
        for _ in range(10):
            next(iterator)
        data.load_state_dict(state)
        return [data.state_dict() == state, [row["i"] for row in data]]

    same, rest = run_forked(run)
    assert same
    # The epoch was begun here, so the state is of the past, as in the stock class.
    assert rest == whole[1]


def test_it_is_small_and_json(table: str) -> None:
    """Fifty streams take less than 4 KB."""

    def run() -> list[Any]:
        streams = [LanceStream(table, shard_rows=10 + number) for number in range(50)]
        data = LanceStreamingDataset(streams=streams, **OPTIONS)
        text = json.dumps(data.state_dict(12, from_beginning=True))
        data.load_state_dict(json.loads(text))
        return [len(text), json.loads(text)["lance_stream"]["streams"][7]]

    length, entry = run_forked(run)
    assert length < 4096
    assert entry[1] == 1


def _with_versions(tmp_path: Path) -> str:
    uri = str(tmp_path / "grows.lance")
    write_table(uri, ROWS, 25)
    return uri


def _grow(uri: str) -> None:
    write_table(uri, 50, 25, first_row=ROWS, mode="append")


@pytest.mark.parametrize("by_name", [False, True], ids=["streams", "stream_name"])
def test_resume_reopens_the_saved_version(tmp_path: Path, by_name: bool) -> None:
    """A producer appended meanwhile: ``resume=`` opens the old version, with its order."""
    uri = _with_versions(tmp_path)

    def make(**host: Any) -> Any:
        if not by_name:
            return build(uri, **host)
        return LanceStreamingDataset(
            stream_name="lance",
            remote=uri,
            stream_config={"shard_rows": 10},
            shuffle=True,
            **OPTIONS,
            **host,
        )

    def run() -> list[Any]:
        data = make()
        whole = [row["i"] for row in data]
        state = data.state_dict(40, from_beginning=True)
        # The host gives no state of an epoch that another dataset has behind it.
        state["epoch"] = 0
        _grow(uri)
        data = make(resume=state)
        rest = [row["i"] for row in data]
        return [whole, rest, data.streams[0].version, make().streams[0].version]

    whole, rest, version, latest = run_forked(run)
    assert rest == whole[40:]
    assert (version, latest) == (1, 2)


def test_other_data_is_refused(table: str, tmp_path: Path) -> None:
    """Another version, table, selection, number or kind of streams: both sides are named."""
    uri, mds = _with_versions(tmp_path), write_mds(tmp_path / "mds", 20, 10)

    def refusal(streams: Callable[[], list[Stream]], state: Any, *, resume: bool = False) -> str:
        try:
            if resume:
                LanceStreamingDataset(streams=streams(), resume=state, **OPTIONS)
            else:
                LanceStreamingDataset(streams=streams(), **OPTIONS).load_state_dict(state)
        except StateMismatchError as error:
            return str(error)
        return ""

    def run() -> list[str]:
        state = build(uri).state_dict(8, from_beginning=True)
        both = LanceStreamingDataset(
            streams=[LanceStream(uri, shard_rows=10), Stream(local=mds)], **OPTIONS
        ).state_dict(8, from_beginning=True)
        _grow(uri)
        return [
            refusal(lambda: [LanceStream(uri, shard_rows=10)], state),
            refusal(lambda: [LanceStream(uri, version=2, shard_rows=10)], state, resume=True),
            refusal(lambda: [LanceStream(table, shard_rows=10)], state),
            refusal(lambda: [LanceStream(uri, version=1, shard_rows=9)], state),
            refusal(lambda: [LanceStream(uri, version=1, shard_rows=10, filter="i < 90")], state),
            refusal(lambda: [LanceStream(uri), LanceStream(table)], state),
            refusal(lambda: [LanceStream(uri), LanceStream(table)], state, resume=True),
            refusal(
                lambda: [LanceStream(uri, version=1, shard_rows=10), LanceStream(table)], both
            ),
            # These are the same rows in the same shards.
            refusal(lambda: [LanceStream(uri, version=1, shard_rows=10, columns=["i"])], state),
            refusal(lambda: [LanceStream(uri, shard_rows=10)], state, resume=True),
        ]

    version, pinned, other, rows, chosen, number, resumed, kind, *fine = run_forked(run)
    for message in (version, pinned):
        assert f"the checkpoint is of {uri} version 1" in message
        assert f"the dataset streams {uri} version 2" in message
        assert f"LanceStream('{uri}', version=1)" in message
    assert uri in other
    assert table in other
    for message in (rows, chosen):
        assert "shard_rows" in message
    assert "is of 1 streams, and the dataset has 2" in number
    assert "is of 1 streams, and 2 are given" in resumed
    assert "stream 1 was another stream when the checkpoint was made, and is a LanceStream" in kind
    assert fine == ["", ""]


def test_states_of_the_stock_class(table: str, whole: list[list[int]]) -> None:
    """A checkpoint of the stock class is gone on with, and the other way round."""

    def run() -> list[Any]:
        stock = build(table, StreamingDataset)
        state = stock.state_dict(20, from_beginning=True)
        state["epoch"] = 0
        ours = build(table, resume=state)
        rest = [row["i"] for row in ours]
        state = ours.state_dict(20, from_beginning=True)
        again = build(table, StreamingDataset)
        again.load_state_dict(state)
        return [rest, [row["i"] for row in again]]

    assert run_forked(run) == [whole[0][20:], whole[0][20:]]
