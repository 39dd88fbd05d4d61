"""Whether batches of an Arrow file are compressed, without unpacking them."""

from __future__ import annotations

import io

import pyarrow as pa
import pytest

from lance_stream.shards.arrow_blocks import has_compressed_batches

TABLE = pa.table(
    {
        "id": range(1000),
        "text": ["x" * 20] * 1000,
        "word": pa.array(["a", "b"] * 500).dictionary_encode(),
        "ragged": [[1.5] * 3, []] * 500,
    }
)


def written(table: pa.Table, compression: str | None = None, rows: int = 300) -> bytes:
    sink = io.BytesIO()
    options = pa.ipc.IpcWriteOptions(compression=compression)
    with pa.ipc.new_file(sink, table.schema, options=options, metadata={b"a": b"b"}) as writer:
        for batch in table.to_batches(max_chunksize=rows):
            writer.write_batch(batch)
    return sink.getvalue()


@pytest.mark.parametrize("compression", [None, "zstd", "lz4"])
@pytest.mark.parametrize("columns", [["id"], ["text", "ragged"], ["word"], TABLE.column_names])
def test_compressed_batches_are_found(compression: str | None, columns: list[str]) -> None:
    content = written(TABLE.select(columns), compression)
    assert pa.ipc.open_file(content).num_record_batches == 4
    assert has_compressed_batches(memoryview(content)) is (compression is not None)


@pytest.mark.parametrize("table", [TABLE.slice(0, 0), TABLE.select([])])
def test_without_rows_or_columns(table: pa.Table) -> None:
    assert not has_compressed_batches(memoryview(written(table)))


def test_what_is_no_arrow_file_raises_nothing() -> None:
    content = written(TABLE)
    assert has_compressed_batches(memoryview(b""))
    assert has_compressed_batches(memoryview(b"x" * 1000))
    assert has_compressed_batches(memoryview(content[:-1]))
    for at in range(len(content) - 1500, len(content)):
        damaged = bytearray(content)
        damaged[at] ^= 0xFF
        assert has_compressed_batches(memoryview(damaged)) in (True, False)
