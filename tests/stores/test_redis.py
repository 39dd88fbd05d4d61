"""The Redis tier on real servers: what it promises, and every way in which a server fails."""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import redis
import trustme

from lance_stream.errors import PlanError
from lance_stream.testing import ShardCacheContract
from lance_stream.tiers.breaker import Breaker
from lance_stream.tiers.frame import stored_name
from lance_stream.tiers.framed import FramedCache
from lance_stream.tiers.guarded import GuardedCache
from lance_stream.tiers.opening import open_shard_cache
from lance_stream.tiers.redis_cache import RedisCache
from lance_stream.tiers.shard_cache import CheckedCache, ShardCache, ValueTooLargeError
from lance_stream.tiers.shared_tier import SharedTier, shard_key
from lance_stream.tiers.tier_url import TierUrl
from tests.support.servers import LoopbackServer, start_redis

PASSWORD = "correct-horse-battery"
WRONG = "wr0ngwr0ngwr0ng"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LoopbackServer]:
    """For tests that leave it as it is, each with a prefix of its own."""
    with start_redis(tmp_path_factory.mktemp("redis"), "--requirepass", PASSWORD) as running:
        yield running


@pytest.fixture
def own_server(tmp_path: Path) -> Iterator[LoopbackServer]:
    """For tests that harm it."""
    with start_redis(tmp_path) as running:
        yield running


def url_of(server: LoopbackServer, query: str = "") -> str:
    return f"redis://:{PASSWORD}@{server.address}/0{query}"


def client_of(server: LoopbackServer, password: str | None = PASSWORD) -> redis.Redis:
    return redis.Redis(host="127.0.0.1", port=server.port, password=password, protocol=2)


def raw(url: str) -> RedisCache:
    return RedisCache(TierUrl.parse(url))


def quick(url: str, warn: Any = None, first_delay_s: float = 0.05) -> GuardedCache:
    """Guarded, with delays for a test."""
    parsed = TierUrl.parse(url)
    return GuardedCache(
        FramedCache(RedisCache(parsed)),
        parsed,
        warn=warn,
        new_breaker=lambda: Breaker(first_delay_s=first_delay_s, max_delay_s=0.6, calm_s=0.2),
    )


class TestContract(ShardCacheContract):
    secrets = (PASSWORD,)

    @pytest.fixture(autouse=True)
    def _server(self, server: LoopbackServer) -> None:
        self.url = url_of(server, f"?prefix=contract-{id(self)}")

    def new_cache(self) -> ShardCache:
        return raw(self.url)


class TestBoundedContract(TestContract):
    @pytest.fixture(autouse=True)
    def _server(self, server: LoopbackServer) -> None:
        self.url = url_of(
            server, f"?prefix=bounded-{id(self)}&max_shards=100&max_bytes=1gb&ttl=1h"
        )


# --- what it keeps, and for how long ---


def test_values_lapse_after_their_ttl(server: LoopbackServer) -> None:
    cache = open_shard_cache(url_of(server, "?prefix=ttl&ttl=300ms"))
    cache.put("k", b"value")
    assert cache.get("k") == b"value"
    assert 0 < client_of(server).pttl(f"ttl:{stored_name('k')}") <= 300
    time.sleep(0.4)
    assert cache.get("k") is None
    assert "k" not in cache
    cache.close()


def test_the_oldest_go_when_there_are_too_many(server: LoopbackServer) -> None:
    one, other = (raw(url_of(server, "?prefix=many&max_shards=3")) for _ in range(2))
    for number in range(6):
        (one, other)[number % 2].put(f"{number}", b"v")
    assert [f"{number}" in one for number in range(6)] == [False] * 3 + [True] * 3
    one.put("3", b"again")  # the newest now
    one.put("6", b"v")
    assert [f"{number}" in one for number in range(7)] == [False] * 3 + [True, False, True, True]
    one.delete("3")
    one.put("7", b"v")
    assert [f"{number}" in one for number in range(5, 8)] == [True, True, True]
    left = client_of(server).keys("many:*")
    assert len(left) == 3 + 2  # and the two lists
    one.close()
    other.close()


def test_the_oldest_go_when_they_are_too_large(server: LoopbackServer) -> None:
    cache = raw(url_of(server, "?prefix=much&max_bytes=1000"))
    for number in range(5):
        cache.put(f"{number}", b"v" * 300)
    assert [f"{number}" in cache for number in range(5)] == [False, False, True, True, True]
    cache.put("large", b"v" * 900)
    assert [f"{number}" in cache for number in range(5)] == [False] * 5
    cache.put("large", b"v" * 100)
    for number in range(3):
        cache.put(f"{number}", b"v" * 300)
    assert [name in cache for name in ("large", "0", "1", "2")] == [True] * 4
    with pytest.raises(ValueTooLargeError, match="1001 bytes are more than max_bytes=1000"):
        cache.put("huge", b"v" * 1001)
    assert int(client_of(server).hget("much:#sizes", "total")) == 1000
    cache.close()


def test_lapsed_values_make_room_before_live_ones(server: LoopbackServer) -> None:
    cache = raw(url_of(server, "?prefix=lapsed&max_shards=2&ttl=200ms"))
    cache.put("old", b"v")
    time.sleep(0.3)
    cache.put("1", b"v")
    cache.put("2", b"v")
    assert [name in cache for name in ("old", "1", "2")] == [False, True, True]
    assert client_of(server).zcard("lapsed:#index") == 2
    cache.close()


def test_prefixes_and_databases_keep_caches_apart(server: LoopbackServer) -> None:
    urls = [url_of(server, "?prefix=a"), url_of(server, "?prefix=b"), url_of(server)[:-1] + "1"]
    caches = [open_shard_cache(url) for url in urls]
    caches[0].put("k", b"v")
    assert ["k" in cache for cache in caches] == [True, False, False]
    for cache in caches:
        cache.close()


def test_content_larger_than_a_value_is_cut_into_parts(server: LoopbackServer) -> None:
    url = url_of(server, "?prefix=parts&max_value_bytes=1000")
    cache = open_shard_cache(url)
    content = bytes(range(256)) * 20
    cache.put("k", content)
    assert cache.get("k") == content
    assert len(client_of(server).keys("parts:*")) == 1 + 6
    # One part is lost, another content's takes its place.
    client = client_of(server)
    names = [name for name in client.keys("parts:*") if client.strlen(name) == 1000]
    client.set(names[0], b"x" * 1000)
    assert cache.get("k") is None
    cache.put("k", content)
    assert cache.get("k") == content
    client.delete(names[0])
    assert cache.get("k") is None
    assert "k" not in cache
    cache.close()


def test_a_database_is_a_number() -> None:
    with pytest.raises(PlanError, match="'x' is not the number of a database"):
        open_shard_cache("redis://localhost/x")


# --- content ---


@pytest.mark.parametrize("damage", ["flip", "cut", "grow", "foreign", "empty", "other"])
def test_wrong_content_is_never_given(server: LoopbackServer, damage: str) -> None:
    told: list[str] = []
    cache = open_shard_cache(url_of(server, f"?prefix=damage-{damage}"), warn=told.append)
    client = client_of(server)
    name = f"damage-{damage}:{stored_name('k')}"
    content = bytes(range(256)) * 40
    cache.put("k", content)
    cache.put("other", content)
    value: Any = client.get(name)
    changed = {
        "flip": value[:5000] + bytes([value[5000] ^ 1]) + value[5001:],
        "cut": value[:-1],
        "grow": value + b"\0",
        "foreign": b"x" * len(value),
        "empty": b"",
        "other": client.get(f"damage-{damage}:{stored_name('other')}"),
    }[damage]
    client.set(name, changed)
    assert cache.get("k") is None
    assert len(told) == 1
    assert "wrong content" in told[0]
    # It is gone, so that the right content takes its place.
    assert client.exists(name) == 0
    assert cache.write("k", content, replace=False)
    assert cache.get("k") == content
    counts = cache.counts()
    assert (counts.bad, counts.errors, counts.outages) == (1, 0, 0)
    cache.close()


def test_concurrent_nodes_leave_one_whole_shard(server: LoopbackServer) -> None:
    caches = [open_shard_cache(url_of(server, "?prefix=nodes")) for _ in range(4)]
    contents = [bytes([number]) * 1_000_000 for number in range(4)]
    seen: list[bytes | None] = []

    def work(number: int) -> None:
        for _ in range(5):
            caches[number].put("k", contents[number])
            seen.append(caches[number].get("k"))

    threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(seen) == 20
    assert all(content in contents for content in seen)
    for cache in caches:
        cache.close()


# --- who may ---


def test_a_wrong_password_is_told_once_and_never_shown(
    server: LoopbackServer, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    cache = open_shard_cache(f"redis://user:{WRONG}@{server.address}/0")
    for number in range(20):
        cache.put(f"{number}", b"v")
        assert cache.get(f"{number}") is None
        assert f"{number}" not in cache
        cache.delete(f"{number}")
    warnings = [record for record in caplog.records if record.levelno == logging.WARNING]
    assert len(warnings) == 1
    assert "AuthenticationError" in warnings[0].getMessage()
    assert server.address in warnings[0].getMessage()
    assert WRONG not in caplog.text + repr(cache) + str(cache.counts())
    assert cache.counts().outages == 1
    cache.close()


@pytest.fixture(scope="module")
def tls(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[LoopbackServer, Path]]:
    """A server that speaks only TLS, and the folder with its certificates."""
    directory = tmp_path_factory.mktemp("tls")
    authority = trustme.CA()
    authority.cert_pem.write_to_path(directory / "ca.pem")
    trustme.CA().cert_pem.write_to_path(directory / "other-ca.pem")
    issued = authority.issue_cert("127.0.0.1", "localhost")
    issued.private_key_pem.write_to_path(directory / "server.key")
    issued.cert_chain_pems[0].write_to_path(directory / "server.pem")
    with start_redis(directory, "--requirepass", PASSWORD, tls_directory=directory) as running:
        yield running, directory


def test_tls_with_a_certificate_that_is_known(tls: tuple[LoopbackServer, Path]) -> None:
    server, directory = tls
    base = f"rediss://:{PASSWORD}@{server.address}/0"
    for query in (f"ssl_ca_certs={directory}/ca.pem", "ssl_cert_reqs=none"):
        cache = open_shard_cache(f"{base}?{query}&timeout=10")
        cache.put("k", b"v" * 2_000_000)
        assert cache.get("k") == b"v" * 2_000_000
        cache.delete("k")
        cache.close()


@pytest.mark.parametrize("query", ["", "?ssl_ca_certs={}/other-ca.pem"])
def test_tls_with_a_certificate_that_is_not_known_fails(
    tls: tuple[LoopbackServer, Path], query: str
) -> None:
    server, directory = tls
    told: list[str] = []
    base = f"rediss://:{PASSWORD}@{server.address}/0"
    cache = open_shard_cache(base + query.format(directory), warn=told.append)
    cache.put("k", b"v")
    assert cache.get("k") is None
    assert len(told) == 1
    assert "CERTIFICATE_VERIFY_FAILED" in told[0]
    assert PASSWORD not in told[0]
    cache.close()


def test_tls_options_are_checked() -> None:
    with pytest.raises(PlanError, match="unknown option 'ssl_ca_certs'"):
        open_shard_cache("redis://localhost?ssl_ca_certs=/x")
    with pytest.raises(PlanError, match="ssl_cert_reqs is 'required' or 'none'"):
        open_shard_cache("rediss://localhost?ssl_cert_reqs=maybe")
    for path in ("/nowhere/ca.pem", "/dev/null/x"):
        with pytest.raises(PlanError, match=f"ssl_ca_certs='{path}' cannot be read"):
            open_shard_cache(f"rediss://localhost?ssl_ca_certs={path}")


def test_a_value_of_another_type_is_bad_content(server: LoopbackServer) -> None:
    told: list[str] = []
    cache = open_shard_cache(url_of(server, "?prefix=types"), warn=told.append)
    client = client_of(server)
    name = f"types:{stored_name('k')}"
    client.rpush(name, "a", "b")
    assert cache.get("k") is None
    assert not client.exists(name)
    cache.put("k", b"v")
    assert cache.get("k") == b"v"
    client.delete(name)
    client.rpush(name, "a")
    cache.delete("k")
    assert not client.exists(name)
    # A claim that would never lapse.
    claim = f"types:#claim:{stored_name('k')}"
    client.rpush(claim, "a")
    cache.release("k", "me")
    assert cache.claim("k", "me", 5) is False
    assert cache.claim("k", "me", 5) is True
    client.set(claim, "somebody")
    assert cache.claim("k", "me", 5) is False
    assert cache.claim("k", "me", 5) is True
    assert 0 < client.pttl(claim) <= 5000
    assert isinstance(cache, GuardedCache)
    assert (cache.counts().bad, cache.counts().errors) == (1, 0)
    assert len(told) == 1
    assert "no string of Redis" in told[0]
    client.delete(claim)
    client.close()
    cache.close()


# --- a server that fails ---


def until(cache: CheckedCache, key: str, value: bytes, within_s: float = 10.0) -> None:
    """Put until it is there."""
    deadline = time.monotonic() + within_s
    while cache.get(key) != value:
        assert time.monotonic() < deadline, "the tier did not come back"
        cache.put(key, value)
        time.sleep(0.01)


def test_a_server_that_is_down_from_the_start_costs_nothing(tmp_path: Path) -> None:
    with start_redis(tmp_path) as gone:
        pass
    told: list[str] = []
    cache = quick(f"redis://{gone.address}", told.append)
    started = time.monotonic()
    for number in range(200):
        assert cache.get(f"{number}") is None
    assert time.monotonic() - started < 2
    assert len(told) == 1
    assert "Connection refused" in told[0]
    counts = cache.counts()
    assert counts.errors >= 1
    assert counts.errors + counts.skipped == 200
    cache.close()


def test_a_server_that_dies_and_returns(own_server: LoopbackServer) -> None:
    told: list[str] = []
    cache = quick(f"redis://{own_server.address}", told.append)
    # Several connections, all dead afterwards.
    threads = [threading.Thread(target=cache.put, args=(f"{n}", b"v" * 9999)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert cache.get("1") is not None
    own_server.kill()
    for _ in range(50):
        assert cache.get("1") is None
    assert len(told) == 1
    own_server.start_again()
    until(cache, "2", b"after")
    assert len(told) == 1
    assert cache.is_reachable
    time.sleep(1.0)  # longer than the last delay
    own_server.kill()
    assert cache.get("2") is None
    assert len(told) == 2
    assert cache.counts().outages == 2
    cache.close()


def test_a_restart_between_two_calls_is_not_even_an_error(own_server: LoopbackServer) -> None:
    cache = quick(f"redis://{own_server.address}")
    cache.put("k", b"before")
    own_server.kill()
    own_server.start_again()
    assert cache.get("k") is None
    cache.put("k", b"after")
    assert cache.get("k") == b"after"
    assert cache.counts().errors == 0
    cache.close()


def test_a_server_that_hangs_is_waited_for_once(own_server: LoopbackServer) -> None:
    told: list[str] = []
    cache = quick(f"redis://{own_server.address}?timeout=400ms", told.append, 0.6)
    cache.put("k", b"v")
    own_server.pause()
    started = time.monotonic()
    assert cache.get("k") is None
    first_s = time.monotonic() - started
    assert 0.3 < first_s < 2
    assert cache.get("k") is None
    assert cache.counts().skipped == 1
    assert len(told) == 1
    own_server.resume()
    until(cache, "k", b"again")
    assert len(told) == 1
    cache.close()


def test_a_caller_may_wait_less(own_server: LoopbackServer) -> None:
    cache = quick(f"redis://{own_server.address}?timeout=30")
    cache.put("k", b"v")
    own_server.pause()
    started = time.monotonic()
    assert cache.read("k", timeout_s=0.2) is None
    assert 0.15 < time.monotonic() - started < 5
    own_server.resume()
    cache.close()


def test_a_full_server_still_gives_what_it_has(tmp_path: Path) -> None:
    options = ("--maxmemory", "4mb", "--maxmemory-policy", "noeviction")
    with start_redis(tmp_path, *options) as full:
        told: list[str] = []
        cache = quick(f"redis://{full.address}?timeout=20", told.append)
        cache.put("first", b"v" * 100_000)
        for number in range(10):
            cache.put(f"{number}", b"v" * 1_000_000)
        assert cache.get("first") == b"v" * 100_000
        assert len(told) == 1
        assert "OutOfMemoryError" in told[0]
        assert cache.counts().errors >= 1
        # Room again: it is used again.
        client_of(full, None).flushall()
        until(cache, "new", b"v" * 1000)
        assert len(told) == 1
        cache.close()


def test_a_put_that_fails_takes_no_place_in_the_lists(own_server: LoopbackServer) -> None:
    with contextlib.closing(client_of(own_server, None)) as client:
        cache = raw(f"redis://{own_server.address}?max_shards=3")
        cache.put("first", b"v")
        # It may do everything but the last step.
        client.acl_setuser("limited", enabled=True, passwords=["+x"], keys=["*"], reset=True)
        client.execute_command("ACL", "SETUSER", "limited", "+@all", "-set")
        limited = raw(f"redis://limited:x@{own_server.address}?max_shards=3")
        for number in range(5):
            with pytest.raises(redis.exceptions.NoPermissionError, match="no permissions"):
                limited.put(f"{number}", b"v")
        assert "first" in cache
        assert client.zcard("lance-stream:#index") == 1
        assert int(client.hget("lance-stream:#sizes", "total")) == 1
        cache.close()
        limited.close()


def test_a_claim_lapses_and_needs_no_right_to_run_scripts(own_server: LoopbackServer) -> None:
    with contextlib.closing(client_of(own_server, None)) as client:
        client.execute_command(
            "ACL", "SETUSER", "limited", "on", ">x", "~*", "+@all", "-@scripting", "-pttl"
        )
    one, other = (raw(f"redis://limited:x@{own_server.address}") for _ in range(2))
    assert one.claim("k", "a" * 32, 0.2) is True
    assert other.claim("k", "b" * 32, 0.2) is False
    time.sleep(0.3)
    assert other.claim("k", "b" * 32, 5.0) is True
    one.release("k", "a" * 32)
    assert one.claim("k", "a" * 32, 5.0) is False
    one.close()
    other.close()


# --- as the download process uses it ---


def test_nodes_share_shards(server: LoopbackServer, tmp_path: Path) -> None:
    url = url_of(server, "?prefix=tier")
    key = shard_key("ab" * 16, 7, "arrow")
    source = tmp_path / "source"
    source.write_bytes(bytes(range(256)) * 1000)
    one, other = SharedTier(url), SharedTier([url])
    target = str(tmp_path / "target")
    assert other.take(key, target, 100) is None
    assert one.offer(key, str(source), 100)
    assert one.wait(10)
    assert other.take(key, target, 100) == 256_000
    assert Path(target).read_bytes() == source.read_bytes()
    # Offered by each node, written by one.
    assert other.offer(key, target, 100)
    assert other.close() == 0
    assert other.counts().publisher.unneeded == 1
    assert one.counts().publisher.published == 1
    assert one.close() == 0
    assert PASSWORD not in repr(one) + str(one.counts().as_dict())
