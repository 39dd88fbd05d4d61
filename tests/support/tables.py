"""Lance tables whose every value is known.

The table T(n, per) has n rows in files of ``per`` rows; row i is ``expected_row(i)``:

    i  int64                        i
    s  string                       "row <i> " and 0 to 16 letters
    v  fixed_size_list<float32>[8]  i + k / 8 for k in 0..7; exact below 2 million rows

Lance is not fork-safe and DataLoader workers are forked from the pytest process, so `write_table`
writes in a process of its own: importing this module does not import lance.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from tests.support.scripts import run_script

if TYPE_CHECKING:
    import pyarrow as pa

COLUMNS = ("i", "s", "v")
VECTOR_LENGTH = 8

_BATCH_ROWS = 50_000
_LETTERS = "abcdefghijklmnop"
_REQUEST = "LANCE_STREAM_TESTS_TABLE"
_SCRIPT = "from tests.support.tables import main\nmain()\n"


def expected_row(i: int, columns: Sequence[str] = COLUMNS) -> dict[str, Any]:
    """The exact sample of row i: int, str and a float32 array of 8. Pure."""
    row = {"i": i, "s": _string(i), "v": _vectors(i, i + 1)[0]}
    return {name: row[name] for name in columns}


def assert_row(row: Mapping[str, Any], i: int, columns: Sequence[str] = COLUMNS) -> None:
    """Checks that a sample is exactly row i: columns and their order, types, values.

    Raises:
        AssertionError: It is not; shows both.
    """
    expected = expected_row(i, columns)
    same = list(row) == list(expected) and all(
        _same_value(row[name], value) for name, value in expected.items()
    )
    if not same:
        raise AssertionError(f"row {i}: expected {expected}, got {dict(row)}")


def write_table(
    uri: str,
    n: int,
    rows_per_file: int,
    *,
    storage_options: Mapping[str, str] | None = None,
    columns: Sequence[str] = COLUMNS,
    first_row: int = 0,
    mode: Literal["create", "append", "overwrite"] = "create",
    timeout_s: float = 120,
) -> int:
    """Writes T(n, rows_per_file) in a process of its own (about 0.5 s).

    Args:
        uri: Where, a path or URL.
        n: Number of rows.
        rows_per_file: The most rows of one file, hence of one fragment.
        storage_options: For object stores; passed on by environment, never on a command line.
        columns: Some of `COLUMNS`, in the order wanted.
        first_row: The first i, for a table that grows: rows [first_row, first_row + n).
        mode: As in ``lance.write_dataset``.
        timeout_s: For the whole process.

    Returns:
        The version written.

    Raises:
        AssertionError: The write failed or took too long; shows the output of the process.
    """
    request = {
        "uri": str(uri),
        "n": n,
        "rows_per_file": rows_per_file,
        "storage_options": None if storage_options is None else dict(storage_options),
        "columns": list(columns),
        "first_row": first_row,
        "mode": mode,
    }
    result = run_script(_SCRIPT, timeout_s=timeout_s, env={_REQUEST: json.dumps(request)})
    return int(result.json())


def write_table_here(
    uri: str,
    n: int,
    rows_per_file: int,
    *,
    storage_options: dict[str, str] | None = None,
    columns: Sequence[str] = COLUMNS,
    first_row: int = 0,
    mode: str = "create",
) -> int:
    """As `write_table`, in this process, which imports lance: for scripts only."""
    import lance
    import pyarrow as pa

    schema = pa.schema([(name, _array(name, 0, 0).type) for name in columns])
    reader = pa.RecordBatchReader.from_batches(schema, _batches(schema, first_row, first_row + n))
    dataset = lance.write_dataset(
        reader,
        uri,
        mode=mode,
        max_rows_per_file=rows_per_file,
        storage_options=storage_options,
    )
    return int(dataset.version)


def main() -> None:
    """Carries out the request of `write_table` and prints the version."""
    request = json.loads(os.environ[_REQUEST])
    os.write(1, f"{write_table_here(**request)}\n".encode())


def _batches(schema: pa.Schema, start: int, stop: int) -> Iterator[pa.RecordBatch]:
    import pyarrow as pa

    for low in range(start, stop, _BATCH_ROWS):
        high = min(low + _BATCH_ROWS, stop)
        arrays = [_array(name, low, high) for name in schema.names]
        yield pa.record_batch(arrays, schema=schema)


def _array(name: str, start: int, stop: int) -> pa.Array:
    import pyarrow as pa

    if name == "i":
        return pa.array(range(start, stop), pa.int64())
    if name == "s":
        return pa.array([_string(i) for i in range(start, stop)], pa.string())
    if name == "v":
        values = pa.array(_vectors(start, stop).ravel(), pa.float32())
        return pa.FixedSizeListArray.from_arrays(values, VECTOR_LENGTH)
    raise ValueError(f"column {name!r} is none of {COLUMNS}")


def _string(i: int) -> str:
    return f"row {i} {_LETTERS[: i % 17]}"


def _vectors(start: int, stop: int) -> np.ndarray[Any, np.dtype[np.float32]]:
    rows = np.arange(start, stop, dtype=np.float64)[:, None]
    return (rows + np.arange(VECTOR_LENGTH) / 8).astype(np.float32)


def _same_value(value: Any, expected: Any) -> bool:
    if isinstance(expected, np.ndarray):
        return (
            isinstance(value, np.ndarray)
            and value.dtype == expected.dtype
            and np.array_equal(value, expected)
        )
    return type(value) is type(expected) and bool(value == expected)
