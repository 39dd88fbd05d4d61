"""The servers and processes as pytest fixtures; a plugin of ``tests/conftest.py``."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.fault_proxy import FaultProxy
from tests.support.lance_process import LanceProcess
from tests.support.object_store import S3Server


@pytest.fixture(scope="session")
def lance_process() -> Iterator[LanceProcess]:
    """A process that writes Lance tables and fetches shards of them (1 s to start)."""
    with LanceProcess() as process:
        yield process


@pytest.fixture(scope="session")
def s3_server() -> Iterator[S3Server]:
    """A real S3 server (3 s to start); removed with all its data at the end."""
    # Not tmp_path_factory, which keeps the data of the last three runs.
    with (
        tempfile.TemporaryDirectory(prefix="s3-server-") as directory,
        S3Server.start(Path(directory)) as server,
    ):
        yield server


@pytest.fixture(scope="session")
def s3_bucket(s3_server: S3Server) -> str:
    """The name of a bucket for all tests; each takes a prefix of its own in it."""
    name = "tests"
    s3_server.create_bucket(name)
    return name


@pytest.fixture
def fault_proxy(s3_server: S3Server) -> Iterator[FaultProxy]:
    """A proxy in front of `s3_server`, without faults, new for each test (0.2 s)."""
    with FaultProxy.start(s3_server.port) as proxy:
        yield proxy
