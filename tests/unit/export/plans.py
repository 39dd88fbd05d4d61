"""Export plans to test with, and a stand-in for what writes a shard."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa

from lance_stream.export.compression import file_hashes
from lance_stream.export.destination import Destination
from lance_stream.export.plan import ExportPlan, FileFacts, make_plan
from lance_stream.planning.index import ShardIndex
from lance_stream.planning.layout import Layout
from lance_stream.planning.rows import FragmentRows
from lance_stream.planning.selection import Selection
from lance_stream.planning.sizing import RowSize

SCHEMA = pa.schema([("b", pa.string()), ("a", pa.int64()), ("v", pa.list_(pa.float32(), 2))])


def shard_index(rows: int = 25, shard_rows: int = 10, **changes: Any) -> ShardIndex:
    stops = np.append(np.arange(shard_rows, rows, shard_rows), rows).astype(np.int64)
    values: dict[str, Any] = {
        "uri": "/data/t.lance",
        "version": 3,
        "identity": "0" * 32,
        "selection": Selection(),
        "layout": Layout(),
        "schema": SCHEMA,
        "fragments": FragmentRows.from_counts([(0, rows)]),
        "chosen": None,
        "shard_stops": stops,
        "row_size": RowSize(40.0, 1.0, 500),
    }
    return ShardIndex(**{**values, **changes})


def export_plan(
    rows: int = 25,
    shard_rows: int = 10,
    *,
    compression: str | None = None,
    hashes: tuple[str, ...] = (),
    **changes: Any,
) -> ExportPlan:
    extension = compression.split(":")[0] if compression else ""
    return make_plan(shard_index(rows, shard_rows, **changes), compression, extension, hashes)


def content(shard: int) -> bytes:
    return f"shard {shard} ".encode() * (shard + 1)


def entry(plan: ExportPlan, shard: int) -> dict[str, Any]:
    facts = FileFacts(len(content(shard)), file_hashes(content(shard), plan.hashes))
    return plan.entry(shard, facts, facts if plan.compression else None)


def writer(destination: Destination, plan: ExportPlan) -> Callable[[int], dict[str, Any]]:
    """Publishes a shard in the way that ``ShardExport`` does, without a table."""

    def run(shard: int) -> dict[str, Any]:
        name = plan.stored_name(shard)
        path = destination.temporary_path(name)
        with open(path, "wb") as file:
            file.write(content(shard))
        destination.publish(path, name)
        check = {"check": file_hashes(content(shard), ("xxh3_64",))}
        destination.record(shard, {**entry(plan, shard), **check})
        return entry(plan, shard)

    return run
