"""The same work on many shards, some at a time."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Generator, Sequence
from typing import TypeVar

__all__ = ["in_parallel"]

_T = TypeVar("_T")
# How long work in hand is waited for when it ends early.
_END_S = 5.0


def in_parallel(
    run: Callable[[int], _T], todo: Sequence[int], workers: int, stop: threading.Event
) -> Generator[tuple[int, _T], None, None]:
    """Results as they come; the first error ends it. Returns or raises when no worker is left.

    To be closed: one that is dropped with an error keeps its threads until it is collected.

    Args:
        run: The work on one number.
        todo: The numbers, taken in this order.
        workers: How many at a time.
        stop: Set when this ends early; ``run`` should look at it.

    Yields:
        Each number, and what ``run`` gave for it.

    Raises:
        BaseException: The first that ``run`` raised.
    """
    waiting: queue.SimpleQueue[int] = queue.SimpleQueue()
    for shard in todo:
        waiting.put(shard)
    results: queue.SimpleQueue[tuple[int, _T | BaseException]] = queue.SimpleQueue()

    def work() -> None:
        while not stop.is_set():
            try:
                shard = waiting.get_nowait()
            except queue.Empty:
                return
            try:
                results.put((shard, run(shard)))
            except BaseException as error:  # noqa: BLE001 - raised in the main thread
                results.put((shard, error))
                return

    count = min(workers, len(todo))
    # Daemons: interrupted work must not wait for them without end.
    threads = [
        threading.Thread(target=work, name="lance-stream-work", daemon=True) for _ in range(count)
    ]
    for thread in threads:
        thread.start()
    try:
        for _ in todo:
            # Each worker's calls have deadlines of their own.
            shard, result = results.get()
            if isinstance(result, BaseException):
                raise result
            yield shard, result
    except BaseException:
        stop.set()
        raise
    finally:
        deadline = time.monotonic() + _END_S
        for thread in threads:
            thread.join(max(0.0, deadline - time.monotonic()))
