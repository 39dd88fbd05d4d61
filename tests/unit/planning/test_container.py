from __future__ import annotations

import json
import random
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from lance_stream.planning import container

KEY = b"lance_stream.test"
HEADER = {"format": 3, "name": 'ü "quoted"', "none": None, "list": [1, 2.5, "x"]}
ARRAYS = {
    "numbers": np.array([1, -(2**63), 2**63 - 1], np.int64),
    "bytes": np.arange(256, dtype=np.uint8),
    "empty": np.array([], np.int64),
    "floats": np.array([0.1 + 0.2, np.inf]),
}


def opened(data: bytes) -> tuple[dict[str, Any], dict[str, NDArray[Any]]] | None:
    """Header and arrays as a reader takes them; None if it would refuse the file."""
    try:
        header, text = container.unpack_header(KEY, data)
        if not container.is_intact(data, text):
            return None
        return header, container.unpack(data)
    except container.DAMAGE:
        return None


def test_header_and_arrays_survive() -> None:
    found = opened(container.pack(KEY, HEADER, ARRAYS))
    assert found is not None
    header, arrays = found
    assert header == HEADER
    assert list(arrays) == list(ARRAYS)
    for name, array in ARRAYS.items():
        assert arrays[name].dtype == array.dtype
        assert np.array_equal(arrays[name], array)


@given(
    header=st.dictionaries(st.text(max_size=5), st.integers() | st.text(max_size=50), max_size=4),
    lengths=st.lists(st.integers(0, 300), max_size=4),
)
def test_any_header_with_any_arrays(header: dict[str, Any], lengths: list[int]) -> None:
    arrays = {f"a{i}": np.arange(length) for i, length in enumerate(lengths)}
    found = opened(container.pack(KEY, header, arrays))
    assert found is not None
    assert found[0] == header
    assert all(np.array_equal(found[1][name], array) for name, array in arrays.items())


def test_equal_content_makes_equal_files() -> None:
    assert container.pack(KEY, HEADER, ARRAYS) == container.pack(KEY, HEADER, ARRAYS)


def test_any_arrow_reader_shows_what_is_inside() -> None:
    with pa.ipc.open_file(pa.py_buffer(container.pack(KEY, HEADER, ARRAYS))) as reader:
        batch = reader.read_all()
    assert json.loads(batch.schema.metadata[KEY]) == HEADER
    assert batch["bytes"].to_pylist() == [list(range(256))]


def test_arrays_are_views_of_the_file() -> None:
    arrays = container.unpack(container.pack(KEY, {}, {"a": np.arange(1000)}))
    assert not arrays["a"].flags.owndata
    with pytest.raises(ValueError, match="read-only"):
        arrays["a"][0] = 5


def test_a_file_of_another_kind_is_damage() -> None:
    data = container.pack(b"lance_stream.other", HEADER, ARRAYS)
    with pytest.raises(KeyError, match=r"lance_stream\.test"):
        container.unpack_header(KEY, data)
    assert KeyError in container.DAMAGE


def test_no_cut_is_taken_for_a_file() -> None:
    data = container.pack(KEY, HEADER, ARRAYS)
    for length in range(len(data)):
        assert opened(data[:length]) is None, length
    assert opened(data + b"\0") is None


def test_no_flipped_byte_is_taken_for_a_file() -> None:
    data = bytearray(container.pack(KEY, HEADER, ARRAYS))
    for at in range(len(data)):
        for mask in (0x01, 0x80, 0xFF):
            data[at] ^= mask
            assert opened(bytes(data)) is None, f"byte {at} ^ {mask:#x}"
            data[at] ^= mask


def test_garbage_is_damage_and_nothing_worse() -> None:
    source = random.Random(4)
    data = container.pack(KEY, HEADER, ARRAYS)
    for _ in range(500):
        made = bytearray(data)
        for _ in range(source.randrange(2, 40)):
            made[source.randrange(len(made))] = source.randrange(256)
        assert opened(bytes(made)) is None
    for length in (0, 1, 8, 100, 5000):
        assert opened(source.randbytes(length)) is None
