from __future__ import annotations

import copy
import datetime as dt
import enum
import multiprocessing
import os
import pickle
import struct
import uuid
import warnings
from collections import UserDict, namedtuple
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from decimal import Decimal
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from streaming import StreamingDataLoader
from torch.utils.data import DataLoader, Dataset, default_collate

import lance_stream
from lance_stream.errors import PlanError
from lance_stream.host.collate import collate

DTYPES = ["?", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f2", "f4", "f8", "c8", "c16"]
# What torch has no dtype for.
FOREIGN_DTYPES = ["M8[us]", "m8[s]", "U3", "S3", "O", "V4", "g", "i4,f4"]

# Timestamps without a zone are naive.
NAIVE = dt.datetime(2024, 2, 29, 12)  # noqa: DTZ001
TIMES = [
    NAIVE,
    NAIVE.replace(tzinfo=dt.timezone.utc),
    dt.date(2024, 2, 29),
    dt.time(12),
    dt.timedelta(days=1),
]
# Of each one alone, default_collate says that it cannot be in a batch.
REFUSED = [*TIMES, Decimal("1.10"), uuid.UUID(int=5), None]


def column(values: list[Any]) -> Any:
    """The batch of one column."""
    return collate([{"x": value} for value in values])["x"]


def read_only(array: np.ndarray) -> np.ndarray:
    array.flags.writeable = False
    return array


# --- comparing ---


def assert_entry(entry: Any, value: Any) -> None:
    """One entry of a batch's column is exactly the value of the sample."""
    if entry is value:
        return
    assert isinstance(entry, torch.Tensor)
    if isinstance(value, torch.Tensor):
        assert entry.dtype is value.dtype
        assert entry.shape == value.shape
        assert as_bytes(entry) == as_bytes(value)
    elif isinstance(value, np.ndarray):
        found, expected = entry.numpy(), value.astype(value.dtype.newbyteorder("="))
        assert found.dtype == expected.dtype
        assert found.shape == expected.shape
        assert found.tobytes() == expected.tobytes()
    else:
        assert entry.shape == ()
        assert_number(entry.item(), value.item() if isinstance(value, np.generic) else value)


def as_bytes(tensor: torch.Tensor) -> bytes:
    return bytes(torch.cat([tensor.flatten()]).untyped_storage())


def assert_number(found: Any, expected: Any) -> None:
    assert type(found) is type(expected)
    if isinstance(expected, float):
        assert struct.pack("d", found) == struct.pack("d", expected)
    elif isinstance(expected, complex):
        assert_number(found.real, expected.real)
        assert_number(found.imag, expected.imag)
    else:
        assert found == expected


def assert_column(found: Any, values: list[Any]) -> None:
    """A batch's column has one entry per sample, each exactly its value."""
    assert type(found) in (list, torch.Tensor)
    assert len(found) == len(values)
    for entry, value in zip(found, values, strict=True):
        assert_entry(entry, value)


def assert_tensor(values: list[Any], dtype: torch.dtype, *shape: int) -> None:
    """The values make a tensor; the shape is that of one value."""
    found = column(values)
    assert isinstance(found, torch.Tensor)
    assert found.dtype is dtype
    assert found.shape == (len(values), *shape)
    assert_column(found, values)


def assert_list(values: list[Any], *tensors: int) -> None:
    """The values make a list; those at the given places are tensors, the others untouched."""
    found = column(values)
    assert type(found) is list
    assert_column(found, values)
    assert [at for at, entry in enumerate(found) if entry is not values[at]] == list(tensors)
    assert all(type(found[at]) is torch.Tensor for at in tensors)


# --- numbers ---


def test_ints_are_int64() -> None:
    assert_tensor([1, -2, 3], torch.int64)
    assert_tensor([-(2**63), 2**63 - 1], torch.int64)


def test_ints_beyond_int64_are_uint64() -> None:
    assert_tensor([0, 2**63], torch.uint64)
    assert_tensor([2**64 - 1], torch.uint64)


@pytest.mark.parametrize("values", [[-1, 2**63], [0, 2**64], [-(2**63) - 1], [10**400, 1]])
def test_ints_beyond_any_dtype_are_a_list(values: list[int]) -> None:
    assert_list(values)


def test_floats_are_float64() -> None:
    quiet_with_payload = struct.unpack("d", struct.pack("Q", 0x7FF8_0000_0000_1234))[0]
    assert_tensor([0.1, -0.0, float("inf"), float("nan"), quiet_with_payload], torch.float64)


def test_bools_are_bool() -> None:
    assert_tensor([True, False], torch.bool)


@pytest.mark.parametrize(
    "values", [[1, 2.5], [2.5, 2**53 + 1], [True, 5], [5, True], [True, 1.0], [1j, 2j], [1, "1"]]
)
def test_mixed_numbers_are_a_list(values: list[Any]) -> None:
    assert_list(values)


def test_an_enum_stays_one() -> None:
    kind = enum.IntEnum("kind", ["A", "B"])
    assert_list([kind.A, kind.B])
    assert_list([kind.A, 2])


@pytest.mark.parametrize("dtype", DTYPES)
def test_numpy_scalars_of_one_dtype_keep_it(dtype: str) -> None:
    values = list(np.array([0, 1, 100], dtype))
    assert_tensor(values, torch.from_numpy(np.zeros(0, dtype)).dtype)


def test_numpy_scalars_mix_with_the_numbers_of_their_kind() -> None:
    # As when a Lance stream and an MDS stream, whose reader gives numpy scalars, are mixed.
    assert_tensor([np.int8(-1), 2, np.uint64(3), np.longlong(4)], torch.int64)
    assert_tensor([np.int8(1), np.uint64(2**64 - 1)], torch.uint64)
    assert_tensor([np.int64(2**63 - 1), np.uint64(2**63)], torch.uint64)
    assert_list([np.int8(-1), np.uint64(2**64 - 1)])
    assert_tensor([np.float32(0.1), 0.1, np.float16(0.1), np.float64(0.1)], torch.float64)
    assert_tensor([np.bool_(True), False], torch.bool)
    assert_list([np.int64(1), np.float64(1)])
    assert_list([np.bool_(True), 1])


def test_numpy_scalars_that_are_no_numbers_are_a_list() -> None:
    # timedelta64 is a subclass of numpy's signed integers.
    assert_list([np.timedelta64(1, "s"), np.timedelta64(1, "ms")])
    assert_list([np.timedelta64(1, "s"), 1])
    assert_list([np.datetime64("2024-02-29")] * 2)
    assert_list([np.str_("a"), np.str_("b")])
    assert_list([np.longdouble(1), np.longdouble(2)])
    assert_list([np.longdouble(1), 2.0])


# --- what no tensor holds ---


@pytest.mark.parametrize(
    "values",
    [
        ["a", ""],
        [b"a", b""],
        *[[value, copy.deepcopy(value)] for value in TIMES],
        [NAIVE, 5],
        [Decimal("1.10"), Decimal("1.1")],
        [uuid.UUID(int=5), uuid.UUID(int=6)],
        [[1, 2], [3, 4]],
        [[1], []],
        [["a"], ["b"]],
        [(1, 2), (3, 4)],
        [{"a": 1, "b": 2}, {"a": 3, "b": 4}],
        [{"k": 1}, {"l": 2, "m": 3}],
        [{}, {}],
        [{"v": np.zeros(2)}, {"v": np.ones(2)}],
        [object(), object()],
    ],
    ids=lambda values: type(values[0]).__name__,
)
def test_other_values_are_a_list(values: list[Any]) -> None:
    assert_list(values)


def test_the_columns_of_a_struct_are_a_call_away() -> None:
    batch = collate([{"box": {"x": i, "name": None}} for i in range(3)])
    fields = collate(batch["box"])
    assert list(fields) == ["x", "name"]
    assert fields["x"].tolist() == [0, 1, 2]
    assert fields["name"] == [None, None, None]


# --- None ---


@pytest.mark.parametrize("value", [1, 2.5, True, "a", b"a", [1], {"a": 1}, *TIMES], ids=repr)
def test_none_makes_a_list(value: Any) -> None:
    assert_list([None, value])
    assert_list([value, None])
    assert_list([None, None])


def test_arrays_beside_none_are_tensors() -> None:
    assert_list([None, np.arange(3), np.arange(3)], 1, 2)
    assert_list([read_only(np.arange(3, dtype="u2")), None, np.zeros(0, "u2")], 0, 2)
    assert_list([torch.ones(2, dtype=torch.bfloat16), None], 0)


def test_lists_beside_arrays_stay_lists() -> None:
    # A list column whose second row has a null element.
    assert_list([np.arange(2), [1, None]], 0)


# --- arrays ---


@pytest.mark.parametrize("shape", [(), (3,), (2, 3), (0,), (2, 0, 3)], ids=str)
@pytest.mark.parametrize("dtype", DTYPES)
def test_equal_arrays_are_stacked(dtype: str, shape: tuple[int, ...]) -> None:
    expected = torch.from_numpy(np.zeros(0, dtype)).dtype
    size = int(np.prod(shape))
    arrays = [np.arange(at, at + size).reshape(shape).astype(dtype) for at in range(3)]
    assert_tensor(arrays, expected, *shape)


@pytest.mark.parametrize("dtype", DTYPES)
def test_ragged_arrays_are_tensors_in_a_list(dtype: str) -> None:
    shapes = [(2,), (0,), (3, 1), (), (0, 4), (2,)]
    arrays = [np.ones(shape, dtype) for shape in shapes]
    assert_list(arrays, *range(6))


def test_arrays_of_several_dtypes_are_tensors_in_a_list() -> None:
    arrays = [np.full(2, 2**53 + 1), np.full(2, 0.1), np.full(2, 0.1, "f4"), np.full(2, 7)]
    assert_list(arrays, 0, 1, 2, 3)


@pytest.mark.parametrize("dtype", FOREIGN_DTYPES)
def test_arrays_that_torch_has_no_dtype_for_are_a_list(dtype: str) -> None:
    assert_list([np.zeros(2, dtype), np.zeros(2, dtype)])
    assert_list([np.zeros(2, dtype), np.zeros(2, "i2")], 1)


def test_a_masked_array_keeps_its_mask() -> None:
    assert_list([np.ma.array([1, 2], mask=[0, 1]), np.ma.array([1, 2], mask=[1, 0])])


@pytest.mark.parametrize("second", [(3,), (2,)], ids=["stacked", "ragged"])
def test_odd_memory(second: tuple[int], tmp_path: Any) -> None:
    """Read-only, reversed, strided, transposed, mapped, of foreign byte order."""
    np.arange(3, dtype="i4").tofile(tmp_path / "mapped")
    for array in [
        read_only(np.arange(3)),
        np.arange(3)[::-1],
        np.arange(9)[::3],
        np.arange(3, dtype=">i4"),
        np.memmap(tmp_path / "mapped", "i4", mode="r"),
    ]:
        with warnings.catch_warnings(), always_warning():
            warnings.simplefilter("error")
            found = column([array, np.ones(second, array.dtype)])
        assert_column(found, [array, np.ones(second, array.dtype)])
        assert isinstance(found, torch.Tensor) is (second == (3,))
    array = np.arange(6).reshape(2, 3).T
    assert_column(column([array, array]), [array, array])
    assert_column(column([array, array[:1]]), [array, array[:1]])


@contextmanager
def always_warning() -> Iterator[None]:
    """Torch warns every time, not once in a process."""
    before = torch.is_warn_always_enabled()
    torch.set_warn_always(True)
    try:
        yield
    finally:
        torch.set_warn_always(before)


@pytest.mark.parametrize("second", [3, 2], ids=["stacked", "ragged"])
def test_a_batch_shares_no_memory_with_its_samples(second: int) -> None:
    for make in (np.zeros, torch.zeros):
        values: list[Any] = [make(3), make(second)]
        for entry in column(values):
            entry.add_(1)
        assert not any(value.any() for value in values)


# --- tensors ---


@pytest.mark.parametrize("shape", [(), (3,), (2, 3), (0,)], ids=str)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.int64, torch.bool])
def test_equal_tensors_are_stacked(dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    tensors = [torch.full(shape, at).to(dtype) for at in range(3)]
    assert_tensor_column(tensors)


def assert_tensor_column(tensors: list[torch.Tensor]) -> None:
    found = column(tensors)
    assert isinstance(found, torch.Tensor)
    assert found.dtype is tensors[0].dtype
    assert found.shape == (len(tensors), *tensors[0].shape)
    assert all(torch.equal(one, other) for one, other in zip(found, tensors, strict=True))


def test_uneven_tensors_are_a_list() -> None:
    assert_list([torch.ones(2, dtype=torch.bfloat16), torch.ones(1, dtype=torch.bfloat16)], 0, 1)
    assert_list([torch.ones(2), torch.ones(2, dtype=torch.int32)], 0, 1)
    assert_list([torch.ones(2), np.ones(2, "f4"), torch.ones(0)], 0, 1, 2)


def test_tensors_that_are_views() -> None:
    grid = torch.arange(6).reshape(2, 3)
    conjugate = torch.view_as_complex(torch.ones(2, 2)).conj()
    for tensor in [grid.T, grid[:, 1], conjugate, conjugate.imag]:
        assert_tensor_column([tensor, tensor])
        found = column([tensor, tensor[:1]])
        assert torch.equal(found[0], tensor)
        assert torch.equal(found[1], tensor[:1])


class Tagged(torch.Tensor):
    """Tensors that mean something else."""


def test_special_tensors() -> None:
    grad, other = torch.ones(2, requires_grad=True), torch.zeros(2)
    stacked = column([grad, other])
    stacked.sum().backward()
    assert torch.equal(grad.grad, torch.ones(2))
    assert column([torch.ones(2, device="meta")] * 2).shape == (2, 2)
    assert_list([grad, torch.ones(3, requires_grad=True)])
    assert_list([torch.ones(2, device="meta"), torch.ones(3, device="meta")])
    assert_list([torch.ones(2, device="meta"), torch.ones(2)], 1)
    assert_list([torch.eye(2).to_sparse(), torch.eye(2).to_sparse()])
    assert_list([torch.ones(2).as_subclass(Tagged), torch.ones(2).as_subclass(Tagged)])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        nested = torch.nested.nested_tensor([torch.ones(1), torch.ones(2)])
    assert_list([nested, nested])


# --- samples ---


def test_columns_keep_their_order() -> None:
    names = ["z", "a", "m", "_rowid"]
    batch = collate([dict.fromkeys(names, 1), dict.fromkeys(reversed(names), 2)])
    assert type(batch) is dict
    assert list(batch) == names
    assert all(values.tolist() == [1, 2] for values in batch.values())


def test_any_mapping_is_a_sample() -> None:
    batch = collate([UserDict(a=1), {"a": 2}])
    assert type(batch) is dict
    assert batch["a"].tolist() == [1, 2]


def test_tuples_and_lists_have_columns_by_position() -> None:
    for kind in (tuple, list):
        batch = collate([kind([1, "a", None]), kind([2, "b", None])])
        assert type(batch) is list
        assert batch[0].tolist() == [1, 2]
        assert batch[1:] == [["a", "b"], [None, None]]
    point = namedtuple("point", ["x", "y"])
    batch = collate([point(1, "a"), point(2, "b")])
    assert type(batch) is point
    assert batch.x.tolist() == [1, 2]
    assert batch.y == ["a", "b"]


@pytest.mark.parametrize("samples", [[1, 2], ["a", "b"], [None, 1], [np.zeros(1), np.zeros(2)]])
def test_other_samples_are_one_column(samples: list[Any]) -> None:
    assert_column(collate(samples), samples)


def test_one_sample() -> None:
    batch = collate([{"i": 5, "s": None, "v": np.arange(2)}])
    assert batch["i"].tolist() == [5]
    assert batch["s"] == [None]
    assert batch["v"].tolist() == [[0, 1]]
    assert collate([{}, {}]) == {}


def test_any_sequence_of_samples() -> None:
    assert collate(({"a": 1}, {"a": 2}))["a"].tolist() == [1, 2]


@pytest.mark.parametrize("other", [{"a": 1}, {"a": 1, "b": 2, "c": 3}, {"a": 1, "c": 2}])
def test_other_columns_are_an_error(other: dict[str, int]) -> None:
    names = str(list(other)).replace("[", r"\[")
    match = rf"sample 2 of a batch has the columns {names}, sample 0 has \['a', 'b'\]; give all"
    with pytest.raises(PlanError, match=match):
        collate([{"a": 1, "b": 2}, {"b": 2, "a": 1}, other])


def test_tuples_of_other_lengths_are_an_error() -> None:
    match = r"sample 1 of a batch has the columns \[0\], sample 0 has \[0, 1\]"
    with pytest.raises(PlanError, match=match):
        collate([(1, 2), (3,)])


@pytest.mark.parametrize(
    ("samples", "match"),
    [
        ([{"a": 1}, None], "sample 1 of a batch is a NoneType, sample 0 is a dict"),
        ([None, {"a": 1}], "sample 1 of a batch is a dict, sample 0 is a NoneType"),
        ([(1,), [1]], "sample 1 of a batch is a list, sample 0 is a tuple"),
        ([], "got none"),
        ({"a": 1}, "leave out collate_fn where the DataLoader has batch_size=None"),
    ],
)
def test_samples_that_make_no_batch(samples: Any, match: str) -> None:
    with pytest.raises(PlanError, match=match):
        collate(samples)


# --- any values ---

_DTYPE = st.sampled_from([np.dtype(code) for code in [*DTYPES, "M8[us]", ">i4", "g"]])
_SHAPE = hnp.array_shapes(min_dims=0, max_dims=2, min_side=0, max_side=3)
_KINDS: list[st.SearchStrategy[Any]] = [
    st.none(),
    st.booleans(),
    st.integers(-(2**63), 2**64 - 1),
    st.integers(),
    st.floats(),
    st.text(max_size=3),
    st.binary(max_size=3),
    st.datetimes(),
    st.decimals(),
    st.uuids(),
    st.lists(st.integers(), max_size=3),
    st.dictionaries(st.text(max_size=1), st.integers(), max_size=2),
    _DTYPE.flatmap(hnp.from_dtype),
    hnp.arrays(_DTYPE, _SHAPE),
    hnp.arrays(_DTYPE, (2,)),
    hnp.arrays("f4", _SHAPE),
    hnp.arrays("f4", (2,)),
    hnp.arrays("f4", _SHAPE).map(torch.from_numpy),
    hnp.arrays("f4", (2,)).map(torch.from_numpy),
]
_STRATEGY = st.one_of(
    st.sampled_from(_KINDS),
    st.lists(st.sampled_from(_KINDS), min_size=2, max_size=3).map(st.one_of),
)


@given(st.data(), st.integers(1, 6), st.lists(st.text(max_size=3), unique=True, max_size=4))
def test_a_batch_holds_exactly_the_values(
    data: st.DataObject, rows: int, names: list[str]
) -> None:
    columns = {
        name: data.draw(st.lists(data.draw(_STRATEGY), min_size=rows, max_size=rows))
        for name in names
    }
    samples = [{name: columns[name][row] for name in names} for row in range(rows)]
    batch = collate(samples)
    assert list(batch) == names
    for name in names:
        assert_column(batch[name], columns[name])


# --- loaders ---


def test_it_pickles_by_reference() -> None:
    assert lance_stream.collate is collate
    assert pickle.loads(pickle.dumps(lance_stream.collate)) is collate


ROWS = 600


def sample(i: int) -> dict[str, Any]:
    """Row ``i`` of a table with a column of every sort; the struct and the list come first."""
    return {
        "box": {"x": i, "y": i, "z": i},
        "tags": [i] * (i % 3),
        "i": i,
        "u": 2**63 + i,
        "text": None if i % 7 == 0 else f"row {i}",
        "when": NAIVE + dt.timedelta(hours=i),
        "price": Decimal(i).scaleb(-2),
        "even": read_only(np.full((2, 3), i, "f4")),
        "ragged": np.arange(i % 5, dtype="u2"),
        "maybe": None if i % 3 == 0 else np.arange(i % 4),
        "empty": np.zeros(0, "i8"),
        "brain": torch.full((i % 3,), i, dtype=torch.bfloat16),
    }


class Rows(Dataset[Any]):
    """The rows as a plain dataset."""

    def __init__(self, rows: int = ROWS) -> None:
        self.rows = rows

    def __len__(self) -> int:
        return self.rows

    def __getitem__(self, i: int) -> dict[str, Any]:
        return sample(i)


def as_values(entry: Any) -> Any:
    """An entry of a batch, or the value of a sample, in a form that == compares."""
    if isinstance(entry, torch.Tensor | np.ndarray):
        return str(entry.dtype).removeprefix("torch."), entry.tolist()
    return entry


def check_batches(loader: DataLoader[Any], rows: int) -> list[dict[str, Any]]:
    """All batches, each compared with the rows; they are kept so that nothing is given back."""
    batches, row = list(loader), 0
    for batch in batches:
        assert list(batch) == list(sample(0))
        assert {type(batch[name]) for name in ("i", "u", "even", "empty")} == {torch.Tensor}
        for at in range(len(batch["i"])):
            for name, value in sample(row).items():
                entry = batch[name][at]
                if name in ("i", "u"):
                    entry = entry.item()
                assert as_values(entry) == as_values(value), (row, name)
            row += 1
    assert row == rows
    return batches


def open_files() -> int:
    return len(os.listdir("/proc/self/fd"))


def test_workers_hand_over_whole_batches_in_shared_memory() -> None:
    before = open_files()
    loader = DataLoader(Rows(), batch_size=200, num_workers=2, collate_fn=collate, timeout=60)
    batches = check_batches(loader, ROWS)
    # A descriptor per column that has arrays or numbers, and not one per array.
    assert open_files() - before <= len(batches) * 8
    for batch in batches:
        entries = [entry for values in batch.values() for entry in values]
        tensors = [entry for entry in entries if isinstance(entry, torch.Tensor)]
        assert len(tensors) > 1000
        assert all(tensor.is_shared() or not tensor.numel() for tensor in tensors)


def shared(samples: list[dict[str, Any]]) -> dict[str, bool]:
    """Which columns of arrays are in shared memory before they leave the worker."""
    batch = collate(samples)
    return {
        name: all(entry.is_shared() for entry in batch[name] if entry is not None)
        for name in ("even", "ragged", "maybe", "empty", "brain")
    }


def test_workers_fill_shared_memory() -> None:
    loader = DataLoader(Rows(8), batch_size=8, num_workers=1, collate_fn=shared, timeout=60)
    assert set(next(iter(loader)).values()) == {True}
    # Nothing is shared in the trainer itself, where nobody would profit.
    assert shared([sample(1)]) == dict.fromkeys(shared([sample(1)]), False)


def test_spawned_workers() -> None:
    loader = DataLoader(
        Rows(30), batch_size=10, num_workers=1, collate_fn=lance_stream.collate, timeout=60,
        multiprocessing_context=multiprocessing.get_context("spawn"),
    )  # fmt: skip
    check_batches(loader, 30)


def yielded(collate_fn: Callable[[Any], Any], *names: str) -> int:
    """Samples that the host's loader counted, of 10 in batches of 4, with only some columns."""
    rows: Any = [{name: sample(i)[name] for name in names} for i in range(1, 11)]
    loader = StreamingDataLoader(rows, batch_size=4, collate_fn=collate_fn)
    list(loader)
    return loader.num_samples_yielded


@pytest.mark.parametrize("name", sample(0))
def test_the_host_counts_the_samples_by_any_first_column(name: str) -> None:
    assert yielded(collate, name, "i") == 10


def test_the_host_miscounts_with_default_collate() -> None:
    """Why a struct is not a dict of columns here: its fields were counted, three a batch."""
    assert yielded(default_collate, "i", "box") == 10
    assert yielded(default_collate, "box", "i") == 9


@pytest.mark.parametrize("make", [lambda i: (f"row {i}", i), lambda i: ({"a": i}, i), int])
def test_the_host_counts_samples_that_are_no_dicts(make: Callable[[int], Any]) -> None:
    rows: Any = [make(i) for i in range(10)]
    loader = StreamingDataLoader(rows, batch_size=4, collate_fn=collate)
    list(loader)
    assert loader.num_samples_yielded == 10


# --- torch's own: what the README says of it ---


@pytest.mark.parametrize(
    ("values", "dtype"),
    [
        ([1, 2], torch.int64),
        ([1.5, 2.5], torch.float64),
        ([True, False], torch.bool),
        ([np.float32(1), np.float32(2)], torch.float32),
        ([np.zeros(2, "f4"), np.zeros(2, "f4")], torch.float32),
        ([np.zeros(0, "u2"), np.zeros(0, "u2")], torch.uint16),
        ([torch.ones(2, dtype=torch.bfloat16)] * 2, torch.bfloat16),
    ],
)
def test_default_collate_makes_the_same_tensors(values: list[Any], dtype: torch.dtype) -> None:
    expected = default_collate([{"x": value} for value in values])["x"]
    assert expected.dtype is dtype
    found = column(values)
    assert found.dtype is dtype
    assert torch.equal(found, expected)


def test_default_collate_keeps_text_and_bytes() -> None:
    assert default_collate([{"x": "a"}, {"x": None}]) == {"x": ["a", None]}
    assert default_collate([{"x": b"a"}, {"x": b"b"}]) == {"x": [b"a", b"b"]}


@pytest.mark.parametrize(
    ("values", "match"),
    [
        *[([value, value], "batch must contain tensors") for value in REFUSED],
        ([None, "a"], "batch must contain tensors"),
        ([1, None], "infer dtype of NoneType"),
        ([1.5, None], "must be real number"),
        ([np.zeros(1), None], "infer dtype of NoneType"),
        ([None, np.zeros(1)], "batch must contain tensors"),
        ([torch.zeros(1), None], "NoneType"),
        ([True, None], "NoneType"),
        ([[1], None], "NoneType"),
        ([{"k": 1}, None], "NoneType"),
        ([1, 2**63], "Overflow"),
        ([np.uint64(2**63), np.uint64(2**63)], "an integer is required"),
        ([np.zeros(1), np.zeros(2)], "equal size"),
        ([np.zeros(2, "M8[us]")] * 2, "can't convert np.ndarray of type numpy.datetime64"),
        ([torch.zeros(1), torch.zeros(2)], "equal size"),
        ([[1], [1, 2]], "equal size"),
        ([{"k": 1, "l": 2}, {"k": 1}], "^'l'$"),
        ([{"k": None}, {"k": None}], "batch must contain tensors"),
    ],
    ids=repr,
)
def test_default_collate_refuses(values: list[Any], match: str) -> None:
    with pytest.raises((TypeError, RuntimeError, ValueError, KeyError), match=match):
        default_collate([{"x": value} for value in values])
    assert_column(column(values), values)


def test_default_collate_warns_of_read_only_arrays() -> None:
    with always_warning(), pytest.warns(UserWarning, match="array is not writable"):
        default_collate([{"x": read_only(np.zeros(2))}])


def test_default_collate_alters_values() -> None:
    """Numbers and arrays of several types become the type of the first, or float32."""
    assert default_collate([1, 2.1]).tolist() != [1, 2.1]
    assert default_collate([1, 2.1]).dtype is torch.float32
    assert default_collate([1.5, 2**53 + 1]).tolist() == [1.5, 2**53]
    assert default_collate([5, True]).tolist() == [5, 1]
    mixed = [np.zeros(1, "f4"), np.full(1, 2**24 + 1)]
    assert default_collate(mixed).tolist() == [[0.0], [2.0**24]]


def test_default_collate_transposes_lists_structs_and_maps() -> None:
    lists = default_collate([{"x": [1, 2, 3]}, {"x": [4, 5, 6]}])["x"]
    assert [part.tolist() for part in lists] == [[1, 4], [2, 5], [3, 6]]
    structs = default_collate([{"x": {"a": 1, "b": 2}}, {"x": {"a": 3, "b": 4}}])["x"]
    assert {name: part.tolist() for name, part in structs.items()} == {"a": [1, 3], "b": [2, 4]}
    # Of maps, it drops the keys that the first one does not have.
    maps = default_collate([{"x": {"k": 1}}, {"x": {"k": 2, "l": 3}}])["x"]
    assert {name: part.tolist() for name, part in maps.items()} == {"k": [1, 2]}


@pytest.mark.parametrize("samples", [None, 5, 1.5, object(), iter([{}])])
def test_what_is_no_list_of_samples(samples: Any) -> None:
    with pytest.raises(PlanError, match="collate takes a list of samples, got a "):
        collate(samples)
