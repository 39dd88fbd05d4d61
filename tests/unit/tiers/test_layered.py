from __future__ import annotations

import threading
import time

import pytest

from lance_stream.testing import MemoryShardCache, ShardCacheContract
from lance_stream.tiers.frame import stored_name
from lance_stream.tiers.framed import FramedCache
from lance_stream.tiers.guarded import GuardedCache
from lance_stream.tiers.layered import LayeredCache
from lance_stream.tiers.shard_cache import ShardCache
from lance_stream.tiers.tier_url import TierUrl


def guarded(inner: MemoryShardCache, name: str, timeout: str = "10") -> GuardedCache:
    url = TierUrl.parse(f"redis://{name}?timeout={timeout}")
    return GuardedCache(FramedCache(inner), url, warn=lambda _: None)


@pytest.fixture
def inner() -> list[MemoryShardCache]:
    """Fast, middle, slow."""
    return [MemoryShardCache() for _ in range(3)]


@pytest.fixture
def layered(inner: list[MemoryShardCache]) -> LayeredCache:
    return LayeredCache([guarded(one, f"tier-{number}") for number, one in enumerate(inner)])


class TestContract(ShardCacheContract):
    def new_cache(self) -> ShardCache:
        self.values = getattr(self, "values", ({}, {}))
        self.claims = getattr(self, "claims", {})
        tiers = [MemoryShardCache(one, claims=self.claims) for one in self.values]
        return LayeredCache([guarded(tier, "tier") for tier in tiers])


def test_a_put_goes_to_all(layered: LayeredCache, inner: list[MemoryShardCache]) -> None:
    layered.put("k", b"v")
    assert [len(one.values) for one in inner] == [1, 1, 1]
    layered.delete("k")
    assert [len(one.values) for one in inner] == [0, 0, 0]
    layered.close()
    assert all(one.is_closed for one in inner)


def test_the_fast_are_asked_first(layered: LayeredCache, inner: list[MemoryShardCache]) -> None:
    layered.put("k", b"v")
    assert layered.get("k") == b"v"
    assert [one.calls["get"] for one in inner] == [1, 0, 0]


def test_what_a_slow_one_has_is_put_into_the_faster(
    layered: LayeredCache, inner: list[MemoryShardCache]
) -> None:
    layered.tiers[2].write("k", b"v", rows=5)
    assert "k" in layered
    assert layered.read("k", rows=6) is None, "and never with other rows"
    layered.tiers[2].write("k", b"v", rows=5)
    found = layered.read("k", rows=5)
    assert found is not None
    assert found.data == b"v"
    assert layered.settle(5)
    for one in layered.tiers:
        again = one.read("k", rows=5)
        assert again is not None
        assert again.data == b"v"


def test_only_what_lacks_it_is_written(
    layered: LayeredCache, inner: list[MemoryShardCache]
) -> None:
    layered.tiers[1].write("k", b"v")
    assert layered.write("k", b"v", replace=False) is True
    assert [one.calls["put"] for one in inner] == [1, 1, 1]
    assert layered.write("k", b"v", replace=False) is False
    assert [one.calls["put"] for one in inner] == [1, 1, 1]


def test_wrong_content_in_a_fast_one_is_replaced_from_a_slow_one(
    layered: LayeredCache, inner: list[MemoryShardCache]
) -> None:
    layered.put("k", b"v")
    inner[0].values[stored_name("k")] = b"x" * 100
    assert layered.get("k") == b"v"
    assert layered.settle(5)
    assert layered.tiers[0].get("k") == b"v"


def test_what_is_refused_goes_nowhere_else(
    layered: LayeredCache, inner: list[MemoryShardCache]
) -> None:
    layered.tiers[1].put("k", b"wrong")
    layered.tiers[2].put("k", b"v")
    found = layered.read("k", check=lambda content: content == b"v")
    assert found is not None
    assert found.data == b"v", "another tier has the right one"
    assert layered.settle(5)
    assert [tier.get("k") for tier in layered.tiers] == [b"v"] * 3
    assert layered.read("k", check=lambda content: False) is None
    assert layered.settle(5)
    assert [len(one.values) for one in inner] == [0, 0, 0]


def test_what_was_refused_and_cannot_be_deleted_is_overwritten(
    layered: LayeredCache, inner: list[MemoryShardCache], monkeypatch: pytest.MonkeyPatch
) -> None:
    layered.tiers[0].put("k", b"wrong")
    layered.tiers[1].put("k", b"v")
    monkeypatch.setattr(inner[0], "delete", lambda key: None)
    assert layered.read("k", check=lambda content: content == b"v") is not None
    assert layered.settle(5)
    assert layered.tiers[0].get("k") == b"v"


def test_a_dead_one_is_passed_by(layered: LayeredCache, inner: list[MemoryShardCache]) -> None:
    inner[0].error = ConnectionError("refused")
    layered.put("k", b"v")
    assert [len(one.values) for one in inner] == [0, 1, 1]
    for _ in range(5):
        assert layered.get("k") == b"v"
    assert layered.settle(5)
    assert inner[0].calls["get"] == 1
    assert "k" in layered


def test_the_time_of_a_caller_is_for_all_together(inner: list[MemoryShardCache]) -> None:
    layered = LayeredCache([guarded(one, "tier", "30") for one in inner])
    layered.put("k", b"v")
    for one in inner:
        one.gate.clear()
    started = time.monotonic()
    assert layered.read("k", timeout_s=0.3) is None
    assert layered.write("k", b"v", timeout_s=0.2) is False
    assert 0.3 < time.monotonic() - started < 1.5
    for one in inner:
        one.gate.set()


def test_closing_waits_for_what_is_on_its_way_but_not_for_ever(
    inner: list[MemoryShardCache],
) -> None:
    slow, fast = guarded(inner[1], "slow"), GatedPuts()
    tiers = [guarded(fast, "fast", "30"), slow]
    layered = LayeredCache(tiers, close_s=0.2)
    slow.put("k", b"v")
    assert layered.get("k") == b"v"
    started = time.monotonic()
    layered.close()
    assert 0.15 < time.monotonic() - started < 3
    assert inner[1].is_closed
    fast.open.set()


class GatedPuts(MemoryShardCache):
    """Its puts hang until told otherwise."""

    def __init__(self) -> None:
        super().__init__()
        self.open = threading.Event()

    def put(self, key: str, data: bytes) -> None:
        self.open.wait()
        super().put(key, data)


def test_its_repr_names_all(layered: LayeredCache) -> None:
    assert repr(layered) == (
        "<shared caches <shared cache redis://tier-0>, <shared cache redis://tier-1>, "
        "<shared cache redis://tier-2>>"
    )
