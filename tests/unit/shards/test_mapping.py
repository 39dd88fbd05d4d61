from __future__ import annotations

import gc
import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from lance_stream.shards.mapping import map_readonly, map_writable


def _map(path: Path, size: int | None = None) -> pa.Buffer:
    with path.open("rb") as file:
        return map_readonly(
            file.fileno(), os.fstat(file.fileno()).st_size if size is None else size
        )


def _is_mapped(path: Path) -> bool:
    gc.collect()
    return str(path) in Path("/proc/self/maps").read_text()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "file"
    path.write_bytes(bytes(range(256)) * 40)
    return path


def test_a_mapping_has_the_bytes_of_the_file_and_no_descriptor(path: Path) -> None:
    before = len(os.listdir("/proc/self/fd"))
    buffers = [_map(path) for _ in range(20)]
    assert {buffer.to_pybytes() for buffer in buffers} == {path.read_bytes()}
    assert len(os.listdir("/proc/self/fd")) == before


def test_a_readonly_mapping_cannot_be_written(path: Path) -> None:
    buffer = _map(path)
    assert not buffer.is_mutable
    assert memoryview(buffer).readonly
    assert not np.frombuffer(buffer, np.uint8).flags.writeable


def test_the_bytes_outlive_the_file(path: Path) -> None:
    buffer = _map(path)
    path.unlink()
    assert buffer.to_pybytes() == bytes(range(256)) * 40


@pytest.mark.parametrize(
    "view",
    [
        lambda buffer: buffer,
        lambda buffer: buffer.slice(100, 10),
        memoryview,
        lambda buffer: memoryview(buffer)[5:],
        lambda buffer: np.frombuffer(buffer, np.uint8)[3:],
        lambda buffer: pa.Array.from_buffers(pa.uint8(), 10, [None, buffer]),
        lambda buffer: pa.Array.from_buffers(pa.uint8(), 10, [None, buffer]).to_numpy(),
    ],
)
def test_a_file_is_mapped_as_long_as_anything_looks_at_it(
    path: Path, view: Callable[[pa.Buffer], object]
) -> None:
    kept = view(_map(path))
    assert _is_mapped(path)
    assert bytes(memoryview(kept)[:1] if not isinstance(kept, pa.Array) else b"x")  # type: ignore[arg-type]
    del kept
    assert not _is_mapped(path)


def test_a_writable_mapping_is_shared(path: Path) -> None:
    with path.open("r+b") as file:
        one, hold_one = map_writable(file.fileno(), 4096)
        other, hold_other = map_writable(file.fileno(), 4096)
    one[7] = 99
    assert other[7] == path.read_bytes()[7] == 99
    words = one.cast("q")
    words[1] = -5
    assert other.cast("q")[1] == -5
    del one, other, words, hold_one, hold_other
    assert not _is_mapped(path)


def test_what_cannot_be_mapped_is_an_os_error(path: Path) -> None:
    with pytest.raises(OSError, match="cannot map 0 bytes: Invalid argument"):
        _map(path, 0)
    with path.open("rb") as file, pytest.raises(OSError, match="cannot map 100 bytes: Permission"):
        map_writable(file.fileno(), 100)


def test_a_forked_child_does_not_unmap_for_its_parent(
    path: Path, run_python: Callable[..., str]
) -> None:
    script = """
import os, sys
from lance_stream.shards.mapping import map_readonly
descriptor = os.open(sys.argv[1], os.O_RDONLY)
buffer = map_readonly(descriptor, os.fstat(descriptor).st_size)
child = os.fork()
if not child:
    del buffer
    os._exit(0)
os.waitpid(child, 0)
print(buffer[5])
"""
    assert run_python(script, str(path)) == "5\n"
