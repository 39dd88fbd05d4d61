from __future__ import annotations

import json
import os
import random
import re
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from lance_stream.errors import PlanError, ShardCorruptError, UnsupportedTypeError
from lance_stream.shards.header import ShardHeader
from lance_stream.shards.mds_file import MdsShard, write_mds_shard
from tests.support.mds import stock_samples
from tests.support.values import assert_same, expected_rows

TABLE = pa.table(
    {
        "z": pa.array(range(5), pa.int64()),
        "text": pa.array(["a", "", "ünï", "longer than twelve", "b"]),
        "data": pa.array([b"", b"\0", b"12", b"\xff", b"x" * 300]),
        "vector": pa.array([[i, i + 0.5] for i in range(5)], pa.list_(pa.float32(), 2)),
        "ragged": pa.array([[1] * i for i in range(5)], pa.list_(pa.int16())),
        "flag": pa.array([True, False, True, True, False]),
        "price": pa.array([Decimal(i) for i in range(5)], pa.decimal128(5, 2)),
    }
)
HEADER = ShardHeader("0123456789abcdef0123456789abcdef", 42, 5)


def write(path: Path, table: pa.Table = TABLE, header: ShardHeader = HEADER) -> int:
    return write_mds_shard(str(path), table, header)


def read(
    path: Path, table: pa.Table = TABLE, header: ShardHeader = HEADER, *, zero_copy: bool = False
) -> list[dict[str, Any]]:
    sample = MdsShard(str(path), header, table.schema).samples(zero_copy=zero_copy)
    return [sample(row) for row in range(header.num_rows)]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "shard.mds"


@pytest.mark.parametrize("zero_copy", [False, True])
def test_what_was_written_is_read(path: Path, zero_copy: bool) -> None:
    num_bytes = write(path)
    shard = MdsShard(str(path), HEADER, TABLE.schema)
    assert shard.num_bytes == num_bytes == path.stat().st_size
    status = path.stat()
    assert shard.inode == (status.st_dev, status.st_ino, status.st_mtime_ns, status.st_size)
    for one, other in zip(read(path, zero_copy=zero_copy), expected_rows(TABLE), strict=True):
        assert_same(one, other)


def test_the_stock_reader_reads_it(path: Path) -> None:
    write(path)
    found = stock_samples(path)
    assert len(found) == 5
    for one, other in zip(found, expected_rows(TABLE), strict=True):
        assert list(one) == sorted(other)
        assert_same({name: one[name] for name in other}, other)


def test_the_configuration_says_what_the_file_is(path: Path) -> None:
    write(path)
    content = path.read_bytes()
    config = json.loads(content[4 * 7 : int.from_bytes(content[4:8], "little")])
    assert config["lance_stream"]["shard"] == HEADER.as_json()
    assert re.fullmatch("xxh3_128:[0-9a-f]{24}:[0-9a-f]{32}", config["lance_stream"]["check"])
    assert (config["version"], config["format"]) == (2, "mds")


def test_equal_rows_make_equal_files(tmp_path: Path) -> None:
    one, other = tmp_path / "one", tmp_path / "other"
    write(one)
    write(other, pa.concat_tables([TABLE.slice(0, 2), TABLE.slice(2, 0), TABLE.slice(2)]))
    assert one.read_bytes() == other.read_bytes()


def test_every_truncation_is_corrupt(path: Path) -> None:
    for length in reversed(range(write(path))):
        os.truncate(path, length)
        with pytest.raises(ShardCorruptError, match=re.escape(str(path))):
            MdsShard(str(path), HEADER, TABLE.schema)


@pytest.mark.parametrize("more", [b"\0", b"x" * 1000, b"xxh3_128:" + b"0" * 32])
def test_a_file_with_more_at_its_end_is_corrupt(path: Path, more: bytes) -> None:
    write(path)
    with path.open("ab") as file:
        file.write(more)
    with pytest.raises(ShardCorruptError, match=re.escape(str(path))):
        MdsShard(str(path), HEADER, TABLE.schema)


def test_every_flipped_byte_is_corrupt(path: Path) -> None:
    size = write(path)
    data, chosen, wrong = path.read_bytes(), random.Random(3), []
    with path.open("r+b", buffering=0) as file:
        for at in range(size):
            for mask in (0xFF, 1 << chosen.randrange(8)):
                os.pwrite(file.fileno(), bytes([data[at] ^ mask]), at)
                try:
                    MdsShard(str(path), HEADER, TABLE.schema)
                except ShardCorruptError as error:
                    if str(path) not in str(error):
                        wrong.append(f"byte {at} ^ {mask:#x}: {error} names no file")
                except Exception as error:  # noqa: BLE001 - any other is the failure looked for
                    wrong.append(f"byte {at} ^ {mask:#x}: {error!r}")
                else:
                    wrong.append(f"byte {at} ^ {mask:#x}: accepted")
            os.pwrite(file.fileno(), data[at : at + 1], at)
    assert not wrong, wrong[:10]
    read(path)


@pytest.mark.parametrize("data", [b"x", b"\0" * 5000, b"\xff" * 5000, b"ARROW1\0\0" * 100])
def test_another_file_is_corrupt(path: Path, data: bytes) -> None:
    path.write_bytes(data)
    with pytest.raises(ShardCorruptError, match=re.escape(str(path))):
        MdsShard(str(path), HEADER, TABLE.schema)


def test_an_mds_file_of_somebody_else_is_corrupt(tmp_path: Path) -> None:
    from streaming import MDSWriter

    with MDSWriter(out=str(tmp_path / "mds"), columns={"z": "int64"}) as writer:
        for row in range(5):
            writer.write({"z": row})
    path = tmp_path / "mds" / "shard.00000.mds"
    with pytest.raises(ShardCorruptError, match=re.escape(str(path))):
        MdsShard(str(path), HEADER, TABLE.select(["z"]).schema)


@pytest.mark.parametrize(
    "header",
    [
        ShardHeader("f" * 32, 42, 5),
        ShardHeader(HEADER.fingerprint, 43, 5),
        ShardHeader(HEADER.fingerprint, 42, 4),
        ShardHeader(HEADER.fingerprint, 42, 6),
        ShardHeader(HEADER.fingerprint, 42, 5, "sha1"),
    ],
)
def test_the_shard_of_another_place_in_the_plan_is_corrupt(
    path: Path, header: ShardHeader
) -> None:
    write(path)
    with pytest.raises(ShardCorruptError, match=re.escape(str(path))):
        MdsShard(str(path), header, TABLE.schema)


def test_another_schema_is_corrupt(path: Path) -> None:
    write(path)
    with pytest.raises(ShardCorruptError, match="its column_names should be"):
        read(path, TABLE.drop_columns(["z"]))


@pytest.mark.parametrize("algorithm", ["sha1", "md5", "xxh64", "xxh3_64"])
def test_another_hash_may_be_asked_for(path: Path, algorithm: str) -> None:
    header = ShardHeader(HEADER.fingerprint, 42, 5, algorithm)
    write(path, header=header)
    read(path, header=header)
    assert f'"check": "{algorithm}:'.encode() in path.read_bytes()
    with pytest.raises(ShardCorruptError, match="xxh3_128 checksum does not match"):
        read(path)


def test_only_the_very_same_file_is_not_hashed_again(path: Path) -> None:
    write(path)
    status = path.stat()
    verified = MdsShard(str(path), HEADER, TABLE.schema).inode
    content = path.read_bytes()
    assert content.count(b"longer than twelve") == 1
    path.write_bytes(content.replace(b"longer than", b"l0nger than"))
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    # Unseen, which is how we know that the content was not hashed ...
    shard = MdsShard(str(path), HEADER, TABLE.schema, verified=verified)
    assert shard.samples(zero_copy=False)(3)["text"] == "l0nger than twelve"
    # ... while without a word of an earlier check it is.
    with pytest.raises(ShardCorruptError, match="checksum does not match"):
        MdsShard(str(path), HEADER, TABLE.schema)
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns + 1))
    with pytest.raises(ShardCorruptError, match="checksum does not match"):
        MdsShard(str(path), HEADER, TABLE.schema, verified=verified)


@pytest.mark.parametrize("text", ["xxh3_128:", "xxh3_128:" + "0" * 32, "lance_stream", '"check"'])
def test_rows_and_names_that_look_like_the_checksum(path: Path, text: str) -> None:
    table = pa.table({text: [text] * 3, "lance_stream": [text, "", text], "other": ["a"] * 3})
    if text == "lance_stream":
        table = table.drop_columns(["lance_stream"]).append_column("x", [["b"] * 3])
    header = ShardHeader("f", 0, 3)
    write(path, table, header)
    assert read(path, table, header) == table.to_pylist()


def test_arrays_are_owned_or_views(path: Path) -> None:
    table = pa.table({"v": pa.array([[1.5, 2.5]] * 3, pa.list_(pa.float32(), 2))})
    header = ShardHeader("f", 0, 3)
    write(path, table, header)
    for row in read(path, table, header):
        assert row["v"].flags.owndata
        assert row["v"].flags.writeable
    views = [row["v"] for row in read(path, table, header, zero_copy=True)]
    path.unlink()
    for view in views:
        assert not view.flags.writeable
        assert view.tolist() == [1.5, 2.5]


def test_what_mds_cannot_hold_is_refused(path: Path) -> None:
    with pytest.raises(PlanError, match=r"column 'a' \(int64\) holds a null at row 1"):
        write(path, pa.table({"a": [1, None]}), ShardHeader("f", 0, 2))
    with pytest.raises(UnsupportedTypeError, match=r"'a' \(date32\[day\]\)"):
        write(path, pa.table({"a": pa.array([1], pa.date32())}), ShardHeader("f", 0, 1))


def test_a_missing_file_is_a_file_not_found_error(path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"shard\.mds"):
        read(path)


def test_a_full_disk_is_an_os_error() -> None:
    with pytest.raises(OSError, match="No space left"):
        write(Path("/dev/full"), pa.table({"x": [b"x" * 1_000_000]}), ShardHeader("f", 0, 1))


def test_a_shard_without_rows(path: Path) -> None:
    header = ShardHeader("f", 0, 0)
    write(path, TABLE.slice(0, 0), header)
    assert read(path, TABLE, header) == []


def test_opening_leaves_no_descriptor_open(path: Path) -> None:
    write(path)
    read(path)
    before = len(os.listdir("/proc/self/fd"))
    shards = [MdsShard(str(path), HEADER, TABLE.schema) for _ in range(5)]
    path.write_bytes(b"garbage" * 100)
    for _ in range(5):
        with pytest.raises(ShardCorruptError, match="not an MDS file of 5 rows"):
            MdsShard(str(path), HEADER, TABLE.schema)
    del shards
    assert len(os.listdir("/proc/self/fd")) == before


def test_large_numbers_of_rows(path: Path) -> None:
    table = pa.table({"n": np.arange(100_000)})
    header = ShardHeader("f", 0, 100_000)
    write(path, table, header)
    sample = MdsShard(str(path), header, table.schema).samples(zero_copy=False)
    assert [sample(row)["n"] for row in (0, 65_535, 65_536, 99_999)] == [0, 65_535, 65_536, 99_999]
