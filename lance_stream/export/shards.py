"""One shard of an export: read its rows, encode, hash and compress them, publish the file."""

from __future__ import annotations

import contextlib
import os
from typing import Any

import pyarrow as pa

from lance_stream.errors import LanceStreamError, PlanError
from lance_stream.export.compression import (
    CHECK_HASH,
    Compression,
    file_hashes,
    pieces_hash,
)
from lance_stream.export.destination import PIECE_BYTES, Destination
from lance_stream.export.plan import CHECK_KEY, ExportPlan, FileFacts
from lance_stream.offline.attempts import Policy
from lance_stream.offline.tables import read_shard, shard_subject
from lance_stream.service.fetching import Fetcher
from lance_stream.service.stream_source import StreamSource
from lance_stream.shards.mds_format import encode_mds, write_mds

__all__ = ["ShardExport"]


class ShardExport:
    """What all shards of an export have in common. Used by several threads."""

    def __init__(
        self,
        fetcher: Fetcher,
        source: StreamSource,
        plan: ExportPlan,
        compression: Compression | None,
        destination: Destination,
        policy: Policy,
    ) -> None:
        """Take where rows come from and where files go.

        Args:
            fetcher: Reads the table.
            source: The table and its index.
            plan: Which files there are.
            compression: That of the plan.
            destination: Where they go.
            policy: How often and how long reading a shard is tried.
        """
        self._fetcher, self._source = fetcher, source
        self._plan, self._compression = plan, compression
        self._destination = destination
        self._policy = policy

    def run(self, shard: int) -> dict[str, Any]:
        """Export a shard.

        Returns:
            What the index says of it.

        Raises:
            LanceStreamError: Its rows cannot be had, or MDS cannot hold them.
            CallFailedError: The destination refused it.
            StoppedError: The export ends.
            OSError: Its file cannot be written.
        """
        table = read_shard(self._fetcher, self._source, shard, self._policy)
        name = self._plan.stored_name(shard)
        path = self._destination.temporary_path(name)
        try:
            entry = self._plan.entry(shard, *self._write(shard, table, path))
            with open(path, "rb") as file:
                check = pieces_hash(iter(lambda: file.read(PIECE_BYTES), b""), CHECK_HASH)
            self._destination.publish(path, name)
        except BaseException:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(path)
            raise
        self._destination.record(shard, {**entry, CHECK_KEY: {CHECK_HASH: check}})
        return entry

    def _write(self, shard: int, table: pa.Table, path: str) -> tuple[FileFacts, FileFacts | None]:
        """Write the file; what there is to say of it raw, and compressed."""
        plan = self._plan
        try:
            if self._compression is None and not plan.hashes:
                return FileFacts(write_mds(path, table, config=plan.config()), {}), None
            _, pieces = encode_mds(table, config=plan.config())
        except LanceStreamError as error:
            raise PlanError(f"{shard_subject(self._plan.index, shard)}: {error}") from error
        content = b"".join(pieces)
        raw, zipped = self._facts(content), None
        if self._compression is not None:
            content = self._compression.compress(content)
            zipped = self._facts(content)
        with open(path, "wb") as file:
            file.write(content)
        return raw, zipped

    def _facts(self, content: bytes) -> FileFacts:
        return FileFacts(len(content), file_hashes(content, self._plan.hashes))
