from __future__ import annotations

import os
import random
import re
import shutil
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from streaming.base.hashing import get_hash

from lance_stream.errors import ShardCorruptError
from lance_stream.shards.arrow_file import ArrowShard, write_arrow_shard
from lance_stream.shards.header import ShardHeader

VECTORS = [[1.0, 2.0], None, [3.0, 4.0], [5.0, 6.0], [7.0, 8.0]]
TABLE = pa.table(
    {
        "id": pa.array(range(5), pa.int64()),
        "text": pa.array(["a", None, "", "ünï", "longer than twelve"]),
        "vector": pa.array(VECTORS, pa.list_(pa.float32(), 2)),
    }
)
HEADER = ShardHeader("0123456789abcdef0123456789abcdef", 42, 5)


def write(path: Path, table: pa.Table = TABLE, header: ShardHeader = HEADER) -> int:
    return write_arrow_shard(str(path), table, header)


def read(path: Path, table: pa.Table = TABLE, header: ShardHeader = HEADER) -> pa.Table:
    return pa.Table.from_batches(ArrowShard(str(path), header, table.schema).batches, table.schema)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "shard.arrow"


def test_what_was_written_is_read(path: Path) -> None:
    num_bytes = write(path)
    file = ArrowShard(str(path), HEADER, TABLE.schema)
    assert pa.Table.from_batches(file.batches).equals(TABLE)
    assert file.num_bytes == num_bytes == path.stat().st_size
    status = path.stat()
    assert file.inode == (status.st_dev, status.st_ino, status.st_mtime_ns, status.st_size)


def test_any_arrow_reader_opens_it(path: Path) -> None:
    write(path)
    with pa.ipc.open_file(str(path)) as reader:
        assert reader.read_all().equals(TABLE)
        assert reader.num_record_batches == 1
        assert reader.metadata is not None
        metadata = dict(reader.metadata)
    assert metadata[b"lance_stream.shard"] == (
        b'{"fingerprint": "0123456789abcdef0123456789abcdef", "shard": 42, "rows": 5}'
    )
    assert re.fullmatch(b"xxh3_128:[0-9a-f]{24}:[0-9a-f]{32}", metadata[b"lance_stream.check"])


def test_equal_rows_make_equal_files(tmp_path: Path) -> None:
    # However they came: another node's file of a shard is interchangeable with ours.
    one, other = tmp_path / "one", tmp_path / "other"
    write(one)
    write(other, pa.concat_tables([TABLE.slice(0, 2), TABLE.slice(2, 0), TABLE.slice(2)]))
    assert one.read_bytes() == other.read_bytes()


def test_a_slice_takes_only_its_own_bytes(path: Path, tmp_path: Path) -> None:
    large = pa.table({"x": pa.array([b"x" * 1000] * 1000)})
    assert write(tmp_path / "large", large, ShardHeader("f", 0, 1000)) > 1_000_000
    part = large.slice(500, 3)
    assert write(path, part, ShardHeader("f", 0, 3)) < 10_000
    assert read(path, part, ShardHeader("f", 0, 3)).equals(part)


def test_chunks_become_one_record_batch(path: Path) -> None:
    table = pa.concat_tables([TABLE] * 10)
    header = ShardHeader("f", 0, 50)
    write(path, table, header)
    (batch,) = ArrowShard(str(path), header, table.schema).batches
    assert batch.num_rows == 50
    assert pa.Table.from_batches([batch]).equals(table)


@pytest.mark.parametrize(
    "table",
    [TABLE.slice(0, 0), TABLE.schema.empty_table(), pa.table({"a": pa.array([], pa.int64())})],
)
def test_a_shard_without_rows(path: Path, table: pa.Table) -> None:
    header = ShardHeader("f", 0, 0)
    write(path, table, header)
    assert read(path, table, header).num_rows == 0


def test_metadata_of_the_table_is_not_part_of_the_file(path: Path, tmp_path: Path) -> None:
    marked = TABLE.replace_schema_metadata({"secret": "s"})
    write(path, marked)
    assert b"secret" not in path.read_bytes()
    assert read(path, marked).equals(TABLE)


@pytest.mark.parametrize("text", ["xxh3_128:", "xxh3_128:" + "0" * 32, "lance_stream.check"])
def test_rows_and_names_that_look_like_the_checksum(path: Path, text: str) -> None:
    table = pa.table({text: [text] * 3, "other": [text, None, text]})
    header = ShardHeader("f", 0, 3)
    write(path, table, header)
    assert read(path, table, header).equals(table)
    with pa.ipc.open_file(str(path)) as reader:
        assert reader.read_all().equals(table)


def test_a_directory_that_is_not_there_is_an_os_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="No such file"):
        write(tmp_path / "none" / "shard.arrow")


def test_a_full_disk_is_an_os_error() -> None:
    with pytest.raises(OSError, match="No space left"):
        write(Path("/dev/full"), pa.table({"x": [b"x" * 1_000_000]}))


def test_a_missing_file_is_a_file_not_found_error(path: Path) -> None:
    # And nothing else is: the host takes it to mean "evicted, prepare it again".
    with pytest.raises(FileNotFoundError, match=r"shard\.arrow"):
        read(path)


@pytest.mark.parametrize("cut", ["0", "1", "half", "all but 8", "all but 1"])
def test_a_truncated_file_is_corrupt(path: Path, cut: str) -> None:
    size = write(path)
    length = {"0": 0, "1": 1, "half": size // 2, "all but 8": size - 8, "all but 1": size - 1}[cut]
    os.truncate(path, length)
    with pytest.raises(ShardCorruptError, match=re.escape(str(path))):
        read(path)


def test_every_truncation_is_corrupt(path: Path) -> None:
    for length in reversed(range(write(path))):
        os.truncate(path, length)
        with pytest.raises(ShardCorruptError, match=re.escape(str(path))):
            read(path)


@pytest.mark.parametrize("more", [b"\0", b"x" * 1000, b"xxh3_128:" + b"0" * 32])
def test_a_file_with_more_at_its_end_is_corrupt(path: Path, more: bytes) -> None:
    write(path)
    with path.open("ab") as file:
        file.write(more)
    with pytest.raises(ShardCorruptError, match=re.escape(str(path))):
        read(path)


def test_every_flipped_byte_is_corrupt(path: Path) -> None:
    size = write(path)
    data, chosen, wrong = path.read_bytes(), random.Random(3), []
    with path.open("r+b", buffering=0) as file:
        for at in range(size):
            for mask in (0xFF, 1 << chosen.randrange(8)):
                os.pwrite(file.fileno(), bytes([data[at] ^ mask]), at)
                try:
                    read(path)
                except ShardCorruptError as error:
                    if str(path) not in str(error):
                        wrong.append(f"byte {at} ^ {mask:#x}: {error} names no file")
                except Exception as error:  # noqa: BLE001 - any other is the failure looked for
                    wrong.append(f"byte {at} ^ {mask:#x}: {error!r}")
                else:
                    wrong.append(f"byte {at} ^ {mask:#x}: accepted")
            os.pwrite(file.fileno(), data[at : at + 1], at)
    assert not wrong
    assert read(path).equals(TABLE)


def test_pages_of_zeros_are_corrupt(path: Path) -> None:
    # What a file system may leave behind after the power failed.
    table = pa.table({"x": np.random.default_rng(1).integers(1, 255, 40_000, np.uint8)})
    header = ShardHeader("f", 0, 40_000)
    data = path.read_bytes() if write(path, table, header) else b""
    for page in range(0, len(data), 4096):
        zeroed = data[:page] + bytes(len(data[page : page + 4096])) + data[page + 4096 :]
        path.write_bytes(zeroed)
        with pytest.raises(ShardCorruptError, match=re.escape(str(path))):
            read(path, table, header)


@pytest.mark.parametrize(
    "data",
    [b"x", b"ARROW1\0\0", b"{}", b"\0" * 5000, b"xxh3_128:" + b"0" * 32, b"xxh3_128:" + b"0" * 31],
)
def test_another_file_is_corrupt(path: Path, data: bytes) -> None:
    path.write_bytes(data)
    with pytest.raises(ShardCorruptError, match=re.escape(str(path))):
        read(path)


def test_an_arrow_file_of_somebody_else_is_corrupt(path: Path) -> None:
    with pa.ipc.new_file(str(path), TABLE.schema) as writer:
        writer.write_table(TABLE)
    with pytest.raises(ShardCorruptError, match=re.escape(str(path))):
        read(path)


@pytest.mark.parametrize(
    "header",
    [
        ShardHeader("f" * 32, 42, 5),
        ShardHeader(HEADER.fingerprint, 43, 5),
        ShardHeader(HEADER.fingerprint, 42, 4),
    ],
)
def test_the_shard_of_another_place_in_the_plan_is_corrupt(
    path: Path, header: ShardHeader
) -> None:
    write(path)
    with pytest.raises(ShardCorruptError, match="or it is another shard's"):
        read(path, header=header)


def test_a_file_that_lies_about_its_rows_is_corrupt(path: Path) -> None:
    header = ShardHeader("f", 0, 6)
    write(path, TABLE, header)
    with pytest.raises(ShardCorruptError, match="rows should be 6 but is 5"):
        read(path, header=header)


@pytest.mark.parametrize(
    "schema",
    [
        TABLE.schema.set(0, pa.field("id", pa.int32())),
        TABLE.schema.set(0, pa.field("di", pa.int64())),
        TABLE.schema.remove(2),
        TABLE.schema.append(pa.field("more", pa.int8())),
        pa.schema([TABLE.schema.field(i) for i in (1, 0, 2)]),
        TABLE.schema.set(0, pa.field("id", pa.int64(), nullable=False)),
    ],
)
def test_other_columns_are_corrupt(path: Path, schema: pa.Schema) -> None:
    write(path)
    with pytest.raises(ShardCorruptError, match="schema should be"):
        ArrowShard(str(path), HEADER, schema)


def test_metadata_of_the_expected_schema_does_not_matter(path: Path) -> None:
    write(path)
    marked = TABLE.schema.with_metadata({"k": "v"})
    marked = marked.set(0, marked.field(0).with_metadata({"k": "v"}))
    assert ArrowShard(str(path), HEADER, marked).num_bytes == path.stat().st_size


def _flip_a_row(path: Path) -> None:
    """Damage that only the checksum can tell."""
    data = path.read_bytes()
    assert data.count(b"longer than twelve") == 1
    with path.open("r+b") as file:
        file.seek(data.index(b"longer than twelve"))
        file.write(b"l0nger")


def _restore_time(path: Path, status: os.stat_result) -> None:
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))


def test_only_the_very_same_file_is_not_hashed_again(path: Path) -> None:
    write(path)
    verified, status = ArrowShard(str(path), HEADER, TABLE.schema).inode, path.stat()
    assert ArrowShard(str(path), HEADER, TABLE.schema, verified=verified).inode == verified

    # Unseen, which is how we know that the content was not hashed ...
    _flip_a_row(path)
    _restore_time(path, status)
    file = ArrowShard(str(path), HEADER, TABLE.schema, verified=verified)
    assert file.batches[0].column(1)[4].as_py() == "l0nger than twelve"
    # ... while without a word of an earlier check it is.
    with pytest.raises(ShardCorruptError, match="checksum does not match"):
        ArrowShard(str(path), HEADER, TABLE.schema)


def test_a_file_that_changed_is_hashed_again(path: Path) -> None:
    write(path)
    verified, status = ArrowShard(str(path), HEADER, TABLE.schema).inode, path.stat()
    _flip_a_row(path)
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns + 1))
    with pytest.raises(ShardCorruptError, match="checksum does not match"):
        ArrowShard(str(path), HEADER, TABLE.schema, verified=verified)


def test_another_file_at_the_same_place_is_hashed(path: Path, tmp_path: Path) -> None:
    write(path)
    verified, status = ArrowShard(str(path), HEADER, TABLE.schema).inode, path.stat()
    copy = tmp_path / "copy"
    shutil.copy2(path, copy)
    _flip_a_row(copy)
    _restore_time(copy, status)
    copy.rename(path)
    with pytest.raises(ShardCorruptError, match="checksum does not match"):
        ArrowShard(str(path), HEADER, TABLE.schema, verified=verified)


def test_the_plan_is_checked_even_where_the_hash_is_not(path: Path) -> None:
    write(path)
    verified = ArrowShard(str(path), HEADER, TABLE.schema).inode
    with pytest.raises(ShardCorruptError, match="header should be"):
        ArrowShard(str(path), ShardHeader("f", 0, 5), TABLE.schema, verified=verified)
    with pytest.raises(ShardCorruptError, match="schema should be"):
        ArrowShard(str(path), HEADER, TABLE.schema.remove(0), verified=verified)


@pytest.mark.parametrize("algorithm", ["sha1", "md5", "xxh64", "xxh3_64"])
def test_another_hash_may_be_asked_for(path: Path, algorithm: str) -> None:
    header = ShardHeader(HEADER.fingerprint, 42, 5, algorithm)
    write(path, header=header)
    assert read(path, header=header).equals(TABLE)
    with pa.ipc.open_file(str(path)) as reader:
        assert reader.metadata is not None
        check = dict(reader.metadata)[b"lance_stream.check"].decode()
    digits = len(get_hash(algorithm, b""))
    assert re.fullmatch(f"{algorithm}:[0-9a-f]{{24}}:[0-9a-f]{{{digits}}}", check)
    with pytest.raises(ShardCorruptError, match="xxh3_128 checksum does not match"):
        read(path)
    _flip_a_row(path)
    with pytest.raises(ShardCorruptError, match=f"{algorithm} checksum does not match"):
        read(path, header=header)


@pytest.mark.parametrize("num_batches", [1, 3])
def test_samples_of_any_number_of_batches(path: Path, num_batches: int) -> None:
    # Large rows are not joined when they are written: here as if the limit were nothing.
    batches = [TABLE.to_batches()[0]] * num_batches
    table = pa.Table.from_batches(batches)
    header = ShardHeader("f", 0, len(table))
    write(path, table, header)
    shard = ArrowShard(str(path), header, table.schema)
    shard.batches = batches
    sample = shard.samples(zero_copy=False)
    for row in [*range(len(table)), 0, len(table) - 1]:
        found = sample(row)
        assert (found["id"], found["text"]) == (row % 5, TABLE["text"][row % 5].as_py())
        vector = found["vector"]
        assert (None if vector is None else vector.tolist()) == VECTORS[row % 5]


def test_marks_of_columns_are_kept(path: Path) -> None:
    # bfloat16 is two bytes and a mark.
    field = pa.field("b", pa.binary(2), metadata={"lance_stream:type": "bfloat16"})
    table = pa.table([pa.array([b"\x80\x3f", None])], schema=pa.schema([field]))
    header = ShardHeader("f", 0, 2)
    write(path, table, header)
    shard = ArrowShard(str(path), header, table.schema)
    assert shard.batches[0].schema.field(0).metadata == field.metadata
    sample = shard.samples(zero_copy=False)
    assert str(sample(0)["b"]) == "tensor(1., dtype=torch.bfloat16)"
    assert sample(1) == {"b": None}


def test_rows_stay_readable_after_the_file_is_gone(path: Path) -> None:
    write(path)
    batches = ArrowShard(str(path), HEADER, TABLE.schema).batches
    path.unlink()
    assert pa.Table.from_batches(batches).equals(TABLE)


def test_opening_leaves_no_descriptor_open(path: Path) -> None:
    write(path)
    read(path)
    before = len(os.listdir("/proc/self/fd"))
    files = [ArrowShard(str(path), HEADER, TABLE.schema) for _ in range(5)]
    _flip_a_row(path)
    for _ in range(5):
        with pytest.raises(ShardCorruptError, match="checksum"):
            ArrowShard(str(path), HEADER, TABLE.schema)
    del files
    assert len(os.listdir("/proc/self/fd")) == before


def test_many_batches_become_a_few(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """None too large for 32-bit offsets, and the rows in their order."""
    monkeypatch.setattr("lance_stream.shards.arrow_file._COMBINE_BELOW_BYTES", 1000)
    monkeypatch.setattr("lance_stream.shards.arrow_file._MAX_BATCH_BYTES", 3000)
    sizes = [100] * 40 + [5000] + [100] * 40
    parts = [pa.table({"text": ["x" * size]}) for size in sizes]
    table = pa.concat_tables(parts)
    header = ShardHeader(HEADER.fingerprint, 42, len(sizes))
    write(path, table, header)
    batches = ArrowShard(str(path), header, table.schema).batches
    assert [len(text) for batch in batches for text in batch["text"].to_pylist()] == sizes
    assert 3 < len(batches) < 20
    assert all(batch.nbytes <= 3000 or batch.num_rows == 1 for batch in batches)
