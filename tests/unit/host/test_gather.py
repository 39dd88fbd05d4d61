"""Batches by column out of record batches, against plain Python."""

from __future__ import annotations

import copy
import pickle
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from lance_stream.host.course import Part
from lance_stream.host.gather import PackedBatch, ShardColumns, gathered, tensors

SIZES = (5, 1, 4)


def shard(number: int, *, nulls: bool, pieces: int = 1) -> tuple[ShardColumns, list[dict]]:
    """A shard, and its rows as they must come out."""
    size = SIZES[number]
    rows = [
        {
            "n": None if nulls and row % 2 else number * 10 + row,
            "v": [number, row, 7],
            "t": None if nulls and not row else f"{number}/{row}",
            "r": list(range(row)),
        }
        for row in range(size)
    ]
    schema = pa.schema(
        [
            ("n", pa.int16()),
            ("v", pa.list_(pa.uint64(), 3)),
            ("t", pa.string()),
            ("r", pa.list_(pa.float32())),
        ]
    )
    whole = pa.RecordBatch.from_pylist(rows, schema)
    cuts = np.linspace(0, size, pieces + 1).astype(int).tolist()
    batches = [whole.slice(start, stop - start) for start, stop in pairwise(cuts) if stop > start]
    return ShardColumns(batches), rows


def plain(value: Any) -> Any:
    """Values without arrays."""
    if isinstance(value, np.ndarray | torch.Tensor):
        return value.tolist()
    return [plain(one) for one in value] if isinstance(value, list) else value


@given(
    samples=st.lists(
        st.integers(0, 2).flatmap(
            lambda number: st.tuples(st.just(number), st.integers(0, SIZES[number] - 1))
        ),
        min_size=1,
        max_size=25,
    ),
    size=st.integers(1, 30),
    nulls=st.lists(st.booleans(), min_size=3, max_size=3),
    pieces=st.integers(1, 3),
)
def test_any_samples(
    samples: list[tuple[int, int]], size: int, nulls: list[bool], pieces: int
) -> None:
    """Any samples of shards with and without nulls, of one batch or several, in any order."""
    shards = [shard(n, nulls=nulls[n], pieces=pieces if n != 1 else 1) for n in range(3)]
    part = Part(*(np.array(one, np.int64) for one in zip(*samples, strict=True)))
    columns = {n: shards[n][0] for n in {number for number, _ in samples}}
    batches = list(gathered(part, columns, size))
    expected = [shards[number][1][row] for number, row in samples]
    assert [len(batch["n"]) for batch in batches] == [
        min(size, len(samples) - at) for at in range(0, len(samples), size)
    ]
    for name in ("n", "v", "t", "r"):
        found = [value for batch in batches for value in plain(batch[name])]
        assert found == [row[name] for row in expected]
    for batch, at in zip(batches, range(0, len(samples), size), strict=True):
        assert list(batch) == ["n", "v", "t", "r"]
        known = all(row["n"] is not None for row in expected[at : at + size])
        # What a batch looks like depends on its own rows only.
        assert isinstance(batch["n"], np.ndarray) == known
        assert batch["v"].dtype == np.uint64
        for value in batch.values():
            assert not isinstance(value, np.ndarray) or value.flags.writeable


def test_record_batches_stay_where_they_are() -> None:
    """Columns of a shard of several are views of its file, not joined in private memory."""
    batches = [
        pa.record_batch({"n": np.arange(4), "v": pa.array([[1, 2]] * 4, pa.list_(pa.int32(), 2))})
        for _ in range(3)
    ]
    columns = ShardColumns(batches)
    assert columns.starts.tolist() == [0, 4, 8]
    for batch, (n, v) in zip(batches, columns.batches, strict=True):
        assert n.array is not None
        assert v.array is not None
        assert np.shares_memory(n.array[0], batch["n"].to_numpy())
        assert np.shares_memory(v.array[0], batch["v"].values.to_numpy())


def test_tensors_of_every_dtype() -> None:
    """All integer types of either C name, floats and bools; lists of arrays too."""
    arrays = {code: np.arange(3).astype(code) for code in "?bBhHiIlLqQefd"}
    made = tensors(arrays)
    assert {code: one.tolist() for code, one in made.items()} == {
        code: array.tolist() for code, array in arrays.items()
    }
    assert made["Q"].dtype == torch.uint64
    text = ["a", None]
    listed = tensors({"text": text, "ragged": [np.zeros(2, np.int16), None], "n": [1, None]})
    assert listed["text"] is text
    assert listed["n"] == [1, None]
    assert isinstance(listed["ragged"][0], torch.Tensor)
    assert listed["ragged"][1] is None


def test_a_packed_batch_becomes_the_batch() -> None:
    """What another process unpickles is the dict of tensors; here it can be looked at."""
    packed = PackedBatch({"n": np.arange(3, dtype=np.int32), "t": ["a", "b", "c"]})
    assert list(packed.keys()) == ["n", "t"]
    assert packed["n"].dtype == torch.int32
    assert torch.utils.data.default_convert(packed) is packed
    batch = pickle.loads(pickle.dumps(packed))
    assert type(batch) is dict
    assert batch["n"].tolist() == [0, 1, 2]
    assert batch["t"] == ["a", "b", "c"]
    with pytest.raises(KeyError, match="nothing"):
        packed["nothing"]


def batch_of_each() -> tuple[PackedBatch, dict[str, Any]]:
    """A packed batch of every sort of column, and what ``num_workers=0`` would give."""
    columns = {
        "n": np.arange(3, dtype=np.int32),
        "t": ["a", "b", "c"],
        "r": [np.zeros(2, np.float32), np.ones(1, np.float32), None],
        "s": [{"a": np.arange(2)}, {"a": None}, None],
    }
    return PackedBatch(copy.deepcopy(columns)), tensors(columns)


def sent(packed: PackedBatch) -> dict[str, Any]:
    """What the trainer sees."""
    batch = pickle.loads(pickle.dumps(packed))
    assert type(batch) is dict
    return batch


def _square(batch: Any) -> Any:
    batch["n"] = batch["n"] ** 2
    return batch


def _in_place(batch: Any) -> Any:
    batch["n"] += 1
    batch["n"][0] = 7
    batch["r"][0][1] = 5
    batch["r"][2] = torch.ones(3)
    batch["t"].append("d")
    return batch


def _other_view(batch: Any) -> Any:
    batch["n"] = batch["n"][:2].view(torch.int16)
    return batch


def _fill(batch: Any) -> Any:
    batch.update(y=1, z=np.arange(2))
    batch |= {"w": batch.get("nothing", "none")}
    batch.setdefault("n", 5)
    batch.setdefault("u", 6)
    return batch


def _empty(batch: Any) -> Any:
    taken = [batch.pop("r"), batch.popitem(), batch.pop("nothing", 3), batch.pop("n")]
    del batch["t"]
    batch["taken"] = [*taken, len(batch), "n" in batch]
    return batch


def _cleared(batch: Any) -> Any:
    batch.clear()
    return batch


@pytest.mark.parametrize(
    "use",
    [
        lambda batch: batch,
        lambda batch: {**batch},
        lambda batch: dict(batch.items()),
        lambda batch: batch.copy(),
        lambda batch: batch | {"n": 1, "m": 2},
        lambda batch: {"n": 1, "m": 2} | batch,
        lambda batch: {
            "v": [list(batch), list(batch.values()), list(reversed(batch)), len(batch)]
        },
        lambda batch: {"v": ["n" in batch, "m" in batch, batch.get("m"), len(batch), repr(batch)]},
        _square,
        _in_place,
        _other_view,
        _fill,
        _empty,
        _cleared,
    ],
)
def test_a_packed_batch_is_used_like_the_batch(use: Any) -> None:
    """Whatever is done to it, the trainer sees what it would without workers."""
    packed, batch = batch_of_each()
    found = use(packed)
    found = sent(found) if isinstance(found, PackedBatch) else found
    expected = use(batch)
    assert list(found) == list(expected)
    assert repr(found) == repr(expected)


def test_what_was_looked_at_is_sent_as_arrays() -> None:
    """A look makes tensors; none of them takes a file on its way."""
    packed, _ = batch_of_each()
    packed["n"] += 1
    assert len(list(packed.values())) == 4
    make, arguments = packed.__reduce__()
    assert isinstance(arguments[0]["n"], np.ndarray)
    assert isinstance(arguments[0]["r"][0], np.ndarray)
    assert isinstance(arguments[0]["s"][0]["a"], np.ndarray)
    assert make(*arguments)["n"].tolist() == [1, 2, 3]


def test_a_changed_tensor_is_sent_itself() -> None:
    """One that is no longer the plain tensor of the array."""
    packed = PackedBatch({"x": np.zeros(2, np.float32)})
    packed["x"].requires_grad_()
    assert packed.__reduce__()[1][1]["x"] is packed["x"]
