"""Rows of four shapes, written as a Lance table and as MDS with the same shards.

    S   20 float32 and an int64 label
    M   int64 id, 1 KB of bytes, 128 float32, text
    T   2,048 int32
    L   100 KB of bytes and an int64 label

Every value is a pure function of a seed and the row, so a reader that is fast and wrong is seen.
Importing this module does not import lance.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

_SEED = 20_260
CHUNK_ROWS = 1_000


@dataclass(frozen=True, slots=True)
class Shape:
    """How many rows, in shards of how many, and their columns as MDS has them."""

    name: str
    rows: int
    shard_rows: int
    mds: dict[str, str]


SHAPES = {
    "S": Shape("S", 300_000, 91_000, {**{f"f{i:02d}": "float32" for i in range(20)}, "i": "int"}),
    "M": Shape(
        "M", 60_000, 5_000, {"i": "int", "b": "bytes", "v": "ndarray:float32:128", "s": "str"}
    ),
    "T": Shape("T", 16_000, 1_000, {"i": "int", "t": "ndarray:int32:2048"}),
    "L": Shape("L", 4_000, 80, {"b": "bytes", "i": "int"}),
}


def chunks(shape: Shape) -> Iterator[pa.Table]:
    """All rows, some at a time."""
    for start in range(0, shape.rows, CHUNK_ROWS):
        yield chunk(shape, start)


def chunk(shape: Shape, start: int) -> pa.Table:
    """The rows from ``start``, a multiple of ``CHUNK_ROWS``, to the next one."""
    name, count = shape.name, min(CHUNK_ROWS, shape.rows - start)
    random = np.random.default_rng([_SEED, start])
    ids = pa.array(np.arange(start, start + count))
    if name == "S":
        floats = random.random((20, count), np.float32)
        return pa.table({**{f"f{i:02d}": floats[i] for i in range(20)}, "i": ids})
    if name == "M":
        vectors = pa.array(random.random(count * 128, np.float32))
        return pa.table(
            {
                "i": ids,
                "b": pa.array([random.bytes(1024) for _ in range(count)], pa.binary()),
                "v": pa.FixedSizeListArray.from_arrays(vectors, 128),
                "s": [f"row {start + i} of a table" for i in range(count)],
            }
        )
    if name == "T":
        tokens = pa.array(random.integers(0, 50_000, count * 2048, np.int32))
        return pa.table({"i": ids, "t": pa.FixedSizeListArray.from_arrays(tokens, 2048)})
    return pa.table(
        {"b": pa.array([random.bytes(100_000) for _ in range(count)], pa.binary()), "i": ids}
    )


def write_lance(directory: str, name: str) -> None:
    """Task: the rows as a Lance table."""
    import lance

    shape = SHAPES[name]
    for rows in chunks(shape):
        lance.write_dataset(rows, f"{directory}/{name}.lance", mode="append")
    dataset = lance.dataset(f"{directory}/{name}.lance")
    dataset.optimize.compact_files(target_rows_per_fragment=max(shape.rows // 5, 1))


def write_mds(directory: str, name: str, rows: int | None = None) -> None:
    """Task: the rows as MDS, with as many rows in a shard as the Lance side."""
    from streaming import MDSWriter

    shape, number = SHAPES[name], 0
    if rows is not None:
        shape = replace(shape, rows=rows)
    out = f"{directory}/{name}.mds"
    with MDSWriter(out=out, columns=shape.mds, size_limit=None) as writer:
        for chunked in chunks(shape):
            for row in samples(chunked):
                if number and number % shape.shard_rows == 0:
                    writer.flush_shard()
                    writer._reset_cache()
                writer.write(row)
                number += 1


def samples(rows: pa.Table) -> Iterator[dict[str, Any]]:
    """The rows as MDS has them: numbers, bytes, text and arrays."""
    columns: dict[str, Any] = {}
    for field in rows.schema:
        column = rows.column(field.name).combine_chunks()
        if pa.types.is_fixed_size_list(field.type):
            columns[field.name] = column.flatten().to_numpy().reshape(len(column), -1)
        elif pa.types.is_float32(field.type):
            columns[field.name] = column.to_numpy()
        else:
            columns[field.name] = column.to_pylist()
    for row in range(rows.num_rows):
        yield {name: column[row] for name, column in columns.items()}


def check_id(name: str, sample: dict[str, Any]) -> bool:
    """Whether a sample of shape M, T or L is plausible for its id; cheap, for use in loops."""
    return name != "M" or sample["s"] == f"row {sample['i']} of a table"


def written(directory: str, name: str) -> Path:
    """File that is there once both data sets are complete."""
    return Path(directory, f"{name}.written")
