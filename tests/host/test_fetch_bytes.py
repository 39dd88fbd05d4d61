"""Shards that are much larger than planned: counted as what they take, and every row is exact."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tests.support.lance_process import LanceProcess
from tests.support.scripts import run_script

# A sample of eight short runs sees none of the large rows.
_ROWS, _STEP, _LARGE = 2000, 250, range(170, 240)

_READ = """
import sys
from tests.support.streams import batches, dataset

data = dataset(sys.argv[1], shard_rows=50, local=sys.argv[2], batch_size=10)
# A tenth of the truth: of large rows, only their compressed bytes in the files are known.
assert data.streams[0].index.row_size.mean_bytes < 2000, data.streams[0].index.row_size
found = [(row["i"], len(row["s"])) for batch in batches(data, 2) for row in batch]
print(sorted(found) == [(i, size) for i, size in enumerate(map(int, sys.argv[3].split(",")))])
"""


def _sizes() -> list[int]:
    return [50_000 if i % _STEP in _LARGE else 1 for i in range(_ROWS)]


@pytest.mark.slow
def test_every_row_of_shards_that_give_way(lance_process: LanceProcess, tmp_path: Path) -> None:
    """The process may hold a megabyte at a time, and many shards are more than that."""
    rows: dict[str, Any] = {"i": range(_ROWS), "s": ["x" * size for size in _sizes()]}
    table = pa.table({name: pa.array(values) for name, values in rows.items()})
    uri = lance_process.write(table, rows_per_file=10)
    sizes = ",".join(map(str, _sizes()))
    env = {"LANCE_STREAM_MAX_FETCH_BYTES": str(1 << 20)}
    result = run_script(_READ, uri, tmp_path / "cache", sizes, env=env)
    assert result.check().stdout == "True\n"
