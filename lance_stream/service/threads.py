"""Work in threads of their own, so that a call that hangs can be left behind."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import threading
from collections.abc import Callable
from typing import TypeVar

import pyarrow as pa

__all__ = ["in_thread"]

_T = TypeVar("_T")


def in_thread(work: Callable[[], _T], done: Callable[[_T | BaseException], None]) -> None:
    """Run something in a daemon thread; called on an event loop.

    Args:
        work: What to do.
        done: Gets its result, or what it raised, on the loop.
    """
    loop = asyncio.get_running_loop()

    def run() -> None:
        result: _T | BaseException
        try:
            result = work()
        except BaseException as error:  # noqa: BLE001
            # Lance panics are not Exceptions.
            result = error
        # The loop may have ended meanwhile: then nobody waits.
        with contextlib.suppress(RuntimeError):
            loop.call_soon_threadsafe(done, result)
        del result
        # The main thread and this one: nothing else is being done.
        if threading.active_count() <= 2:
            _give_memory_back()

    threading.Thread(target=run, daemon=True).start()


def _give_memory_back() -> None:
    """Return freed memory to the system, so that an idle process is small."""
    pa.default_memory_pool().release_unused()
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL("libc.so.6").malloc_trim(0)
