"""One Arrow IPC file that holds a JSON header and named arrays, with a checksum. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

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
        pa.LargeListArray.from_arrays(pa.array([0, len(a)], pa.int64()), pa.array(a))
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
    return {
        name: batch.column(i).flatten().to_numpy(zero_copy_only=True)
        for i, name in enumerate(batch.schema.names)
    }
