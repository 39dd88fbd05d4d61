"""What goes wrong while ranks start: every rank knows soon, and why; nobody waits in vain."""

from __future__ import annotations

import logging
import os
import signal
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from lance_stream import LanceStream, LanceStreamingDataset
from lance_stream.planning.index import ShardIndex
from tests.multi.ranks import ForkedRanks, free_port
from tests.multi.two_nodes import say
from tests.stores.outcomes import outcome
from tests.support.fault_proxy import FaultProxy
from tests.support.forked import fork, run_forked
from tests.support.object_store import S3Server
from tests.support.streams import ORDER, batches, dataset, ids, wait_until
from tests.support.tables import write_table

RANKS = 4
SOON_S = 15.0
WRONG = "not-the-right-secret"


def planning(act: Callable[[], None]) -> None:
    """Do something in this process before it plans a table."""
    plan = LanceStream._make_index

    def act_first(self: LanceStream, wanted: Any) -> ShardIndex:
        act()
        return plan(self, wanted)

    LanceStream._make_index = act_first  # type: ignore[method-assign]


def group(**options: Any) -> None:
    """Bring up the job's own process group."""
    from torch import distributed as dist

    dist.init_process_group("gloo", **options)


def told(results: list[dict[str, Any]], error: str, reason: str) -> None:
    """Check that all ranks raised the leader's error, soon; prints the seconds."""
    seconds = [round(result["seconds"], 1) for result in results]
    say(f"{reason!r}: all {len(results)} ranks after {seconds} s")
    for rank, result in enumerate(results):
        assert result["error"] == error, result
        assert reason in result["message"]
        assert result["message"].startswith("rank 0: ") == (rank > 0)
        assert result["seconds"] < SOON_S


def test_a_missing_table_is_told_to_all(tmp_path: Path) -> None:
    missing = str(tmp_path / "missing.lance")

    def run(rank: int) -> dict[str, Any]:
        group()
        return outcome(lambda: dataset(missing))

    with ForkedRanks(run, RANKS) as job:
        told(job.results(), "DatasetNotFoundError", missing)


def test_a_bad_token_is_told_to_all(s3_server: S3Server, s3_bucket: str) -> None:
    uri = f"s3://{s3_bucket}/starting/token.lance"
    write_table(uri, 20, 10, storage_options=s3_server.storage_options())
    options = s3_server.storage_options(secret_access_key=WRONG)

    def run(rank: int) -> dict[str, Any]:
        group()
        return outcome(lambda: dataset(uri, storage_options=options))

    with ForkedRanks(run, RANKS) as job:
        results = job.results()
    told(results, "CredentialsError", "the store refused access")
    assert not any(WRONG in result["text"] for result in results)


@pytest.mark.slow
def test_a_store_that_hangs_is_told_to_all(
    s3_server: S3Server, s3_bucket: str, fault_proxy: FaultProxy
) -> None:
    """As soon as the leader's own deadline is over."""
    from tests.support.faults import Fault

    uri = f"s3://{s3_bucket}/starting/hangs.lance"
    write_table(uri, 20, 10, storage_options=s3_server.storage_options())
    options = s3_server.storage_options(fault_proxy.endpoint)
    fault_proxy.set(Fault(action="hang"))

    def run(rank: int) -> dict[str, Any]:
        group()
        arguments = {"download_timeout": 4, "download_retry": 0}
        return outcome(lambda: dataset(uri, storage_options=options, **arguments))

    with ForkedRanks(run, 2) as job:
        told(job.results(), "SourceUnavailableError", "no answer within download_timeout=4 s")


@pytest.mark.slow
def test_a_slow_leader_is_waited_for(table_100: str) -> None:
    """Longer than a collective may take: the ranks tell each other that one still works."""

    def run(rank: int) -> list[Any]:
        group(timeout=timedelta(seconds=5))
        if rank == 0:
            planning(lambda: time.sleep(12))
        started = time.monotonic()
        data = dataset(table_100, shard_rows=10)
        return [time.monotonic() - started, ids(batches(data, 1))]

    with ForkedRanks(run, 2) as job:
        (first_s, mine), (second_s, theirs) = job.results()
    assert sorted(mine + theirs) == list(range(100))
    assert 11 < first_s < 40
    assert 11 < second_s < 40


def test_a_leader_that_is_killed_is_noticed(table_100: str, tmp_path: Path) -> None:
    plans = tmp_path / "plans"

    def run(rank: int) -> dict[str, Any]:
        group()
        if rank == 0:

            def stay() -> None:
                plans.touch()
                time.sleep(60)

            planning(stay)
        return outcome(lambda: dataset(table_100))

    with ForkedRanks(run, 3) as job:
        wait_until(plans.exists, 30, "the leader plans")
        os.kill(job.ranks[0].pid, signal.SIGKILL)
        killed = time.monotonic()
        results = [rank.wait(SOON_S) for rank in job.ranks[1:]]
        say(f"noticed after {time.monotonic() - killed:.1f} s")
    for rank, result in enumerate(results, 1):
        assert result["error"] == "LanceStreamError", result
        assert f"rank {rank} of 3 lost another rank" in result["message"]


@pytest.mark.parametrize("kind", ["stock", pytest.param("lance", marks=pytest.mark.slow)])
def test_ranks_that_would_mix_their_data_are_refused(
    table_100: str, table_5000: str, kind: str
) -> None:
    """Arguments of the dataset, and of any of its streams; then the job can go on."""
    given: list[tuple[str, list[dict[str, Any]]]] = [
        ("batch_size", [{"batch_size": 4}, {"batch_size": 5}]),
        ("shuffle_seed", [{"shuffle_seed": 1}, {"shuffle_seed": 2}]),
        ("shuffle", [{"shuffle": True}, {"shuffle": False}]),
        ("num_canonical_nodes", [{"num_canonical_nodes": 1}, {"num_canonical_nodes": 2}]),
        ("num_streams", [{"uris": [table_100, table_5000]}, {"uris": [table_100]}]),
        ("remote", [{"uris": [table_100, table_5000]}, {"uris": [table_5000, table_100]}]),
        ("proportion", [{"proportion": 1.0}, {}]),
    ]

    def build(uris: list[str], proportion: float | None = None, **host: Any) -> Any:
        from streaming import StreamingDataset

        made = StreamingDataset if kind == "stock" else LanceStreamingDataset
        streams = [LanceStream(uri, shard_rows=10, proportion=proportion) for uri in uris]
        return made(streams=streams, **{**ORDER, "batch_size": 4, **host})

    def run(rank: int) -> list[Any]:
        group()
        said = [
            outcome(lambda values=values: build(**{"uris": [table_100], **values[rank]}))
            for _, values in given
        ]
        return [said, ids(batches(build([table_100]), 1))]

    with ForkedRanks(run, 2) as job:
        (first, mine), (second, theirs) = job.results()
    for (name, _), one, other in zip(given, first, second, strict=True):
        assert one["error"] == other["error"] == "StateMismatchError", (name, one, other)
        assert one["message"] == other["message"]
        assert f"{name}=" in one["message"]
        assert max(one["seconds"], other["seconds"]) < SOON_S
    assert sorted(mine + theirs) == list(range(100))


@pytest.mark.parametrize("kind", ["stock", "lance"])
@pytest.mark.parametrize("rank", [None, "1"])
def test_a_stray_world_size(table_100: str, kind: str, rank: str | None) -> None:
    """Promises other ranks that nobody can find: said at once, in place of half the rows."""

    def run() -> dict[str, Any]:
        os.environ["WORLD_SIZE"] = "2"
        if rank is not None:
            os.environ["RANK"] = rank
        if kind == "stock":
            return outcome(lambda: dataset(table_100))
        return outcome(
            lambda: LanceStreamingDataset(streams=[LanceStream(table_100)], batch_size=4)
        )

    result = run_forked(run)
    assert result["error"] == "PlanError", result
    message = result["message"]
    assert "WORLD_SIZE=2 promises as many ranks, but there is no process group" in message
    assert "unset WORLD_SIZE where there is one process" in message
    assert result["seconds"] < 5


@pytest.mark.slow
def test_a_world_size_whose_ranks_never_come(table_100: str) -> None:
    """The host waits half an hour for them: what for is in the log after 15 s."""
    variables = {
        "WORLD_SIZE": "2",
        "RANK": "0",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(free_port()),
    }

    def run() -> None:
        os.environ.update(variables)
        # Pytest's own handler keeps what it gets to itself.
        logging.basicConfig(force=True)
        dataset(table_100)

    waiting = fork(run)
    try:
        port = variables["MASTER_PORT"]
        text = f"still waiting for the 2 ranks of WORLD_SIZE to meet at 127.0.0.1:{port}"
        time.sleep(15)
        wait_until(lambda: text in waiting.output(), 15, "the log says so")
        assert waiting.poll() is None
    finally:
        waiting.kill()


def test_a_process_group_that_the_environment_does_not_know(
    table_100: str, tmp_path: Path
) -> None:
    """Ranks by hand, without WORLD_SIZE: the host would give every row to each of them."""

    def run(rank: int) -> dict[str, Any]:
        for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"):
            os.environ.pop(name)
        group(init_method=f"file://{tmp_path}/meet", rank=rank, world_size=2)
        return outcome(lambda: dataset(table_100))

    with ForkedRanks(run, 2) as job:
        for rank, result in enumerate(job.results()):
            assert result["error"] == "PlanError", result
            assert f"torch.distributed is up with 2 ranks, this being {rank}" in result["message"]
