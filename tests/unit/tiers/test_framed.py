from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lance_stream.testing import MemoryShardCache, ShardCacheContract
from lance_stream.tiers.frame import HEADER_BYTES, BadFrameError, stored_name
from lance_stream.tiers.framed import FramedCache
from lance_stream.tiers.shard_cache import ShardCache, ValueTooLargeError


class TestContract(ShardCacheContract):
    """It is a shard cache itself."""

    def new_cache(self) -> ShardCache:
        self.values, self.claims = getattr(self, "values", {}), getattr(self, "claims", {})
        inner = MemoryShardCache(self.values, max_value_bytes=100_000, claims=self.claims)
        return FramedCache(inner)


@given(st.text(), st.binary(max_size=3000), st.none() | st.integers(HEADER_BYTES, 500))
def test_content_comes_back(key: str, content: bytes, limit: int | None) -> None:
    inner = MemoryShardCache(max_value_bytes=limit)
    cache = FramedCache(inner)
    assert cache.get(key) is None
    assert cache.write(key, content, rows=9)
    found = cache.read(key, rows=9)
    assert found is not None
    assert (bytes(found.data), found.rows) == (content, 9)
    assert cache.get(key) == content
    assert key in cache
    assert all(len(name) == 40 for name in inner.values)
    cache.delete(key)
    assert inner.values == {}


def test_what_is_there_is_replaced_only_if_asked() -> None:
    inner = MemoryShardCache()
    cache = FramedCache(inner)
    assert cache.write("k", b"one", replace=False) is True
    assert cache.write("k", b"two", replace=False) is False
    assert cache.get("k") == b"one"
    assert cache.write("k", b"two") is True
    assert cache.get("k") == b"two"


@pytest.mark.parametrize("limit", [None, 300])
def test_wrong_content_raises_and_goes(limit: int | None) -> None:
    inner = MemoryShardCache(max_value_bytes=limit)
    cache = FramedCache(inner)
    content = bytes(range(250)) * 4
    for number in range(len(inner.values) + 1):
        cache.put("k", content)
        name = list(inner.values)[number]
        inner.values[name] = inner.values[name][:-1] + b"!"
        with pytest.raises(BadFrameError, match="hash"):
            cache.get("k")
        assert "k" not in cache
    cache.write("k", content, rows=3)
    with pytest.raises(BadFrameError, match="it has 3 rows, not 4"):
        cache.read("k", rows=4)


def test_wrong_content_in_a_tier_that_may_not_delete_is_still_not_given() -> None:
    inner = MemoryShardCache()
    cache = FramedCache(inner)
    inner.values[stored_name("k")] = b"x" * 200

    def refuse(key: str) -> None:
        raise PermissionError("read only")

    inner.delete = refuse  # type: ignore[method-assign]
    with pytest.raises(BadFrameError, match="another program's"):
        cache.get("k")


def test_a_lost_part_is_a_miss_and_the_rest_is_forgotten() -> None:
    inner = MemoryShardCache(max_value_bytes=300)
    cache = FramedCache(inner)
    cache.put("k", bytes(1000))
    part = next(name for name in inner.values if name != stored_name("k"))
    del inner.values[part]
    assert cache.get("k") is None
    assert "k" not in cache
    assert cache.write("k", bytes(1000), replace=False)
    assert cache.get("k") == bytes(1000)


def test_a_put_that_ends_before_the_header_leaves_nothing_to_be_found() -> None:
    inner = MemoryShardCache(max_value_bytes=300)
    cache = FramedCache(inner)
    put, left = inner.put, iter(range(3))

    def dying(key: str, data: bytes) -> None:
        if next(left, None) is None:
            raise ConnectionError("gone")
        put(key, data)

    inner.put = dying  # type: ignore[method-assign]
    with pytest.raises(ConnectionError, match="gone"):
        cache.put("k", bytes(1000))
    assert cache.get("k") is None


def test_limits_are_the_smaller_ones() -> None:
    for own, given_ in ((300, 1000), (1000, 300), (None, 300), (300, None)):
        inner = MemoryShardCache(max_value_bytes=own)
        FramedCache(inner, max_value_bytes=given_).put("k", bytes(1000))
        assert max(map(len, inner.values.values())) <= 300


def test_content_over_max_bytes_is_refused() -> None:
    cache = FramedCache(MemoryShardCache(max_value_bytes=100), max_bytes=1000)
    cache.put("k", bytes(1000 - HEADER_BYTES))
    with pytest.raises(ValueTooLargeError, match="913 bytes are more than max_bytes=1000"):
        cache.put("k", bytes(1001 - HEADER_BYTES))


def test_time_is_looked_at_between_parts() -> None:
    def ticking() -> Iterator[float]:
        now = 0.0
        while True:
            yield now
            now += 1.0

    ticks = ticking()
    inner = MemoryShardCache(max_value_bytes=100)
    cache = FramedCache(inner, clock=lambda: next(ticks))
    with pytest.raises(TimeoutError, match="not all parts within 3 s"):
        cache.write("k", bytes(1000), timeout_s=3)
    assert len(inner.values) == 3
    cache.write("k", bytes(1000))
    with pytest.raises(TimeoutError, match=r"not all parts within 0\.5 s"):
        cache.read("k", timeout_s=0.5)


def test_only_texts_are_keys() -> None:
    assert 5 not in FramedCache(MemoryShardCache())
