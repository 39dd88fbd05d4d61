"""File systems that a test mounts, and what is skipped where that is not possible.

CI sets ``CI`` and runs as root: there nothing is skipped, a mount that fails is a failure.
"""

from __future__ import annotations

import ctypes
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

__all__ = ["as_root", "mounted", "own_shared_memory"]

_IN_CI = bool(os.environ.get("CI"))

as_root = pytest.mark.skipif(
    os.geteuid() != 0 and not _IN_CI, reason="only root may do this; CI runs as root"
)


def own_shared_memory() -> None:
    """Give this process, and those that it starts, a ``/dev/shm`` that no other process sees.

    Raises:
        OSError: This needs the rights of root.
    """
    new_mounts = 0x00020000
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(new_mounts) != 0:
        raise OSError(ctypes.get_errno(), "unshare(CLONE_NEWNS) failed")
    subprocess.run(["mount", "--make-rprivate", "/"], check=True)
    subprocess.run(["mount", "-t", "tmpfs", "tmpfs", "/dev/shm"], check=True)


@contextmanager
def mounted(folder: Path, options: str) -> Iterator[None]:
    """A small file system in memory, mounted at a folder that is there.

    Args:
        folder: Where.
        options: Of the mount, such as ``size=100k`` or ``ro``.
    """
    command = ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(folder)]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        (pytest.fail if _IN_CI else pytest.skip)(f"cannot mount: {done.stderr}")
    try:
        yield
    finally:
        subprocess.run(["umount", str(folder)], check=True)
