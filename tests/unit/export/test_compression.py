from __future__ import annotations

import pytest

from lance_stream.errors import PlanError
from lance_stream.export.compression import check_hashes, file_hashes, load_compression


def test_every_compression_of_the_host() -> None:
    from streaming.base.compression import compress, decompress, get_compressions

    data = bytes(range(256)) * 10
    for name in sorted(get_compressions()):
        found = load_compression(name)
        assert (found.name, found.extension) == (name, name.split(":")[0])
        packed = found.compress(data)
        assert decompress(name, packed) == data
        # The time in its header aside, the same bytes.
        theirs = compress(name, data)
        assert packed[8:] == theirs[8:] if found.extension == "gz" else packed == theirs


@pytest.mark.parametrize(
    "name", ["", "ZSTD", "zstd:0", "zstd:99", "zip", "gz:x", "gz:", "snappy:1"]
)
def test_another_compression(name: str) -> None:
    message = rf"compression='{name}' is not one of mosaicml-streaming: br, bz2, gz, snappy, zstd,"
    with pytest.raises(PlanError, match=message):
        load_compression(name)


def test_every_hash_of_the_host() -> None:
    from streaming.base.hashing import get_hash, get_hashes

    names = sorted(get_hashes())
    assert check_hashes(names) == names
    assert file_hashes(b"data", tuple(names)) == {name: get_hash(name, b"data") for name in names}


@pytest.mark.parametrize("name", ["", "SHA1", "shake_128", "new", "md6"])
def test_another_hash(name: str) -> None:
    with pytest.raises(PlanError, match=f"hashes='{name}' is not a hash of mosaicml-streaming"):
        check_hashes(["sha1", name])
