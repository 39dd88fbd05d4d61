from __future__ import annotations

import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lance_stream.planning.fingerprint import content_fingerprint, digest, table_identity

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner),
    max_leaves=8,
)


def test_golden_digest() -> None:
    # Who depends on this: names of shard files in users' caches. Where it changes, every cache
    # is fetched again.
    assert digest({"b": 1, "a": "ü", "c": [None, True]}) == "da5909ea2c0241e4ab9a2277288fb099"


def test_golden_identity() -> None:
    # Who depends on this: the fingerprint, and so every cache.
    assert table_identity([{"id": 0, "files": ["a.lance"]}, {"id": 1, "files": []}]) == (
        "f2fe2d48a13ce9f6bba857078e666331"
    )


@given(st.dictionaries(st.text(max_size=4), json_values, max_size=5))
def test_the_order_of_keys_does_not_matter(parts: dict[str, Any]) -> None:
    assert digest(parts) == digest(dict(reversed(list(parts.items()))))


@given(st.dictionaries(st.text(max_size=4), json_values, max_size=5))
def test_a_digest_is_short_hex(parts: dict[str, Any]) -> None:
    assert re.fullmatch("[0-9a-f]{32}", digest(parts))
    assert digest(parts, 8) == digest(parts)[:8]
    assert len(digest(parts, 64)) == 64


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"a": 1}, {"a": 2}),
        ({"a": 1}, {"a": "1"}),
        ({"a": 1}, {"b": 1}),
        ({"a": None}, {}),
        ({"a": [1, 2]}, {"a": [2, 1]}),
        ({"a": "x", "b": "y"}, {"a": "xy", "b": ""}),
        ({"a": True}, {"a": 1}),
    ],
)
def test_other_values_give_another_digest(one: dict[str, Any], other: dict[str, Any]) -> None:
    assert digest(one) != digest(other)


def test_the_identity_of_a_table_is_its_files_in_order() -> None:
    first: dict[str, Any] = {"id": 0, "files": [{"path": "a.lance"}], "deletion_file": None}
    second: dict[str, Any] = {"id": 1, "files": [{"path": "b.lance"}], "deletion_file": None}
    identity = table_identity([first, second])
    assert re.fullmatch("[0-9a-f]{32}", identity)
    assert table_identity(iter([dict(reversed(first.items())), second])) == identity
    others = [
        [second, first],
        [first],
        [],
        [first, {**second, "files": [{"path": "c.lance"}]}],
        [first, {**second, "deletion_file": {"id": 3}}],
    ]
    assert len({identity, *map(table_identity, others)}) == 6


def test_what_is_cached_has_a_name_of_its_own() -> None:
    index = "0123456789abcdef0123456789abcdef"
    # Who depends on this: the names of shard files in users' caches.
    assert content_fingerprint(index, "arrow", None) == index
    assert content_fingerprint(index, "mds", None) == "835a8dc86a8e4e7bca250968494e867d"
    names = {
        content_fingerprint(one, cache_format, algorithm)
        for one in (index, "f" * 32)
        for cache_format in ("arrow", "mds")
        for algorithm in (None, "sha1", "xxh3_128")
    }
    assert len(names) == 12
    assert all(re.fullmatch("[0-9a-f]{32}", name) for name in names)
