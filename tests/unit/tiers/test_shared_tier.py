from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from lance_stream.errors import PlanError
from lance_stream.testing import MemoryShardCache
from lance_stream.tiers.framed import FramedCache
from lance_stream.tiers.guarded import GuardedCache
from lance_stream.tiers.publisher import Publisher
from lance_stream.tiers.shared_tier import Check, SharedTier, shard_key
from lance_stream.tiers.tier_url import TierUrl

KEY = shard_key("ab" * 16, 42, "arrow")


def _fails(content: memoryview) -> bool:
    raise RecursionError(f"{len(content)} bytes")


@pytest.fixture
def inner() -> MemoryShardCache:
    return MemoryShardCache()


@pytest.fixture
def told() -> list[str]:
    return []


@pytest.fixture
def tier(inner: MemoryShardCache, told: list[str]) -> Iterator[SharedTier]:
    """Over a fake."""
    made = SharedTier("memory://replaced")
    url = TierUrl.parse("redis://:hunter22@host?timeout=20")
    guarded = GuardedCache(FramedCache(inner), url, warn=told.append)
    made._cache, made._tiers = guarded, (guarded,)
    made._publisher = Publisher(guarded)
    yield made
    inner.gate.set()
    made.close(1)


@pytest.fixture
def shard(tmp_path: Path) -> Path:
    path = tmp_path / "shard"
    path.write_bytes(bytes(range(256)) * 100)
    return path


def test_keys_name_content_shard_and_format() -> None:
    assert KEY == "abababababababababababababababab/00000042.arrow"
    keys = {shard_key(f, s, c) for f in ("a", "b") for s in (1, 11) for c in ("arrow", "mds")}
    assert len(keys) == 8


def test_what_was_offered_is_taken(tier: SharedTier, shard: Path, tmp_path: Path) -> None:
    target = tmp_path / "target"
    assert tier.take(KEY, str(target), 10) is None
    assert not target.exists()
    assert tier.offer(KEY, str(shard), 10)
    assert tier.wait(5)
    assert tier.take(KEY, str(target), 10) == 25600
    assert target.read_bytes() == shard.read_bytes()
    counts = tier.counts()
    assert (counts.taken, counts.not_taken, counts.taken_bytes) == (1, 1, 25600)
    assert counts.publisher.published == 1
    assert counts.tiers[0].hits == 1
    assert 0 < counts.take_seconds < 5


def test_a_longer_file_that_was_there_is_overwritten(
    tier: SharedTier, shard: Path, tmp_path: Path
) -> None:
    target = tmp_path / "target"
    target.write_bytes(bytes(100_000))
    tier.offer(KEY, str(shard), 10)
    assert tier.wait(5)
    assert tier.take(KEY, str(target), 10) == 25600
    assert target.read_bytes() == shard.read_bytes()


def test_other_rows_are_not_taken(tier: SharedTier, shard: Path, tmp_path: Path) -> None:
    tier.offer(KEY, str(shard), 10)
    assert tier.wait(5)
    assert tier.take(KEY, str(tmp_path / "target"), 11) is None
    assert not (tmp_path / "target").exists()
    assert tier.counts().tiers[0].bad == 1


@pytest.mark.parametrize("check", [lambda content: content[:1] == b"x", _fails])
def test_what_the_check_refuses_is_not_taken_and_goes(
    tier: SharedTier, inner: MemoryShardCache, shard: Path, tmp_path: Path, check: Check
) -> None:
    tier.offer(KEY, str(shard), 10, check=lambda content: len(content) == 25600)
    assert tier.wait(5)
    target = tmp_path / "target"
    assert tier.take(KEY, str(target), 10, check=check) is None
    assert not target.exists()
    assert inner.values == {}
    assert tier.counts().refused == 1


def test_what_was_refused_and_cannot_be_deleted_is_overwritten(
    tier: SharedTier,
    inner: MemoryShardCache,
    shard: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def is_right(content: memoryview) -> bool:
        return content == shard.read_bytes()

    monkeypatch.setattr(inner, "delete", lambda key: None)
    tier._cache.write(KEY, b"wrong", rows=10)
    target = str(tmp_path / "target")
    assert tier.take(KEY, target, 10, check=is_right) is None
    assert tier.offer(KEY, str(shard), 10, check=is_right)
    assert tier.wait(5)
    assert tier.take(KEY, target, 10, check=is_right) == 25600


def test_a_damaged_file_is_not_offered(
    tier: SharedTier, inner: MemoryShardCache, shard: Path
) -> None:
    assert tier.offer(KEY, str(shard), 10, check=lambda content: False)
    assert tier.wait(5)
    assert tier.offer(KEY, str(shard), 10, check=_fails)
    assert tier.wait(5)
    assert inner.values == {}
    assert tier.counts().publisher.damaged == 2


def test_the_local_disk_may_raise_and_leaves_nothing(
    tier: SharedTier, shard: Path, tmp_path: Path
) -> None:
    tier.offer(KEY, str(shard), 10)
    assert tier.wait(5)
    with pytest.raises(FileNotFoundError, match="No such file"):
        tier.take(KEY, str(tmp_path / "missing" / "target"), 10)
    if os.path.exists("/dev/full"):
        link = tmp_path / "full"
        link.symlink_to("/dev/full")
        with pytest.raises(OSError, match="No space left"):
            tier.take(KEY, str(link), 10)
        assert not link.is_symlink()


@pytest.mark.parametrize("error", [ConnectionError("refused"), BaseException("panic")])
def test_a_tier_that_fails_gives_nothing_and_is_told_once(
    tier: SharedTier,
    inner: MemoryShardCache,
    told: list[str],
    shard: Path,
    tmp_path: Path,
    error: BaseException,
) -> None:
    inner.error = error
    for _ in range(10):
        assert tier.take(KEY, str(tmp_path / "target"), 10) is None
        assert tier.offer(KEY, str(shard), 10)
    assert tier.wait(5)
    assert len(told) == 1
    assert tier.counts().not_taken == 10


def test_a_tier_that_hangs_costs_no_more_than_the_caller_gives(
    tier: SharedTier, inner: MemoryShardCache, shard: Path, tmp_path: Path
) -> None:
    inner.gate.clear()
    started = time.monotonic()
    assert tier.take(KEY, str(tmp_path / "target"), 10, timeout_s=0.1) is None
    assert 0.05 < time.monotonic() - started < 3
    started = time.monotonic()
    assert tier.offer(KEY, str(shard), 10)
    assert time.monotonic() - started < 2
    started = time.monotonic()
    assert tier.close(0.2) == 1
    assert time.monotonic() - started < 6


def test_many_take_and_offer_at_once(
    tier: SharedTier, inner: MemoryShardCache, tmp_path: Path
) -> None:
    wrong: list[int] = []

    def node(number: int) -> None:
        for shard in range(20):
            key = shard_key("cd" * 16, shard, "mds")
            target = tmp_path / f"{number}-{shard}"
            if tier.take(key, str(target), 7) is None:
                target.write_bytes(bytes([shard]) * 5000)
                tier.offer(key, str(target), 7)
            if target.read_bytes() != bytes([shard]) * 5000:
                wrong.append(shard)

    threads = [threading.Thread(target=node, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert tier.wait(5)
    assert wrong == []
    assert len(inner.values) == 20
    assert inner.calls["put"] == 20


def test_tiers_are_layered(shard: Path, tmp_path: Path) -> None:
    urls = [str(tmp_path / "fast"), str(tmp_path / "slow")]
    one = SharedTier(urls)
    one.offer(KEY, str(shard), 10)
    assert one.close(5) == 0
    for path in (tmp_path / "fast").iterdir():
        path.unlink()
    other = SharedTier(urls)
    target = str(tmp_path / "target")
    assert other.take(KEY, target, 10) == 25600
    other.close()
    counts = other.counts()
    assert [(tier.hits, tier.misses) for tier in counts.tiers] == [(0, 1), (1, 0)]
    assert len(list((tmp_path / "fast").iterdir())) == 1
    assert json.loads(json.dumps(counts.as_dict()))["tiers"][0]["puts"] == 1


def test_wrong_urls_are_refused_before_anything_starts() -> None:
    before = threading.active_count()
    with pytest.raises(PlanError, match="shared_cache='redis://\\*\\*\\*@host'"):
        SharedTier(["/tmp", "redis://:hunter22@host?ttl=never"])
    assert threading.active_count() == before


def test_nothing_shows_the_password(tier: SharedTier) -> None:
    assert repr(tier) == "SharedTier(<shared cache redis://***@host>)"
    assert "hunter22" not in json.dumps(tier.counts().as_dict())


# --- shards that another node is reading ---

A, B = "a" * 32, "b" * 32


@pytest.fixture
def nodes(inner: MemoryShardCache) -> Iterator[list[SharedTier]]:
    """Two, over one server."""
    url = TierUrl.parse("redis://host?timeout=5")
    made = []
    for _ in range(2):
        one = SharedTier("memory://replaced", max_wait_s=1.0)
        cache = MemoryShardCache(inner.values, claims=inner.claims)
        guarded = GuardedCache(FramedCache(cache), url, warn=lambda _: None)
        one._cache, one._tiers, one._publisher = guarded, (guarded,), Publisher(guarded)
        made.append(one)
    yield made
    for one in made:
        one.close(1)


def asking(node: SharedTier, target: Path, owner: str = B) -> tuple[threading.Thread, list]:
    """A thread that asks for the shard; and what it got, and when."""
    got: list = []

    def ask() -> None:
        started = time.monotonic()
        found = node.take_or_claim(KEY, str(target), 10, owner=owner, timeout_s=5.0)
        got.extend((found, time.monotonic() - started))

    thread = threading.Thread(target=ask)
    thread.start()
    return thread, got


def test_what_another_node_reads_is_waited_for(
    nodes: list[SharedTier], inner: MemoryShardCache, shard: Path, tmp_path: Path
) -> None:
    one, other = nodes
    assert one.take_or_claim(KEY, str(tmp_path / "x"), 10, owner=A, timeout_s=5.0) is None
    thread, got = asking(other, tmp_path / "y")
    time.sleep(0.2)
    assert got == []
    assert one.offer(KEY, str(shard), 10)
    thread.join(5)
    assert got[0] == 25600
    assert (tmp_path / "y").read_bytes() == shard.read_bytes()
    assert one.wait(5)
    assert inner.claims == {}
    assert (other.counts().waits, other.counts().waits_in_vain) == (1, 0)


def test_a_node_that_cannot_read_lets_another(
    nodes: list[SharedTier], inner: MemoryShardCache, tmp_path: Path
) -> None:
    one, other = nodes
    assert one.take_or_claim(KEY, str(tmp_path / "x"), 10, owner=A, timeout_s=5.0) is None
    thread, got = asking(other, tmp_path / "y")
    time.sleep(0.1)
    one.release(KEY)
    thread.join(5)
    assert got[0] is None
    assert got[1] < 0.9
    # It is the other's now; the first gives up nothing that is not its own.
    one.release(KEY)
    assert one.wait(5)
    assert [owner for owner, _ in inner.claims.values()] == [B]


def test_a_node_whose_queue_is_full_gives_its_claim_up(
    nodes: list[SharedTier], inner: MemoryShardCache, shard: Path, tmp_path: Path
) -> None:
    """What it drops will not come: others need not wait for it."""
    one, other = nodes
    one._publisher = Publisher(one._cache, threads=1, max_queued=1)
    busy = threading.Event()
    one._publisher.do("busy", lambda: busy.wait(10) and None)
    assert one.take_or_claim(KEY, str(tmp_path / "x"), 10, owner=A, timeout_s=5.0) is None
    thread, got = asking(other, tmp_path / "y")
    time.sleep(0.1)
    assert not one.offer(KEY, str(shard), 10)
    busy.set()
    thread.join(5)
    assert got[0] is None
    assert got[1] < 0.9
    assert [owner for owner, _ in inner.claims.values()] == [B]


def test_a_node_that_dies_is_waited_for_no_longer_than_said(
    nodes: list[SharedTier], tmp_path: Path
) -> None:
    one, other = nodes
    assert one.take_or_claim(KEY, str(tmp_path / "x"), 10, owner=A, timeout_s=5.0) is None
    thread, got = asking(other, tmp_path / "y")
    thread.join(5)
    assert got[0] is None
    assert 0.8 < got[1] < 3
    assert other.counts().waits_in_vain == 1


def test_who_takes_over_from_a_dead_process_does_not_wait_for_it(
    nodes: list[SharedTier], tmp_path: Path
) -> None:
    one, other = nodes
    assert one.take_or_claim(KEY, str(tmp_path / "x"), 10, owner=A, timeout_s=5.0) is None
    thread, got = asking(other, tmp_path / "y", owner=A)
    thread.join(5)
    assert got[0] is None
    assert got[1] < 0.5


def test_a_server_that_fails_while_it_is_waited_for_ends_the_wait(
    nodes: list[SharedTier], tmp_path: Path
) -> None:
    one, other = nodes
    assert one.take_or_claim(KEY, str(tmp_path / "x"), 10, owner=A, timeout_s=5.0) is None
    thread, got = asking(other, tmp_path / "y")
    time.sleep(0.1)
    other._tiers[0]._cache._cache.error = ConnectionError("gone")  # type: ignore[attr-defined]
    thread.join(5)
    assert got[0] is None
    assert got[1] < 0.9


def test_of_many_that_want_a_shard_one_reads(inner: MemoryShardCache, tmp_path: Path) -> None:
    url = TierUrl.parse("redis://host?timeout=5")
    reads: list[int] = []

    def node(number: int) -> None:
        one = SharedTier("memory://replaced", max_wait_s=5.0)
        cache = MemoryShardCache(inner.values, claims=inner.claims)
        guarded = GuardedCache(FramedCache(cache), url, warn=lambda _: None)
        one._cache, one._tiers, one._publisher = guarded, (guarded,), Publisher(guarded)
        for shard in range(10):
            key = shard_key("ef" * 16, shard, "mds")
            target = tmp_path / f"{number}-{shard}"
            owner = f"{number:032x}"
            if one.take_or_claim(key, str(target), 7, owner=owner, timeout_s=5.0) is None:
                reads.append(shard)
                target.write_bytes(bytes([shard]) * 5000)
                one.offer(key, str(target), 7)
            assert target.read_bytes() == bytes([shard]) * 5000
        one.close(5)

    threads = [threading.Thread(target=node, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    # Of the fakes a claim and its check share no lock over the nodes: a few may be read twice.
    assert set(reads) == set(range(10))
    assert len(reads) <= 13
