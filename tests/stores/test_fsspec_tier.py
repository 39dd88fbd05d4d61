"""The fsspec tier: on a local path, and on a real S3 server behind a proxy that does harm."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from lance_stream.errors import PlanError
from lance_stream.testing import ShardCacheContract
from lance_stream.tiers.breaker import Breaker
from lance_stream.tiers.frame import stored_name
from lance_stream.tiers.framed import FramedCache
from lance_stream.tiers.fsspec_cache import FsspecCache
from lance_stream.tiers.guarded import GuardedCache
from lance_stream.tiers.opening import open_shard_cache
from lance_stream.tiers.shard_cache import ShardCache, ValueTooLargeError
from lance_stream.tiers.shared_tier import SharedTier, shard_key
from lance_stream.tiers.tier_url import TierUrl
from tests.support.fault_proxy import FaultProxy
from tests.support.faults import Fault
from tests.support.object_store import S3Server
from tests.unit.conftest import ROOT


def raw(url: str, **options: Any) -> FsspecCache:
    return FsspecCache(TierUrl.parse(url), **options)


def s3_url(server: S3Server, bucket: str, folder: str, *more: str, endpoint: str = "") -> str:
    options = [
        f"endpoint_url={endpoint or server.endpoint}",
        f"key={quote(server.access_key)}",
        f"secret={quote(server.secret_key)}",
        "client_kwargs.region_name=us-east-1",
        *more,
    ]
    return f"s3://{bucket}/{folder}?{'&'.join(options)}"


def quick(url: str, warn: Any = None, first_delay_s: float = 0.05) -> GuardedCache:
    """Guarded, with delays for a test."""
    parsed = TierUrl.parse(url)
    return GuardedCache(
        FramedCache(FsspecCache(parsed)),
        parsed,
        warn=warn,
        new_breaker=lambda: Breaker(first_delay_s=first_delay_s, max_delay_s=0.6, calm_s=0.2),
    )


class TestPathContract(ShardCacheContract):
    @pytest.fixture(autouse=True)
    def _path(self, tmp_path: Path) -> None:
        self.path = tmp_path / "a cache"

    def new_cache(self) -> ShardCache:
        return raw(str(self.path))


class TestBoundedPathContract(TestPathContract):
    def new_cache(self) -> ShardCache:
        return raw(f"file://{quote(str(self.path))}?max_shards=100&max_bytes=1gb&ttl=1h&prefix=p")


class TestMemoryContract(ShardCacheContract):
    def new_cache(self) -> ShardCache:
        return raw(f"memory://contract-{id(self)}")


class TestS3Contract(ShardCacheContract):
    rounds = 4

    @pytest.fixture(autouse=True)
    def _server(self, s3_server: S3Server, s3_bucket: str) -> None:
        self.secrets = (s3_server.secret_key, s3_server.access_key)
        self.url = s3_url(s3_server, s3_bucket, f"contract-{id(self)}")

    def new_cache(self) -> ShardCache:
        return raw(self.url)


# --- files ---


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """An empty one."""
    path = tmp_path / "tier"
    path.mkdir()
    return path


def test_files_appear_whole_under_their_names(folder: Path) -> None:
    cache = raw(f"{folder}/cache?prefix=a/b")
    cache.put("k" * 40, b"value")
    assert [path.name for path in (folder / "cache/a/b").iterdir()] == ["k" * 40 + ".shard"]
    assert cache.get("k" * 40) == b"value"
    # The folder may go and come back.
    (folder / "cache/a/b" / ("k" * 40 + ".shard")).unlink()
    (folder / "cache/a/b").rmdir()
    assert cache.get("k" * 40) is None
    cache.put("k" * 40, b"again")
    assert cache.get("k" * 40) == b"again"
    cache.close()


def test_a_reader_never_sees_a_part_of_a_file(folder: Path) -> None:
    script = """
import sys
from lance_stream.tiers.opening import open_shard_cache
cache = open_shard_cache(sys.argv[1])
for number in range(15):
    cache.put("k", bytes([number]) * 2_000_000)
print(cache.counts().errors, cache.counts().puts)
"""
    nodes = [
        subprocess.Popen(
            [sys.executable, "-c", script, str(folder)],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            text=True,
        )
        for _ in range(2)
    ]
    cache = open_shard_cache(str(folder))
    sizes = set()
    while any(node.poll() is None for node in nodes):
        found = cache.get("k")
        sizes.add(None if found is None else len(found))
        assert found is None or len(set(found)) == 1
    assert [node.communicate()[0] for node in nodes] == ["0 15\n"] * 2
    assert sizes <= {None, 2_000_000}
    assert cache.counts().bad == 0
    assert [path.suffix for path in folder.iterdir()] == [".shard"]
    cache.close()


def test_leftovers_of_dead_writers_go_and_nothing_else(folder: Path) -> None:
    old, young, foreign = (
        folder / name for name in (".tmp-n-1-a.shard", ".tmp-n-1-b.shard", "model.pt")
    )
    for path in (old, young, foreign):
        path.write_bytes(b"x")
    for path in (old, foreign):
        os.utime(path, (1, 1))
    cache = raw(f"{folder}?max_shards=1")
    cache.put("a" * 40, b"v")
    cache.put("b" * 40, b"v")
    assert {path.name for path in folder.iterdir()} == {
        young.name,
        foreign.name,
        "b" * 40 + ".shard",
    }
    cache.close()


def test_the_oldest_go_when_there_are_too_many_or_they_are_too_large(folder: Path) -> None:
    one, other = (raw(f"{folder}?max_shards=4&max_bytes=1000") for _ in range(2))
    names = [f"{number:040x}" for number in range(8)]
    for number, name in enumerate(names[:6]):
        (one, other)[number % 2].put(name, b"v" * 100)
    assert [name in one for name in names[:6]] == [False] * 2 + [True] * 4
    one.put(names[6], b"v" * 800)
    assert [name in one for name in names[:7]] == [False] * 4 + [True] * 3
    with pytest.raises(ValueTooLargeError, match="1001 bytes are more than max_bytes=1000"):
        one.put(names[7], b"v" * 1001)
    one.close()
    other.close()


def test_many_puts_look_at_the_files_now_and_then(folder: Path) -> None:
    cache = raw(f"{folder}?max_shards=100")
    looks = 0
    trim = cache._trim

    def counted() -> None:
        nonlocal looks
        looks += 1
        trim()

    cache._trim = counted
    for number in range(200):
        cache.put(f"{number:040x}", b"v")
    assert 30 <= looks <= 41
    assert 100 <= len(list(folder.iterdir())) <= 105
    cache.close()


def test_values_lapse_after_their_ttl(folder: Path) -> None:
    cache = raw(f"{folder}?ttl=1h")
    cache.put("a" * 40, b"v")
    assert cache.get("a" * 40) == b"v"
    hour_ago = time.time() - 3700
    os.utime(folder / ("a" * 40 + ".shard"), (hour_ago, hour_ago))
    assert cache.get("a" * 40) is None
    assert "a" * 40 not in cache
    cache.close()
    # And is removed by whoever puts next.
    other = raw(f"{folder}?ttl=1h")
    other.put("b" * 40, b"v")
    assert {path.name[0] for path in folder.iterdir()} == {"b"}
    other.close()


def test_a_full_disk_is_told_once_and_read_on(folder: Path) -> None:
    """On a tmpfs of its own, which needs root, as ``CONTRIBUTING.md`` says."""
    small = folder / "small"
    small.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(small)], check=True)
    try:
        told: list[str] = []
        cache = quick(str(small), told.append)
        cache.put("first", b"v" * 300_000)
        for number in range(5):
            cache.put(f"{number}", b"v" * 900_000)
        assert cache.get("first") == b"v" * 300_000
        assert len(told) == 1
        assert "No space left" in told[0]
        # Nothing half written is left.
        assert len(list(small.iterdir())) == 1
        cache.close()
    finally:
        subprocess.run(["umount", str(small)], check=True)


@pytest.mark.parametrize("damage", ["flip", "cut", "grow", "foreign", "empty", "other"])
def test_wrong_content_is_never_given(folder: Path, damage: str) -> None:
    told: list[str] = []
    cache = open_shard_cache(str(folder), warn=told.append)
    content = bytes(range(256)) * 40
    cache.put("k", content)
    cache.put("other", content)
    path = folder / f"{stored_name('k')}.shard"
    value = path.read_bytes()
    changed = {
        "flip": value[:5000] + bytes([value[5000] ^ 1]) + value[5001:],
        "cut": value[:-1],
        "grow": value + b"\0",
        "foreign": b"x" * len(value),
        "empty": b"",
        "other": (folder / f"{stored_name('other')}.shard").read_bytes(),
    }[damage]
    path.write_bytes(changed)
    assert cache.get("k") is None
    assert len(told) == 1
    assert not path.exists()
    cache.put("k", content)
    assert cache.get("k") == content
    cache.close()


@pytest.mark.parametrize("kind", ["directory", "full directory", "pipe", "loop", "link"])
@pytest.mark.parametrize("first", ["get", "put"])
def test_what_is_no_plain_file_is_wrong_content(folder: Path, kind: str, first: str) -> None:
    """No outage: it gives way to what is put."""
    told: list[str] = []
    cache = open_shard_cache(f"{folder}?ttl=1h", warn=told.append)
    cache.put("other", b"fine")
    path = folder / f"{stored_name('k')}.shard"
    if kind == "pipe":
        os.mkfifo(path)
    elif kind in ("loop", "link"):
        path.symlink_to(path if kind == "loop" else folder / f"{stored_name('other')}.shard")
    else:
        path.mkdir()
        if kind == "full directory":
            (path / "somebody's").write_text("notes")
    assert "k" not in cache
    if first == "get":
        assert cache.get("k") is None
        assert "no plain file" in told[0]
        assert not os.path.lexists(path)
    assert cache.write("k", b"value", replace=False)
    assert cache.get("k") == b"value"
    assert cache.get("other") == b"fine"
    assert not path.is_symlink()
    left = [one for one in folder.iterdir() if not one.is_file()]
    assert [(one / "somebody's").read_text() for one in left] == ["notes"] * len(left)
    assert len(left) == (kind == "full directory")
    assert not list(folder.rglob(".tmp*"))
    assert len(told) == (first == "get")
    cache.close()


# --- urls ---


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("nosuch://bucket/x", "there is no tier 'nosuch'"),
        ("s3://bucket/x?endpiont_url=http://x", "unknown option 'endpiont_url'"),
        ("/tmp/x?max_shard=3", "unknown option 'max_shard'"),
    ],
)
def test_urls_are_checked(url: str, words: str) -> None:
    with pytest.raises(PlanError, match=words):
        open_shard_cache(url)


def test_a_missing_library_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "gcsfs", None)
    with pytest.raises(PlanError, match=r"pip install 'lance-stream\[gcs\]'"):
        open_shard_cache("gs://bucket/x")


# --- S3 ---


def test_on_s3_nodes_share_shards(s3_server: S3Server, s3_bucket: str, tmp_path: Path) -> None:
    url = s3_url(s3_server, s3_bucket, "tier", "prefix=p")
    source = tmp_path / "source"
    source.write_bytes(bytes(range(256)) * 4000)
    key, target = shard_key("ab" * 16, 3, "mds"), str(tmp_path / "target")
    one, other = SharedTier(url), SharedTier(url)
    assert other.take(key, target, 10) is None
    assert one.offer(key, str(source), 10)
    assert one.wait(20)
    assert other.take(key, target, 10) == 1_024_000
    assert Path(target).read_bytes() == source.read_bytes()
    names = s3_server.client().list_objects_v2(Bucket=s3_bucket, Prefix="tier/")["Contents"]
    assert [item["Key"] for item in names] == [f"tier/p/{stored_name(key)}.shard"]
    for tier in (one, other):
        assert tier.close() == 0
        shown = repr(tier) + json.dumps(tier.counts().as_dict())
        assert s3_server.secret_key not in shown
        assert s3_server.access_key not in shown


def test_on_s3_the_oldest_go(s3_server: S3Server, s3_bucket: str) -> None:
    cache = raw(s3_url(s3_server, s3_bucket, "trimmed", "max_shards=1"))
    cache.put("b" * 40, b"v")
    # S3 tells times in seconds.
    time.sleep(1.05)
    cache.put("a" * 40, b"v")
    assert ["a" * 40 in cache, "b" * 40 in cache] == [True, False]
    cache.close()


def test_on_s3_values_lapse_after_their_ttl(s3_server: S3Server, s3_bucket: str) -> None:
    now = time.time()
    cache = raw(s3_url(s3_server, s3_bucket, "lapsing", "ttl=1h"), clock=lambda: now)
    cache.put("a" * 40, b"v")
    assert cache.get("a" * 40) == b"v"
    now += 3700
    assert cache.get("a" * 40) is None
    assert "a" * 40 not in cache
    cache.close()


def test_on_s3_wrong_keys_are_told_once_and_never_shown(
    s3_server: S3Server, s3_bucket: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("DEBUG", logger="lance_stream")
    wrong = "wr0ngwr0ngwr0ngwr0ng"
    url = f"s3://{s3_bucket}/x?endpoint_url={s3_server.endpoint}&key={wrong}&secret={wrong}"
    cache = open_shard_cache(url)
    for number in range(5):
        assert cache.get(f"{number}") is None
        cache.put(f"{number}", b"v")
    warnings = [record for record in caplog.records if record.levelname == "WARNING"]
    assert len(warnings) == 1
    assert "cannot get" in warnings[0].getMessage()
    assert wrong not in caplog.text + repr(cache)
    cache.close()


def test_on_s3_a_flipped_byte_is_noticed(
    s3_server: S3Server, s3_bucket: str, fault_proxy: FaultProxy
) -> None:
    url = s3_url(s3_server, s3_bucket, "flipped", endpoint=fault_proxy.endpoint)
    told: list[str] = []
    cache = open_shard_cache(url, warn=told.append)
    content = bytes(range(256)) * 1000
    cache.put("k", content)
    assert cache.get("k") == content
    fault_proxy.set(Fault(method="GET", path="flipped", action="corrupt"))
    assert cache.get("k") is None
    assert len(told) == 1
    assert "wrong content" in told[0]
    cache.close()


def test_on_s3_a_store_that_hangs_is_waited_for_once(
    s3_server: S3Server, s3_bucket: str, fault_proxy: FaultProxy
) -> None:
    url = s3_url(s3_server, s3_bucket, "hung", "timeout=600ms", endpoint=fault_proxy.endpoint)
    told: list[str] = []
    cache = quick(url, told.append, first_delay_s=0.6)
    deadline = time.monotonic() + 10
    while cache.get("k") != b"v":
        assert time.monotonic() < deadline
        cache.put("k", b"v")
    told.clear()
    time.sleep(0.3)
    fault_proxy.set(Fault(action="hang"))
    started = time.monotonic()
    assert cache.get("k") is None
    assert 0.5 < time.monotonic() - started < 3
    skipped = cache.counts().skipped
    assert cache.get("k") is None
    assert cache.counts().skipped == skipped + 1
    assert len(told) == 1
    fault_proxy.clear()
    deadline = time.monotonic() + 15
    while cache.get("k") != b"v":
        assert time.monotonic() < deadline, "the tier did not come back"
        time.sleep(0.02)
    assert len(told) == 1
    cache.close()
