from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lance_stream.errors import PlanError
from lance_stream.tiers.tier_url import TierUrl, checked_urls, parse_duration

PASSWORD = "p4ssw0rd/+?#&"
QUOTED = "p4ssw0rd%2F%2B%3F%23%26"


def test_a_url_is_taken_apart() -> None:
    url = TierUrl.parse(
        f"REDISS://us%40er:{QUOTED}@Host:1234/5?ttl=1.5h&max_bytes=10gb&max_shards=100"
        "&prefix=team/a&timeout=250ms&max_value_bytes=1mb&ssl_ca_certs=/etc/ca%20x.pem"
    )
    assert (url.scheme, url.username, url.password) == ("rediss", "us@er", PASSWORD)
    assert (url.host, url.port, url.path) == ("host", 1234, "/5")
    assert (url.ttl_s, url.timeout_s) == (5400.0, 0.25)
    assert (url.max_bytes, url.max_shards, url.max_value_bytes) == (10 << 30, 100, 1 << 20)
    assert (url.prefix, url.extra) == ("team/a", {"ssl_ca_certs": "/etc/ca x.pem"})


def test_defaults() -> None:
    url = TierUrl.parse("redis://host")
    assert (url.username, url.password, url.port, url.path) == (None, None, None, "")
    assert (url.ttl_s, url.max_bytes, url.max_shards, url.prefix) == (None, None, None, None)
    assert (url.timeout_s, url.extra) == (5.0, {})
    assert TierUrl.parse("s3://bucket/x").timeout_s == 10.0
    assert TierUrl.parse("/x").timeout_s == 10.0


def test_ipv6_addresses() -> None:
    url = TierUrl.parse("redis://:secret@[::1]:1234/0")
    assert (url.host, url.port) == ("::1", 1234)
    assert url.shown == "redis://***@[::1]:1234/0"


@pytest.mark.parametrize(
    ("text", "path"),
    [
        ("/mnt/cache", "/mnt/cache"),
        ("/mnt/a b%20c#d", "/mnt/a b%20c#d"),
        ("/mnt/../cache/", "/cache"),
        (Path("/mnt/cache"), "/mnt/cache"),
        ("file:///mnt/a%20b", "/mnt/a b"),
        ("FILE:///mnt/x", "/mnt/x"),
        ("file://localhost/mnt/x", "/mnt/x"),
        ("~/x", "/home/me/x"),
        ("x/y", "/here/x/y"),
    ],
)
def test_paths(text: Any, path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/me")
    monkeypatch.setattr("os.getcwd", lambda: "/here")
    url = TierUrl.parse(text)
    assert (url.scheme, url.path, url.shown) == ("file", path, path)
    # What another process is given means the same there, and again.
    (once,) = checked_urls(text)
    assert checked_urls(once) == (once,)
    assert TierUrl.parse(once).path == path


def test_options_of_paths() -> None:
    url = TierUrl.parse("/mnt/cache?max_bytes=1gb&ttl=7d")
    assert (url.path, url.max_bytes, url.ttl_s) == ("/mnt/cache", 1 << 30, 604800.0)
    assert checked_urls("/mnt/c?ttl=7d") == ("file:///mnt/c?ttl=7d",)


@pytest.mark.parametrize(
    ("query", "words"),
    [
        ("ttl=soon", "ttl='soon' is not a time"),
        ("ttl=0", "ttl='0' is not a time"),
        ("ttl=-1", "ttl='-1' is not a time"),
        ("max_bytes=lots", "max_bytes='lots' is not a size"),
        ("max_bytes=0", "max_bytes='0' is not a size"),
        ("max_shards=0", "max_shards='0' is not a number of shards"),
        ("max_shards=1.5", "max_shards='1.5' is not a number of shards"),
        ("prefix=../x", "prefix='../x': up to 120 letters"),
        ("prefix=a%20b", "prefix='a b': up to 120 letters"),
        ("prefix=" + "x" * 121, "prefix='x.*': up to 120 letters"),
        ("ttl", "is not of the form name=value"),
        ("ttl=", "is not of the form name=value"),
        ("=1", "is not of the form name=value"),
        ("ttl=1&ttl=2", "option 'ttl' is given twice"),
    ],
)
def test_options_are_checked(query: str, words: str) -> None:
    for base in ("redis://:hunter22@host", "/mnt/cache", "s3://bucket/x"):
        with pytest.raises(PlanError, match=words) as caught:
            TierUrl.parse(f"{base}?{query}")
        assert base.replace(":hunter22", "***") in str(caught.value)
        assert "hunter22" not in str(caught.value)


def test_plus_signs_of_secrets_stay() -> None:
    assert TierUrl.parse("s3://b/x?secret=a+b/c==").extra == {"secret": "a+b/c=="}


@pytest.mark.parametrize("value", ["", " ", b"/x", []])
def test_what_is_no_url_is_refused(value: Any) -> None:
    with pytest.raises(PlanError, match="shared_cache"):
        checked_urls(value)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("redis://host:port", "is not a url"),
        ("redis://host:99999", "is not a url"),
        ("redis://[::1", "is not a url"),
        ("simplecache::s3://bucket/x", "chained urls"),
        ("s3://bucket/x::file:///y", "chained urls"),
        ("s3://bucket/x#y", "has a '#'"),
        ("s3://bucket/x?key=a@b", "has an '@' in its options"),
        ("file://mnt/x", "file:///absolute/path"),
    ],
)
def test_wrong_urls_are_refused(text: str, words: str) -> None:
    with pytest.raises(PlanError, match=words):
        TierUrl.parse(text)


def test_several_are_checked_in_order() -> None:
    urls = ["redis://:secret@host?ttl=1h", "s3://bucket/x"]
    assert checked_urls(urls) == tuple(urls)
    with pytest.raises(PlanError, match="names no cache"):
        checked_urls([])
    with pytest.raises(PlanError, match="a url or a path"):
        checked_urls(["redis://host", 5])  # type: ignore[list-item]


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("90", 90), ("1.5h", 5400), ("250ms", 0.25), ("2 m", 120), ("1D", 86400), ("1w", 604800)],
)
def test_durations(text: str, seconds: float) -> None:
    assert parse_duration(text, "ttl") == seconds


# --- secrets ---


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        (f"redis://:{QUOTED}@host:1/0?ttl=1h", "redis://***@host:1/0"),
        ("redis://hunter22@host", "redis://***@host"),
        ("s3://bucket/x?secret=hunter22", "s3://bucket/x"),
        ("abfss://box@account.dfs.core.windows.net/x", None),
        ("sftp://me:hunter22@host/path", "sftp://***@host/path"),
    ],
)
def test_urls_are_shown_without_credentials(text: str, shown: str | None) -> None:
    url = TierUrl.parse(text)
    assert url.shown == (shown or text)
    for secret in ("hunter22", PASSWORD, QUOTED):
        assert secret not in repr(url) + url.shown


@pytest.mark.parametrize(
    "text",
    [
        "redis://:hunter22?x@host:1/0",
        "redis://:hunter22#x@host:1/0",
        "redis://:hunter22/x@host:1/0",
        "redis://user:hunter22",
        "redis://:hunter22@host:port",
        "redis://a:b:hunter22/x?y#z",
        "redis://:x@hunter22@host:y",
    ],
)
def test_urls_that_are_wrong_are_shown_without_credentials(text: str) -> None:
    with pytest.raises(PlanError, match="shared_cache=") as caught:
        TierUrl.parse(text)
    assert "hunter22" not in str(caught.value)
    assert caught.value.__cause__ is None


@given(st.text("abc019:/?#[]@!$&'()*+,;=%", max_size=12))
def test_whatever_a_password_holds_an_error_does_not_show_it(password: str) -> None:
    text = f"redis://user:Zq{password}qZ@host:bad/0?ttl=never"
    with pytest.raises(PlanError, match="shared_cache") as caught:
        TierUrl.parse(text)
    assert "Zq" not in str(caught.value)
    assert "qZ" not in str(caught.value)


@given(st.text(min_size=4, max_size=30).filter(lambda text: text.strip() == text))
def test_messages_are_redacted(password: str) -> None:
    from urllib.parse import quote

    url = TierUrl.parse(f"redis://:{quote(password, safe='')}@host")
    assert url.password == password
    message = url.redact(f"cannot use <{password}> or <{quote(password, safe='')}> for x")
    assert password not in message or password in "cannot use <***> or <***> for x"


def test_options_are_secret_unless_their_names_say_otherwise() -> None:
    url = TierUrl.parse(
        "s3://b/x?key=AKIAXYZ&secret=hunter22&token=tok-123&endpoint_url=http://host:1"
        "&client_kwargs.region_name=eu-west-1"
    )
    text = "AKIAXYZ hunter22 tok-123 at http://host:1 in eu-west-1"
    assert url.redact(text) == "*** *** *** at http://host:1 in eu-west-1"
