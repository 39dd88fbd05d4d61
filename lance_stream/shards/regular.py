"""Open files in a cache directory that somebody else may have planted something in.

A pipe would be waited for, a link may lead anywhere: only what is a plain file is opened.
"""

from __future__ import annotations

import errno
import os
import stat

from lance_stream.errors import ShardCorruptError

__all__ = ["open_regular", "read_regular"]

# What opening a link that is not followed, and a socket, gives.
_NOT_PLAIN = (errno.ELOOP, errno.EMLINK, errno.ENXIO)


def open_regular(path: str) -> int:
    """Open a plain file for reading; returns a descriptor, to be closed by the caller.

    Raises:
        FileNotFoundError: There is nothing of that name.
        ShardCorruptError: It is a pipe, a link, a device or a socket.
        OSError: It cannot be opened, or is a directory.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError as error:
        if error.errno in _NOT_PLAIN:
            raise ShardCorruptError(_said(path)) from error
        raise
    mode = os.fstat(descriptor).st_mode
    if stat.S_ISREG(mode):
        return descriptor
    os.close(descriptor)
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
    raise ShardCorruptError(_said(path))


def read_regular(path: str) -> bytes:
    """The content of a plain file. Raises as ``open_regular``."""
    with open(open_regular(path), "rb") as file:
        return file.read()


def _said(path: str) -> str:
    return f"{path}: not a plain file, but a link, a pipe or a device"
