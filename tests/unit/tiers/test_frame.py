from __future__ import annotations

import hashlib

import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from lance_stream.tiers.frame import (
    HEADER_BYTES,
    MAX_PARTS,
    BadFrameError,
    Frame,
    join_parts,
    make_frame,
    open_value,
    stored_name,
)
from lance_stream.tiers.shard_cache import ValueTooLargeError

NAME = stored_name("a key")
OTHER = stored_name("another key")
contents = st.binary(max_size=3000)


def value_of(content: bytes, name: str = NAME, **options: int) -> bytes:
    return make_frame(name, content, **options).value(content)


def test_the_layout_is_fixed() -> None:
    """Tiers outlive releases: who changes this raises FRAME_VERSION."""
    assert HEADER_BYTES == 88
    assert stored_name("a key") == "1e0a117626ae05ef39ac260b88cb428c5ce6e521"
    value = value_of(b"content", rows=5)
    assert value[:8] == b"LnSt\x01\x00\x00\x00"
    assert value[-7:] == b"content"
    assert hashlib.blake2b(value, digest_size=8).hexdigest() == "897121309ff3d33d"


@given(st.text(), st.text())
def test_names_are_of_one_length_and_differ(one: str, other: str) -> None:
    assert len(stored_name(one)) == 40
    assert set(stored_name(one)) <= set("0123456789abcdef")
    assert (stored_name(one) == stored_name(other)) == (one == other)


@given(contents, st.integers(0, 1 << 60), st.sampled_from([bytes, bytearray, memoryview]))
def test_content_comes_back(content: bytes, rows: int, kind: type) -> None:
    frame, found = open_value(kind(value_of(content, rows=rows)), name=NAME)
    assert found == content
    assert (frame.rows, frame.num_bytes, frame.num_parts) == (rows, len(content), 0)
    assert open_value(value_of(content, rows=rows), name=NAME, rows=rows)[1] == content


@given(contents, st.data())
def test_a_flipped_bit_is_noticed_wherever_it_is(content: bytes, data: st.DataObject) -> None:
    value = bytearray(value_of(content, rows=3))
    at = data.draw(st.integers(0, len(value) - 1))
    value[at] ^= 1 << data.draw(st.integers(0, 7))
    with pytest.raises(BadFrameError, match=r"."):
        open_value(value, name=NAME, rows=3)


@given(contents, st.data())
def test_cut_or_longer_content_is_noticed(content: bytes, data: st.DataObject) -> None:
    value = value_of(content)
    cut = data.draw(st.integers(0, len(value) - 1))
    with pytest.raises(BadFrameError, match=r"less than a header|bytes, not the"):
        open_value(value[:cut], name=NAME)
    with pytest.raises(BadFrameError, match="bytes, not the"):
        open_value(value + data.draw(st.binary(min_size=1, max_size=20)), name=NAME)


@given(contents)
def test_content_of_another_key_or_of_other_rows_is_noticed(content: bytes) -> None:
    value = value_of(content, rows=7)
    with pytest.raises(BadFrameError, match=f"content of {NAME}, not of {OTHER}"):
        open_value(value, name=OTHER)
    with pytest.raises(BadFrameError, match="it has 7 rows, not 8"):
        open_value(value, name=NAME, rows=8)
    # Rows that were not said are not any rows.
    with pytest.raises(BadFrameError, match="it has 0 rows, not 8"):
        open_value(value_of(content), name=NAME, rows=8)


@given(st.binary(max_size=500))
def test_foreign_content_is_noticed(value: bytes) -> None:
    with pytest.raises(BadFrameError, match=r"not ours|another program's"):
        open_value(value, name=NAME)


def test_another_version_is_noticed() -> None:
    value = bytearray(value_of(b"content"))
    value[4] = 2
    value[72:88] = xxhash.xxh3_128_digest(bytes(value[:72]))
    with pytest.raises(BadFrameError, match="its layout is version 2, not 1"):
        open_value(value, name=NAME)


# --- parts ---


@given(contents, st.integers(HEADER_BYTES, 700))
def test_large_content_is_cut_and_joined(content: bytes, limit: int) -> None:
    frame = make_frame(NAME, content, rows=2, max_value_bytes=limit)
    parts = [bytes(part) for part in frame.parts(content)]
    value = frame.value(content)
    assert len(value) <= limit
    assert all(0 < len(part) <= limit for part in parts)
    assert len(parts) == frame.num_parts == len(set(frame.part_names()))
    read, found = open_value(value, name=NAME, rows=2)
    assert read == frame
    if len(content) + HEADER_BYTES <= limit:
        assert (found, parts) == (content, [])
    else:
        assert found is None
        assert join_parts(read, parts) == content


@given(st.binary(min_size=1000, max_size=3000), st.data())
def test_damaged_lost_swapped_and_foreign_parts_are_noticed(
    content: bytes, data: st.DataObject
) -> None:
    frame = make_frame(NAME, content, max_value_bytes=400)
    parts = [bytearray(part) for part in frame.parts(content)]
    which = data.draw(st.integers(0, len(parts) - 1))
    kind = data.draw(st.sampled_from(["flip", "lose", "repeat", "swap", "cut"]))
    if kind == "flip":
        parts[which][data.draw(st.integers(0, len(parts[which]) - 1))] ^= 1
    elif kind == "lose":
        del parts[which]
    elif kind == "repeat":
        parts.insert(which, parts[which])
    elif kind == "swap":
        parts[which], parts[which - 1] = parts[which - 1], parts[which]
    else:
        del parts[which][-1]
    if b"".join(parts) != content:
        with pytest.raises(BadFrameError, match=r"bytes, not the|hash of its content"):
            join_parts(frame, parts)


@given(st.binary(min_size=1000, max_size=1500), st.binary(min_size=1000, max_size=1500))
def test_parts_of_two_contents_have_different_names(one: bytes, other: bytes) -> None:
    frames = [make_frame(NAME, content, max_value_bytes=400) for content in (one, other)]
    names = [set(frame.part_names()) for frame in frames]
    assert (one == other) or not names[0] & names[1]
    elsewhere = make_frame(OTHER, one, max_value_bytes=400)
    assert not names[0] & set(elsewhere.part_names())


def test_content_that_needs_too_many_parts_is_refused() -> None:
    content = bytes(100 * (MAX_PARTS + 1))
    with pytest.raises(ValueTooLargeError, match="do not fit into 65536 values of 100 bytes"):
        make_frame(NAME, content, max_value_bytes=100)
    assert make_frame(NAME, content[:-100], max_value_bytes=100).num_parts == MAX_PARTS
    with pytest.raises(ValueTooLargeError, match="values of 50 bytes"):
        make_frame(NAME, b"x" * 100, max_value_bytes=50)


def test_a_header_that_names_too_many_parts_is_refused() -> None:
    value = Frame(NAME, 0, 1 << 40, 1, bytes(16)).header()
    with pytest.raises(BadFrameError, match="more than 65536"):
        open_value(value, name=NAME)


def test_bytes_after_a_header_without_content_are_noticed() -> None:
    value = make_frame(NAME, bytes(1000), max_value_bytes=400).value(b"")
    with pytest.raises(BadFrameError, match="3 bytes follow a header"):
        open_value(value + b"xyz", name=NAME)


def test_content_is_not_copied_and_not_writable() -> None:
    value = bytearray(value_of(b"content"))
    _, found = open_value(value, name=NAME)
    assert found is not None
    assert found.readonly
    assert found.obj is value
