"""``batched=True``: whole batches by column, of the rows and in the order of samples."""

from __future__ import annotations

import json
import warnings
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from streaming import Stream, StreamingDataLoader
from torch.utils.data import DataLoader

from lance_stream import LanceStream, LanceStreamingDataset
from lance_stream.errors import PlanError
from lance_stream.host import cache as cache_module
from lance_stream.host import dataset as dataset_module
from tests.host.test_resume import write_mds
from tests.support.forked import run_forked
from tests.support.scripts import run_script
from tests.support.tables import write_table

ROWS = 103
OPTIONS: dict[str, Any] = {"num_canonical_nodes": 1, "shuffle_seed": 7}

# Every kind of column, in 60 rows. In the rows below 20 nothing is null that may be.
_KINDS = """
import sys, datetime, decimal, lance, numpy as np, pyarrow as pa

n = 60
def some(values, kind):
    return pa.array([v if i < 20 or i % 7 else None for i, v in enumerate(values)], kind)

columns = {"i": pa.array(range(n), pa.int64())}
for name in ("int8", "int16", "int32", "uint8", "uint16", "uint32", "uint64"):
    columns[name] = pa.array([i % 100 for i in range(n)], getattr(pa, name)())
columns["f16"] = pa.array(np.arange(n).astype(np.float16))
columns["f32"] = pa.array([i / 8 for i in range(n)], pa.float32())
columns["f64"] = pa.array([i / 8 for i in range(n)], pa.float64())
columns["bool"] = pa.array([i % 3 == 0 for i in range(n)])
columns["maybe_int"] = some(range(n), pa.int32())
columns["maybe_bool"] = some([i % 2 == 0 for i in range(n)], pa.bool_())
columns["vector"] = pa.FixedSizeListArray.from_arrays(
    pa.array(np.arange(n * 4, dtype=np.float32)), 4
)
columns["maybe_vector"] = some([[i, i + 1] for i in range(n)], pa.list_(pa.int16(), 2))
columns["matrix"] = pa.FixedSizeListArray.from_arrays(
    pa.FixedSizeListArray.from_arrays(pa.array(np.arange(n * 6, dtype=np.int32)), 3), 2
)
tensor = pa.fixed_shape_tensor(pa.float64(), [2, 2])
columns["tensor"] = pa.ExtensionArray.from_storage(
    tensor, pa.FixedSizeListArray.from_arrays(pa.array(np.arange(n * 4, dtype=np.float64)), 4)
)
columns["text"] = pa.array([f"text {i}" for i in range(n)])
columns["maybe_text"] = some([f"t{i}" for i in range(n)], pa.string())
columns["data"] = pa.array([bytes([i]) * (i % 5) for i in range(n)])
columns["ragged"] = pa.array([list(range(i % 4)) for i in range(n)], pa.list_(pa.int64()))
columns["even"] = pa.array([[i, i] for i in range(n)], pa.list_(pa.int64()))
columns["words"] = pa.array([["w"] * (i % 3) for i in range(n)])
columns["struct"] = pa.array([{"a": i, "b": str(i)} for i in range(n)])
columns["date"] = pa.array([datetime.date(2020, 1, 1 + i % 28) for i in range(n)])
columns["time"] = pa.array([datetime.datetime(2020, 1, 1, i % 24) for i in range(n)])
columns["decimal"] = pa.array([decimal.Decimal(i) for i in range(n)], pa.decimal128(10, 0))
lance.write_dataset(pa.table(columns), sys.argv[1], max_rows_per_file=25)
"""


@pytest.fixture(scope="module")
def kinds(tables: Path) -> str:
    """A table of every kind of column."""
    uri = str(tables / "kinds.lance")
    run_script(_KINDS, uri).check()
    return uri


@pytest.fixture(scope="module")
def table(tables: Path) -> str:
    """The table T(103, 25)."""
    uri = str(tables / "batched103.lance")
    write_table(uri, ROWS, 25)
    return uri


def build(uri: str, *, host: dict[str, Any] | None = None, **stream: Any) -> LanceStreamingDataset:
    """A batched dataset over one table."""
    options = {"batch_size": 8, "batched": True, **OPTIONS, **(host or {})}
    return LanceStreamingDataset(streams=[LanceStream(uri, **stream)], **options)


def describe(value: Any) -> Any:
    """A value of a batch as JSON, with types and dtypes."""
    if isinstance(value, torch.Tensor):
        data = value.to(torch.float64) if value.dtype is torch.bfloat16 else value
        return ["tensor", str(value.dtype), list(value.shape), data.tolist()]
    if isinstance(value, np.ndarray):
        return ["array", str(value.dtype), list(value.shape), value.tolist()]
    if isinstance(value, list):
        return ["list", [describe(one) for one in value]]
    return [type(value).__name__, repr(value)]


def entry(column: Any, row: int) -> Any:
    """One row of a column as the sample would have it."""
    value = column[row]
    if isinstance(value, torch.Tensor):
        return value.item() if value.ndim == 0 else value.numpy()
    # Without tensors in it, wherever it is not one.
    assert not isinstance(value, np.ndarray)
    return value


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("shuffle", [False, True], ids=["in order", "shuffled"])
def test_every_kind_of_column(kinds: str, workers: int, shuffle: bool) -> None:
    """Each entry of each batch equals the value in the sample; batches are of their own rows."""

    def run() -> list[Any]:
        host = {"shuffle": shuffle}
        data = build(kinds, host=host, shard_rows=7)
        samples = LanceStreamingDataset(
            streams=[LanceStream(kinds, shard_rows=7)], batch_size=8, **OPTIONS, **host
        )
        rows = [
            row
            for batch in DataLoader(
                samples, batch_size=8, num_workers=workers, collate_fn=_same, shuffle=None
            )
            for row in batch
        ]
        at, forms = 0, {}
        for batch in DataLoader(data, batch_size=None, num_workers=workers):
            size = len(batch["i"])
            for name, column in batch.items():
                assert len(column) == size
                if isinstance(column, torch.Tensor):
                    column_form = f"{column.dtype}{list(column.shape[1:])}"
                else:
                    column_form = type(column).__name__
                forms.setdefault(name, set()).add(column_form)
                for row in range(size):
                    got, expected = entry(column, row), rows[at + row][name]
                    same = (
                        np.array_equal(got, expected) and got.dtype == expected.dtype
                        if isinstance(expected, np.ndarray)
                        else bool(got == expected)
                    )
                    assert same, (name, at + row, got, expected)
            assert list(batch) == list(rows[0])
            at += size
        return [at, {name: sorted(form) for name, form in forms.items()}]

    count, forms = run_forked(run)
    assert count == 60
    assert forms == {
        "i": ["torch.int64[]"],
        "int8": ["torch.int8[]"],
        "int16": ["torch.int16[]"],
        "int32": ["torch.int32[]"],
        "uint8": ["torch.uint8[]"],
        "uint16": ["torch.uint16[]"],
        "uint32": ["torch.uint32[]"],
        "uint64": ["torch.uint64[]"],
        "f16": ["torch.float16[]"],
        "f32": ["torch.float32[]"],
        "f64": ["torch.float64[]"],
        "bool": ["torch.bool[]"],
        # A batch in which something is null is a list.
        "maybe_int": ["list", "torch.int32[]"],
        "maybe_bool": ["list", "torch.bool[]"],
        "vector": ["torch.float32[4]"],
        "maybe_vector": ["list", "torch.int16[2]"],
        "matrix": ["torch.int32[2, 3]"],
        "tensor": ["torch.float64[2, 2]"],
        "text": ["list"],
        "maybe_text": ["list"],
        "data": ["list"],
        "ragged": forms["ragged"],
        "even": ["torch.int64[2]"],
        "words": ["list"],
        "struct": ["list"],
        "date": ["list"],
        "time": ["list"],
        "decimal": ["list"],
    }


def _same(batch: Any) -> Any:
    return batch


_BFLOAT16 = """
import sys, lance, numpy as np, pyarrow as pa
numbers = np.array([1.5, -2.0, 0.25, 7.0, 8.0, 9.0, 10.0, 11.0], np.float32)
halves = (numbers.view(np.uint32) >> 16).astype(np.uint16)
data = [None if i == 3 else half.tobytes() for i, half in enumerate(halves)]
extension = {"ARROW:extension:name": "lance.bfloat16", "ARROW:extension:metadata": ""}
schema = pa.schema([("i", pa.int64()), pa.field("b", pa.binary(2), metadata=extension)])
table = pa.table([pa.array(range(8), pa.int64()), pa.array(data, pa.binary(2))], schema)
lance.write_dataset(table, sys.argv[1])
"""


def test_bfloat16(tmp_path: Path) -> None:
    """A tensor of bfloat16 where nothing is null, else a list of tensors and None."""
    uri = str(tmp_path / "t.lance")
    run_script(_BFLOAT16, uri).check()

    def run(workers: int) -> list[Any]:
        data = build(uri, host={"batch_size": 4}, shard_rows=3)
        return [describe(b["b"]) for b in DataLoader(data, batch_size=None, num_workers=workers)]

    for workers in (0, 1):
        first, second = run_forked(run, workers)
        kinds = [one[0] for one in first[1]]
        assert (first[0], kinds) == ("list", ["tensor", "tensor", "tensor", "NoneType"])
        assert second == ["tensor", "torch.bfloat16", [4], [8.0, 9.0, 10.0, 11.0]]


@pytest.mark.parametrize(
    ("workers", "batch_size"),
    [
        (0, 10),
        (3, 4),
        (2, 200),
        *(
            pytest.param(*one, marks=pytest.mark.slow)
            for one in [(0, 1), (1, 4), (2, 10), (3, 10)]
        ),
    ],
)
def test_rows_order_and_number_of_batches(table: str, workers: int, batch_size: int) -> None:
    """The batches of the unbatched loader, the last ones kept; ``len`` says how many at least."""

    def run() -> list[Any]:
        host = {"shuffle": True, "batch_size": batch_size}
        plain = build(table, host={**host, "batched": False}, shard_rows=10)
        expected = [
            [row["i"] for row in batch]
            for batch in DataLoader(
                plain, batch_size=batch_size, num_workers=workers, collate_fn=_same
            )
        ]
        data = build(table, host=host, shard_rows=10)
        loader = DataLoader(data, batch_size=None, num_workers=workers)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            got = [batch["i"].tolist() for batch in loader]
        told = [str(w.message) for w in caught if "Length of" in str(w.message)]
        return [expected, got, len(loader), told]

    expected, got, length, told = run_forked(run)
    assert got == expected
    assert sorted({i for batch in got for i in batch}) == list(range(ROWS))
    assert told == [], (length, len(got))
    assert length == -(-ROWS // batch_size)


def test_parts(table: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """However large the parts in which batches are gathered, and however few maps are kept."""

    def run() -> list[Any]:
        result = []
        for part, shards, mapped in [(4096, 512, 1024), (1, 1, 1), (24, 2, 2), (100, 512, 3)]:
            monkeypatch.setattr(dataset_module, "_PART_SAMPLES", part)
            monkeypatch.setattr(dataset_module, "_PART_SHARDS", shards)
            monkeypatch.setattr(cache_module, "_MAX_MAPPED", mapped)
            data = build(table, host={"shuffle": True}, shard_rows=5)
            result.append([[describe(c) for c in batch.values()] for batch in data])
        return result

    first, *others = run_forked(run)
    assert others == [first] * 3


def test_with_a_cache_limit(table: str, tmp_path: Path) -> None:
    """Shards are evicted while they are read: the same batches, of the same types."""

    def run(limit: str | None) -> list[Any]:
        host = {"shuffle": True, "cache_limit": limit, "shuffle_block_size": 40}
        data = build(table, host=host, shard_rows=5, local=f"{tmp_path}/{limit}")
        return [
            [[describe(column) for column in batch.values()] for batch in data] for _ in range(2)
        ]

    assert run_forked(run, "9kb") == run_forked(run, None)


def test_batches_are_their_own(table: str) -> None:
    """What the training loop writes into a batch is in no other batch, and not in the cache."""

    def run() -> list[Any]:
        data = build(table, shard_rows=50)
        for batch in data:
            batch["v"].fill_(-1)
            batch["i"].fill_(-1)
        return [batch["i"].tolist() for batch in data]

    assert list(chain.from_iterable(run_forked(run))) == list(range(ROWS))


@pytest.mark.parametrize("form", ["mds", "two", "mds stream", "mixed"])
@pytest.mark.parametrize("workers", [pytest.param(0, marks=pytest.mark.slow), 2])
def test_other_shards(table: str, tmp_path: Path, form: str, workers: int) -> None:
    """MDS files, two tables, MDS streams: by ``collate``, where columns are not all the same."""
    mds = write_mds(tmp_path / "mds", 50, 10, 1000)

    def run() -> list[Any]:
        streams: dict[str, list[Stream]] = {
            "mds": [LanceStream(table, shard_rows=10, cache_format="mds")],
            "two": [LanceStream(table, shard_rows=10), LanceStream(table, shard_rows=7)],
            "mds stream": [Stream(local=mds)],
            "mixed": [LanceStream(table, shard_rows=10), Stream(local=mds)],
        }
        data = LanceStreamingDataset(
            streams=streams[form], batch_size=8, shuffle=True, batched=True, **OPTIONS
        )
        seen, forms = [], set()
        for batch in DataLoader(data, batch_size=None, num_workers=workers):
            seen += batch["i"].tolist()
            forms.add((str(batch["i"].dtype), str(batch["v"].dtype), tuple(batch["v"].shape[1:])))
            for row, i in enumerate(batch["i"].tolist()):
                expected = (np.float32(i) + np.arange(8, dtype=np.float32) / 8).tolist()
                assert batch["v"][row].tolist() == expected
        return [sorted(seen), sorted(forms)]

    seen, forms = run_forked(run)
    expected = {
        "mds": list(range(ROWS)),
        "two": sorted([*range(ROWS), *range(ROWS)]),
        "mds stream": list(range(1000, 1050)),
        "mixed": [*range(ROWS), *range(1000, 1050)],
    }
    assert seen == expected[form]
    assert forms == [["torch.int64", "torch.float32", [8]]]


def test_two_tables_of_other_types(table: str, tmp_path: Path) -> None:
    """A column that is int64 here and int32 there is never cast: one form for the whole epoch."""
    other = str(tmp_path / "t.lance")
    script = """
import sys, lance, pyarrow as pa
table = pa.table({"i": pa.array([2**33 + k for k in range(20)], pa.uint64())})
lance.write_dataset(table, sys.argv[1])
"""
    run_script(script, other).check()

    def run() -> list[Any]:
        streams = [
            LanceStream(table, shard_rows=10, columns={"i": "cast(i as int)"}),
            LanceStream(other, shard_rows=5),
        ]
        data = LanceStreamingDataset(
            streams=streams, batch_size=8, shuffle=True, batched=True, **OPTIONS
        )
        batches = [batch["i"] for batch in data]
        return [
            sorted(chain.from_iterable(b.tolist() for b in batches)),
            sorted({str(b.dtype) for b in batches}),
        ]

    seen, forms = run_forked(run)
    assert seen == [*range(ROWS), *range(2**33, 2**33 + 20)]
    assert forms == ["torch.int64"]


def test_streaming_dataloader_counts_and_resumes(table: str) -> None:
    """The host's loader counts the rows of batches, and resumes behind them."""

    def run() -> list[Any]:
        data = build(table, host={"shuffle": True}, shard_rows=10)
        whole = [batch["i"].tolist() for batch in StreamingDataLoader(data, batch_size=None)]
        data = build(table, host={"shuffle": True}, shard_rows=10)
        loader = StreamingDataLoader(data, batch_size=None, num_workers=2)
        head = []
        for batch in loader:
            head.append(batch["i"].tolist())
            if len(head) == 5:
                break
        state = json.loads(json.dumps(loader.state_dict()))
        again = build(table, host={"shuffle": True}, shard_rows=10)
        loader = StreamingDataLoader(again, batch_size=None, num_workers=1)
        loader.load_state_dict(state)
        rest = [batch["i"].tolist() for batch in loader]
        return [whole, head, rest, state["sample_in_epoch"]]

    whole, head, rest, count = run_forked(run)
    assert count == 40
    assert head + rest == whole


def _total(batch: Any) -> int:
    return int(batch["i"].sum()) + len(batch["s"]) + len(list(batch.keys()))


def test_collate_fn_in_a_worker(table: str) -> None:
    """A ``collate_fn`` of the user's sees the batch by column, in a worker and in the trainer."""

    def run(workers: int) -> list[Any]:
        data = build(table, shard_rows=10)
        loader = DataLoader(data, batch_size=None, num_workers=workers, collate_fn=_total)
        return list(loader)

    assert run_forked(run, 1) == run_forked(run, 0)


class _Doubling(LanceStreamingDataset):
    """Adds a column to its batches."""

    def __iter__(self) -> Any:
        for batch in super().__iter__():
            batch["twice"] = 2 * batch["i"]
            yield batch


def test_a_subclass_changes_its_batches(table: str) -> None:
    """In a worker as in the trainer."""

    def run(workers: int) -> list[Any]:
        data = _Doubling(
            streams=[LanceStream(table, shard_rows=10)], batched=True, batch_size=8, **OPTIONS
        )
        loader = DataLoader(data, batch_size=None, num_workers=workers)
        return [[type(one).__name__, *map(describe, one.items())] for one in loader]

    assert run_forked(run, 1) == run_forked(run, 0)


@pytest.mark.filterwarnings("ignore:'pin_memory' argument is set as true")
@pytest.mark.parametrize("workers", [0, 1])
def test_pin_memory(table: str, workers: int) -> None:
    """Asked for on a machine without an accelerator, torch says so, and batches come as ever."""

    def run() -> list[Any]:
        data = build(table, shard_rows=10)
        loader = DataLoader(data, batch_size=None, num_workers=workers, pin_memory=True)
        return [[type(batch).__name__, batch["i"].tolist(), len(batch["s"])] for batch in loader]

    batches = run_forked(run)
    assert {batch[0] for batch in batches} == {"dict"}
    assert list(chain.from_iterable(batch[1] for batch in batches)) == list(range(ROWS))


def test_arguments_are_checked(table: str) -> None:
    """What cannot be is said when the dataset is built."""
    with pytest.raises(PlanError, match="batched=True needs a batch_size"):
        LanceStreamingDataset(streams=[LanceStream(table)], batched=True)
    with pytest.raises(PlanError, match="prefetch_shards=-1 must be a whole number, at least 0"):
        LanceStreamingDataset(streams=[LanceStream(table)], batch_size=2, prefetch_shards=-1)
