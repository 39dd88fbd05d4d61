from __future__ import annotations

import os
import re
import resource
from pathlib import Path

import pytest
import xxhash

from lance_stream.errors import ShardCorruptError
from lance_stream.planning.checksum import DEFAULT_HASH
from lance_stream.shards.header import MappedFile, ShardHeader, expect, sign

HEADER = ShardHeader("0123456789abcdef0123456789abcdef", 42, 5)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "a file"


def unsigned(header: ShardHeader = HEADER) -> bytes:
    return b"head " + header.checksum.placeholder() + b" tail"


def is_intact(path: Path, header: ShardHeader = HEADER, start: int = 0) -> bool:
    mapped = MappedFile(str(path))
    try:
        mapped.require_intact(str(path), header, start, mapped.num_bytes)
    except ShardCorruptError:
        return False
    return True


def test_golden_header() -> None:
    # Who depends on this: the files in users' caches, whose checksums are named by it.
    assert HEADER.as_json() == {
        "fingerprint": "0123456789abcdef0123456789abcdef",
        "shard": 42,
        "rows": 5,
    }
    assert HEADER.to_bytes() == (
        b'{"fingerprint": "0123456789abcdef0123456789abcdef", "shard": 42, "rows": 5}'
    )
    assert HEADER.checksum.placeholder() == (
        b"xxh3_128:61826e7ecdc7a6038dd9c70d:00000000000000000000000000000000"
    )
    assert HEADER.algorithm == DEFAULT_HASH


def test_a_header_is_only_one_place_in_one_plan() -> None:
    headers = [
        HEADER,
        ShardHeader("f" * 32, 42, 5),
        ShardHeader(HEADER.fingerprint, 43, 5),
        ShardHeader(HEADER.fingerprint, 42, 6),
        ShardHeader(HEADER.fingerprint, 42, 5, "sha1"),
    ]
    assert len({header.checksum.placeholder() for header in headers}) == len(headers)


def test_a_file_is_signed_in_place(path: Path) -> None:
    path.write_bytes(unsigned())
    assert not is_intact(path)
    assert sign(str(path), HEADER) == len(unsigned()) == path.stat().st_size
    assert is_intact(path)
    digits = xxhash.xxh3_128_hexdigest(unsigned()).encode()
    zeros = unsigned().replace(b"0" * 32, digits)
    assert path.read_bytes() == zeros


def test_the_place_of_the_signature_may_be_told(path: Path) -> None:
    # Two texts that look alike: one is data.
    twice = unsigned() + unsigned()
    path.write_bytes(twice)
    sign(str(path), HEADER, (0, len(unsigned())))
    content = path.read_bytes()
    assert content[len(unsigned()) :] == unsigned()
    mapped = MappedFile(str(path))
    mapped.require_intact(str(path), HEADER, 0, len(unsigned()))
    with pytest.raises(ShardCorruptError, match="checksum does not match"):
        mapped.require_intact(str(path), HEADER, 0, len(twice))


def test_a_file_that_is_not_intact_says_by_which_hash(path: Path) -> None:
    path.write_bytes(unsigned())
    message = f"{path}: the xxh3_128 checksum does not match the content, or it is another shard's"
    with pytest.raises(ShardCorruptError, match=re.escape(message)):
        MappedFile(str(path)).require_intact(str(path), HEADER, 0, 100)


@pytest.mark.parametrize("algorithm", ["sha1", "md5", "xxh64", "xxh3_64", "xxh3_128"])
def test_every_hash(path: Path, algorithm: str) -> None:
    header = ShardHeader("f", 0, 1, algorithm)
    path.write_bytes(unsigned(header))
    sign(str(path), header)
    assert is_intact(path, header)
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    assert not is_intact(path, header)


def test_a_full_disk_is_an_os_error(path: Path) -> None:
    # And no signal, as it would be through a mapping.
    path.write_bytes(unsigned())
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (3, limits[1]))
        with pytest.raises(OSError, match="File too large"):
            sign(str(path), HEADER)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)


def test_a_mapped_file_knows_which_file_it_is(path: Path) -> None:
    path.write_bytes(b"abc")
    first = MappedFile(str(path))
    status = path.stat()
    assert first.inode == (status.st_dev, status.st_ino, status.st_mtime_ns, 3)
    assert first.num_bytes == 3
    assert bytes(first.content) == b"abc"
    assert first.content.readonly
    assert MappedFile(str(path)).inode == first.inode
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns + 1))
    assert MappedFile(str(path)).inode != first.inode


def test_content_outlives_the_file_and_its_mapping(path: Path) -> None:
    path.write_bytes(b"abc" * 10_000)
    content = MappedFile(str(path)).content[3:]
    path.unlink()
    assert bytes(content) == b"abc" * 9_999


def test_an_empty_file_is_corrupt(path: Path) -> None:
    path.touch()
    with pytest.raises(ShardCorruptError, match="a file is empty"):
        MappedFile(str(path))


def test_a_missing_file_is_a_file_not_found_error(path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="a file"):
        MappedFile(str(path))


def test_what_is_expected_is_said() -> None:
    expect("/a/file", "rows", 3, 3)
    with pytest.raises(ShardCorruptError, match=r"^/a/file: rows should be 3 but is 4$"):
        expect("/a/file", "rows", 3, 4)
