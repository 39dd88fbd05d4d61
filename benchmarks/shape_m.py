"""Rows of shape M, and processes of their own for whatever measures or imports lance.

Row ``i`` is a pure function of ``i``, so any process can check what it reads::

    i  int64                          i
    b  binary                         1024 random bytes
    s  string                         "row <i> " and 0 to 31 letters
    v  fixed_size_list<float32>[128]  random, in [0, 1)

Importing this module does not import lance.
"""

from __future__ import annotations

import importlib.metadata
import json
import os
import platform
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

SEED = 20_260
BLOB_BYTES = 1024
VECTOR_LENGTH = 128
SCHEMA = pa.schema(
    {
        "i": pa.int64(),
        "b": pa.binary(),
        "s": pa.string(),
        "v": pa.list_(pa.float32(), VECTOR_LENGTH),
    }
)

_LETTERS = "abcdefghijklmnopqrstuvwxyzabcdef"
_BATCH_ROWS = 2_000
_CHILD = "--child"


def row(i: int) -> dict[str, Any]:
    """Row ``i`` as a sample. Pure."""
    random = np.random.default_rng([SEED, i])
    return {
        "i": i,
        "b": random.bytes(BLOB_BYTES),
        "s": f"row {i} {_LETTERS[: random.integers(32)]}",
        "v": random.random(VECTOR_LENGTH, np.float32),
    }


def require(condition: bool, message: str) -> None:
    """Fail if a condition does not hold, with or without ``python -O``.

    Raises:
        AssertionError: It does not.
    """
    if not condition:
        raise AssertionError(message)


def check(sample: Mapping[str, Any]) -> None:
    """See that a sample is exactly the row that its id names.

    Raises:
        AssertionError: It is not.
    """
    expected = row(sample["i"])
    for name, value in expected.items():
        found = sample[name]
        same = type(found) is type(value) and (
            found.dtype == value.dtype and np.array_equal(found, value)
            if isinstance(value, np.ndarray)
            else found == value
        )
        require(same, f"row {sample['i']}, column {name}: {found!r} is not {value!r}")
    # In any order: MDS sorts its columns.
    require(sample.keys() == expected.keys(), f"columns {list(sample)} are not {list(expected)}")


def batches(num_rows: int) -> Iterator[pa.RecordBatch]:
    """The first ``num_rows`` rows as Arrow."""
    for start in range(0, num_rows, _BATCH_ROWS):
        rows = [row(i) for i in range(start, min(start + _BATCH_ROWS, num_rows))]
        yield pa.RecordBatch.from_arrays(
            [
                pa.array([r["i"] for r in rows], pa.int64()),
                pa.array([r["b"] for r in rows], pa.binary()),
                pa.array([r["s"] for r in rows], pa.string()),
                pa.FixedSizeListArray.from_arrays(
                    np.concatenate([r["v"] for r in rows]), VECTOR_LENGTH
                ),
            ],
            schema=SCHEMA,
        )


def write_lance(
    uri: str, num_rows: int, rows_per_fragment: int, options: dict[str, str] | None = None
) -> None:
    """Write the table. Imports lance: for a process of its own."""
    import lance

    reader = pa.RecordBatchReader.from_batches(SCHEMA, batches(num_rows))
    lance.write_dataset(reader, uri, max_rows_per_file=rows_per_fragment, storage_options=options)


def run_child(script: str, task: str, arguments: Mapping[str, Any]) -> Any:
    """Run a task of a script in a fresh interpreter (not a fork).

    Args:
        script: Its ``__file__``; its main must call ``child_main``.
        task: Name of the task.
        arguments: JSON values; on stdin, so that no command line shows credentials.

    Returns:
        What the task returned, through JSON.

    Raises:
        SystemExit: The task failed; its own error is on stderr.
    """
    # StreamingDataset never removes its lock files: they go with a directory of the child.
    with tempfile.TemporaryDirectory(prefix="benchmark-") as directory:
        child = subprocess.run(
            [sys.executable, script, _CHILD, task],
            input=json.dumps(arguments).encode(),
            stdout=subprocess.PIPE,
            env={**os.environ, "TMPDIR": directory},
            check=False,
        )
    if child.returncode:
        sys.exit(f"{Path(script).name}: {task} failed with status {child.returncode}")
    return json.loads(child.stdout.rpartition(b"RESULT ")[2])


def child_main(tasks: Mapping[str, Any]) -> None:
    """In a process made by ``run_child``: do the task and end. Else return at once."""
    if sys.argv[1:2] == [_CHILD]:
        result = tasks[sys.argv[2]](**json.load(sys.stdin))
        print("RESULT " + json.dumps(result))
        sys.exit(0)


def versions() -> str:
    """Versions of what the numbers depend on, without importing it."""
    names = [
        "lance-stream", "pylance", "mosaicml-streaming", "filelock", "pyarrow", "numpy", "torch",
    ]  # fmt: skip
    found = []
    for name in names:
        try:
            found.append(f"{name} {importlib.metadata.version(name)}")
        except importlib.metadata.PackageNotFoundError:
            found.append(f"{name} (not installed)")
    return f"Python {platform.python_version()}, " + ", ".join(found)
