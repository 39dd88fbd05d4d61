"""Ranks of one node: one plan, one download process, one cache; failures reach all of them."""

from __future__ import annotations

import gc
import json
import os
import signal
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from lance_stream import LanceStream
from lance_stream.errors import LanceStreamError
from lance_stream.planning.index import ShardIndex
from tests.multi.ranks import ForkedRanks, environment, free_port, json_results
from tests.stores.outcomes import epoch, outcome
from tests.support.fault_proxy import FaultProxy
from tests.support.faults import Fault
from tests.support.forked import fork, run_forked
from tests.support.object_store import S3Server
from tests.support.scripts import start_script
from tests.support.streams import batches, dataset, ids, wait_until
from tests.support.tables import write_table


@pytest.fixture(scope="session")
def s3_table_103(s3_server: S3Server, s3_bucket: str) -> str:
    """The table T(103, 25) on the S3 server: an odd number of rows, five files."""
    uri = f"s3://{s3_bucket}/multi/t103.lance"
    write_table(uri, 103, 25, storage_options=s3_server.storage_options())
    return uri


@pytest.fixture(scope="session")
def table_2000(tables: Path) -> str:
    """The table T(2000, 500)."""
    uri = str(tables / "t2000.lance")
    write_table(uri, 2000, 500)
    return uri


@contextmanager
def _process_group() -> Iterator[None]:
    """The job's own process group, which the host then leaves alone."""
    from torch import distributed as dist

    dist.init_process_group("gloo")
    try:
        yield
        dist.barrier()
    finally:
        dist.destroy_process_group()


_TWO_RANKS = """
import json, os, sys
from torch import distributed as dist
from tests.support.fault_proxy import ProxyControl
from tests.support.streams import batches, dataset, ids
from tests.stores.outcomes import data_reads, outcome

uri, control_port, rank = sys.argv[1], int(sys.argv[2]), int(os.environ["RANK"])
proxy, options = ProxyControl(control_port), json.loads(os.environ["OPTIONS"])

def build(**stream):
    arguments = {"shard_rows": 25, "storage_options": options, **stream}
    return dataset(arguments.pop("uri", uri), host={"shuffle": True}, **arguments)

# The host makes a process group of its own, and ends it.
data = build()
assert not dist.is_initialized()
# On another port: a rank may still reach the store of the group that ended.
os.environ["MASTER_PORT"] = sys.argv[3]
dist.init_process_group("gloo")
if rank == 0:
    # What planning asks for is another matter.
    proxy.log()
dist.barrier()
said = {"pids": [data.streams[0].download_process_pid], "length": len(data)}
said["epochs"] = [ids(batches(data, 2)) for _ in range(2)]
dist.barrier()
said["reads"] = data_reads(proxy) if rank == 0 else {}
said["pids"].append(data.streams[0].download_process_pid)
said["local"] = data.streams[0].local
print(json.dumps(said), flush=True)
"""


def test_two_ranks(
    s3_table_103: str, s3_server: S3Server, fault_proxy: FaultProxy, tmp_path: Path
) -> None:
    """Interpreters of their own, two workers each: every row, each shard read once, by one."""
    port, other_port = free_port(), free_port()
    with ExitStack() as stack:
        ranks = [
            stack.enter_context(
                start_script(
                    _TWO_RANKS,
                    s3_table_103,
                    fault_proxy.control_port,
                    other_port,
                    env={
                        **environment(rank, 2, port),
                        "OPTIONS": json.dumps(s3_server.storage_options(fault_proxy.endpoint)),
                    },
                )
            )
            for rank in range(2)
        ]
        first, second = json_results(ranks, 90)
    assert first["length"] == second["length"] == 52
    for mine, theirs in zip(first["epochs"], second["epochs"], strict=True):
        rows = Counter(mine + theirs)
        assert sorted(rows) == list(range(103))
        # The host gives all workers of both ranks the same number of samples.
        assert rows.total() <= 103 + 4
    assert first["epochs"][0] != first["epochs"][1]
    assert len({*first["pids"], *second["pids"]}) == 1
    assert first["local"] == second["local"]
    assert sorted(first["reads"].values()) == [1, 1, 1, 1, 1]


@pytest.mark.parametrize("when", ["before", "between"])
def test_one_version_for_all(tmp_path: Path, when: str) -> None:
    """A producer commits while the ranks start: all of them stream what rank 0 has seen."""
    uri, go = str(tmp_path / "t.lance"), tmp_path / "go"
    write_table(uri, 103, 25)

    def append() -> None:
        write_table(uri, 50, 25, first_row=103, mode="append")

    def run(rank: int) -> list[Any]:
        if rank and when == "before":
            # Rank 0 waits for this rank in the meantime.
            wait_until(go.exists, 30, "the producer has committed")
        if when == "between":
            _after_planning(append)
        data = dataset(uri, shard_rows=10)
        return [data.streams[0].version, ids(batches(data, 2))]

    with ForkedRanks(run, 2) as job:
        if when == "before":
            time.sleep(1.5)
            append()
            go.touch()
        (version, mine), (other, theirs) = job.results()
    assert version == other
    assert version == (2 if when == "before" else 1)
    assert sorted({*mine, *theirs}) == list(range(153 if when == "before" else 103))


def _after_planning(act: Any) -> None:
    """Do something in this process whenever it has just planned a table."""
    plan = LanceStream._make_index

    def then_act(self: LanceStream, version: int | str | None) -> ShardIndex:
        index = plan(self, version)
        act()
        return index

    LanceStream._make_index = then_act  # type: ignore[method-assign]


def test_different_arguments(table_100: str, table_5000: str, tmp_path: Path) -> None:
    """Refused on every rank, with name and values, and the job can go on."""
    given: list[tuple[str, list[Any]]] = [
        ("shard_rows", [10, 20]),
        ("shard_rows", [None, 20]),
        ("shard_bytes", ["1mb", "2mb"]),
        ("columns", [["i"], ["i", "s"]]),
        ("columns", [["i", "s"], ["s", "i"]]),
        ("version", [1, None]),
        ("with_row_id", [False, True]),
        ("split", ["train", "val"]),
        ("remote", [table_100, table_5000]),
    ]

    def run(rank: int) -> list[Any]:
        said = []
        with _process_group():
            for name, values in given:
                stream = {"remote": table_100, name: values[rank]}
                said.append(outcome(lambda stream=stream: dataset(stream.pop("remote"), **stream)))
            after = epoch(dataset(table_100, shard_rows=10), 2)
        return [said, after["value"]]

    with ForkedRanks(run, 2) as job:
        (first, mine), (second, theirs) = job.results()
    for (name, values), one, other in zip(given, first, second, strict=True):
        assert one["error"] == other["error"] == "StateMismatchError", (name, one, other)
        assert one["message"] == other["message"]
        assert f"{name}=" in one["message"]
        if name not in ("columns", "shard_bytes"):
            assert f"{values[0]!r} on rank 0, {values[1]!r} on rank 1" in one["message"]
        assert max(one["seconds"], other["seconds"]) < 30
    assert sorted(mine + theirs) == list(range(100))


def test_failures_reach_every_rank(table_100: str, tmp_path: Path) -> None:
    """What rank 0 cannot plan or lay down is raised by all, soon, and the job can go on."""
    used = tmp_path / "used"
    holds = tmp_path / "holds"

    def hold() -> None:
        data = dataset(table_100, local=str(used))
        holds.touch()
        time.sleep(60)
        del data

    holder = fork(hold)
    wait_until(holds.exists, 30, "the other job has the directory")
    file = tmp_path / "file"
    file.touch()
    missing = str(tmp_path / "missing.lance")
    cases: list[tuple[str, dict[str, Any], str, str]] = [
        (missing, {}, "DatasetNotFoundError", missing),
        (table_100, {"version": 7}, "VersionNotFoundError", f"{table_100} version 7"),
        (table_100, {"columns": ["x"]}, "PlanError", "no column 'x'"),
        (table_100, {"local": str(used)}, "CacheInUseError", f"in use by process {holder.pid}"),
        (table_100, {"local": str(file)}, "PlanError", str(file)),
    ]

    def run(rank: int) -> list[Any]:
        with _process_group():
            said = [
                outcome(lambda uri=uri, stream=stream: dataset(uri, **stream))
                for uri, stream, _, _ in cases
            ]
            after = epoch(dataset(table_100, shard_rows=10), 2)
        return [said, after["value"]]

    try:
        with ForkedRanks(run, 2) as job:
            (first, mine), (second, theirs) = job.results()
    finally:
        holder.kill()
    for (_, _, error, says), one, other in zip(cases, first, second, strict=True):
        assert one["error"] == other["error"] == error, (one, other)
        assert says in one["message"]
        assert says in other["message"]
        assert max(one["seconds"], other["seconds"]) < 15
    assert sorted(mine + theirs) == list(range(100))


def test_an_error_that_is_not_ours_reaches_every_rank(table_100: str) -> None:
    """A bug, or an exception of a signal handler, on one rank: nobody is left waiting."""

    def run(rank: int) -> list[Any]:
        if rank == 0:

            def breaks() -> None:
                raise ZeroDivisionError("a bug")

            _after_planning(breaks)
        try:
            dataset(table_100)
        except (ZeroDivisionError, LanceStreamError) as error:
            return [type(error).__name__, str(error)]
        return ["no error", ""]

    with ForkedRanks(run, 2) as job:
        first, second = job.results(30)
    assert first == ["ZeroDivisionError", "a bug"]
    assert second[0] == "LanceStreamError"
    assert "ZeroDivisionError" in second[1]
    assert "rank 0: a bug" in second[1]


def test_a_shard_that_cannot_be_had(
    s3_table_103: str, s3_server: S3Server, fault_proxy: FaultProxy
) -> None:
    """The error in the training loop of every rank."""
    options = s3_server.storage_options(fault_proxy.endpoint)

    def run(rank: int) -> list[Any]:
        with _process_group():
            from torch import distributed as dist

            data = dataset(s3_table_103, shard_rows=25, storage_options=options)
            if rank == 0:
                fault_proxy.set(Fault(path="/data/", fail_rate=1, fail_status=403))
            dist.barrier()
            failed = epoch(data, 2)
            dist.barrier()
            fault_proxy.clear()
            dist.barrier()
            return [failed, epoch(data, 2)["value"]]

    with ForkedRanks(run, 2) as job:
        (first, mine), (second, theirs) = job.results()
    for result in (first, second):
        assert result["error"] == "ShardCredentialsError", result
        assert s3_table_103 in result["message"]
        assert result["seconds"] < 20
    assert sorted({*mine, *theirs}) == list(range(103))


def test_a_small_cache_for_two_ranks(table_2000: str, tmp_path: Path) -> None:
    """A cache limit of a few shards: ranks evict each other's shards, and every row arrives."""

    def run(rank: int) -> dict[str, Any]:
        with _process_group():
            data = dataset(
                table_2000,
                shard_rows=50,
                local=str(tmp_path / "cache"),
                batch_size=10,
                host={"shuffle": True, "shuffle_block_size": 500, "cache_limit": "80kb"},
            )
            return epoch(data, 2)

    with ForkedRanks(run, 2) as job:
        mine, theirs = job.results(40)
    assert mine["error"] is None, mine
    assert theirs["error"] is None, theirs
    assert sorted({*mine["value"], *theirs["value"]}) == list(range(2000))


def _slow_rank(
    table: str, rank: int, local: Path, progress: Path, hold_at: int | None, **host: Any
) -> list[Any]:
    """Train slowly, telling how far this rank is; after ``hold_at`` rows wait to be let go."""
    data = dataset(
        table,
        shard_rows=50,
        local=str(local),
        batch_size=5,
        # Shards are asked for all along, not all at the beginning.
        host={"predownload": 50, **host},
    )
    pids = [data.streams[0].download_process_pid]
    seen: list[int] = []
    for batch in batches(data, 2):
        seen += ids([batch])
        (progress / f"{rank}.new").write_text(str(len(seen)))
        (progress / f"{rank}.new").rename(progress / f"{rank}")
        if hold_at is not None:
            time.sleep(0.02)
            if len(seen) >= hold_at:
                wait_until((progress / "go").exists, 60, "the test lets this rank go on")
    pids.append(data.streams[0].download_process_pid)
    return [seen, pids]


def _rows_seen(progress: Path, rank: int) -> int:
    try:
        return int((progress / f"{rank}").read_text())
    except FileNotFoundError:
        return 0


def test_killed_ranks(table_2000: str, tmp_path: Path) -> None:
    """SIGKILL of one rank, then of the first: the third goes on; then nothing is left."""
    local, progress = tmp_path / "cache", tmp_path / "progress"
    progress.mkdir()

    def run(rank: int) -> list[Any]:
        return _slow_rank(table_2000, rank, local, progress, 300)

    with ForkedRanks(run, 3) as job:

        def all_train() -> bool:
            return all(_rows_seen(progress, rank) > 50 for rank in range(3))

        wait_until(all_train, 60, "three ranks train")
        os.kill(job.ranks[1].pid, signal.SIGKILL)
        time.sleep(1)
        os.kill(job.ranks[0].pid, signal.SIGKILL)
        (progress / "go").touch()
        seen, pids = job.ranks[2].wait(60)
    # A third of the rows, and at most one row per worker to fill up.
    assert len(seen) >= 667
    assert len(set(seen)) >= 667 - 2
    assert len(set(pids)) == 1
    wait_until(
        lambda: not os.path.exists(f"/proc/{pids[0]}"), 10, "the download process has ended"
    )
    again = run_forked(lambda: ids(batches(dataset(table_2000, local=str(local)), 2)))
    assert sorted(again) == list(range(2000))


@pytest.mark.parametrize("killed", [False, True], ids=["", "killed"])
def test_the_first_rank_ends_first(table_2000: str, tmp_path: Path, killed: bool) -> None:
    """What rank 0 cleans up is still in use: the other ends its epoch, even with a new process."""
    local, progress = tmp_path / "cache", tmp_path / "progress"
    progress.mkdir()

    def run(rank: int) -> list[Any]:
        # Shards are evicted all the time, so that the other rank has to ask for them again.
        host = {"shuffle": True, "shuffle_block_size": 500, "cache_limit": "60kb"}
        result = _slow_rank(table_2000, rank, local, progress, 200 if rank else None, **host)
        gc.collect()
        return result

    def intrude() -> str | None:
        return outcome(lambda: dataset(table_2000, local=str(local)))["error"]

    with ForkedRanks(run, 2) as job:
        first, pids = job.ranks[0].wait(60)
        intruder = None
        if killed:
            os.kill(pids[0], signal.SIGKILL)
        else:
            intruder = run_forked(intrude)
        (progress / "go").touch()
        second, pids_of_second = job.ranks[1].wait(25)
    assert sorted({*range(2000)} - {*first, *second}) == [], f"{len(second)} rows on rank 1"
    assert (len(set(pids_of_second)) == 2) == killed
    if not killed:
        # The directory is the job's until its last rank has ended.
        assert intruder == "CacheInUseError"


_TORCHRUN = """
import os, sys
os.execv(sys.executable, [sys.executable, "-m", "torch.distributed.run", *sys.argv[1:]])
"""
_RESUME = """
import json, os, sys
from pathlib import Path
from tests.support.streams import batches, dataset, ids

uri, state, out = sys.argv[1:]
host = {"shuffle": True}
data = dataset(uri, shard_rows=10, batch_size=2, host=host)
data.load_state_dict(json.loads(Path(state).read_text()))
said = {"pid": data.streams[0].download_process_pid, "local": data.streams[0].local}
said["epochs"] = [ids(batches(data, 2)) for _ in range(2)]
Path(out, os.environ["RANK"]).write_text(json.dumps(said))
"""


def test_resume_on_more_ranks(tmp_path: Path) -> None:
    """By torchrun: what one rank has left of an epoch, two ranks stream; and the next epoch."""
    uri = str(tmp_path / "ranks103.lance")
    write_table(uri, 103, 25)
    state, script = tmp_path / "state.json", tmp_path / "resume.py"
    script.write_text(_RESUME)

    def begin() -> list[int]:
        data = dataset(uri, shard_rows=10, batch_size=4, host={"shuffle": True})
        seen: list[int] = []
        for number, batch in enumerate(batches(data, 2)):
            seen += ids([batch])
            if number == 9:
                break
        state.write_text(json.dumps(data.state_dict(len(seen), from_beginning=True)))
        return seen

    before = run_forked(begin)
    assert len(before) == 40
    arguments = ["--nproc-per-node", 2, "--master-addr", "127.0.0.1", "--master-port", free_port()]
    environ = {"GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}
    with start_script(_TORCHRUN, *arguments, script, uri, state, tmp_path, env=environ) as job:
        job.wait(100).check()
    first, second = (json.loads((tmp_path / f"{rank}").read_text()) for rank in range(2))
    assert first["pid"] == second["pid"]
    assert first["local"] == second["local"]
    rest = Counter(first["epochs"][0] + second["epochs"][0])
    assert sorted({*before, *rest}) == list(range(103))
    # No row twice but those that fill up the last batches.
    assert rest.total() <= 103 - 40 + 4
    assert len(set(before) & set(rest)) <= 4
    assert sorted({*first["epochs"][1], *second["epochs"][1]}) == list(range(103))
