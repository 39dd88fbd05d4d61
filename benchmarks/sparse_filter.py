"""What a filter that matches 1 in 1,000 rows reads: bytes against the bytes of those rows.

A table of a million rows (a number, a label from 0 to 999 in random order, 1 KB of random bytes, a
text of 10 bytes, a vector of 512 bytes) is planned with ``filter="label = 7"`` and its shards are
read as the download process does. Lance itself counts requests and bytes; every value is checked.

Reading is counted apart from planning, which reads the label's column once, or only its scalar
index where there is one; and apart from the first read of each file, which also reads where the
column's values lie (four bytes a row of a column of bytes). Wide columns, of 128 bytes and more a
value, are what is judged: of narrow ones Lance reads chunks of about 4 KB, whatever is asked for.

    python benchmarks/sparse_filter.py [--rows N] [--endpoint URL --bucket B]

With ``--endpoint``, on an S3 server instead; credentials come from AWS_ACCESS_KEY_ID and
AWS_SECRET_ACCESS_KEY. Everything written there is removed. Ends with status 1 if a goal is missed.
"""

from __future__ import annotations

import argparse
import math
import os
import secrets
import sys
import tempfile
from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import shape_m

# Bytes read for the bytes of the rows' values, in a file system and in an object store, where
# Lance joins requests that lie closer together than 64 KB.
GOAL = 1.1
STORE_GOAL = 6.0
WIDE = ["b", "v"]

_LABELS = 1000
_LABEL = 7
_FRAGMENT_ROWS = 250_000
_BATCH_ROWS = 10_000
_VECTOR_LENGTH = 128
_SCHEMA = pa.schema(
    {
        "i": pa.int64(),
        "label": pa.int32(),
        "b": pa.binary(),
        "s": pa.string(),
        "v": pa.list_(pa.float32(), _VECTOR_LENGTH),
    }
)


def _batch(start: int) -> pa.RecordBatch:
    """Rows from ``start`` on; a pure function of it."""
    source = np.random.default_rng([shape_m.SEED, start])
    blobs = source.bytes(_BATCH_ROWS * shape_m.BLOB_BYTES)
    offsets = np.arange(_BATCH_ROWS + 1, dtype=np.int32) * shape_m.BLOB_BYTES
    ids = np.arange(start, start + _BATCH_ROWS)
    # Each label as often as every other.
    labels = source.permutation(_BATCH_ROWS) % _LABELS
    vectors = source.random(_BATCH_ROWS * _VECTOR_LENGTH, np.float32)
    arrays = [
        pa.array(ids),
        pa.array(labels, pa.int32()),
        pa.Array.from_buffers(
            pa.binary(), _BATCH_ROWS, [None, pa.py_buffer(offsets), pa.py_buffer(blobs)]
        ),
        pa.array([f"row {i}" for i in ids.tolist()]),
        pa.FixedSizeListArray.from_arrays(pa.array(vectors), _VECTOR_LENGTH),
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=_SCHEMA)


def _batches(rows: int) -> Iterator[pa.RecordBatch]:
    return (_batch(start) for start in range(0, rows, _BATCH_ROWS))


def write(uri: str, rows: int, options: dict[str, str] | None) -> None:
    """Task: write the table."""
    import lance

    reader = pa.RecordBatchReader.from_batches(_SCHEMA, _batches(rows))
    lance.write_dataset(reader, uri, max_rows_per_file=_FRAGMENT_ROWS, storage_options=options)


def add_index(uri: str, options: dict[str, str] | None) -> None:
    """Task: make a scalar index on the label."""
    import lance

    lance.dataset(uri, storage_options=options).create_scalar_index("label", "BITMAP")


def drop(uri: str, options: dict[str, str] | None) -> None:
    """Task: remove the table and all its files."""
    import lance

    lance.LanceDataset.drop(uri, storage_options=options)


def read(
    uri: str, rows: int, columns: list[str] | None, options: dict[str, str] | None
) -> dict[str, float]:
    """Task: plan, and read every shard twice; requests and bytes of each."""
    from lance_stream.planning.layout import Layout
    from lance_stream.planning.selection import Selection
    from lance_stream.service.indexing import Order, make_index, no_news
    from lance_stream.source.table import Table, TableAddress

    table = Table(TableAddress(uri, None, 60.0), options or {})
    names = None if columns is None else tuple((name, name) for name in columns)
    selection = Selection(names, filter=f"label = {_LABEL}")
    order = Order(selection, Layout(), shard_rows=None, shard_bytes=256 << 10)
    table.dataset.io_stats_incremental()
    index = make_index(uri, table, order, uri, no_news)
    planned = table.dataset.io_stats_incremental()
    shape_m.require(index.num_rows == rows // _LABELS, f"{index.num_rows} rows are selected")

    def read_all() -> tuple[pa.Table, Any]:
        parts = [
            table.read(
                index.fragments, index.table_rows(shard), selection, index.row_size.mean_bytes
            )
            for shard in range(index.num_shards)
        ]
        return pa.concat_tables(parts), table.dataset.io_stats_incremental()

    found, first = read_all()
    _check(found, rows)
    _, again = read_all()
    return {
        "shards": index.num_shards,
        "rows": index.num_rows,
        "planned": planned.read_bytes,
        "first": first.read_bytes,
        "requests": again.read_iops,
        "bytes": again.read_bytes,
        "value_bytes": _value_bytes(found),
    }


def _check(found: pa.Table, rows: int) -> None:
    """See that the rows are those of the label, in order and exactly."""
    batches = [batch.filter(pc.field("label") == _LABEL) for batch in _batches(rows)]
    expected = pa.Table.from_batches(batches).select(found.schema.names)
    same = found.combine_chunks().equals(expected.combine_chunks())
    shape_m.require(same, "other rows came than were written")


def _value_bytes(table: pa.Table) -> int:
    """Bytes of the values alone, without offsets."""
    fixed = {"i": 8, "label": 4, "v": 4 * _VECTOR_LENGTH}
    return sum(
        fixed[name] * table.num_rows if name in fixed else sum(map(len, table[name].to_pylist()))
        for name in table.schema.names
    )


def _report(title: str, found: dict[str, float], whole_bytes: float, goal: float) -> bool:
    ratio = found["bytes"] / found["value_bytes"]
    reached = ratio <= goal
    verdict = f", goal <= {goal}: {'reached' if reached else 'MISSED'}" if goal < math.inf else ""
    print(
        f"{title}: {found['rows']:,} rows in {found['shards']} shards read with "
        f"{found['bytes']:,} bytes in {found['requests']:,} requests, for "
        f"{found['value_bytes']:,} bytes of values: ratio {ratio:.2f}{verdict}; "
        f"{found['bytes'] / whole_bytes:.2%} of the table. The first time "
        f"{found['first']:,} bytes; planning {found['planned']:,}.",
        flush=True,
    )
    return reached


def _measure(where: str, uri: str, rows: int, options: dict[str, str] | None) -> bool:
    arguments = {"uri": uri, "options": options}
    whole_bytes = rows * (shape_m.BLOB_BYTES + 4 * _VECTOR_LENGTH + 22)
    shape_m.run_child(__file__, "write", {**arguments, "rows": rows})
    try:
        reached = True
        for kind in ("no scalar index", "a scalar index"):
            if kind == "a scalar index":
                shape_m.run_child(__file__, "add_index", arguments)
            for title, columns in (("wide columns", WIDE), ("all columns", None)):
                found = shape_m.run_child(
                    __file__, "read", {**arguments, "rows": rows, "columns": columns}
                )
                goal = STORE_GOAL if options else GOAL
                reached &= _report(
                    f"{where}, {kind}, {title}", found, whole_bytes, goal if columns else math.inf
                )
        return reached
    finally:
        shape_m.run_child(__file__, "drop", arguments)


def main() -> None:
    tasks = (write, add_index, drop, read)
    shape_m.child_main({task.__name__: task for task in tasks})
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", type=int, default=1_000_000, help=f"of {_BATCH_ROWS} each")
    parser.add_argument("--endpoint", help="URL of an S3 server")
    parser.add_argument("--bucket", default="lance-stream-benchmarks", help="must exist")
    parser.add_argument("--region", default="us-east-1")
    options = parser.parse_args()
    if options.rows % _BATCH_ROWS:
        parser.error(f"--rows must be a multiple of {_BATCH_ROWS}")
    print(shape_m.versions())
    if options.endpoint:
        reached = _measure(
            "S3",
            f"s3://{options.bucket}/sparse_filter-{secrets.token_hex(4)}.lance",
            options.rows,
            {
                "endpoint": options.endpoint,
                "region": options.region,
                "allow_http": "true",
                "access_key_id": os.environ["AWS_ACCESS_KEY_ID"],
                "secret_access_key": os.environ["AWS_SECRET_ACCESS_KEY"],
            },
        )
    else:
        with tempfile.TemporaryDirectory(prefix="sparse_filter-") as directory:
            reached = _measure("local", f"{directory}/table.lance", options.rows, None)
    sys.exit(0 if reached else 1)


if __name__ == "__main__":
    main()
