from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import pytest

from lance_stream.errors import PlanError
from lance_stream.testing import MemoryShardCache
from lance_stream.tiers import opening
from lance_stream.tiers.guarded import GuardedCache
from lance_stream.tiers.layered import LayeredCache
from lance_stream.tiers.opening import ENTRY_POINT_GROUP, open_shard_cache, open_tiers
from lance_stream.tiers.shard_cache import ShardCache


@pytest.mark.parametrize(
    ("url", "kind"),
    [
        ("redis://host", "RedisCache"),
        ("rediss://host", "RedisCache"),
        ("memcached://host", "MemcachedCache"),
        ("file:///tmp/x", "FsspecCache"),
        ("/tmp/x", "FsspecCache"),
        ("memory://x", "FsspecCache"),
        ("s3://bucket/x", "FsspecCache"),
    ],
)
def test_the_scheme_decides(url: str, kind: str) -> None:
    cache = open_shard_cache(url)
    assert isinstance(cache, GuardedCache)
    assert type(cache._cache._cache).__name__ == kind  # type: ignore[attr-defined]
    assert isinstance(cache, ShardCache)
    cache.close()


def test_a_list_is_layered(tmp_path: Path) -> None:
    cache, tiers = open_tiers(["memory://layered", tmp_path])
    assert isinstance(cache, LayeredCache)
    assert cache.tiers == tiers
    cache.put("k", b"v")
    assert [tier.get("k") for tier in tiers] == [b"v", b"v"]
    assert repr(cache) == (
        f"<shared caches <shared cache memory://layered>, <shared cache {tmp_path}>>"
    )
    cache.close()
    assert isinstance(open_shard_cache([str(tmp_path)]), GuardedCache)


@pytest.mark.parametrize(
    ("url", "module", "extra"),
    [
        ("redis://:hunter22@host", "redis", "redis"),
        ("rediss://host", "redis", "redis"),
        ("memcached://host", "pymemcache.client.base", "memcached"),
        ("s3://bucket/x", "s3fs", "s3"),
        ("gs://bucket/x", "gcsfs", "gcs"),
        ("abfss://box@account.dfs.core.windows.net/x", "adlfs", "azure"),
    ],
)
def test_a_missing_library_names_the_extra(
    url: str, module: str, extra: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("redis_cache", "memcached_cache"):
        monkeypatch.delitem(sys.modules, f"lance_stream.tiers.{name}", raising=False)
    monkeypatch.setitem(sys.modules, module, None)
    # fsspec remembers what it has loaded.
    registry = importlib.import_module("fsspec.registry")._registry
    monkeypatch.delitem(registry, url.partition(":")[0], raising=False)
    with pytest.raises(PlanError, match=rf"pip install 'lance-stream\[{extra}\]'") as caught:
        open_shard_cache(url)
    assert "hunter22" not in str(caught.value)


def test_an_unknown_scheme_is_refused() -> None:
    with pytest.raises(PlanError, match="shared_cache='nosuch://x': there is no tier 'nosuch'"):
        open_shard_cache("nosuch://x")


# --- third parties ---


@pytest.fixture
def register(monkeypatch: pytest.MonkeyPatch) -> Callable[[str, Any], None]:
    """Makes an entry point of a callable."""

    def add(scheme: str, target: Any) -> None:
        monkeypatch.setattr(opening, "third_party", target, raising=False)
        point = EntryPoint(scheme, f"{opening.__name__}:third_party", ENTRY_POINT_GROUP)

        def entry_points(*, group: str) -> list[EntryPoint]:
            return [point] if group == ENTRY_POINT_GROUP else []

        monkeypatch.setattr(opening, "entry_points", entry_points)

    return add


def test_a_third_party_is_given_the_url(register: Callable[[str, Any], None]) -> None:
    given: list[str] = []
    inner = MemoryShardCache()

    def make(url: str) -> ShardCache:
        given.append(url)
        return inner

    register("mine", make)
    cache = open_shard_cache("mine://user:hunter22@host/x?ttl=1h&own=3&max_value_bytes=200")
    assert given == ["mine://user:hunter22@host/x?ttl=1h&own=3&max_value_bytes=200"]
    cache.put("k", bytes(1000))
    assert cache.get("k") == bytes(1000)
    assert len(inner.values) == 6
    assert "hunter22" not in repr(cache)
    cache.close()
    assert inner.is_closed


def test_a_third_party_comes_before_fsspec(register: Callable[[str, Any], None]) -> None:
    inner = MemoryShardCache()
    register("s3", lambda url: inner)
    open_shard_cache("s3://bucket/x").put("k", b"v")
    assert len(inner.values) == 1


def test_what_has_the_methods_is_a_shard_cache(register: Callable[[str, Any], None]) -> None:
    values: dict[str, bytes] = {}

    class Duck:
        def __init__(self, url: str) -> None:
            pass

        def get(self, key: str) -> bytes | None:
            return values.get(key)

        def put(self, key: str, data: bytes) -> None:
            values[key] = data

        def __contains__(self, key: object) -> bool:
            return key in values

        def delete(self, key: str) -> None:
            values.pop(key, None)

        def close(self) -> None:
            pass

    register("duck", Duck)
    cache = open_shard_cache("duck://x")
    cache.put("k", b"v")
    assert (cache.get("k"), "k" in cache, len(values)) == (b"v", True, 1)
    cache.delete("k")
    assert values == {}
    cache.close()


def test_a_third_party_that_fails_is_named(register: Callable[[str, Any], None]) -> None:
    def fail(url: str) -> ShardCache:
        raise ValueError(f"cannot use {url}, hunter22")

    register("bad", fail)
    with pytest.raises(PlanError, match=r"entry point bad=.*: ValueError: cannot use") as caught:
        open_shard_cache("bad://user:hunter22@host")
    assert "hunter22" not in str(caught.value)
    assert caught.value.__cause__ is None
    register("bad", lambda url: {})
    with pytest.raises(PlanError, match="made a dict without put, delete, close"):
        open_shard_cache("bad://host")


# --- what is loaded ---


def test_opening_connects_to_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise AssertionError("a connection")

    monkeypatch.setattr("socket.create_connection", refuse)
    monkeypatch.setattr("socket.socket.connect", refuse)
    urls = ["redis://host", "memcached://host", "s3://bucket/x", "/nowhere/at/all"]
    cache = open_shard_cache(urls)
    assert not os.path.exists("/nowhere")
    cache.close()


def test_checking_urls_and_the_facade_load_no_client(run_python: Callable[..., str]) -> None:
    script = """
import sys
import lance_stream.tiers.tier_url, lance_stream.tiers.shared_tier
lance_stream.tiers.tier_url.checked_urls(["redis://x", "s3://y/z", "memcached://w"])
heavy = {"redis", "pymemcache", "fsspec", "s3fs", "lance", "torch", "streaming", "pyarrow"}
print(sorted(heavy & set(sys.modules)))
"""
    assert run_python(script) == "[]\n"


def test_no_client_loads_what_the_download_process_must_not(
    run_python: Callable[..., str],
) -> None:
    script = """
import sys
from lance_stream.tiers.opening import open_shard_cache
open_shard_cache(["redis://x", "s3://y/z", "memcached://w", "/x"]).close()
print(sorted({"torch", "streaming", "pandas", "matplotlib", "tqdm"} & set(sys.modules)))
"""
    assert run_python(script) == "[]\n"
