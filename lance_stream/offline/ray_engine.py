"""Warm a cache by the nodes of a Ray cluster. Loads ray, which is an optional extra."""

from __future__ import annotations

import os
import socket
import warnings
from collections.abc import Iterator, Sequence
from typing import Any

from lance_stream.errors import LanceStreamError, PlanError, SourceUnavailableError
from lance_stream.offline.request import StreamRequest
from lance_stream.offline.warming import Engine, Results, WarmRequest, warm_shards
from lance_stream.planning.index import ShardIndex
from lance_stream.service.messages import Register
from lance_stream.service.stream_source import StreamSource
from lance_stream.shards.paths import index_name

__all__ = ["ray_engine"]

# Tasks that wait for a node, for each node: few enough that shares even out at the end.
_TASKS_PER_NODE = 3
_CONNECT_TIMEOUT_S = 5.0


def ray_engine(address: str | None) -> Engine:
    """An ``Engine`` that spreads the work over a cluster.

    Each node fetches shares of the shards, and puts them into the shared cache, or into a
    directory on a file system that all nodes share. Credentials go with the tasks; what nodes
    read from their environment is the nodes' own.

    Args:
        address: Of the cluster; None: ``RAY_ADDRESS``, or Ray on this machine.

    Raises:
        PlanError: ray is not installed.
    """
    try:
        import ray  # noqa: PLC0415
    except ImportError as error:
        msg = "--engine ray needs ray, which is not installed: pip install 'lance-stream[ray]'"
        raise PlanError(msg) from error

    def fetch(request: WarmRequest, source: StreamSource, todo: Sequence[int]) -> Results:
        if not todo:
            return
        started = not ray.is_initialized()
        if started:
            _connect(ray, address)
        try:
            yield from _spread(ray, request, source, todo)
        finally:
            if started:
                ray.shutdown()

    return fetch


def _connect(ray: Any, address: str | None) -> None:
    address = address or os.environ.get("RAY_ADDRESS") or None
    try:
        host, _, port = (address or "").rpartition(":")
        if host and port.isdigit() and "/" not in host:
            # Ray itself tries for minutes.
            socket.create_connection((host, int(port)), _CONNECT_TIMEOUT_S).close()
        with warnings.catch_warnings():
            # Lance warns of every fork. What Ray forks becomes another program at once.
            warnings.simplefilter("ignore")
            ray.init(
                address=address,
                log_to_driver=False,
                logging_level="error",
                include_dashboard=False,
                configure_logging=False,
            )
    except (OSError, RuntimeError, ValueError) as error:
        where = address or "on this machine"
        msg = f"--engine ray: the cluster {where} cannot be reached: {error}"
        raise SourceUnavailableError(msg) from error


def _spread(
    ray: Any, request: WarmRequest, source: StreamSource, todo: Sequence[int]
) -> Iterator[tuple[int, int, str]]:
    nodes = max(1, sum(bool(node["Alive"]) for node in ray.nodes()))
    # One for each worker of a node: a task that is lost is little work.
    size = max(1, min(request.workers, -(-len(todo) // nodes)))
    shares = [list(todo[at : at + size]) for at in range(0, len(todo), size)]
    work = ray.remote(num_cpus=1, scheduling_strategy="SPREAD")(_fetch_share)
    parts = ray.put((request.stream, source.index.to_bytes(), source.register, request.shared))
    running: list[Any] = []
    try:
        while shares or running:
            while shares and len(running) < nodes * _TASKS_PER_NODE:
                running.append(work.remote(parts, shares.pop(0), size))
            done, running = ray.wait(running, num_returns=1)
            for share in done:
                yield from _result(ray, share)
    finally:
        for task in running:
            ray.cancel(task)


def _result(ray: Any, share: Any) -> list[tuple[int, int, str]]:
    try:
        found, failed = ray.get(share)
    except ray.exceptions.RayError as error:
        msg = f"--engine ray: a node failed: {str(error).splitlines()[0]}; run this again"
        raise SourceUnavailableError(msg) from error
    if failed is not None:
        raise failed
    return found


def _fetch_share(
    parts: tuple[StreamRequest, bytes, Register, tuple[str, ...]],
    share: list[int],
    workers: int,
) -> tuple[list[tuple[int, int, str]], LanceStreamError | None]:
    """On a node: fetch some shards.

    Returns:
        What was fetched, and the error that ended it: ray would put a traceback around it.
    """
    stream, data, register, shared = parts
    node = socket.gethostname()
    found: list[tuple[int, int, str]] = []
    try:
        index = ShardIndex.from_bytes(data, "the index of the driver")
        name = os.path.join(register.directory, index_name(index.fingerprint))
        if not shared and not os.path.exists(name):
            msg = (
                f"{register.directory} is not the same directory on node {node}: give a --local "
                "on a file system that all nodes share"
            )
            raise PlanError(msg)
        source = StreamSource(register, index)
        for shard, num_bytes in warm_shards(stream, source, share, workers, shared):
            found.append((shard, num_bytes, node))
    except LanceStreamError as error:
        return found, error
    return found, None
