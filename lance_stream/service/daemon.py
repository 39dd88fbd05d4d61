"""Become the download process: take its lock, detach, then load and run the server.

``python -m lance_stream.service.daemon DIRECTORY``, started by the launcher only. Nothing heavy is
imported before the fork.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import logging
import os
import shutil
import signal
import sys
import time

from lance_stream.errors import DownloadProcessError
from lance_stream.service.environment import (
    MAX_FETCH_BYTES,
    MAX_FETCHES,
    METRICS_PORT,
    number,
)
from lance_stream.service.logbook import LogHandler
from lance_stream.service.runtime import Endpoint, locked

__all__ = ["main"]

logger = logging.getLogger(__name__)

_BOUND_LOG_EVERY_S = 1.0


def main(directory: str) -> None:
    """Be the download process of the endpoint in a directory; does not return."""
    endpoint = Endpoint(directory)
    ready, tell = os.pipe()
    if os.fork():
        # The starter sees this process exit when the lock is taken, or cannot be.
        os.close(tell)
        os.read(ready, 1)
        os._exit(0)
    os.close(ready)
    alive = os.open(endpoint.alive_path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.lockf(alive, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except (BlockingIOError, PermissionError):
        os._exit(0)
    os.close(tell)
    os.ftruncate(alive, 0)
    os.write(alive, str(os.getpid()).encode())
    # Ctrl-C in the trainer's terminal is not for this process: it ends with its clients.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    log = LogHandler(endpoint.log_path)
    logging.basicConfig(level=logging.INFO, handlers=[log])
    started = time.monotonic()
    try:
        _serve(endpoint, log)
    except BaseException:
        logger.exception("the download process failed")
    logger.info("ending after %.0f s", time.monotonic() - started)
    logging.shutdown()
    # Not sys.exit: a thread that hangs in Lance must not hold the process.
    os._exit(0)


async def _bound(log: LogHandler) -> None:
    while True:
        log.bound()
        await asyncio.sleep(_BOUND_LOG_EVERY_S)


def _serve(endpoint: Endpoint, log: LogHandler) -> None:
    # Only after the fork: threads of the libraries would not survive it.
    from lance_stream.source.pandas_later import put_off_pandas  # noqa: PLC0415

    put_off_pandas()
    from lance_stream.service.server import Limits, Server  # noqa: PLC0415

    default = Limits()
    limits = Limits(
        max_running=number(MAX_FETCHES, default.max_running),
        max_bytes=number(MAX_FETCH_BYTES, default.max_bytes),
        metrics_port=number(METRICS_PORT, default.metrics_port),
    )

    async def serve() -> bool:
        bounding = asyncio.create_task(_bound(log))
        try:
            return await Server(endpoint, limits).run()
        finally:
            bounding.cancel()

    if not asyncio.run(serve()):
        # Under the lock, so that nobody starts a process in a directory that is going away.
        with contextlib.suppress(DownloadProcessError), locked(endpoint.starting_path, 0.0):
            shutil.rmtree(endpoint.directory, ignore_errors=True)


if __name__ == "__main__":
    main(sys.argv[1])
