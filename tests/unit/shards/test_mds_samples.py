from __future__ import annotations

import itertools
import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from lance_stream.errors import ShardCorruptError, UnsupportedTypeError
from lance_stream.shards.mds_format import write_mds
from lance_stream.shards.mds_samples import mds_samples
from lance_stream.shards.samples import sample_decoder

TABLE = pa.table(
    {
        "text": ["a", "", "longer than twelve"],
        "vector": pa.array([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]], pa.list_(pa.float64(), 2)),
        "id": pa.array([1, 2, 3], pa.int64()),
        "flag": [True, False, True],
        "items": pa.array([[1, 2], [], [3]], pa.list_(pa.int32())),
        "blob": [b"", b"\xff", b"xyz"],
        "small": pa.array([7, -8, 9], pa.int8()),
    }
)


def encode(path: Path, table: pa.Table = TABLE, **config: Any) -> bytearray:
    write_mds(path / "shard", table, config=config)
    return bytearray((path / "shard").read_bytes())


def samples(data: Any, schema: pa.Schema = TABLE.schema, **options: Any) -> list[dict[str, Any]]:
    get = mds_samples(data, schema, **{"zero_copy": False, **options})
    return [get(row) for row in range(int.from_bytes(bytes(data[:4]), "little"))]


@pytest.mark.parametrize("zero_copy", [False, True])
def test_the_same_samples_as_of_an_arrow_shard(tmp_path: Path, zero_copy: bool) -> None:
    data = encode(tmp_path)
    decode = sample_decoder(TABLE.combine_chunks().to_batches()[0], zero_copy=zero_copy)
    for row, found in enumerate(samples(data, zero_copy=zero_copy)):
        wanted = decode(row)
        assert list(found) == list(wanted) == TABLE.schema.names
        for name, value in wanted.items():
            assert type(found[name]) is type(value)
            if isinstance(value, np.ndarray):
                assert found[name].dtype == value.dtype
                assert np.array_equal(found[name], value)
                assert found[name].flags.writeable is not zero_copy
            else:
                assert found[name] == value


@pytest.mark.parametrize("make", [bytes, bytearray, memoryview, pa.py_buffer])
def test_any_buffer_will_do(tmp_path: Path, make: Any) -> None:
    data = encode(tmp_path)
    assert samples(data)[2]["text"] == "longer than twelve"
    get = mds_samples(make(data), TABLE.schema, zero_copy=True)
    assert get(2)["text"] == "longer than twelve"
    assert not get(2)["vector"].flags.writeable


def test_the_order_is_that_of_the_schema(tmp_path: Path) -> None:
    data = encode(tmp_path)
    schema = pa.schema([TABLE.schema.field(name) for name in sorted(TABLE.schema.names)])
    for order in (schema, pa.schema(list(schema)[::-1])):
        assert [list(row) for row in samples(data, order)] == [order.names] * 3


def test_a_row_that_is_not_there(tmp_path: Path) -> None:
    get = mds_samples(encode(tmp_path), TABLE.schema, zero_copy=False)
    for row in (3, 4, 1 << 40):
        with pytest.raises(IndexError):
            get(row)


@pytest.mark.parametrize("numbers", range(9))
def test_arrays_at_any_address(tmp_path: Path, numbers: int) -> None:
    # Columns of one byte in front, so that the address of "z" and "zz" takes every remainder.
    front = {f"a{number}": pa.array([1, 2], pa.int8()) for number in range(numbers)}
    vectors = pa.array([[1.0, -0.0], [3.0, 4.0]], pa.list_(pa.float64(), 2))
    items = pa.array([[1.0, -0.0], []], pa.list_(pa.float64()))
    table = pa.table({**front, "z": vectors, "zz": items})
    data = encode(tmp_path, table)
    addresses = np.frombuffer(data, np.uint8).__array_interface__["data"][0]
    for row, (owned, viewed) in enumerate(
        zip(samples(data, table.schema), samples(data, table.schema, zero_copy=True), strict=True)
    ):
        for name in ("z", "zz"):
            wanted = np.array(table[name][row].as_py(), np.float64)
            assert owned[name].tobytes() == viewed[name].tobytes() == wanted.tobytes()
            assert owned[name].flags.writeable
            assert owned[name].flags.owndata
            assert owned[name].flags.aligned
            assert viewed[name].flags.aligned
            assert not viewed[name].flags.writeable
            address = viewed[name].__array_interface__["data"][0] - addresses
            assert viewed[name].flags.owndata or 0 <= address <= len(data)


def test_zero_copy_views_what_is_aligned(tmp_path: Path) -> None:
    table = pa.table({"x": pa.array([[1, 2], [3, 4]], pa.list_(pa.uint8(), 2))})
    data = encode(tmp_path, table)
    (first, second) = samples(data, table.schema, zero_copy=True)
    assert not first["x"].flags.owndata
    data[-1] = 9
    assert second["x"].tolist() == [3, 9]


def test_a_view_outlives_the_function(tmp_path: Path) -> None:
    table = pa.table({"x": pa.array([[1, 2], [3, 4]], pa.list_(pa.uint8(), 2))})
    view = mds_samples(bytes(encode(tmp_path, table)), table.schema, zero_copy=True)(1)["x"]
    assert view.tolist() == [3, 4]


@pytest.mark.parametrize("axes", list(itertools.permutations(range(3))), ids=str)
def test_the_axes_of_a_tensor(tmp_path: Path, axes: tuple[int, ...]) -> None:
    # By the words of the format. What pyarrow 26 makes of the permutations that move the first
    # axis does not hold the stored values, so it is no reference.
    kind = pa.fixed_shape_tensor(pa.int32(), [2, 3, 4], permutation=list(axes))
    stored = np.arange(72, dtype=np.int32).reshape(3, 2, 3, 4)
    storage = pa.FixedSizeListArray.from_arrays(pa.array(stored.ravel()), 24)
    table = pa.table({"x": pa.ExtensionArray.from_storage(kind, storage)})
    for found, wanted in zip(samples(encode(tmp_path, table), table.schema), stored, strict=True):
        assert np.array_equal(found["x"], wanted.transpose(axes))
        assert found["x"].flags.c_contiguous
    part = table.slice(1, 1)
    (found,) = samples(encode(tmp_path, part), part.schema)
    assert np.array_equal(found["x"], stored[1].transpose(axes))


# --- damage ---


def test_every_truncation_is_corrupt(tmp_path: Path) -> None:
    data = encode(tmp_path)
    for length in range(len(data)):
        with pytest.raises(ShardCorruptError, match="not an MDS shard of these columns"):
            samples(data[:length])


@pytest.mark.parametrize("more", [b"\0", b"x" * 1000])
def test_more_at_the_end_is_corrupt(tmp_path: Path, more: bytes) -> None:
    with pytest.raises(ShardCorruptError, match="offsets of its 3 samples do not fit"):
        samples(encode(tmp_path) + more)


@pytest.mark.parametrize("data", [b"", b"x", b"ARROW1\0\0", b"\0" * 5000, b"\xff" * 5000, b"{}"])
def test_another_file_is_corrupt(data: bytes) -> None:
    with pytest.raises(ShardCorruptError, match="not an MDS shard"):
        mds_samples(data, TABLE.schema, zero_copy=False)


OTHERS = [
    TABLE.schema.set(2, pa.field("id", pa.int32())),
    TABLE.schema.set(2, pa.field("di", pa.int64())),
    TABLE.schema.set(0, pa.field("text", pa.binary())),
    TABLE.schema.set(1, pa.field("vector", pa.list_(pa.float64(), 3))),
    TABLE.schema.remove(2),
    TABLE.schema.append(pa.field("more", pa.int8())),
]


@pytest.mark.parametrize("schema", OTHERS, ids=range(len(OTHERS)))
def test_other_columns_are_corrupt(tmp_path: Path, schema: pa.Schema) -> None:
    with pytest.raises(ShardCorruptError, match=r"its column_\w+ should be"):
        samples(encode(tmp_path), schema)


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"version": 3}, "version should be 2 but is 3"),
        ({"format": "json"}, "format should be mds but is json"),
    ],
)
def test_another_format_is_corrupt(tmp_path: Path, config: dict[str, Any], words: str) -> None:
    with pytest.raises(ShardCorruptError, match=words):
        samples(encode(tmp_path, **config))


@pytest.mark.parametrize("text", [b"[]", b"nul", b"\xff\xff", b"[" * 9_999])
def test_a_configuration_that_is_none_is_corrupt(text: bytes) -> None:
    start = 12
    offsets = np.uint32([1, start + len(text), start + len(text) + 1]).tobytes()
    with pytest.raises(ShardCorruptError, match=r"configuration is not JSON|version should be"):
        samples(offsets + text + b"x", pa.schema([("x", pa.int8())]))


def test_offsets_that_go_back_are_corrupt(tmp_path: Path) -> None:
    data = encode(tmp_path)
    offsets = np.frombuffer(data[4:20], np.uint32).copy()
    offsets[1] = offsets[2] + 1
    data[4:20] = offsets.tobytes()
    with pytest.raises(ShardCorruptError, match="offsets of its 3 samples do not fit"):
        samples(data)


def test_sizes_that_do_not_fit_the_sample_are_corrupt(tmp_path: Path) -> None:
    data = encode(tmp_path)
    second = int(np.frombuffer(data[8:12], np.uint32)[0])
    data[second] += 1
    with pytest.raises(ShardCorruptError, match="values of sample 1 do not have the size"):
        samples(data)


def test_a_sample_shorter_than_its_columns_is_corrupt() -> None:
    schema = pa.schema([("x", pa.int64()), ("y", pa.string())])
    config = json.dumps(
        {
            "version": 2,
            "format": "mds",
            "column_names": ["x", "y"],
            "column_encodings": ["int64", "str"],
            "column_sizes": [8, None],
        }
    ).encode()
    start = 12 + len(config)
    data = np.uint32([1, start, start + 11]).tobytes() + config + bytes(11)
    with pytest.raises(ShardCorruptError, match="a sample is shorter than its columns"):
        samples(data, schema)
    data = np.uint32([1, start, start + 12]).tobytes() + config + bytes(12)
    assert samples(data, schema) == [{"x": 0, "y": ""}]


@pytest.mark.parametrize("change", [(0, 8), (0, 5), (1, 3), (1, 1)])
def test_the_shape_of_a_ragged_array_is_checked(tmp_path: Path, change: tuple[int, int]) -> None:
    table = pa.table({"x": pa.array([[1, 2]], pa.list_(pa.int8()))})
    data = encode(tmp_path, table)
    at = len(data) - 4
    assert bytes(data[at:]) == bytes([4, 2, 1, 2])
    data[at + change[0]] = change[1]
    get = mds_samples(data, table.schema, zero_copy=False)
    with pytest.raises(ShardCorruptError, match="column 'x': an array does not have the size"):
        get(0)


def test_damage_never_reads_outside(tmp_path: Path) -> None:
    # The checksum of a shard tells every damage; here only the sizes are checked.
    data, chosen = bytes(encode(tmp_path)), random.Random(3)
    for at in range(len(data)):
        damaged = bytearray(data)
        damaged[at] ^= 1 << chosen.randrange(8)
        try:
            samples(damaged)
        except (ShardCorruptError, UnicodeDecodeError):
            pass


def test_a_schema_that_mds_cannot_hold(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedTypeError, match="'x'"):
        samples(encode(tmp_path), pa.schema([("x", pa.date32())]))
