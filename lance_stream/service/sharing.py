"""Shard files and the shared caches of streams, in the download process."""

from __future__ import annotations

import logging
import socket
import threading
from collections.abc import Callable

import pyarrow as pa

from lance_stream.planning.checksum import DEFAULT_HASH
from lance_stream.planning.fingerprint import digest
from lance_stream.service.messages import Register
from lance_stream.shards.header import ShardHeader
from lance_stream.shards.shard_file import is_intact
from lance_stream.tiers.counts import SharedTierCounts
from lance_stream.tiers.shared_tier import SharedTier, shard_key

__all__ = ["SharedCaches", "tier_key"]

logger = logging.getLogger(__name__)

# A hung tier must leave time for Lance before the attempt's own deadline.
_SHARE_OF_TIMEOUT = 0.25


class SharedCaches:
    """The shared caches of all streams, one for equal urls. Thread-safe."""

    def __init__(self, max_takes: int) -> None:
        """Open nothing yet.

        Args:
            max_takes: Fetches at a time.
        """
        self._max_takes = max_takes
        # Told of each outage, from any thread, beside the log.
        self.on_warning: Callable[[str], None] = lambda _: None
        self._lock = threading.Lock()
        self._tiers: dict[tuple[str, ...], SharedTier] = {}

    def take(
        self, register: Register, header: ShardHeader, schema: pa.Schema, path: str
    ) -> int | None:
        """Write a shard's file from the stream's shared cache.

        Where it is not there, and another node reads it from Lance now, it is waited for a while.
        With None it is the caller's to read, and to offer, or to release.

        Returns:
            Bytes of the file; None if there is no shared cache, or it does not have the shard.

        Raises:
            OSError: The file cannot be written; none is left.
            PlanError: A url is wrong, or its library is not installed.
        """
        tier = self.open(register.shared_cache)
        if tier is None:
            return None
        return tier.take_or_claim(
            tier_key(register, header),
            path,
            header.num_rows,
            owner=_owner(register),
            check=lambda content: is_intact(register.cache_format, content, header, schema),
            timeout_s=register.timeout_s * _SHARE_OF_TIMEOUT,
        )

    def offer(self, register: Register, header: ShardHeader, schema: pa.Schema, path: str) -> None:
        """Have a published file put into the stream's shared cache, in the background."""
        tier = self.open(register.shared_cache)
        if tier is not None:
            tier.offer(
                tier_key(register, header),
                path,
                header.num_rows,
                check=lambda content: is_intact(register.cache_format, content, header, schema),
            )

    def release(self, register: Register, header: ShardHeader) -> None:
        """Let other nodes read a shard that could not be had here, or is not wanted any more."""
        tier = self.open(register.shared_cache)
        if tier is not None:
            tier.release(tier_key(register, header))

    def counts(self) -> list[SharedTierCounts]:
        """What each of them did so far."""
        with self._lock:
            tiers = list(self._tiers.values())
        return [tier.counts() for tier in tiers]

    def close(self, timeout_s: float) -> None:
        """Put what waits, up to a deadline, and let go."""
        with self._lock:
            tiers = list(self._tiers.values())
            self._tiers.clear()
        for tier in tiers:
            tier.close(timeout_s)

    def open(self, urls: tuple[str, ...]) -> SharedTier | None:
        """The shared cache of some urls; None for none. Connects to nothing.

        Raises:
            PlanError: A url is wrong, or its library is not installed.
        """
        if not urls:
            return None
        with self._lock:
            tier = self._tiers.get(urls)
            if tier is None:
                tier = self._tiers[urls] = SharedTier(
                    urls, warn=self._warn, max_takes=self._max_takes
                )
            return tier

    def _warn(self, text: str) -> None:
        logger.warning("%s", text)
        self.on_warning(text)


def _owner(register: Register) -> str:
    """The same for all download processes of a job on a node, also after one of them died."""
    return digest({"host": socket.gethostname(), "ledger": register.ledger_path}, 32)


def tier_key(register: Register, header: ShardHeader) -> str:
    """Key of a shard in a shared cache: names its content, format and checksum. Pure."""
    algorithm = "" if header.algorithm == DEFAULT_HASH else f"-{header.algorithm}"
    return shard_key(header.fingerprint + algorithm, header.shard, register.cache_format)
