"""One Arrow IPC file that holds a JSON header and named arrays, with a checksum. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from lance_stream.planning.checksum import Checksum, footer

__all__ = ["DAMAGE", "is_intact", "pack", "unpack", "unpack_header"]

_CHECK = b"lance_stream.check"

# What reading a file that is not one of ours raises.
DAMAGE: tuple[type[Exception], ...] = (
    AttributeError,
    IndexError,
    KeyError,
    TypeError,
    ValueError,
    OSError,
    pa.ArrowException,
)


def pack(key: bytes, header: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]]) -> bytes:
    """Encode.

    Args:
        key: Metadata key that names the kind of file.
        header: JSON values.
        arrays: One-dimensional arrays of numbers.
    """
    columns = [
        pa.LargeListArray.from_arrays(_array(np.array([0, len(a)], np.int64)), _array(a))
        for a in arrays.values()
    ]
    text = json.dumps(header).encode()
    batch = pa.RecordBatch.from_arrays(columns, names=list(arrays))
    batch = batch.replace_schema_metadata({key: text})
    check = Checksum(text)
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, batch.schema, metadata={_CHECK: check.placeholder()}) as writer:
        writer.write_batch(batch)
    content = bytearray(sink.getvalue())
    view = memoryview(content)
    at = check.locate(view, *footer(view))
    digits = check.compute(view, at)
    content[at : at + len(digits)] = digits
    return bytes(content)


def unpack_header(key: bytes, data: pa.Buffer | bytes) -> tuple[dict[str, Any], bytes]:
    """The header, and its text; one of ``DAMAGE`` if there is none."""
    with pa.ipc.open_file(pa.py_buffer(data)) as reader:
        text = (reader.schema.metadata or {})[key]
        return dict(json.loads(text)), text


def is_intact(data: pa.Buffer | bytes, text: bytes) -> bool:
    """Whether the checksum of a file with that header text is right."""
    view = memoryview(data)
    return Checksum(text).is_intact(view, *footer(view))


def unpack(data: pa.Buffer | bytes) -> dict[str, NDArray[Any]]:
    """The arrays, as views of the data; one of ``DAMAGE`` if they cannot be read."""
    with pa.ipc.open_file(pa.py_buffer(data)) as reader:
        batch = reader.get_batch(0)
    return {name: _numbers(batch.column(i).flatten()) for i, name in enumerate(batch.schema.names)}


# Not by pyarrow's own conversions: where pandas is installed, their first call imports it, which
# takes the trainer half a second.


def _array(numbers: NDArray[Any]) -> pa.Array:
    kind = pa.from_numpy_dtype(numbers.dtype)
    content = pa.py_buffer(np.ascontiguousarray(numbers))
    return pa.Array.from_buffers(kind, len(numbers), [None, content])


def _numbers(array: pa.Array) -> NDArray[Any]:
    if array.null_count:
        raise ValueError(f"{array.null_count} nulls where there are none")
    dtype = np.dtype(array.type.to_pandas_dtype())
    start = array.offset * dtype.itemsize
    return np.frombuffer(array.buffers()[1] or b"", dtype, len(array), start)
