"""Shard caches in Redis. The only module that imports redis."""

from __future__ import annotations

import contextlib
import os
from typing import Any

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from lance_stream.errors import PlanError
from lance_stream.tiers.frame import BadFrameError
from lance_stream.tiers.shard_cache import ShardCache, ValueTooLargeError
from lance_stream.tiers.tier_url import TierUrl

__all__ = ["RedisCache"]

_DEFAULT_PORT = 6379
_DEFAULT_PREFIX = "lance-stream"
# proto-max-bulk-len, unless the server's configuration changes it.
_MAX_VALUE_BYTES = 512 << 20
# The library's own 64 KiB take nearly twice as long for a shard.
_READ_BYTES = 1 << 20
_MAX_CONNECT_S = 5.0
_NEVER_LAPSES = -1
_TLS_FILES = ("ssl_ca_certs", "ssl_certfile", "ssl_keyfile")
_TLS_OPTIONS = (*_TLS_FILES, "ssl_cert_reqs", "ssl_check_hostname")

# Both keep, in a sorted set by time and a hash of sizes, what lies under the prefix. KEYS: the
# two. ARGV: prefix, name, and for _ADMIT size, max_shards, max_bytes, ttl in seconds (0: none).
_FORGET = """
local old = redis.call('HGET', KEYS[2], ARGV[2])
if old then
  redis.call('ZREM', KEYS[1], ARGV[2])
  redis.call('HDEL', KEYS[2], ARGV[2])
  redis.call('HINCRBY', KEYS[2], 'total', -tonumber(old))
end
"""
# Makes room for a value before it comes, so that a server that is nearly full can take it. The
# oldest go first. The clock is the server's: those of nodes differ.
_ADMIT = (
    _FORGET
    + """
local size, max_shards = tonumber(ARGV[3]), tonumber(ARGV[4])
local max_bytes, ttl = tonumber(ARGV[5]), tonumber(ARGV[6])
local time = redis.call('TIME')
local now = tonumber(time[1]) + tonumber(time[2]) / 1000000
local total = tonumber(redis.call('HGET', KEYS[2], 'total') or '0')
local count = redis.call('ZCARD', KEYS[1])
while count > 0 do
  local first = redis.call('ZRANGE', KEYS[1], 0, 0, 'WITHSCORES')
  local expired = ttl > 0 and tonumber(first[2]) < now - ttl
  local many = max_shards > 0 and count + 1 > max_shards
  local much = max_bytes > 0 and total + size > max_bytes
  if not (expired or many or much) then break end
  local bytes = tonumber(redis.call('HGET', KEYS[2], first[1]) or '0')
  redis.call('DEL', ARGV[1] .. first[1])
  redis.call('ZREM', KEYS[1], first[1])
  redis.call('HDEL', KEYS[2], first[1])
  redis.call('HINCRBY', KEYS[2], 'total', -bytes)
  total, count = total - bytes, count - 1
end
redis.call('ZADD', KEYS[1], string.format('%.6f', now), ARGV[2])
redis.call('HSET', KEYS[2], ARGV[2], size)
redis.call('HINCRBY', KEYS[2], 'total', size)
"""
)


class RedisCache(ShardCache):
    """Values under ``<prefix>:<key>``, each with the url's ``ttl``.

    With ``max_shards`` or ``max_bytes``, ``<prefix>:#index`` and ``<prefix>:#sizes`` list them,
    and the oldest are removed before a new one is put. Such limits hold for what is put with
    them: give all jobs that share a prefix the same url. Content over 512 MB counts once for
    each of its parts. Redis Cluster is not supported.
    """

    def __init__(self, url: TierUrl) -> None:
        """Prepare; does no I/O.

        Args:
            url: ``redis[s]://[[user]:password@]host[:port][/database]``; with ``rediss`` also
                the options ``ssl_ca_certs``, ``ssl_certfile``, ``ssl_keyfile``,
                ``ssl_cert_reqs`` (``required`` or ``none``) and ``ssl_check_hostname``.

        Raises:
            PlanError: The url is wrong.
        """
        tls = url.scheme == "rediss"
        url.require_options(_TLS_OPTIONS if tls else ())
        self._shown = url.shown
        self._prefix = f"{url.prefix or _DEFAULT_PREFIX}:"
        self._ttl_s = url.ttl_s
        self._max_bytes, self._max_shards = url.max_bytes, url.max_shards
        self._client: redis.Redis = redis.Redis(
            host=url.host or "localhost",
            port=url.port or _DEFAULT_PORT,
            db=_database(url),
            username=url.username or None,
            password=url.password or None,
            socket_timeout=url.timeout_s,
            socket_connect_timeout=min(url.timeout_s, _MAX_CONNECT_S),
            socket_read_size=_READ_BYTES,
            socket_keepalive=True,
            # The calls are bounded, by the guard around this.
            max_connections=1 << 20,
            # A connection that the server has closed meanwhile. Not a timeout: that is the limit.
            retry=Retry(NoBackoff(), 1, supported_errors=(redis.ConnectionError,)),
            protocol=2,
            **(_tls(url) if tls else {}),
        )
        self._admit = self._client.register_script(_ADMIT)
        self._forget = self._client.register_script(_FORGET)

    @property
    def _is_bounded(self) -> bool:
        return self._max_bytes is not None or self._max_shards is not None

    def get(self, key: str) -> bytes | None:
        """See ``ShardCache``."""
        return self._value(self._prefix + key)

    def put(self, key: str, data: bytes) -> None:
        """See ``ShardCache``."""
        if self._max_bytes is not None and len(data) > self._max_bytes:
            msg = f"{len(data)} bytes are more than max_bytes={self._max_bytes}"
            raise ValueTooLargeError(msg)
        if self._is_bounded:
            limits = (self._max_shards or 0, self._max_bytes or 0, self._ttl_s or 0)
            self._admit(self._lists(), (self._prefix, key, len(data), *limits))
        milliseconds = None if self._ttl_s is None else max(1, round(self._ttl_s * 1000))
        try:
            self._client.set(self._prefix + key, data, px=milliseconds)
        except redis.RedisError:
            if self._is_bounded:
                self._give_up(key)
            raise

    def __contains__(self, key: object) -> bool:
        """See ``ShardCache``."""
        return bool(self._client.exists(f"{self._prefix}{key}"))

    def delete(self, key: str) -> None:
        """See ``ShardCache``."""
        self._client.delete(self._prefix + key)
        if self._is_bounded:
            self._forget(self._lists(), (self._prefix, key))

    def max_value_bytes(self) -> int:
        """See ``ShardCache``."""
        return _MAX_VALUE_BYTES

    def claim(self, key: str, owner: str, seconds: float) -> bool:
        """See ``ShardCache``."""
        # No script: a user of the server may put without the right to run any.
        name = self._claim_key(key)
        if self._client.set(name, owner, nx=True, px=max(1, round(seconds * 1000))):
            return True
        try:
            claimed = self._value(name) == owner.encode()
            lapses = self._lapses(name)
        except BadFrameError:
            claimed = lapses = False
        if not lapses:
            self._client.delete(name)
        return claimed

    def release(self, key: str, owner: str) -> None:
        """See ``ShardCache``."""
        name = self._claim_key(key)
        with contextlib.suppress(BadFrameError):
            if self._value(name) == owner.encode():
                self._client.delete(name)

    def close(self) -> None:
        """See ``ShardCache``."""
        self._client.close()

    def __repr__(self) -> str:
        return f"RedisCache({self._shown!r})"

    def _value(self, name: str) -> bytes | None:
        """What lies under a name.

        Raises:
            BadFrameError: It is no string, and so not ours.
        """
        try:
            value: Any = self._client.get(name)
        except redis.ResponseError as error:
            if not str(error).startswith("WRONGTYPE"):
                raise
            raise BadFrameError("it is no string of Redis: another program's") from error
        return value

    def _lapses(self, name: str) -> bool:
        """Whether a claim goes by itself, as all of ours do."""
        try:
            return self._client.pttl(name) != _NEVER_LAPSES
        except redis.ResponseError:
            # A user of the server may have the right to get and put, but not to ask this.
            return True

    def _claim_key(self, key: str) -> str:
        return f"{self._prefix}#claim:{key}"

    def _lists(self) -> tuple[str, str]:
        return f"{self._prefix}#index", f"{self._prefix}#sizes"

    def _give_up(self, key: str) -> None:
        """What could not be put must not take the place of others in the lists."""
        try:
            self.delete(key)
        except redis.RedisError:
            pass


def _database(url: TierUrl) -> int:
    text = url.path.strip("/")
    if text and not text.isdecimal():
        raise PlanError(f"shared_cache={url.shown!r}: {text!r} is not the number of a database")
    return int(text or 0)


def _tls(url: TierUrl) -> dict[str, Any]:
    options: dict[str, Any] = {"ssl": True}
    options.update({name: url.extra[name] for name in _TLS_FILES if name in url.extra})
    for name in _TLS_FILES:
        # The library takes a file that is not there for none.
        if name in url.extra and not os.access(url.extra[name], os.R_OK):
            msg = (
                f"shared_cache={url.shown!r}: {name}={url.extra[name]!r} cannot be read: name a "
                "PEM file that is there on every node"
            )
            raise PlanError(msg)
    requires = url.extra.get("ssl_cert_reqs", "required")
    checks = url.extra.get("ssl_check_hostname", str(requires == "required")).lower()
    if requires not in ("required", "none") or checks not in ("true", "false"):
        msg = (
            f"shared_cache={url.shown!r}: ssl_cert_reqs is 'required' or 'none', "
            "ssl_check_hostname 'true' or 'false'"
        )
        raise PlanError(msg)
    options.update(ssl_cert_reqs=requires, ssl_check_hostname=checks == "true")
    return options
