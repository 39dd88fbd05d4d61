"""The samples of an MDS shard: one function per shard, generated from its columns. Pure."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from decimal import Decimal
from functools import lru_cache
from typing import Any

import numpy as np
import pyarrow as pa

from lance_stream.errors import ShardCorruptError
from lance_stream.shards.mds_columns import MdsColumn, mds_columns

__all__ = ["mds_samples"]

# By the encoding of a number. Not numpy's codes, of which some depend on the machine.
_STRUCT_CODES = {
    "int8": "b",
    "int16": "h",
    "int32": "i",
    "int64": "q",
    "uint8": "B",
    "uint16": "H",
    "uint32": "I",
    "uint64": "Q",
    "float16": "e",
    "float32": "f",
    "float64": "d",
}
# How JSON's true begins.
_TRUE = ord("t")


def mds_samples(
    data: memoryview | pa.Buffer | bytes, schema: pa.Schema, *, zero_copy: bool
) -> Callable[[int], dict[str, Any]]:
    """Make the function that gives the sample of a row.

    Values are those that an Arrow shard of the schema gives.

    Args:
        data: The file; stays valid as long as the function, or a view that it gave, lives.
        schema: Columns of a sample, in order, as the file was written of.
        zero_copy: Arrays are read-only: views of the data where it is aligned for their dtype,
            else copies. Otherwise they are owned and writable.

    Returns:
        ``row -> {column name: value}``; rows from 0.

    Raises:
        ShardCorruptError: The data is not an MDS shard of such columns. Values are checked only
            as far as their sizes go.
        UnsupportedTypeError: MDS cannot hold a column of the schema.
    """
    view = memoryview(data).cast("B").toreadonly()
    columns = mds_columns(schema)
    starts = _verified_starts(view, columns)
    source, names = _source(columns, tuple(schema.names))
    values = [_bound(name, view, columns, zero_copy=zero_copy) for name in names]
    return _compiled(source)(view, starts, *values)


def _verified_starts(view: memoryview, columns: list[MdsColumn]) -> memoryview:
    """Where each sample begins.

    Raises:
        ShardCorruptError: The file is not what the columns say.
    """
    if len(view) < 8:
        raise _corrupt(f"it has {len(view)} bytes")
    num_rows = int.from_bytes(view[:4], "little")
    config_at = 4 * (num_rows + 2)
    if config_at > len(view):
        raise _corrupt(f"{len(view)} bytes are too few for {num_rows} samples")
    offsets = np.frombuffer(view[4:config_at], "<u4").astype(np.int64)
    lengths = np.diff(offsets)
    if offsets[0] < config_at or offsets[-1] != len(view) or (lengths < 0).any():
        raise _corrupt(f"the offsets of its {num_rows} samples do not fit its {len(view)} bytes")
    _check_config(view[config_at : offsets[0]], columns)
    heads = 4 * sum(column.size is None for column in columns)
    fixed = sum(column.size or 0 for column in columns)
    if (lengths < heads + fixed).any():
        raise _corrupt("a sample is shorter than its columns")
    at = offsets[:-1, None] + np.arange(heads)
    sizes = np.frombuffer(view, np.uint8)[at].view("<u4").sum(axis=1, dtype=np.int64)
    wrong = np.flatnonzero(sizes + heads + fixed != lengths)
    if len(wrong):
        raise _corrupt(f"the values of sample {wrong[0]} do not have the size of the sample")
    return view[4 : config_at - 4].cast("I")


def _check_config(text: memoryview, columns: list[MdsColumn]) -> None:
    expected = {
        "version": 2,
        "format": "mds",
        "column_names": [column.name for column in columns],
        "column_encodings": [column.encoding for column in columns],
        "column_sizes": [column.size for column in columns],
    }
    try:
        config = json.loads(bytes(text))
    except (ValueError, RecursionError) as error:
        raise _corrupt(f"its configuration is not JSON: {error}") from error
    for key, value in expected.items():
        found = config.get(key) if isinstance(config, dict) else None
        if found != value:
            raise _corrupt(f"its {key} should be {value} but is {found}")


def _corrupt(why: str) -> ShardCorruptError:
    return ShardCorruptError(f"not an MDS shard of these columns: {why}")


def _source(columns: list[MdsColumn], order: tuple[str, ...]) -> tuple[str, list[str]]:
    """Source of what makes the function, and what it is bound to.

    The source holds nothing of the data but column names, as their ``repr``. It is bound to
    ``struct:<format>`` readers of consecutive numbers, and a reader for each array column.
    """
    variable = [number for number, column in enumerate(columns) if column.size is None]
    body, bound, expressions = ["p = starts[r]"], [], {}
    base, offset = "p", 0
    # The sizes and each run of numbers are read at once.
    run: list[str] = [f"s{number}" for number in variable]
    codes = "I" * len(variable)

    def read_run() -> None:
        nonlocal run, codes, offset
        if run:
            bound.append(f"struct:<{codes}")
            body.append(f"{', '.join(run)}, = b{len(bound) - 1}(data, {base} + {offset})")
            offset += struct.calcsize(f"<{codes}")
        run, codes = [], ""

    for number, column in enumerate(columns):
        if column.kind == "number":
            run.append(f"v{number}")
            codes += _STRUCT_CODES[column.encoding]
            expressions[column.name] = f"v{number}"
            continue
        read_run()
        if column.size is not None:
            bound.append(f"array:{number}")
            expressions[column.name] = f"b{len(bound) - 1}({base} + {offset})"
            offset += column.size
            continue
        # Where the value begins, and where it ends.
        body.append(f"q{number} = {base} + {offset}")
        body.append(f"e{number} = q{number} + s{number}")
        base, offset = f"e{number}", 0
        part = f"data[q{number}:e{number}]"
        if column.kind == "ragged":
            bound.append(f"ragged:{number}")
        elif column.kind == "decimal":
            bound.append("decimal:")
        expressions[column.name] = {
            "bool": f"data[q{number}] == {_TRUE}",
            "text": f"str({part}, 'utf-8')",
            "bytes": f"{part}.tobytes()",
            "decimal": f"b{len(bound) - 1}(str({part}, 'ascii'))",
            "ragged": f"b{len(bound) - 1}(q{number}, e{number})",
        }[column.kind]
    read_run()
    items = ", ".join(f"{name!r}: {expressions[name]}" for name in order)
    names = ", ".join(["data", "starts", *(f"b{number}" for number in range(len(bound)))])
    lines = [*body, f"return {{{items}}}"]
    inner = "\n".join(f"        {line}" for line in lines)
    return f"def make({names}):\n    def get(r):\n{inner}\n    return get", bound


def _bound(name: str, view: memoryview, columns: list[MdsColumn], *, zero_copy: bool) -> Any:
    kind, _, detail = name.partition(":")
    if kind == "struct":
        return struct.Struct(detail).unpack_from
    if kind == "decimal":
        return Decimal
    column = columns[int(detail)]
    make = _array if kind == "array" else _ragged
    return make(view, column, _readonly if zero_copy else np.ndarray.copy)


def _readonly(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """The view itself; a copy if its address is not one for its dtype."""
    if not array.flags.aligned:
        array = array.copy()
        array.flags.writeable = False
    return array


_Finish = Callable[[np.ndarray[Any, Any]], np.ndarray[Any, Any]]


def _array(view: memoryview, column: MdsColumn, finish: _Finish) -> Callable[[int], Any]:
    shape, dtype = column.shape, column.dtype
    return lambda at: finish(np.ndarray(shape, dtype, view, at))


def _ragged(view: memoryview, column: MdsColumn, finish: _Finish) -> Callable[[int, int], Any]:
    shape, dtype, dimensions = column.shape, np.dtype(column.dtype), 1 + len(column.shape)
    item_bytes = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize

    def get(begin: int, end: int) -> Any:
        first = view[begin] if begin < end else 0
        width = 1 << (first & 3)
        at = begin + 1 + dimensions * width
        length = int.from_bytes(view[begin + 1 : begin + 1 + width], "little")
        if first >> 2 != dimensions or at + length * item_bytes != end:
            raise _corrupt(f"column {column.name!r}: an array does not have the size of its shape")
        return finish(np.ndarray((length, *shape), dtype, view, at))

    return get


@lru_cache(maxsize=256)
def _compiled(source: str) -> Callable[..., Callable[[int], dict[str, Any]]]:
    """Compile the source once for all shards of a stream."""
    namespace: dict[str, Any] = {}
    exec(source, namespace)  # noqa: S102
    return namespace["make"]
