from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from lance_stream.testing import MemoryShardCache, ShardCacheContract
from lance_stream.tiers.breaker import Breaker
from lance_stream.tiers.frame import stored_name
from lance_stream.tiers.framed import FramedCache
from lance_stream.tiers.guarded import GuardedCache
from lance_stream.tiers.shard_cache import ShardCache
from lance_stream.tiers.tier_url import TierUrl
from tests.support.new_threads import NewThreads

PASSWORD = "correct-horse"
URL = TierUrl.parse(f"redis://user:{PASSWORD}@host:1234/0?timeout=300ms")


class Clock:
    """Time that passes when told."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def inner() -> MemoryShardCache:
    return MemoryShardCache(max_value_bytes=10_000)


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def told() -> list[str]:
    return []


@pytest.fixture
def guarded(inner: MemoryShardCache, clock: Clock, told: list[str]) -> GuardedCache:
    return GuardedCache(
        FramedCache(inner),
        URL,
        warn=told.append,
        new_breaker=lambda: Breaker(first_delay_s=1, max_delay_s=4, jitter=lambda: 0.5),
        clock=clock,
    )


class TestContract(ShardCacheContract):
    secrets = (PASSWORD,)

    def new_cache(self) -> ShardCache:
        self.values, self.claims = getattr(self, "values", {}), getattr(self, "claims", {})
        url = TierUrl.parse(f"redis://:{PASSWORD}@host?timeout=20")
        return GuardedCache(FramedCache(MemoryShardCache(self.values, claims=self.claims)), url)


def test_what_happens_is_counted(guarded: GuardedCache) -> None:
    assert guarded.get("k") is None
    guarded.put("k", b"12345")
    assert guarded.write("k", b"67890", replace=False) is False
    assert guarded.get("k") == b"12345"
    counts = guarded.counts()
    assert (counts.hits, counts.misses, counts.puts, counts.present) == (1, 1, 1, 1)
    assert (counts.hit_bytes, counts.put_bytes) == (5, 5)
    assert counts.tier == "redis://***@host:1234/0"
    assert counts.as_dict()["hits"] == 1


@pytest.mark.parametrize(
    "call",
    [
        lambda cache: cache.get("k"),
        lambda cache: cache.read("k", rows=3, timeout_s=1),
        lambda cache: cache.put("k", b"v"),
        lambda cache: cache.write("k", b"v", replace=False),
        lambda cache: "k" in cache,
        lambda cache: cache.delete("k"),
        lambda cache: cache.close(),
    ],
)
@pytest.mark.parametrize(
    "error",
    [ConnectionError("x"), KeyError("x"), MemoryError("x"), SystemExit(3), BaseException("panic")],
)
def test_nothing_ever_raises(
    inner: MemoryShardCache,
    guarded: GuardedCache,
    call: Callable[[GuardedCache], Any],
    error: BaseException,
) -> None:
    inner.error = error
    for _ in range(3):
        assert not call(guarded)


def test_a_dead_tier_is_told_once_and_left_alone(
    inner: MemoryShardCache, guarded: GuardedCache, clock: Clock, told: list[str]
) -> None:
    inner.error = ConnectionError("refused")
    for _ in range(10):
        assert guarded.get("k") is None
        guarded.put("k", b"v")
        assert "k" not in guarded
    expected = (
        "shared cache redis://***@host:1234/0: cannot get: ConnectionError: refused; what it does "
        "not give is read from Lance, and it is tried again later, without another word until it "
        "works"
    )
    assert told == [expected]
    # One read and one write were tried, although both kinds fail.
    assert inner.calls.total() == 2
    counts = guarded.counts()
    assert (counts.errors, counts.skipped, counts.outages) == (2, 28, 1)
    assert not guarded.is_reachable


def test_it_is_tried_again_later_and_used_when_it_is_back(
    inner: MemoryShardCache,
    guarded: GuardedCache,
    clock: Clock,
    told: list[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    guarded.put("k", b"v")
    inner.error = ConnectionError("refused")
    for delay in (0, 1, 2, 4, 4):
        clock.now += delay
        before = inner.calls["get"]
        for _ in range(5):
            assert guarded.get("k") is None
        assert inner.calls["get"] == before + 1
    assert len(told) == 1
    inner.error = None
    clock.now += 4
    assert guarded.get("k") == b"v"
    assert guarded.get("k") == b"v"
    assert guarded.is_reachable
    assert "works again" in caplog.text
    clock.now += 100
    inner.error = ConnectionError("refused")
    assert guarded.get("k") is None
    assert len(told) == 2


def test_a_tier_that_takes_nothing_still_gives(
    inner: MemoryShardCache, guarded: GuardedCache, clock: Clock, told: list[str]
) -> None:
    guarded.put("k", b"v")
    inner.put_error = OSError(28, "No space left on device")
    for number in range(10):
        guarded.put(f"{number}", b"v")
        assert guarded.get("k") == b"v"
    assert len(told) == 1
    assert "cannot put: OSError: [Errno 28] No space left on device" in told[0]
    inner.put_error = None
    clock.now += 1
    guarded.put("new", b"v")
    assert guarded.get("new") == b"v"
    assert guarded.is_reachable


def test_a_tier_that_loses_what_it_takes_is_only_slow(
    inner: MemoryShardCache, guarded: GuardedCache, told: list[str]
) -> None:
    inner.loses_puts = True
    guarded.put("k", b"v")
    assert guarded.get("k") is None
    assert told == []


def test_wrong_content_is_told_once_and_is_no_outage(
    inner: MemoryShardCache, guarded: GuardedCache, told: list[str]
) -> None:
    for _ in range(3):
        inner.values[stored_name("k")] = b"something else" * 10
        assert guarded.get("k") is None
    guarded.write("rows", b"v", rows=3)
    assert guarded.read("rows", rows=4) is None
    assert len(told) == 1
    assert "it gave wrong content, which is not used: BadFrameError" in told[0]
    counts = guarded.counts()
    assert (counts.bad, counts.errors, counts.misses) == (4, 0, 0)
    assert guarded.is_reachable


def test_content_that_is_too_large_is_told_once_and_is_no_outage(told: list[str]) -> None:
    inner = MemoryShardCache()
    guarded = GuardedCache(FramedCache(inner, max_bytes=1000), URL, warn=told.append)
    for _ in range(3):
        assert guarded.write("k", bytes(2000)) is False
    assert len(told) == 1
    assert "cannot hold shards of this size" in told[0]
    assert guarded.counts().too_large == 3
    guarded.put("k", b"v")
    assert guarded.get("k") == b"v"


def test_a_tier_that_hangs_is_waited_for_once(inner: MemoryShardCache, told: list[str]) -> None:
    guarded = GuardedCache(FramedCache(inner), URL, warn=told.append)
    guarded.put("k", b"v")
    inner.gate.clear()
    started = time.monotonic()
    assert guarded.get("k") is None
    assert 0.25 < time.monotonic() - started < 2
    for _ in range(10):
        assert guarded.get("k") is None
    assert time.monotonic() - started < 2
    assert "TimeoutError: no answer within 0.3 s" in told[0]
    started = time.monotonic()
    assert guarded.read("other", timeout_s=0) is None
    assert time.monotonic() - started < 0.25
    inner.gate.set()
    guarded.close()


def test_threads_that_hang_are_bounded(inner: MemoryShardCache, told: list[str]) -> None:
    url = TierUrl.parse("redis://host?timeout=20ms")
    guarded = GuardedCache(
        FramedCache(inner),
        url,
        warn=told.append,
        max_calls=4,
        new_breaker=lambda: Breaker(first_delay_s=0.0, calm_s=0.0),
    )
    inner.gate.clear()
    started = NewThreads()
    for _ in range(20):
        assert guarded.get("k") is None
    assert len(started) == 4
    counts = guarded.counts()
    assert (counts.errors, counts.skipped) == (4, 16)
    inner.gate.set()
    deadline = time.monotonic() + 5
    while guarded.get("k") is not None or not guarded.is_reachable:
        assert time.monotonic() < deadline
    assert len(told) == 1
    guarded.close()


def test_many_at_once_wait_no_longer_than_one(inner: MemoryShardCache, told: list[str]) -> None:
    guarded = GuardedCache(FramedCache(inner), URL, warn=told.append)
    inner.gate.clear()
    threads = [threading.Thread(target=guarded.get, args=(f"{n}",)) for n in range(16)]
    started = time.monotonic()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(5)
    assert time.monotonic() - started < 1.5
    assert len(told) == 1
    inner.gate.set()


def test_a_hanging_close_is_left(inner: MemoryShardCache, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lance_stream.tiers.guarded._CLOSE_S", 0.1)
    guarded = GuardedCache(FramedCache(inner), URL)
    inner.gate.clear()
    started = time.monotonic()
    guarded.close()
    assert time.monotonic() - started < 1
    inner.gate.set()


def test_no_message_shows_a_password(
    inner: MemoryShardCache, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    guarded = GuardedCache(FramedCache(inner), URL)
    inner.error = ValueError(f"bad url redis://user:{PASSWORD}@host and {PASSWORD} alone")
    guarded.get("k")
    guarded.put("k", b"v")
    guarded.close()
    assert "bad url redis://***@host and *** alone" in caplog.text
    assert PASSWORD not in caplog.text + repr(guarded) + str(guarded.counts())


def test_a_message_of_many_lines_is_one_line(
    inner: MemoryShardCache, guarded: GuardedCache, told: list[str]
) -> None:
    inner.error = ValueError("one\n  two\n" * 500)
    guarded.get("k")
    assert "\n" not in told[0]
    assert len(told[0]) < 900
