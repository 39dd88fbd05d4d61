"""Plan and read as the download process does, in this process. For scripts: imports lance."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from lance_stream.planning.index import ShardIndex
from lance_stream.service.fetching import Fetcher
from lance_stream.service.messages import Options, Plan, Register
from lance_stream.service.stream_source import StreamSource

__all__ = ["FETCHER", "plan", "request", "shards"]

FETCHER = Fetcher()


def request(uri: str, **arguments: Any) -> Plan:
    """What a stream would ask for."""
    defaults: dict[str, Any] = {
        "uri": uri,
        "split": None,
        "version": None,
        "columns": None,
        "with_row_id": False,
        "shard_rows": None,
        "shard_bytes": 1 << 20,
        "options": Options(),
        "timeout_s": 60.0,
        "attempts": 1,
    }
    return Plan(**{**defaults, **arguments})


def plan(uri: str, **arguments: Any) -> ShardIndex:
    """Make an index.

    Raises:
        AssertionError: None was made.
    """
    index = FETCHER.plan(request(uri, **arguments))
    if index is None:
        raise AssertionError("no index was made")
    return index


def shards(index: ShardIndex) -> list[pa.Table]:
    """Read every shard."""
    register = Register(
        stream="stream",
        uri=index.uri,
        version=index.version,
        index_path="",
        directory="",
        ledger_path="",
        options=Options(),
        timeout_s=60.0,
        attempts=1,
    )
    source = StreamSource(register, index)
    return [FETCHER.read(source, shard) for shard in range(index.num_shards)]
