"""Who writes to a folder of a store that knows no locks: an object that is renewed.

The holder renews it while it runs. It is free once it was not renewed for a while, or at once if
its holder was a process of this machine that is gone. Two that begin in the same moment may both
miss the other; the later one wins, and the earlier one notices when it renews.
"""

from __future__ import annotations

import json
import os
import socket
import threading
import time
from collections.abc import Callable
from typing import Any, ClassVar

from lance_stream.errors import CacheInUseError
from lance_stream.export.plan import STATE_NAME
from lance_stream.offline.attempts import CallFailedError
from lance_stream.processes import is_alive, this_process

__all__ = ["StoreLease", "is_free"]

_RENEW_S = 15.0
# Clocks of two machines may differ by some of it.
_LAPSE_S = 120.0
_SETTLE_S = 0.2


def _machine() -> str:
    """Names where a pid means something: the host, and the namespace of its processes."""
    try:
        namespace = os.readlink("/proc/self/ns/pid")
    except OSError:
        namespace = ""
    return f"{socket.gethostname()} {namespace}"


def is_free(
    held: dict[str, Any] | None,
    machine: str,
    now_s: float,
    runs: Callable[[int, int], bool],
) -> bool:
    """Whether nobody holds a lease. Pure.

    Args:
        held: What the object says; None if there is none.
        machine: Names this machine.
        now_s: Unix time.
        runs: Tells from pid and start time whether a process of this machine runs.
    """
    if not held:
        return True
    try:
        if held["machine"] == machine and not runs(int(held["pid"]), int(held["started"])):
            return True
        return now_s - float(held["renewed"]) > _LAPSE_S
    except (KeyError, TypeError, ValueError):
        return True


class StoreLease:
    """The right to write to a folder."""

    NAME: ClassVar[str] = "lock.json"

    def __init__(
        self,
        read: Callable[[str], dict[str, Any] | None],
        write: Callable[[str, str], None],
        where: str,
        ended: threading.Event,
    ) -> None:
        """Take how to read and write an object of the folder.

        Args:
            read: Gives the JSON object of that name, or None.
            write: Writes text to that name.
            where: The folder, for messages.
            ended: Set when the export ends; no renewal is tried any more.
        """
        self._read, self._write = read, write
        self._where = where
        self._ended = ended
        self._path = f"{STATE_NAME}/{self.NAME}"
        pid, started = this_process()
        self._mine = {"machine": _machine(), "pid": pid, "started": started}
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._lost: str | None = None

    def take(self) -> None:
        """Take the lease and begin to renew it.

        Raises:
            CacheInUseError: Another export has it.
        """
        held = self._read(self._path)
        if not is_free(held, self._mine["machine"], time.time(), is_alive):
            raise CacheInUseError(self._refusal(held or {}))
        self._renew()
        # Who came in the same moment has written by now, over ours or under it.
        time.sleep(_SETTLE_S)
        self._check()
        self.require()
        self._thread = threading.Thread(target=self._keep, name="lance-stream-lease", daemon=True)
        self._thread.start()

    def require(self) -> None:
        """Raise CacheInUseError if another export has taken it over."""
        if self._lost is not None:
            raise CacheInUseError(self._lost)

    def stop(self) -> None:
        """Renew it no more."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join(5.0)

    def _keep(self) -> None:
        while not self._stop.wait(_RENEW_S) and not self._ended.is_set():
            try:
                self._check()
                if self._lost is not None:
                    return
                self._renew()
            except CallFailedError:
                continue  # It lapses only after many of these.
            except Exception:  # noqa: BLE001 - the export ends, and with it the requests
                return

    def _check(self) -> None:
        held = self._read(self._path) or {}
        if any(held.get(key) != value for key, value in self._mine.items()):
            self._lost = self._refusal(held)

    def _renew(self) -> None:
        self._write(self._path, json.dumps({**self._mine, "renewed": time.time()}))

    def _refusal(self, held: dict[str, Any]) -> str:
        machine = str(held.get("machine", "another machine")).split(" ")[0]
        return (
            f"another export to {self._where} is running, with pid {held.get('pid')} on "
            f"{machine}: wait until it has ended ({_LAPSE_S:g} s after it was killed), or choose "
            "another --out"
        )
