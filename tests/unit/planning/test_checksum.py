from __future__ import annotations

import hashlib
import re

import pyarrow as pa
import pytest
import xxhash

from lance_stream.planning.checksum import DEFAULT_HASH, Checksum, footer, is_hash

CHECK = Checksum(b"what the file is")
TABLE = pa.table({"a": [1, 2, 3], "b": ["x", None, "z"]})


def sealed(table: pa.Table = TABLE, check: Checksum = CHECK) -> bytearray:
    """An Arrow file with its checksum."""
    sink = pa.BufferOutputStream()
    metadata = {b"check": check.placeholder()}
    with pa.ipc.new_file(sink, table.schema, metadata=metadata) as writer:
        writer.write_table(table)
    content = bytearray(sink.getvalue())
    view = memoryview(content)
    at = check.locate(view, *footer(view))
    digits = check.compute(view, at)
    content[at : at + len(digits)] = digits
    return content


def is_intact(content: bytes | bytearray, check: Checksum = CHECK) -> bool:
    view = memoryview(content)
    return check.is_intact(view, *footer(view))


def test_the_digits_are_those_of_the_file_with_zeros_in_their_place() -> None:
    content = sealed()
    at = CHECK.locate(memoryview(content), 0, len(content))
    assert re.fullmatch(rb"xxh3_128:[0-9a-f]{24}:", content[at - 34 : at])
    zeroed = bytes(content[:at]) + b"0" * 32 + bytes(content[at + 32 :])
    assert bytes(content[at : at + 32]) == xxhash.xxh3_128_hexdigest(zeroed).encode()
    assert is_intact(content)


def test_any_arrow_reader_opens_the_file() -> None:
    with pa.ipc.open_file(pa.py_buffer(bytes(sealed()))) as reader:
        assert reader.read_all().equals(TABLE)


@pytest.mark.parametrize("algorithm", [DEFAULT_HASH, "xxh32", "md5"])
def test_no_flipped_byte_is_intact(algorithm: str) -> None:
    check = Checksum(CHECK.name, algorithm)
    content = sealed(check=check)
    for at in range(len(content)):
        for mask in (0x01, 0x20, 0xFF):
            content[at] ^= mask
            assert not is_intact(content, check), f"byte {at} ^ {mask:#x}"
            content[at] ^= mask
    assert is_intact(content, check)


def test_nothing_cut_or_longer_is_intact() -> None:
    content = bytes(sealed())
    for length in range(len(content)):
        assert not is_intact(content[:length])
    assert not is_intact(content + b"\0")
    assert not is_intact(content + content)


@pytest.mark.parametrize(
    "content",
    [b"", b"x", b"xxh3_128:", b"xxh3_128:" + b"0" * 31, b"0" * 32, b"xxh3_128:" + b"0" * 32],
)
def test_what_has_no_checksum_is_not_intact(content: bytes) -> None:
    assert not is_intact(content)


@pytest.mark.parametrize("text", ["xxh3_128:", "xxh3_128:" + "0" * 32])
def test_rows_that_look_like_the_checksum(text: str) -> None:
    table = pa.table({"a": [text] * 3})
    content = bytes(sealed(table))
    assert is_intact(content)
    with pa.ipc.open_file(pa.py_buffer(content)) as reader:
        assert reader.read_all().equals(table)


@pytest.mark.parametrize("text", ["xxh3_128:", "xxh3_128:" + "0" * 32])
def test_names_that_look_like_the_checksum(text: str) -> None:
    table = pa.table({text: [1, 2], "b": [3, 4]})
    content = bytes(sealed(table))
    assert is_intact(content)
    with pa.ipc.open_file(pa.py_buffer(content)) as reader:
        assert reader.read_all().equals(table)


def test_the_name_of_another_file_is_not_its_own() -> None:
    content = sealed()
    another = Checksum(b"another")
    assert is_intact(content)
    assert not is_intact(content, another)
    assert another.locate(memoryview(content), 0, len(content)) == -1


def test_another_hash_is_not_its_own() -> None:
    assert not is_intact(sealed(), Checksum(CHECK.name, "xxh128"))
    assert not is_intact(sealed(), Checksum(CHECK.name, "sha1"))


def test_the_last_of_some_texts_between_the_offsets_is_taken() -> None:
    text = CHECK.placeholder()
    content = memoryview(b"ab" + text + b"cd" + text + b"ef")
    first, second = 2 + len(text) - 32, 4 + 2 * len(text) - 32
    assert CHECK.locate(content, 0, len(content)) == second
    assert CHECK.locate(content, 0, second + 32) == second
    assert CHECK.locate(content, 0, second + 31) == -1
    assert CHECK.locate(content, 0, second - 10) == first
    assert CHECK.locate(content, 2, 2 + len(text)) == first
    assert CHECK.locate(content, 3, 2 + len(text)) == -1
    assert CHECK.locate(content, 5, 5) == -1


def test_the_footer_of_a_large_file_is_its_end() -> None:
    assert footer(memoryview(b"")) == (0, 0)
    assert footer(memoryview(b"abc")) == (0, 3)
    large = memoryview(bytearray((16 << 20) + 5))
    assert footer(large) == (5, (16 << 20) + 5)


# --- which hashes there are ---


def _digest(algorithm: str, data: bytes) -> str:
    if algorithm in xxhash.algorithms_available:
        return getattr(xxhash, algorithm)(data).hexdigest()
    return hashlib.new(algorithm, data).hexdigest()


# Of the host: streaming.base.hashing takes these names.
@pytest.mark.parametrize(
    "algorithm",
    ["md5", "sha1", "sha256", "blake2b", "sha3_512", "xxh32", "xxh64", "xxh3_64", "xxh128"],
)
def test_a_hash_of_the_host(algorithm: str) -> None:
    assert is_hash(algorithm)
    check = Checksum(b"n", algorithm)
    digits = len(_digest(algorithm, b""))
    assert check.placeholder().endswith(b":" + b"0" * digits)
    content = bytearray(b"head " + check.placeholder() + b" tail")
    at = check.locate(memoryview(content), 0, len(content))
    computed = check.compute(memoryview(content), at)
    assert computed == _digest(algorithm, bytes(content)).encode()
    assert not check.is_intact(memoryview(content), 0, len(content))
    content[at : at + digits] = computed
    assert check.is_intact(memoryview(content), 0, len(content))


def test_the_names_are_those_of_the_host() -> None:
    from streaming.base.hashing import get_hash, get_hashes

    # Hashes without a length of their own are none of a file.
    known = {name for name in get_hashes() if not name.startswith("shake_")}
    assert {name for name in get_hashes() if is_hash(name)} == known
    for name in known:
        content = memoryview(Checksum(b"n", name).placeholder())
        at = Checksum(b"n", name).locate(content, 0, len(content))
        assert Checksum(b"n", name).compute(content, at).decode() == get_hash(name, bytes(content))


@pytest.mark.parametrize(
    "name", ["", "nope", "SHA1", "sha-1", "shake_128", "__class__", "new", "xxh3", "algorithms"]
)
def test_other_names_are_no_hash(name: str) -> None:
    assert not is_hash(name)
