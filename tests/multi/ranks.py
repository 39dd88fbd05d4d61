"""Ranks of one job on this machine, as processes that the tests watch.

Most ranks are forks of the pytest process, which has torch and streaming loaded: that saves 6 s
per launch. One test starts real interpreters instead, and one uses torchrun.
"""

from __future__ import annotations

import os
import shutil
import socket
import tempfile
import time
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any

from tests.support.forked import Forked, fork
from tests.support.mounts import own_shared_memory
from tests.support.scripts import RunningScript

__all__ = ["ForkedRanks", "environment", "free_port", "json_results"]


def free_port() -> int:
    """A port on 127.0.0.1 that nobody listens on at this moment."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def environment(rank: int, size: int, port: int, *, per_node: int | None = None) -> dict[str, str]:
    """What a launcher tells a rank; by default all ranks are of one node."""
    per_node = per_node or size
    return {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank % per_node),
        "WORLD_SIZE": str(size),
        "LOCAL_WORLD_SIZE": str(per_node),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        # Without an interface named, gloo asks the resolver for the host's own name.
        "GLOO_SOCKET_IFNAME": "lo",
        "OMP_NUM_THREADS": "1",
    }


def json_results(scripts: Sequence[RunningScript], timeout_s: float) -> list[Any]:
    """What the ranks that are scripts have printed last.

    Raises:
        AssertionError: One failed, which need not be the one that others wait for; or none ended.
    """
    deadline_s = time.monotonic() + timeout_s
    while any(script.poll() is None for script in scripts) and time.monotonic() < deadline_s:
        for script in scripts:
            if script.poll() not in (None, 0):
                script.wait(1).check()
        time.sleep(0.05)
    return [script.wait(0.1).json() for script in scripts]


class ForkedRanks:
    """Ranks of one job; ended, all of them, when the block is left.

    Args:
        function: Called in each rank with its number; its result must be JSON.
        size: How many ranks.
        per_node: How many of them are of one node; default all. Each node has shared memory and
            temporary files of its own, which needs the right to mount.
    """

    def __init__(
        self, function: Callable[[int], Any], size: int, *, per_node: int | None = None
    ) -> None:
        port = free_port()
        self.ranks: list[Forked] = []
        self._temporary: list[str] = []
        for rank in range(size):
            variables = environment(rank, size, port, per_node=per_node)
            if per_node is not None and per_node < size:
                if per_node > 1:
                    raise ValueError(f"per_node={per_node}: only nodes of one rank are made here")
                variables["TMPDIR"] = tempfile.mkdtemp(prefix=f"node-{rank}-")
                self._temporary.append(variables["TMPDIR"])
            self.ranks.append(fork(_rank, function, rank, variables))

    def results(self, timeout_s: float = 60.0) -> list[Any]:
        """The results of all ranks, which must all end within the time.

        Raises:
            AssertionError: A rank failed or did not end.
        """
        deadline_s = time.monotonic() + timeout_s
        return [rank.wait(max(1.0, deadline_s - time.monotonic())) for rank in self.ranks]

    def __enter__(self) -> ForkedRanks:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        for rank in self.ranks:
            rank.kill()
        for directory in self._temporary:
            shutil.rmtree(directory, ignore_errors=True)


def _rank(function: Callable[[int], Any], rank: int, variables: dict[str, str]) -> Any:
    os.environ.update(variables)
    if "TMPDIR" in variables:
        _be_a_node()
    return function(rank)


def _be_a_node() -> None:
    """Shared memory and lock files of the host that the other ranks do not see."""
    own_shared_memory()
    # It has looked for the directory before.
    tempfile.tempdir = None
