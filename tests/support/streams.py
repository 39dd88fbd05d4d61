"""What tests of whole datasets do over and over: build, iterate, compare with the table."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from streaming import StreamingDataset
from torch.utils.data import DataLoader

from lance_stream import LanceStream
from lance_stream.service.runtime import Endpoint
from tests.support.tables import assert_row

__all__ = [
    "batches",
    "cached_files",
    "dataset",
    "disk_bytes",
    "endpoint",
    "identity",
    "ids",
    "wait_until",
]

# Part of the order of samples: always given, so that tests do not depend on the machine.
ORDER = {"num_canonical_nodes": 1, "shuffle_seed": 7}


def identity(batch: list[Any]) -> list[Any]:
    """A collate function that keeps samples as they are; at module level for spawned workers."""
    return batch


def dataset(uri: str, *, batch_size: int = 4, host: dict[str, Any] | None = None, **stream: Any):
    """A stock dataset over one LanceStream."""
    return StreamingDataset(
        streams=[LanceStream(uri, **stream)], batch_size=batch_size, **{**ORDER, **(host or {})}
    )


def batches(
    data: StreamingDataset, workers: int, **options: Any
) -> Iterable[list[dict[str, Any]]]:
    """A DataLoader that gives lists of samples."""
    return DataLoader(
        data, batch_size=data.batch_size, num_workers=workers, collate_fn=identity, **options
    )


def ids(rows: Iterable[list[dict[str, Any]]], *, check: bool = True) -> list[int]:
    """The ``i`` of all samples in order; each sample is compared with the table's row."""
    seen = []
    for batch in rows:
        for row in batch:
            if check:
                assert_row(row, row["i"], list(row))
            seen.append(row["i"])
    return seen


def endpoint(data: StreamingDataset) -> Endpoint:
    """Where the download process of a dataset is found."""
    stream = next(s for s in data.streams if isinstance(s, LanceStream))
    assert stream._cache is not None
    return stream._cache.address.endpoint


def cached_files(data: StreamingDataset) -> dict[str, int]:
    """Shard files in the cache of the first stream, and their sizes."""
    directory = data.streams[0].local
    return {
        entry.name: entry.stat().st_size
        for entry in os.scandir(directory)
        if entry.name.endswith((".arrow", ".mds")) and "index" not in entry.name
    }


def disk_bytes(directory: str | Path) -> int:
    """Bytes of the files that lance_stream keeps in a cache directory, without the lock."""
    total = 0
    for entry in os.scandir(directory):
        try:
            if not entry.name.endswith(".lock"):
                total += entry.stat().st_size
        except FileNotFoundError:
            continue
    return total


def wait_until(condition: Any, timeout_s: float, what: str) -> None:
    """Wait until something is true.

    Raises:
        AssertionError: It did not become true in time.
    """
    for _ in _until(timeout_s):
        if condition():
            return
    raise AssertionError(f"{what}: not within {timeout_s:g} s")


def _until(timeout_s: float) -> Iterator[None]:
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        yield
        time.sleep(0.02)
