from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from lance_stream.testing import MemoryShardCache
from lance_stream.tiers.framed import FramedCache
from lance_stream.tiers.guarded import GuardedCache
from lance_stream.tiers.publisher import Publisher
from lance_stream.tiers.tier_url import TierUrl
from tests.support.new_threads import NewThreads
from tests.support.streams import wait_until


@pytest.fixture
def inner() -> MemoryShardCache:
    return MemoryShardCache()


@pytest.fixture
def cache(inner: MemoryShardCache) -> GuardedCache:
    return GuardedCache(FramedCache(inner), TierUrl.parse("redis://host?timeout=10"))


def shard(folder: Path, number: int) -> str:
    path = folder / f"shard-{number}"
    path.write_bytes(bytes([number]) * 1000)
    return str(path)


def test_files_are_published_with_their_rows(cache: GuardedCache, tmp_path: Path) -> None:
    publisher = Publisher(cache)
    for number in range(20):
        assert publisher.offer(f"{number}", shard(tmp_path, number), 10 + number)
    assert publisher.wait(10)
    for number in range(20):
        found = cache.read(f"{number}", rows=10 + number)
        assert found is not None
        assert found.data == bytes([number]) * 1000
    assert publisher.counts().published == 20
    assert publisher.num_queued == 0
    assert publisher.close(1) == 0


def test_what_is_there_is_not_written_again(
    inner: MemoryShardCache, cache: GuardedCache, tmp_path: Path
) -> None:
    publisher = Publisher(cache)
    for _ in range(3):
        publisher.offer("k", shard(tmp_path, 1), 1)
        assert publisher.wait(10)
    assert inner.calls["put"] == 1
    assert publisher.counts().as_dict() == {
        "published": 1,
        "unneeded": 2,
        "gone": 0,
        "damaged": 0,
        "dropped": 0,
    }
    publisher.close(1)


def test_an_evicted_file_that_waits_is_published(
    inner: MemoryShardCache, cache: GuardedCache, tmp_path: Path
) -> None:
    inner.gate.clear()
    publisher = Publisher(cache, threads=1)
    for number in range(3):
        path = shard(tmp_path, number)
        # The second offer of a key is one too many.
        assert publisher.offer(f"{number}", path, 1)
        assert publisher.offer(f"{number}", path, 1)
        assert publisher.is_publishing(f"{number}")
        os.unlink(path)
    inner.gate.set()
    assert publisher.wait(10)
    assert publisher.counts().published == 3
    assert not publisher.is_publishing("0")
    wait_until(lambda: publisher._held_bytes == 0, 5, "all are closed")
    assert not [name for name in open_files() if str(tmp_path) in name]
    publisher.close(1)


def test_what_is_dropped_at_the_end_is_not_held(
    inner: MemoryShardCache, cache: GuardedCache, tmp_path: Path
) -> None:
    inner.gate.clear()
    publisher = Publisher(cache, threads=1)
    for number in range(3):
        publisher.offer(f"{number}", shard(tmp_path, number), 1)
    assert publisher.close(0.1) == 3
    inner.gate.set()
    wait_until(lambda: publisher._held_bytes == 0, 5, "all are closed")
    assert not [name for name in open_files() if str(tmp_path) in name]


def test_over_a_limit_a_file_that_waits_is_not_held(
    inner: MemoryShardCache, cache: GuardedCache, tmp_path: Path
) -> None:
    inner.gate.clear()
    publisher = Publisher(cache, threads=1, max_held_bytes=0)
    paths = [shard(tmp_path, number) for number in range(3)]
    for number, path in enumerate(paths):
        publisher.offer(f"{number}", path, 1)
    deadline = time.monotonic() + 5
    while not inner.calls["contains"]:
        assert time.monotonic() < deadline
    for path in paths:
        os.unlink(path)
    assert not [name for name in open_files() if str(tmp_path) in name]
    inner.gate.set()
    assert publisher.wait(10)
    # The first was read already.
    assert (publisher.counts().published, publisher.counts().gone) == (1, 2)
    publisher.close(1)


def open_files() -> list[str]:
    names = []
    for entry in Path("/proc/self/fd").iterdir():
        try:
            names.append(str(entry.readlink()))
        except FileNotFoundError:
            continue
    return names


def test_a_damaged_file_is_not_published(
    cache: GuardedCache, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    publisher = Publisher(cache)
    publisher.offer("k", shard(tmp_path, 1), 1, lambda content: len(content) == 7)
    publisher.offer("folder", str(tmp_path), 1)
    assert publisher.wait(10)
    assert "k" not in cache
    assert publisher.counts().damaged == 2
    assert "is damaged and is not put" in caplog.text
    publisher.close(1)


def test_a_full_queue_drops_and_counts(
    inner: MemoryShardCache, cache: GuardedCache, tmp_path: Path
) -> None:
    inner.gate.clear()
    publisher = Publisher(cache, threads=1, max_queued=2)
    started = time.monotonic()
    answers = [publisher.offer(f"{n}", shard(tmp_path, n), 1) for n in range(5)]
    assert time.monotonic() - started < 1
    assert answers == [True, True, False, False, False]
    assert publisher.counts().dropped == 3
    inner.gate.set()
    assert publisher.close(10) == 0
    assert publisher.offer("late", shard(tmp_path, 9), 1) is False


def test_closing_publishes_what_it_can_in_time(
    inner: MemoryShardCache, cache: GuardedCache, tmp_path: Path
) -> None:
    publisher = Publisher(cache)
    for number in range(10):
        publisher.offer(f"{number}", shard(tmp_path, number), 1)
    assert publisher.close(10) == 0
    assert publisher.counts().published == 10

    inner.gate.clear()
    hung = Publisher(cache)
    for number in range(10, 20):
        hung.offer(f"{number}", shard(tmp_path, number), 1)
    started = time.monotonic()
    assert hung.close(0.2) == 10
    assert time.monotonic() - started < 1
    assert hung.counts().dropped == 10
    inner.gate.set()


def test_a_tier_that_fails_harms_nobody(
    inner: MemoryShardCache, cache: GuardedCache, tmp_path: Path
) -> None:
    inner.error = ConnectionError("refused")
    publisher = Publisher(cache)
    started = NewThreads()
    for number in range(100):
        publisher.offer(f"{number}", shard(tmp_path, number), 1)
    assert publisher.wait(10)
    assert publisher.counts().unneeded == 100
    assert inner.calls["contains"] <= 3
    assert len(started) <= 2
    publisher.close(1)
