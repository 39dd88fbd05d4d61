"""Compare the rows of a shard file with those of the table, value by value. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from lance_stream.shards.arrow_file import ArrowShard
from lance_stream.shards.samples import sample_decoder
from lance_stream.shards.shard_file import OpenShard

__all__ = ["first_difference"]

_SHOWN = 60


def first_difference(file: OpenShard, table: pa.Table) -> str | None:
    """Where the rows of a file first differ from those of the table, in words; None: nowhere.

    Args:
        file: Open, and known to have as many rows and the same columns.
        table: The rows as they should be.
    """
    # NaN is not equal to itself in Arrow: what seems to differ is looked at closer.
    if isinstance(file, ArrowShard) and pa.Table.from_batches(file.batches).equals(table):
        return None
    found, row = file.samples(zero_copy=True), 0
    for batch in table.to_batches():
        expected = sample_decoder(batch, zero_copy=True)
        for at in range(batch.num_rows):
            ours, theirs = found(row), expected(at)
            for name, value in theirs.items():
                if not _same(ours.get(name), value):
                    return (
                        f"row {row} of the shard, column {name!r}: {_shown(ours.get(name))} in "
                        f"the file, {_shown(value)} in the table"
                    )
            row += 1
    return None


def _same(found: Any, expected: Any) -> bool:
    """Whether two sample values are the same: in type, and NaN as NaN."""
    if type(found) is not type(expected):
        return False
    if isinstance(expected, np.ndarray):
        same = found.dtype == expected.dtype and found.shape == expected.shape
        return same and found.tobytes() == expected.tobytes()
    if isinstance(expected, Mapping):
        return found.keys() == expected.keys() and all(
            _same(found[key], value) for key, value in expected.items()
        )
    if isinstance(expected, Sequence) and not isinstance(expected, str | bytes):
        return len(found) == len(expected) and all(map(_same, found, expected))
    if isinstance(expected, float) and expected != expected:
        return found != found
    return bool(found == expected) or repr(found) == repr(expected)


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= _SHOWN else f"{text[: _SHOWN - 3]}..."
