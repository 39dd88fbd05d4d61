"""The shared cache as a place to be filled: what it refuses is an error here."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Sequence

from lance_stream.errors import PlanError, SourceUnavailableError
from lance_stream.offline.parallel import in_parallel
from lance_stream.offline.tables import shard_subject
from lance_stream.service.sharing import tier_key
from lance_stream.service.stream_source import StreamSource
from lance_stream.tiers.opening import open_shard_cache

__all__ = ["SharedPlace"]


class SharedPlace:
    """A shared cache, which training finds by the same urls."""

    def __init__(self, urls: Sequence[str]) -> None:
        """Open it; connects to nothing.

        Args:
            urls: From fast to slow.

        Raises:
            PlanError: One is wrong, or its library is not installed.
        """
        # What goes wrong is told once, as an error.
        self._said: list[str] = []
        try:
            self._cache = open_shard_cache(list(urls), warn=self._said.append)
        except PlanError as error:
            raise PlanError(str(error).replace("shared_cache", "--shared-cache")) from error

    def __repr__(self) -> str:
        return repr(self._cache).strip("<>")

    def there(self, source: StreamSource, workers: int) -> dict[int, int]:
        """The shards that it has, and about how many bytes each takes."""
        index, stop = source.index, threading.Event()

        def look(shard: int) -> bool:
            return tier_key(source.register, source.header(shard)) in self._cache

        with contextlib.closing(
            in_parallel(look, range(index.num_shards), workers, stop)
        ) as results:
            found = [shard for shard, is_there in results if is_there]
        return {s: index.shard_bytes(s) for s in found}

    def put(self, source: StreamSource, shard: int, path: str) -> None:
        """Put the content of a file into it, and remove the file.

        Raises:
            SourceUnavailableError: It did not take it.
        """
        try:
            with open(path, "rb") as file:
                data = file.read()
        finally:
            os.unlink(path)
        key, rows = (
            tier_key(source.register, source.header(shard)),
            len(source.index.shard_rows(shard)),
        )
        if self._cache.write(key, data, rows=rows, replace=False) or key in self._cache:
            return
        why = f": {self._said[-1]}" if self._said else ""
        msg = (
            f"{self!r} did not take {shard_subject(source.index, shard)}, {len(data)} bytes{why}; "
            "check that it is reachable and has room, and run the same command again"
        )
        raise SourceUnavailableError(msg)

    def close(self) -> None:
        """Let go of it."""
        self._cache.close()
