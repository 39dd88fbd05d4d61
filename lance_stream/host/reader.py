"""The host's view of one virtual shard: light, because there may be a million."""

from __future__ import annotations

import logging
import sys
from typing import Any

from streaming.base.format import FileInfo, Reader

from lance_stream.errors import LanceStreamError
from lance_stream.host.cache import StreamCache
from lance_stream.host.watch import watch_caller
from lance_stream.telemetry.stats import ROWS

__all__ = ["LanceReader"]

logger = logging.getLogger(__name__)


class LanceReader(Reader):
    """Samples of one virtual shard.

    Holds three things and no file; what all shards of a stream share is in the ``StreamCache``.
    """

    __slots__ = ("_cache", "_shard", "samples")

    def __init__(self, cache: StreamCache, shard: int, samples: int) -> None:
        """Make a reader.

        Args:
            cache: The stream's cache.
            shard: Which shard of the stream.
            samples: Its rows.
        """
        # Not the base class's, which makes seven attributes and a list per shard.
        self._cache = cache
        self._shard = shard
        self.samples = samples

    def __reduce__(self) -> tuple[Any, ...]:
        return LanceReader, (self._cache, self._shard, self.samples)

    def __repr__(self) -> str:
        return f"LanceReader({self._cache.subject(self._shard)})"

    @property
    def shard(self) -> int:
        """Number of the shard in its stream."""
        return self._shard

    @property
    def cache(self) -> StreamCache:
        """What all shards of the stream share."""
        return self._cache

    @property
    def dirname(self) -> str:  # type: ignore[override]
        """Cache directory."""
        return self._cache.address.directory

    @property
    def split(self) -> str:  # type: ignore[override]
        """Always empty: the directory is the split's."""
        return ""

    @property
    def compression(self) -> None:  # type: ignore[override]
        """Shard files are not compressed."""
        return

    @property
    def hashes(self) -> list[str]:  # type: ignore[override]
        """None that the host would have to check: files carry a checksum."""
        return []

    @property
    def size_limit(self) -> None:  # type: ignore[override]
        """Shards are sized by the plan."""
        return

    @property
    def file_pairs(self) -> list[tuple[FileInfo, None]]:  # type: ignore[override]
        """The shard's file, under a name that is not there while its charge is wrong.

        The host looks for this name when it prepares a shard that it holds to be present, and
        calls ``prepare_shard`` if it is missing: the way to have a charge corrected.
        """
        cache, shard = self._cache, self._shard
        pairs = cache.settled.get(shard)
        if pairs is not None and not cache.limited:
            return pairs
        watch_caller(sys._getframe(1))
        name = cache.name(shard)
        try:
            settled = cache.is_settled(shard)
        except (LanceStreamError, OSError):
            # The host holds its lock here too; reading the sample meets the same error.
            settled = False
        if not settled:
            return [(FileInfo(f"{name}.unsettled", cache.estimated_bytes(shard), {}), None)]
        pairs = cache.settled[shard] = [(FileInfo(name, cache.ledger.charged(shard), {}), None)]
        return pairs

    def evict(self) -> int:
        """Remove the shard's file; returns the bytes that were charged for it.

        Never raises: the host holds its cache lock and would not let go of it.
        """
        try:
            return self._cache.release(self._shard)
        except (LanceStreamError, OSError) as error:
            logger.warning("could not evict %r: %s", self, error)
            return 0

    def get_raw_size(self) -> int:
        """Bytes to expect of the file; errs high."""
        return self._cache.estimated_bytes(self._shard)

    def get_zip_size(self) -> None:
        """There is no compressed form."""
        return

    def get_max_size(self) -> int:
        """Bytes to expect of the file; errs high. Asked for only where there is a cache limit.

        Never raises: the host holds its cache lock and would not let go of it.
        """
        try:
            return self._cache.make_room(self._shard)
        except (LanceStreamError, OSError) as error:
            logger.warning("could not make room for %r: %s", self, error)
            return self._cache.estimated_bytes(self._shard)

    def __getitem__(self, at: Any) -> Any:
        # The host's way of reading a sample; the base class's dispatch costs as much again.
        if type(at) is int and 0 <= at < self.samples:
            return self.get_item(at)
        return super().__getitem__(at)

    def get_item(self, idx: int) -> dict[str, Any]:
        """The sample of a row of this shard, in column order; waits for the shard if need be.

        Raises:
            LanceStreamError: The shard cannot be had.
            FileNotFoundError: Only for the host, which then prepares the shard again.
        """
        cache, shard = self._cache, self._shard
        if cache.limited:
            cache.check_limited()
        sample = cache.views.get(shard)
        if sample is None:
            sample = cache.open(shard)
        board = cache.board or cache.begin_board()
        board.numbers[ROWS] += 1
        return sample(idx)

    def decode_sample(self, data: bytes) -> dict[str, Any]:
        """Not used: samples are read from columns."""
        raise TypeError(f"a Lance shard holds columns, not samples of {len(data)} bytes")

    def get_sample_data(self, idx: int) -> bytes:
        """Not used: samples are read from columns."""
        raise TypeError(f"a Lance shard holds columns, no encoded sample {idx}")
