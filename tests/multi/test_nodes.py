"""Ranks of two nodes: each node plans and caches for itself, and both stream the same."""

from __future__ import annotations

import os
import socket
import subprocess
from pathlib import Path
from typing import Any

import pytest

from lance_stream import LanceStream
from lance_stream.planning.index import ShardIndex
from tests.multi.ranks import ForkedRanks
from tests.stores.outcomes import outcome
from tests.support.mounts import as_root
from tests.support.object_store import S3Server
from tests.support.streams import batches, dataset, ids, wait_until
from tests.support.tables import write_table

# Nodes are made by mounting.
pytestmark = as_root


@pytest.mark.parametrize(
    "version",
    [pytest.param(None, id="latest"), pytest.param(1, id="given", marks=pytest.mark.slow)],
)
def test_two_nodes(tmp_path: Path, version: int | None) -> None:
    """A commit between the plans of the nodes: one version, a process and a cache for each."""
    uri, planned, committed = str(tmp_path / "t.lance"), tmp_path / "planned", tmp_path / "done"
    write_table(uri, 103, 25)
    plan = LanceStream._make_index

    def at_a_bad_moment(self: LanceStream, wanted: int | str | None) -> ShardIndex:
        if os.environ["RANK"] == "1":
            # Rank 0 has planned.
            planned.touch()
            wait_until(committed.exists, 30, "the producer has committed")
        return plan(self, wanted)

    def run(rank: int) -> dict[str, Any]:
        LanceStream._make_index = at_a_bad_moment  # type: ignore[method-assign]
        data = dataset(uri, shard_rows=10, version=version, host={"shuffle": True})
        stream = data.streams[0]
        return {
            "version": stream.version,
            "pid": stream.download_process_pid,
            "local": stream.local,
            "fingerprint": stream.fingerprint,
            "epochs": [ids(batches(data, 2)) for _ in range(2)],
        }

    with ForkedRanks(run, 2, per_node=1) as job:
        wait_until(planned.exists, 30, "the second node plans")
        write_table(uri, 50, 25, first_row=103, mode="append")
        committed.touch()
        first, second = job.results()
    assert first["version"] == second["version"] == 1
    assert first["fingerprint"] == second["fingerprint"]
    assert first["pid"] != second["pid"]
    assert first["local"] != second["local"]
    for mine, theirs in zip(first["epochs"], second["epochs"], strict=True):
        assert sorted({*mine, *theirs}) == list(range(103))
        assert len(mine) + len(theirs) <= 103 + 4


def test_a_store_that_one_node_cannot_reach(s3_server: S3Server, s3_bucket: str) -> None:
    """The error of that node, on both."""
    uri = f"s3://{s3_bucket}/multi/nodes.lance"
    write_table(uri, 20, 10, storage_options=s3_server.storage_options())
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        away = f"http://127.0.0.1:{unused.getsockname()[1]}"

        def run(rank: int) -> dict[str, Any]:
            options = s3_server.storage_options(away if rank else None)
            arguments = {"download_timeout": 5, "download_retry": 0}
            return outcome(lambda: dataset(uri, storage_options=options, **arguments))

        with ForkedRanks(run, 2, per_node=1) as job:
            first, second = job.results()
    for result in (first, second):
        assert result["error"] == "SourceUnavailableError", result
        assert uri in result["message"]
        assert result["seconds"] < 20
        assert s3_server.secret_key not in result["text"]
    assert "rank 1: " in first["message"]


def test_another_table_on_the_other_node(tmp_path: Path) -> None:
    """The same path with other rows, as on disks that are not shared: refused on both."""
    folder = tmp_path / "tables"
    folder.mkdir()
    uri = str(folder / "t.lance")
    write_table(uri, 100, 25)

    def run(rank: int) -> dict[str, Any]:
        if rank:
            subprocess.run(["mount", "-t", "tmpfs", "tmpfs", folder], check=True)
            write_table(uri, 100, 25, first_row=1000)
        return outcome(lambda: dataset(uri, shard_rows=10))

    with ForkedRanks(run, 2, per_node=1) as job:
        first, second = job.results()
    for result in (first, second):
        assert result["error"] == "PlanError", result
        assert f"{uri} version 1 is not the same table" in result["message"]
    assert "rank 1: " in first["message"]


def test_a_table_that_one_node_does_not_have(tmp_path: Path) -> None:
    """The path is there on the first node only: an error on both that names the rank."""
    folder = tmp_path / "tables"
    folder.mkdir()
    uri = str(folder / "t.lance")
    write_table(uri, 100, 25)

    def run(rank: int) -> dict[str, Any]:
        if rank:
            subprocess.run(["mount", "-t", "tmpfs", "tmpfs", folder], check=True)
        return outcome(lambda: dataset(uri, shard_rows=10))

    with ForkedRanks(run, 2, per_node=1) as job:
        first, second = job.results()
    for result in (first, second):
        # That node looks for the version that the first one has found.
        assert result["error"] in ("DatasetNotFoundError", "VersionNotFoundError"), result
        assert uri in result["message"]
        assert result["seconds"] < 15
    assert "rank 1: " in first["message"]
