from __future__ import annotations

import re

import pyarrow as pa
import pytest
import xxhash

from lance_stream.planning import checksum

NAME = b"what the file is"
TABLE = pa.table({"a": [1, 2, 3], "b": ["x", None, "z"]})


def sealed(table: pa.Table = TABLE) -> bytearray:
    """An Arrow file with its checksum."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, table.schema, metadata=checksum.placeholder(NAME)) as writer:
        writer.write_table(table)
    content = bytearray(sink.getvalue())
    at = checksum.locate(memoryview(content), NAME)
    digits = checksum.compute(memoryview(content), at)
    content[at : at + len(digits)] = digits
    return content


def test_the_digits_are_those_of_the_file_with_zeros_in_their_place() -> None:
    content = sealed()
    at = checksum.locate(memoryview(content), NAME)
    assert re.fullmatch(rb"xxh3-128:[0-9a-f]{24}:", content[at - 34 : at])
    zeroed = bytes(content[:at]) + b"0" * 32 + bytes(content[at + 32 :])
    assert bytes(content[at : at + 32]) == xxhash.xxh3_128_hexdigest(zeroed).encode()
    assert checksum.is_intact(memoryview(content), NAME)


def test_any_arrow_reader_opens_the_file() -> None:
    with pa.ipc.open_file(pa.py_buffer(bytes(sealed()))) as reader:
        assert reader.read_all().equals(TABLE)


def test_no_flipped_byte_is_intact() -> None:
    content = sealed()
    for at in range(len(content)):
        for mask in (0x01, 0x20, 0xFF):
            content[at] ^= mask
            assert not checksum.is_intact(memoryview(content), NAME), f"byte {at} ^ {mask:#x}"
            content[at] ^= mask
    assert checksum.is_intact(memoryview(content), NAME)


def test_nothing_cut_or_longer_is_intact() -> None:
    content = bytes(sealed())
    for length in range(len(content)):
        assert not checksum.is_intact(memoryview(content[:length]), NAME)
    assert not checksum.is_intact(memoryview(content + b"\0"), NAME)
    assert not checksum.is_intact(memoryview(content + content), NAME)


@pytest.mark.parametrize(
    "content",
    [b"", b"x", b"xxh3-128:", b"xxh3-128:" + b"0" * 31, b"0" * 32, b"xxh3-128:" + b"0" * 32],
)
def test_what_has_no_checksum_is_not_intact(content: bytes) -> None:
    assert not checksum.is_intact(memoryview(content), NAME)


@pytest.mark.parametrize("text", ["xxh3-128:", "xxh3-128:" + "0" * 32])
def test_rows_that_look_like_the_checksum(text: str) -> None:
    table = pa.table({"a": [text] * 3})
    content = bytes(sealed(table))
    assert checksum.is_intact(memoryview(content), NAME)
    with pa.ipc.open_file(pa.py_buffer(content)) as reader:
        assert reader.read_all().equals(table)


@pytest.mark.parametrize("text", ["xxh3-128:", "xxh3-128:" + "0" * 32])
def test_names_that_look_like_the_checksum(text: str) -> None:
    table = pa.table({text: [1, 2], "b": [3, 4]})
    content = bytes(sealed(table))
    assert checksum.is_intact(memoryview(content), NAME)
    with pa.ipc.open_file(pa.py_buffer(content)) as reader:
        assert reader.read_all().equals(table)


def test_the_name_of_another_file_is_not_its_own() -> None:
    content = memoryview(bytes(sealed()))
    assert checksum.is_intact(content, NAME)
    assert not checksum.is_intact(content, b"another")
    assert checksum.locate(content, b"another") == -1
