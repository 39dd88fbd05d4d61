from __future__ import annotations

import json
import re
import tracemalloc
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lance_stream.errors import PlanError, UnsupportedTypeError
from lance_stream.shards import mds_format
from lance_stream.shards.mds_columns import mds_columns
from lance_stream.shards.mds_format import mds_encodings, mds_samples, write_mds

NUMBERS = [
    *(f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)),
    *(f"float{bits}" for bits in (16, 32, 64)),
]


def extremes(name: str) -> list[Any]:
    dtype = np.dtype(name)
    if dtype.kind == "f":
        info = np.finfo(dtype)
        tiny = info.smallest_subnormal
        return [-0.0, 0.0, np.inf, -np.inf, float(info.max), float(info.min), float(tiny)]
    limits = np.iinfo(dtype)
    middle = [2**63 + 5, 2**63 - 1] if name == "uint64" else [1, 2]
    return [limits.min, limits.max, 0, *middle, 3, 4]


def extreme_numbers(name: str) -> pa.Array:
    return pa.array(np.array(extremes(name), name))


def tensors(kind: pa.FixedShapeTensorType, rows: int) -> pa.Array:
    size = int(np.prod(kind.shape))
    flat = pa.array(np.arange(rows * size), kind.value_type)
    return pa.ExtensionArray.from_storage(kind, pa.FixedSizeListArray.from_arrays(flat, size))


TEXTS = ["", "a", "ünï\U0001f600\0", "x" * 300, "true", "\n", "é"]
BLOBS = [b"", b"\0", b"\xff\xfe", bytes(range(256)), b"true", b"\n", b"e"]
DECIMALS = [Decimal(d) for d in ("0.00", "-0.01", "99999999.99", "1.50", "-7.00", "0.10", "3.00")]
RAGGED: list[list[float]] = [
    [],
    [1.0],
    [-0.0, np.inf],
    [2.5] * 255,
    [3.5] * 256,
    [],
    [0.0] * 70000,
]

EVERYTHING = pa.table(
    {
        **{f"n_{name}": extreme_numbers(name) for name in NUMBERS},
        **{
            f"a_{name}": pa.FixedSizeListArray.from_arrays(
                pa.concat_arrays([extreme_numbers(name)] * 2), 2
            )
            for name in NUMBERS
        },
        "flag": pa.array([True, False, True, True, False, False, True]),
        "text": pa.array(TEXTS, pa.string()),
        "Text": pa.array(TEXTS[::-1], pa.large_string()),
        "blob": pa.array(BLOBS, pa.binary()),
        "large_blob": pa.array(BLOBS[::-1], pa.large_binary()),
        "key": pa.array([bytes([i] * 5) for i in range(7)], pa.binary(5)),
        "price": pa.array(DECIMALS, pa.decimal128(10, 2)),
        "small": pa.array([d.scaleb(-20) for d in DECIMALS], pa.decimal256(50, 22)),
        "large": pa.array([Decimal((0, (i,), 3)) for i in range(7)], pa.decimal128(5, -3)),
        "nested": pa.FixedSizeListArray.from_arrays(
            pa.FixedSizeListArray.from_arrays(pa.array(range(42), pa.int16()), 3), 2
        ),
        "ragged": pa.array(RAGGED, pa.list_(pa.float64())),
        "large_ragged": pa.array(RAGGED[::-1], pa.large_list(pa.float32())),
        "half_ragged": pa.array([np.float16([i] * i) for i in range(7)], pa.list_(pa.float16())),
        "ragged_rows": pa.array(
            [[[i, -i]] * (i % 3) for i in range(7)], pa.list_(pa.list_(pa.int8(), 2))
        ),
        "wide_rows": pa.array(
            [[[1] * 300] * i for i in range(7)], pa.large_list(pa.list_(pa.uint8(), 300))
        ),
        "tensor": tensors(pa.fixed_shape_tensor(pa.float32(), [2, 3]), 7),
        "turned": tensors(pa.fixed_shape_tensor(pa.int32(), [2, 3, 4], permutation=[2, 0, 1]), 7),
        "ünï 'quoted'": pa.array(range(7)),
    }
)


def expected(table: pa.Table) -> list[dict[str, Any]]:
    """Plain values by way of Arrow's own conversion; arrays by the types of the columns."""
    columns = {column.name: column for column in mds_columns(table.schema)}

    def value(name: str, plain: Any) -> Any:
        column, kind = columns[name], table.schema.field(name).type
        if column.kind == "array":
            stored = kind.shape if isinstance(kind, pa.FixedShapeTensorType) else column.shape
            array = np.array(plain, column.dtype).reshape(stored)
            return array if column.axes is None else array.transpose(column.axes)
        if column.kind == "ragged":
            return np.array(plain, column.dtype).reshape(len(plain), *column.shape)
        return float(plain) if column.dtype == np.float16 else plain

    return [{name: value(name, row[name]) for name in row} for row in table.to_pylist()]


def same(found: Any, wanted: Any) -> bool:
    """Equal to the bit and of the same type."""
    if isinstance(wanted, np.ndarray):
        return (
            type(found) is np.ndarray
            and found.dtype == wanted.dtype
            and found.shape == wanted.shape
            and found.tobytes() == np.ascontiguousarray(wanted).tobytes()
        )
    return type(found) is type(wanted) and repr(found) == repr(wanted)


def assert_rows(found: list[dict[str, Any]], wanted: list[dict[str, Any]]) -> None:
    assert len(found) == len(wanted)
    for number, (one, other) in enumerate(zip(found, wanted, strict=True)):
        assert list(one) == list(other)
        wrong = [name for name in other if not same(one[name], other[name])]
        assert not wrong, f"row {number}: {[(n, one[n], other[n]) for n in wrong]}"


def read(path: Path, schema: pa.Schema, rows: int, **options: Any) -> list[dict[str, Any]]:
    get = mds_samples(path.read_bytes(), schema, **{"zero_copy": False, **options})
    return [get(row) for row in range(rows)]


def stock_read(path: Path, table: pa.Table) -> list[dict[str, Any]]:
    """What the host's reader gives, with its numpy scalars as Python ones."""
    from streaming.base.format.base.reader import FileInfo
    from streaming.base.format.mds.reader import MDSReader

    columns = mds_columns(table.schema)
    reader = MDSReader(
        str(path.parent),
        None,
        [column.encoding for column in columns],
        [column.name for column in columns],
        [column.size for column in columns],
        None,
        [],
        FileInfo(path.name, path.stat().st_size, {}),
        table.num_rows,
        None,
        None,
    )
    rows = []
    for sample in reader:
        assert list(sample) == [column.name for column in columns]
        for column in columns:
            if column.kind == "number":
                assert sample[column.name].dtype == column.dtype
                sample[column.name] = sample[column.name].item()
        rows.append({name: sample[name] for name in table.schema.names})
    return rows


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "shard.mds"


def test_every_type_comes_back(path: Path) -> None:
    num_bytes = write_mds(path, EVERYTHING)
    assert num_bytes == path.stat().st_size
    assert_rows(read(path, EVERYTHING.schema, 7), expected(EVERYTHING))


def test_the_stock_reader_reads_every_type(path: Path) -> None:
    # Also arrays without items, which the stock writer would refuse.
    write_mds(path, EVERYTHING, config={"lance_stream": {"key": [1, 2]}})
    assert_rows(stock_read(path, EVERYTHING), expected(EVERYTHING))


def test_the_stock_writer_writes_the_same_bytes(path: Path, tmp_path: Path) -> None:
    from streaming import MDSWriter

    # Its encoder takes no arrays without items.
    table = EVERYTHING.drop(["ragged", "large_ragged", "half_ragged", "ragged_rows", "wide_rows"])
    items = pa.array([[[i, -i]] * (100 * i + 1) for i in range(7)])
    table = table.append_column("items", items.cast(pa.list_(pa.list_(pa.int64(), 2))))
    out = tmp_path / "stock"
    with MDSWriter(out=str(out), columns=mds_encodings(table.schema), size_limit=None) as writer:
        for row in expected(table):
            writer.write(row)
    write_mds(path, table)
    assert path.read_bytes() == (out / "shard.00000.mds").read_bytes()


@pytest.mark.parametrize("bounds", [(0, 1), (1, 3), (2, 4), (6, 1), (3, 0), (7, 0)])
def test_a_slice(path: Path, bounds: tuple[int, int]) -> None:
    part = EVERYTHING.slice(*bounds)
    write_mds(path, part)
    assert_rows(read(path, part.schema, part.num_rows), expected(part))
    assert_rows(stock_read(path, part), expected(part))


def test_chunks_make_the_same_file(path: Path, tmp_path: Path) -> None:
    cuts = [EVERYTHING.slice(0, 2), EVERYTHING.slice(2, 0), EVERYTHING.slice(2, 1)]
    table = pa.concat_tables([*cuts, EVERYTHING.slice(3)])
    assert table.column(0).num_chunks > 1
    write_mds(path, table)
    write_mds(tmp_path / "whole", EVERYTHING)
    assert path.read_bytes() == (tmp_path / "whole").read_bytes()


@pytest.mark.parametrize(("max_bytes", "max_rows"), [(1, 100), (2000, 100), (1 << 20, 2)])
def test_what_is_encoded_at_a_time_does_not_matter(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, max_bytes: int, max_rows: int
) -> None:
    write_mds(tmp_path / "whole", EVERYTHING)
    monkeypatch.setattr(mds_format, "_CHUNK_BYTES", max_bytes)
    monkeypatch.setattr(mds_format, "_CHUNK_ROWS", max_rows)
    write_mds(path, pa.concat_tables([EVERYTHING.slice(0, 3), EVERYTHING.slice(3)]))
    assert path.read_bytes() == (tmp_path / "whole").read_bytes()


def test_a_shard_without_rows(path: Path) -> None:
    write_mds(path, EVERYTHING.slice(0, 0))
    assert read(path, EVERYTHING.schema, 0) == []
    # pyarrow makes no empty array of a permuted tensor.
    table = EVERYTHING.drop("turned").schema.empty_table()
    write_mds(path, table)
    assert read(path, table.schema, 0) == []
    write_mds(path, pa.Table.from_batches([], table.schema))
    assert read(path, table.schema, 0) == []


def test_many_rows(path: Path) -> None:
    n = 200_001
    table = pa.table({"s": pa.array([f"row {i}" for i in range(n)]), "i": pa.array(range(n))})
    write_mds(path, table)
    get = mds_samples(path.read_bytes(), table.schema, zero_copy=False)
    for row in (0, 1, (1 << 16) - 1, 1 << 16, (1 << 17) + 1, n - 1):
        assert get(row) == {"s": f"row {row}", "i": row}


def test_the_configuration(path: Path) -> None:
    ours = {"lance_stream": {"check": "ünï"}, "compression": "zstd", "hashes": ["sha1"]}
    write_mds(path, EVERYTHING.select(["text", "flag", "n_int8"]), config=ours)
    data = path.read_bytes()
    start, stop = 4 * (7 + 2), int(np.frombuffer(data[4:8], np.uint32)[0])
    assert json.loads(data[start:stop]) == {
        **ours,
        "version": 2,
        "format": "mds",
        "size_limit": None,
        "column_names": ["flag", "n_int8", "text"],
        "column_encodings": ["json", "int8", "str"],
        "column_sizes": [None, 1, None],
    }


# --- what is refused ---

NULLS: list[tuple[pa.Array, str, int]] = [
    (pa.array([1, 2, None]), "a null", 2),
    (pa.array([None, True, False]), "a null", 0),
    (pa.array(["a", None, None]), "a null", 1),
    (pa.array([Decimal(1), None, Decimal(2)], pa.decimal128(5, 0)), "a null", 1),
    (pa.array([b"abc", None, b"abc"], pa.binary(3)), "a null", 1),
    (pa.array([[1], None, [2]]), "a null", 1),
    (pa.array([[1], [], [2, None]]), "a list with a null in it", 2),
    (pa.array([[None], None, [2]]), "a list with a null in it", 0),
    (pa.array([[1], [], [], [], [2, None]], pa.large_list(pa.int8())), "a list with", 4),
    (pa.array([[1, 2], None, [2, 3]], pa.list_(pa.int64(), 2)), "a null", 1),
    (pa.array([[1, 2], [2, 3], [2, None]], pa.list_(pa.int64(), 2)), "a list with", 2),
    (
        pa.array([[[1, 2]], [[1, 2], None], [[3, 4]]], pa.list_(pa.list_(pa.int64(), 2))),
        "a list with a null in it",
        1,
    ),
    (
        pa.array([[[1, 2]], [], [[3, 4], [5, None]]], pa.list_(pa.list_(pa.int64(), 2))),
        "a list with a null in it",
        2,
    ),
    (
        pa.ExtensionArray.from_storage(
            pa.fixed_shape_tensor(pa.int64(), [2]),
            pa.array([[1, 2], [3, 4], None], pa.list_(pa.int64(), 2)),
        ),
        "a null",
        2,
    ),
    (
        pa.ExtensionArray.from_storage(
            pa.fixed_shape_tensor(pa.int64(), [2]),
            pa.array([[1, 2], [3, None], [1, 2]], pa.list_(pa.int64(), 2)),
        ),
        "a list with a null in it",
        1,
    ),
]


@pytest.mark.parametrize(("column", "what", "row"), NULLS, ids=lambda value: str(value)[:30])
def test_a_null_is_refused(path: Path, column: pa.Array, what: str, row: int) -> None:
    table = pa.table({"fine": range(len(column)), "x": column})
    doubled = pa.concat_tables([table.slice(0, row), table.slice(row)])
    for given_table in (table, doubled):
        words = re.escape(f"column 'x' ({column.type}) holds {what}")
        with pytest.raises(PlanError, match=f"{words}.* at row {row} of .*coalesce"):
            write_mds(path, given_table)
    assert not path.exists()
    # Only what is in the rows counts, not what their memory holds.
    before = table.slice(0, row)
    write_mds(path, before)
    assert_rows(read(path, table.schema, row), expected(before))


def test_the_row_of_a_null_is_counted_from_the_first_of_the_slice(path: Path) -> None:
    table = pa.table({"x": pa.array([None, [1], [2], [None]], pa.list_(pa.int8()))})
    with pytest.raises(PlanError, match="at row 2 of the shard's 3"):
        write_mds(path, table.slice(1))


def test_a_type_that_mds_cannot_hold_is_refused(path: Path) -> None:
    table = pa.table({"x": pa.array([[True]])})
    with pytest.raises(UnsupportedTypeError, match=r"'x' \(list<item: bool>\)"):
        write_mds(path, table)
    assert not path.exists()


def test_more_than_4_gib_is_refused_before_anything_is_written(path: Path) -> None:
    # The rows share their memory.
    blob = pa.array([b"x" * (1 << 20)])
    column = pa.chunked_array([blob] * 4096)
    with pytest.raises(PlanError, match=r"4096 rows .* 4295\d{6} bytes.*4294967295: .*shard_rows"):
        write_mds(path, pa.table({"x": column}))
    assert not path.exists()


def test_the_largest_file(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = pa.table({"x": [b"x" * 1000]})
    size = write_mds(path, table)
    monkeypatch.setattr(mds_format, "MAX_MDS_BYTES", size)
    assert write_mds(path, table) == size
    monkeypatch.setattr(mds_format, "MAX_MDS_BYTES", size - 1)
    with pytest.raises(PlanError, match=f"1 rows would make an MDS file of {size} bytes"):
        write_mds(path, table)


def test_a_full_disk_is_an_os_error() -> None:
    with pytest.raises(OSError, match="No space left"):
        write_mds("/dev/full", pa.table({"x": [b"x" * 1_000_000]}))


def test_memory_stays_near_that_of_the_table(path: Path) -> None:
    rng = np.random.default_rng(0)
    n = 20_000
    vectors = pa.FixedSizeListArray.from_arrays(pa.array(rng.random(n * 256, np.float32)), 256)
    table = pa.table({"v": vectors, "s": pa.array(["x" * 1000] * n)})
    before = pa.total_allocated_bytes()
    pa.default_memory_pool().release_unused()
    tracemalloc.start()
    try:
        num_bytes = write_mds(path, table)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert num_bytes > 40_000_000
    assert peak < 8_000_000
    assert pa.total_allocated_bytes() == before


# --- random tables ---


def _values(kind: str) -> st.SearchStrategy[Any]:
    if kind.startswith(("int", "uint")):
        limits = np.iinfo(kind)
        return st.integers(int(limits.min), int(limits.max))
    if kind.startswith("float"):
        return st.floats(allow_nan=False, width=int(kind.removeprefix("float")))
    return {
        "bool": st.booleans(),
        "text": st.text(max_size=20),
        "bytes": st.binary(max_size=20),
        "decimal": st.decimals(-(10**6), 10**6, places=4),
    }[kind]


_TYPES = {
    "bool": pa.bool_(),
    "text": pa.string(),
    "bytes": pa.large_binary(),
    "decimal": pa.decimal128(12, 4),
}


@st.composite
def _columns(draw: st.DrawFn, rows: int) -> pa.Array:
    kind = draw(st.sampled_from([*NUMBERS, *_TYPES]))
    value, leaf = _values(kind), _TYPES.get(kind) or getattr(pa, kind)()
    if kind == "float16":
        value = value.map(np.float16)
    if kind in _TYPES:
        return pa.array(draw(st.lists(value, min_size=rows, max_size=rows)), leaf)
    inner = draw(st.lists(st.integers(1, 3), max_size=2))
    for size in inner:
        value, leaf = st.lists(value, min_size=size, max_size=size), pa.list_(leaf, size)
    if draw(st.booleans()):
        make = draw(st.sampled_from([pa.list_, pa.large_list]))
        value, leaf = st.lists(value, max_size=4), make(leaf)
    return pa.array(draw(st.lists(value, min_size=rows, max_size=rows)), leaf)


@st.composite
def _tables(draw: st.DrawFn) -> pa.Table:
    rows = draw(st.integers(1, 8))
    names = draw(st.lists(st.text(min_size=1, max_size=5), min_size=1, max_size=6, unique=True))
    table = pa.table({name: draw(_columns(rows)) for name in names})
    cut = draw(st.integers(0, rows))
    table = pa.concat_tables([table.slice(0, cut), table.slice(cut)])
    first = draw(st.integers(0, rows))
    return table.slice(first, draw(st.integers(0, rows - first)))


@given(table=_tables())
def test_random_tables(tmp_path_factory: pytest.TempPathFactory, table: pa.Table) -> None:
    path = tmp_path_factory.getbasetemp() / "random.mds"
    write_mds(path, table)
    wanted = expected(table)
    assert_rows(read(path, table.schema, table.num_rows), wanted)
    assert_rows(read(path, table.schema, table.num_rows, zero_copy=True), wanted)
    assert_rows(stock_read(path, table), wanted)
