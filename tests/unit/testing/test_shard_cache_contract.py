"""The suite passes what is right (the fake), and fails what is wrong in each of many ways."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import pytest

from lance_stream.testing import MemoryShardCache, ShardCacheContract
from lance_stream.tiers.shard_cache import ShardCache


class TestFake(ShardCacheContract):
    def new_cache(self) -> ShardCache:
        self.values, self.claims = getattr(self, "values", {}), getattr(self, "claims", {})
        return MemoryShardCache(self.values, max_value_bytes=1 << 20, claims=self.claims)


class TestForgetfulFake(ShardCacheContract):
    """A cache may lose everything, if it says so."""

    is_lasting = False
    is_shared = False

    def new_cache(self) -> ShardCache:
        return MemoryShardCache(max_value_bytes=1 << 20)

    def test_large_content_survives_framing(self) -> None:
        """Not in one that forgets."""


def changed(**methods: Callable[..., Any]) -> type[MemoryShardCache]:
    """Right, but for some methods."""
    return type("Changed", (MemoryShardCache,), methods)


def failures(kind: type[MemoryShardCache], *, limit: int | None = None) -> set[str]:
    """Names of the tests that fail for a cache."""
    values: dict[str, bytes] = {}
    claims: dict[str, tuple[str, float]] = {}

    class Suite(ShardCacheContract):
        secrets = ("hunter22",)
        large_bytes = 300_000

        def new_cache(self) -> ShardCache:
            return kind(values, max_value_bytes=limit, claims=claims)

    failed = set()
    for name, _ in inspect.getmembers(Suite, inspect.isfunction):
        if name.startswith("test_"):
            values.clear()
            try:
                getattr(Suite(), name)()
            except Exception:  # noqa: BLE001
                failed.add(name)
    return failed


def raise_key_error(self: MemoryShardCache, key: str) -> bytes:
    return self.values[key]


@pytest.mark.parametrize(
    ("kind", "test"),
    [
        (changed(get=raise_key_error), "test_what_was_never_put_is_absent"),
        (
            changed(get=lambda self, key: memoryview(self.values.get(key, b""))),
            "test_what_was_put_comes_back",
        ),
        (
            changed(get=lambda self, key: self.values.get(key) or None),
            "test_what_was_put_comes_back",
        ),
        (
            changed(put=lambda self, key, data: self.values.setdefault(key, data)),
            "test_the_last_put_wins",
        ),
        (
            changed(delete=lambda self, key: None),
            "test_deleting_takes_one_away_and_may_be_repeated",
        ),
        (
            changed(delete=lambda self, key: self.values.clear()),
            "test_deleting_takes_one_away_and_may_be_repeated",
        ),
        (changed(put=lambda self, key, data: None), "test_what_was_put_comes_back"),
        (
            changed(__contains__=lambda self, key: True),
            "test_what_was_never_put_is_absent",
        ),
        (changed(__repr__=lambda self: "at hunter22"), "test_repr_shows_no_secrets"),
    ],
)
def test_it_fails_what_is_wrong(kind: type[MemoryShardCache], test: str) -> None:
    assert test in failures(kind)


def test_it_fails_a_cache_that_loses_large_values_silently() -> None:
    def put(self: MemoryShardCache, key: str, data: bytes) -> None:
        if len(data) <= 1000:
            self.values[key] = data

    kind = changed(put=put)
    name = "test_values_up_to_the_largest_are_kept_and_larger_ones_refused"
    assert name in failures(kind)
    assert name in failures(kind, limit=2000)


def test_it_fails_a_cache_that_mixes_two_puts() -> None:
    def put(self: MemoryShardCache, key: str, data: bytes) -> None:
        half = len(data) // 2
        self.values[key] = data[:half] + self.values.get(key, data)[half:]

    found = failures(changed(put=put))
    assert "test_concurrent_puts_of_one_key_leave_one_of_them" in found


def test_it_fails_claims_that_anybody_has_or_gives_up() -> None:
    def claim(self: MemoryShardCache, key: str, owner: str, seconds: float) -> bool:
        return True

    def release(self: MemoryShardCache, key: str, owner: str) -> None:
        self.claims.pop(key, None)

    assert "test_a_claim_is_held_by_one" in failures(changed(claim=claim))
    assert "test_a_claim_is_held_by_one" in failures(changed(release=release))


def test_it_passes_the_fake() -> None:
    assert failures(MemoryShardCache) == set()
    assert failures(MemoryShardCache, limit=5000) == set()


def test_it_needs_no_test_library(run_python: Callable[..., str]) -> None:
    script = """
import sys, lance_stream.testing
print(sorted({"pytest", "hypothesis", "lance", "torch", "streaming"} & set(sys.modules)))
"""
    assert run_python(script) == "[]\n"
