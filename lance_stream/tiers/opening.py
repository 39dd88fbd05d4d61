"""A url becomes a shared cache: by its scheme, then framed and guarded."""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable, Sequence
from importlib.metadata import entry_points
from typing import Any

from lance_stream.errors import PlanError
from lance_stream.source.pandas_later import admit_pandas
from lance_stream.tiers.framed import FramedCache
from lance_stream.tiers.guarded import DEFAULT_MAX_CALLS, GuardedCache
from lance_stream.tiers.layered import LayeredCache
from lance_stream.tiers.shard_cache import CheckedCache, ShardCache
from lance_stream.tiers.tier_url import TierUrl, checked_urls

__all__ = ["ENTRY_POINT_GROUP", "open_shard_cache", "open_tiers"]

ENTRY_POINT_GROUP = "lance_stream.shard_caches"
_SERVERS = {"redis": "redis_cache", "rediss": "redis_cache", "memcached": "memcached_cache"}
_CLASSES = {"redis_cache": "RedisCache", "memcached_cache": "MemcachedCache"}
# Which of our extras brings the library of a scheme.
_EXTRAS = {
    "redis": "redis",
    "rediss": "redis",
    "memcached": "memcached",
    "s3": "s3",
    "s3a": "s3",
    "gs": "gcs",
    "gcs": "gcs",
    "az": "azure",
    "abfs": "azure",
    "abfss": "azure",
}
_METHODS = ("get", "put", "__contains__", "delete", "close")

Urls = str | os.PathLike[str] | Sequence[str | os.PathLike[str]]


def open_shard_cache(url: Urls, *, warn: Callable[[str], None] | None = None) -> CheckedCache:
    """Open a shared cache; connects to nothing yet.

    Args:
        url: ``redis://``, ``rediss://``, ``memcached://``, any fsspec url, a path, or the scheme
            of a third party's; or a list of these from fast to slow. Options in the query:
            ``ttl``, ``max_bytes``, ``max_shards``, ``prefix``, ``timeout``, ``max_value_bytes``.
        warn: Told of each outage once; default the log.

    Returns:
        A cache whose methods neither raise nor last longer than the timeout: a tier that fails
        has nothing. Content comes back only as it was put.

    Raises:
        PlanError: The url is wrong, or its library is not installed.
    """
    return open_tiers(url, warn=warn)[0]


def open_tiers(
    url: Urls, *, warn: Callable[[str], None] | None = None, max_calls: int = DEFAULT_MAX_CALLS
) -> tuple[CheckedCache, tuple[GuardedCache, ...]]:
    """As ``open_shard_cache``; gives the whole, and each tier of it.

    Args:
        url: As there.
        warn: As there.
        max_calls: Most calls of one tier at a time, with those that hang; more are not made.
    """
    tiers = []
    for text in checked_urls(url):
        parsed = TierUrl.parse(text)
        framed = FramedCache(
            _open_raw(text, parsed),
            max_bytes=parsed.max_bytes,
            max_value_bytes=parsed.max_value_bytes,
        )
        tiers.append(GuardedCache(framed, parsed, warn=warn, max_calls=max_calls))
    whole = tiers[0] if len(tiers) == 1 else LayeredCache(tiers)
    return whole, tuple(tiers)


def _open_raw(text: str, url: TierUrl) -> ShardCache:
    """The implementation for a url."""
    try:
        if url.scheme in _SERVERS:
            module = _SERVERS[url.scheme]
            loaded = importlib.import_module(f"lance_stream.tiers.{module}")
            return getattr(loaded, _CLASSES[module])(url)
        # Before fsspec, which knows nearly every scheme.
        for point in entry_points(group=ENTRY_POINT_GROUP):
            if point.name == url.scheme:
                return _third_party(point, text, url)
        loaded = importlib.import_module("lance_stream.tiers.fsspec_cache")
        return loaded.FsspecCache(url)
    except ImportError as error:
        extra = _EXTRAS.get(url.scheme)
        hint = f": pip install 'lance-stream[{extra}]'" if extra else ""
        msg = f"shared_cache={url.shown!r} needs a library that is not installed ({error}){hint}"
        raise PlanError(msg) from error


def _third_party(point: Any, text: str, url: TierUrl) -> ShardCache:
    admit_pandas()
    where = f"shared_cache={url.shown!r}: entry point {point.name}={point.value}"
    try:
        cache = point.load()(text)
    except PlanError:
        raise
    except Exception as error:  # noqa: BLE001
        words = url.redact(f"{type(error).__name__}: {error}")
        # Not its cause, whose text may hold the url.
        raise PlanError(f"{where}: {words}") from None
    missing = [name for name in _METHODS if not callable(getattr(cache, name, None))]
    if missing:
        msg = f"{where} made a {type(cache).__name__} without {', '.join(missing)}"
        raise PlanError(msg)
    return cache if isinstance(cache, ShardCache) else _Adapted(cache)


class _Adapted(ShardCache):
    """What has the methods of a shard cache without being declared one."""

    def __init__(self, cache: Any) -> None:
        self._cache = cache

    def get(self, key: str) -> bytes | None:
        return self._cache.get(key)

    def put(self, key: str, data: bytes) -> None:
        self._cache.put(key, data)

    def __contains__(self, key: object) -> bool:
        return key in self._cache

    def delete(self, key: str) -> None:
        self._cache.delete(key)

    def claim(self, key: str, owner: str, seconds: float) -> bool | None:
        claim = getattr(self._cache, "claim", None)
        return None if claim is None else claim(key, owner, seconds)

    def release(self, key: str, owner: str) -> None:
        release = getattr(self._cache, "release", None)
        if release is not None:
            release(key, owner)

    def close(self) -> None:
        self._cache.close()

    def __repr__(self) -> str:
        return f"<shared cache {type(self._cache).__name__}>"
