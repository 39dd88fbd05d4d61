"""Map a file into memory without keeping it open.

``mmap.mmap`` keeps a descriptor for each mapping, so that a thousand mapped shards would use up
what a process may have open.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import weakref

import pyarrow as pa

__all__ = ["map_readonly", "map_writable"]

_LIBC = ctypes.CDLL(None, use_errno=True)
_LIBC.mmap.restype = ctypes.c_void_p
_LIBC.mmap.argtypes = [
    ctypes.c_void_p,
    ctypes.c_size_t,
    ctypes.c_int,
    ctypes.c_int,
    ctypes.c_int,
    ctypes.c_long,
]
_LIBC.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
_FAILED = ctypes.c_void_p(-1).value


class _Mapping:
    """Unmaps when nothing refers to it any more."""

    __slots__ = ("__weakref__", "address", "size")

    def __init__(self, descriptor: int, size: int, protection: int) -> None:
        address = _LIBC.mmap(None, size, protection, mmap.MAP_SHARED, descriptor, 0)
        if address in (None, _FAILED):
            number = ctypes.get_errno()
            raise OSError(number, f"cannot map {size} bytes: {os.strerror(number)}")
        self.address, self.size = address, size
        weakref.finalize(self, _LIBC.munmap, address, size).atexit = False


def map_readonly(descriptor: int, size: int) -> pa.Buffer:
    """Map an open file for reading; the descriptor may be closed afterwards.

    Args:
        descriptor: The file.
        size: Its bytes, at least 1.

    Returns:
        A read-only buffer; the mapping lives as long as it or anything made from it.

    Raises:
        OSError: The kernel refuses.
    """
    mapping = _Mapping(descriptor, size, mmap.PROT_READ)
    return pa.foreign_buffer(mapping.address, size, base=mapping)


def map_writable(descriptor: int, size: int) -> tuple[memoryview, object]:
    """Map an open file for reading and writing, shared with other processes.

    Returns:
        Its bytes, and the mapping; it lives as long as either is referred to.

    Raises:
        OSError: The kernel refuses.
    """
    mapping = _Mapping(descriptor, size, mmap.PROT_READ | mmap.PROT_WRITE)
    array = (ctypes.c_char * size).from_address(mapping.address)
    # Views of the bytes refer to the array, and so keep the mapping.
    array.mapping = mapping  # type: ignore[attr-defined]
    return memoryview(array).cast("B"), mapping
