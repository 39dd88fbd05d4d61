"""The memcached tier on real servers, with values that are too large for it."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pymemcache.client.base import Client

from lance_stream.errors import PlanError
from lance_stream.testing import ShardCacheContract
from lance_stream.tiers.breaker import Breaker
from lance_stream.tiers.frame import HEADER_BYTES, stored_name
from lance_stream.tiers.framed import FramedCache
from lance_stream.tiers.guarded import GuardedCache
from lance_stream.tiers.memcached_cache import MemcachedCache
from lance_stream.tiers.opening import open_shard_cache
from lance_stream.tiers.shard_cache import ShardCache, ValueTooLargeError
from lance_stream.tiers.tier_url import TierUrl
from tests.support.servers import LoopbackServer, start_memcached


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LoopbackServer]:
    with start_memcached(tmp_path_factory.mktemp("memcached"), "-m", "256") as running:
        yield running


@pytest.fixture
def own_server(tmp_path: Path) -> Iterator[LoopbackServer]:
    with start_memcached(tmp_path) as running:
        yield running


def raw(server: LoopbackServer, query: str = "") -> MemcachedCache:
    return MemcachedCache(TierUrl.parse(f"memcached://{server.address}{query}"))


def quick(
    server: LoopbackServer, query: str, warn: Any = None, first_delay_s: float = 0.05
) -> GuardedCache:
    """Guarded, with delays for a test."""
    parsed = TierUrl.parse(f"memcached://{server.address}{query}")
    return GuardedCache(
        FramedCache(MemcachedCache(parsed)),
        parsed,
        warn=warn,
        new_breaker=lambda: Breaker(first_delay_s=first_delay_s, max_delay_s=0.6, calm_s=0.2),
    )


class TestContract(ShardCacheContract):
    @pytest.fixture(autouse=True)
    def _server(self, server: LoopbackServer) -> None:
        self.server = server

    def new_cache(self) -> ShardCache:
        return raw(self.server, f"?prefix=contract-{id(self)}")


class TestContractWithSmallItems(ShardCacheContract):
    large_bytes = 200_000

    @pytest.fixture(autouse=True)
    def _server(self, tmp_path: Path) -> Iterator[None]:
        with start_memcached(tmp_path, "-I", "8k", "-o", "slab_chunk_max=4096") as self.server:
            yield

    def new_cache(self) -> ShardCache:
        return raw(self.server)


# --- large values ---


def test_the_server_is_asked_for_its_limit(server: LoopbackServer, tmp_path: Path) -> None:
    cache = raw(server)
    assert cache.max_value_bytes() == (1 << 20) - 512
    cache.close()
    with start_memcached(tmp_path, "-I", "4m") as large:
        cache = raw(large)
        assert cache.max_value_bytes() == (4 << 20) - 512
        cache.put("k", b"v" * cache.max_value_bytes())
        assert len(cache.get("k") or b"") == (4 << 20) - 512
        cache.close()


def test_a_shard_over_the_limit_is_cut_into_parts(server: LoopbackServer) -> None:
    cache = open_shard_cache(f"memcached://{server.address}?prefix=large")
    content = bytes(range(251)) * 20_000
    cache.put("k", content)
    assert cache.get("k") == content
    client = Client(("127.0.0.1", server.port))
    assert len(client.get(f"large:{stored_name('k')}")) == HEADER_BYTES
    client.close()
    cache.close()


def test_lost_or_foreign_parts_are_noticed(server: LoopbackServer) -> None:
    told: list[str] = []
    cache = open_shard_cache(
        f"memcached://{server.address}?prefix=parts&max_value_bytes=1000", warn=told.append
    )
    framed = FramedCache(raw(server, "?prefix=parts"), max_value_bytes=1000)
    content = bytes(range(250)) * 20
    frame_names: list[str] = []
    put = framed._cache.put
    framed._cache.put = lambda key, data: (frame_names.append(key), put(key, data))[1]
    client = Client(("127.0.0.1", server.port), default_noreply=False)

    framed.put("k", content)
    assert cache.get("k") == content
    assert len(frame_names) == 5 + 1
    client.delete(f"parts:{frame_names[2]}")
    assert cache.get("k") is None
    assert told == []  # the server may forget
    assert "k" not in cache

    framed.put("k", content)
    client.set(f"parts:{frame_names[2]}", b"x" * 1000)
    assert cache.get("k") is None
    assert len(told) == 1
    assert "wrong content" in told[0]
    assert cache.counts().bad == 1

    framed.put("k", content)
    client.set(f"parts:{frame_names[2]}", b"cut")
    assert cache.get("k") is None
    framed.put("k", content)
    assert cache.get("k") == content
    client.close()
    framed.close()
    cache.close()


def test_a_value_that_the_server_refuses_is_an_error_not_a_success(
    server: LoopbackServer,
) -> None:
    cache = raw(server, "?prefix=refused")
    for size in (1 << 20, 3 << 20):
        with pytest.raises(ValueTooLargeError, match=f"refuses a value of {size} bytes"):
            cache.put("k", b"v" * size)
        assert cache.get("k") is None
    # The connection is in order afterwards.
    cache.put("k", b"v")
    assert cache.get("k") == b"v"
    cache.close()


def test_a_server_that_takes_less_than_before_is_asked_again(own_server: LoopbackServer) -> None:
    told: list[str] = []
    cache = quick(own_server, "?timeout=5", told.append)
    cache._cache._cache._item_bytes = 3 << 20  # of a server that was here before
    content = b"v" * 2_000_000
    cache.put("k", content)
    assert cache.get("k") is None
    assert len(told) == 1
    assert "cannot hold shards of this size" in told[0]
    cache.put("k", content)
    assert cache.get("k") == content
    counts = cache.counts()
    assert (counts.too_large, counts.errors) == (1, 0)
    cache.close()


def test_a_server_that_may_not_evict_says_that_it_is_full(tmp_path: Path) -> None:
    told: list[str] = []
    with start_memcached(tmp_path, "-m", "8", "-M") as full:
        cache = quick(full, "?timeout=5", told.append)
        cache.put("first", b"v" * 100_000)
        for number in range(30):
            cache.put(f"{number}", b"v" * 900_000)
        assert cache.get("first") == b"v" * 100_000
        assert len(told) == 1
        assert "out of memory" in told[0].lower()
        cache.close()


# --- time ---


@pytest.mark.parametrize("ttl", ["1s", "60d"])
def test_values_lapse_after_their_ttl(server: LoopbackServer, ttl: str) -> None:
    # Sixty days are more than memcached takes for a duration.
    cache = open_shard_cache(f"memcached://{server.address}?prefix=ttl-{ttl}&ttl={ttl}")
    cache.put("k", b"value")
    assert cache.get("k") == b"value"
    time.sleep(2.1 if ttl == "1s" else 0)
    assert cache.get("k") == (None if ttl == "1s" else b"value")
    cache.close()


# --- urls ---


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("memcached://user:hunter22@localhost", "passwords are not supported"),
        ("memcached://localhost/path", "no path"),
        ("memcached://a,b", "one server"),
        ("memcached://localhost?key=hunter22", "unknown option 'key'"),
    ],
)
def test_urls_are_checked(url: str, words: str) -> None:
    with pytest.raises(PlanError, match=words) as caught:
        open_shard_cache(url)
    assert "hunter22" not in str(caught.value)


def test_bounds_that_do_nothing_are_told(
    server: LoopbackServer, caplog: pytest.LogCaptureFixture
) -> None:
    cache = open_shard_cache(f"memcached://{server.address}?max_bytes=1000")
    assert "memcached bounds itself" in caplog.text
    cache.put("k", b"v" * 1001)
    assert cache.get("k") is None
    cache.close()


# --- a server that fails ---


def test_a_claim_lapses(server: LoopbackServer) -> None:
    one, other = raw(server, "?prefix=claims"), raw(server, "?prefix=claims")
    assert one.claim("k", "a" * 32, 0.5) is True
    assert other.claim("k", "b" * 32, 0.5) is False
    time.sleep(2.1)  # the server counts in seconds
    assert other.claim("k", "b" * 32, 5.0) is True
    one.release("k", "a" * 32)
    assert one.claim("k", "a" * 32, 5.0) is False
    one.close()
    other.close()


def test_a_server_that_dies_and_returns(own_server: LoopbackServer) -> None:
    told: list[str] = []
    cache = quick(own_server, "?timeout=2", told.append)
    threads = [threading.Thread(target=cache.put, args=(f"{n}", b"v" * 9999)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert cache.get("1") is not None
    own_server.kill()
    for _ in range(20):
        assert cache.get("1") is None
    assert len(told) == 1
    assert cache.counts().errors >= 1
    own_server.start_again()
    deadline = time.monotonic() + 10
    while cache.get("2") != b"after":
        assert time.monotonic() < deadline
        cache.put("2", b"after")
        time.sleep(0.01)
    assert len(told) == 1
    cache.close()


def test_a_restart_between_two_calls_is_not_even_an_error(own_server: LoopbackServer) -> None:
    cache = quick(own_server, "?timeout=5")
    threads = [threading.Thread(target=cache.put, args=(f"{n}", b"v")) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    own_server.kill()
    own_server.start_again()
    assert cache.get("1") is None
    cache.put("k", b"after")
    assert cache.get("k") == b"after"
    assert cache.counts().errors == 0
    cache.close()


def test_a_server_that_hangs_is_waited_for_once(
    own_server: LoopbackServer, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    cache = quick(own_server, "?timeout=400ms", first_delay_s=0.6)
    cache.put("k", b"v")
    own_server.pause()
    started = time.monotonic()
    assert cache.get("k") is None
    assert 0.3 < time.monotonic() - started < 2
    assert cache.get("k") is None
    assert cache.counts().skipped == 1
    own_server.resume()
    deadline = time.monotonic() + 10
    while cache.get("k") is None:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    # What was asked in vain did not spoil a connection.
    cache.put("other", b"w")
    assert (cache.get("k"), cache.get("other")) == (b"v", b"w")
    assert len(caplog.records) == 1
    cache.close()
