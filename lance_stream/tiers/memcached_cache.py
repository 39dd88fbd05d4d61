"""Shard caches in memcached. The only module that imports pymemcache."""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from pymemcache.client.base import PooledClient
from pymemcache.exceptions import MemcacheServerError, MemcacheUnexpectedCloseError

from lance_stream.errors import PlanError
from lance_stream.tiers.shard_cache import ShardCache, ValueTooLargeError
from lance_stream.tiers.tier_url import TierUrl

__all__ = ["MemcachedCache"]

logger = logging.getLogger(__name__)

_T = TypeVar("_T")

_DEFAULT_PORT = 11211
_DEFAULT_PREFIX = "lance-stream"
_MAX_CONNECT_S = 5.0
# What an item takes besides its value: its header, key, flags and the end of a line.
_ITEM_OVERHEAD_BYTES = 512
# Of at most 1 MB each, unless the server takes more.
_GET_MANY = 64
_DEFAULT_ITEM_BYTES = 1 << 20
# Above this, memcached takes a time for the seconds since 1970.
_MAX_RELATIVE_S = 30 * 86400


class MemcachedCache(ShardCache):
    """Values under ``<prefix>:<key>``. The server itself removes the oldest when it is full.

    pymemcache's defaults answer before the server does, and so report values as kept that it
    refused; here each answer is waited for. It also gives anything that is not bytes its
    ``str``: here nothing else gets so far.
    """

    def __init__(self, url: TierUrl) -> None:
        """Prepare; does no I/O.

        Args:
            url: ``memcached://host[:port]``.

        Raises:
            PlanError: The url is wrong.
        """
        url.require_options(())
        if url.username is not None or url.password is not None:
            msg = f"shared_cache={url.shown!r}: passwords are not supported for memcached"
            raise PlanError(msg)
        if url.path.strip("/"):
            msg = f"shared_cache={url.shown!r}: no path; use prefix= to keep caches apart"
            raise PlanError(msg)
        if "," in url.host:
            msg = f"shared_cache={url.shown!r}: one server; put a proxy in front of several"
            raise PlanError(msg)
        if url.max_bytes is not None or url.max_shards is not None:
            logger.warning(
                "shared cache %s: memcached bounds itself (its option -m); max_bytes and "
                "max_shards do nothing, except that larger shards are left out",
                url.shown,
            )
        self._shown = url.shown
        self._prefix = f"{url.prefix or _DEFAULT_PREFIX}:"
        self._ttl_s = url.ttl_s
        self._lock = threading.Lock()
        self._item_bytes: int | None = None
        self._client = PooledClient(
            (url.host or "localhost", url.port or _DEFAULT_PORT),
            connect_timeout=min(url.timeout_s, _MAX_CONNECT_S),
            timeout=url.timeout_s,
            no_delay=True,
            ignore_exc=False,
            default_noreply=False,
        )

    def max_value_bytes(self) -> int:
        """What the server takes; asked once."""
        with self._lock:
            known = self._item_bytes
        if known is None:
            settings = self._again(lambda: self._client.stats("settings"))
            known = int(settings.get(b"item_size_max", _DEFAULT_ITEM_BYTES))
            with self._lock:
                self._item_bytes = known
        return known - _ITEM_OVERHEAD_BYTES

    def get(self, key: str) -> bytes | None:
        """See ``ShardCache``."""
        return self._again(lambda: self._client.get(self._prefix + key))

    def get_many(self, keys: Sequence[str]) -> list[bytes | None]:
        """See ``ShardCache``."""
        names = [self._prefix + key for key in keys]
        found: dict[Any, bytes] = {}
        for start in range(0, len(names), _GET_MANY):
            some = names[start : start + _GET_MANY]
            given = self._again(lambda some=some: self._client.get_many(some))
            found.update(given)
            # Without one of them the rest is of no use, and may be a made up number.
            if len(given) < len(some):
                break
        return [found.get(name) for name in names]

    def put(self, key: str, data: bytes) -> None:
        """See ``ShardCache``."""
        data = bytes(data)
        name = self._prefix + key
        try:
            kept = self._again(lambda: self._client.set(name, data, expire=self._expiry()))
        except MemcacheServerError as error:
            if "too large" in str(error):
                # Perhaps another server answers at this address now.
                with self._lock:
                    self._item_bytes = None
                msg = f"the server refuses a value of {len(data)} bytes: {error}"
                raise ValueTooLargeError(msg) from error
            raise
        if not kept:
            msg = f"the server did not store a value of {len(data)} bytes"
            raise MemcacheServerError(msg)

    def __contains__(self, key: object) -> bool:
        """See ``ShardCache``."""
        # The text protocol has no question without the value, which is small: content of any
        # size is in parts.
        return isinstance(key, str) and self.get(key) is not None

    def delete(self, key: str) -> None:
        """See ``ShardCache``."""
        self._again(lambda: self._client.delete(self._prefix + key))

    def claim(self, key: str, owner: str, seconds: float) -> bool:
        """See ``ShardCache``."""
        name, mine = self._claim_key(key), owner.encode()
        expire = max(1, math.ceil(seconds))
        if self._again(lambda: self._client.add(name, mine, expire=expire)):
            return True
        return self._again(lambda: self._client.get(name)) == mine

    def release(self, key: str, owner: str) -> None:
        """See ``ShardCache``."""
        name = self._claim_key(key)
        if self._again(lambda: self._client.get(name)) == owner.encode():
            self._again(lambda: self._client.delete(name))

    def close(self) -> None:
        """See ``ShardCache``."""
        self._client.close()

    def __repr__(self) -> str:
        return f"MemcachedCache({self._shown!r})"

    def _claim_key(self, key: str) -> str:
        return f"{self._prefix}claim:{key}"

    def _expiry(self) -> int:
        if self._ttl_s is None:
            return 0
        seconds = max(1, math.ceil(self._ttl_s))
        return seconds if seconds < _MAX_RELATIVE_S else int(time.time()) + seconds

    def _again(self, work: Callable[[], _T]) -> _T:
        """Once more for each connection that the server may have closed, say by a restart."""
        stale = len(self._client.client_pool.free)
        while True:
            try:
                return work()
            except (ConnectionError, MemcacheUnexpectedCloseError):
                # The pool has dropped that connection.
                if not stale:
                    raise
                stale -= 1
