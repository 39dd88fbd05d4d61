"""A training job on two nodes with two ranks each, simulated on this machine.

    python -m tests.multi.two_nodes          # as root; a few minutes on 2 cores

A node is a mount and a pid namespace: its own ``/dev/shm``, its own temporary files, its own
``/proc``, in which only its own processes are. ``torchrun`` starts its ranks, which meet by gloo.
What the ranks saw is printed, and an exception is raised if it is not what it should be.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from itertools import chain
from pathlib import Path
from typing import Any

from tests.multi.ranks import free_port
from tests.support.scripts import REPO_ROOT, RunningScript, start_script
from tests.support.tables import write_table

__all__ = ["Nodes", "launch", "main", "start_node"]

ROWS = 320
GLOBAL_BATCH = 16
WORKERS = 2

# The process that becomes init of the node's pid namespace: when it ends, all of the node ends.
_NODE = """
import os, sys
disk, more, *command = sys.argv[1:]
mounts = f'''
mount --make-rprivate /
mount -t tmpfs tmpfs /dev/shm
mount -t proc proc /proc
mount -t tmpfs tmpfs {disk}
mkdir -m 700 {disk}/tmp {disk}/run
{more}
exec "$@"
'''
os.environ.update(TMPDIR=f"{disk}/tmp", LANCE_STREAM_RUNTIME_DIR=f"{disk}/run")
os.environ.pop("LANCE_STREAM_CACHE_DIR", None)
unshare = ["unshare", "--mount", "--pid", "--fork", "--kill-child"]
os.execvp("unshare", [*unshare, "sh", "-euc", mounts, "sh", *command])
"""

# One rank. What it is told is in the environment, what it saw goes to a file.
_RANK = """
import json, os, time
from pathlib import Path
import psutil
from streaming import StreamingDataLoader, StreamingDataset
from torch import distributed as dist
from lance_stream import LanceStream, LanceStreamingDataset
from tests.support.tables import assert_row

told = json.loads(os.environ["TOLD"])
dist.init_process_group("gloo")
rank, size = dist.get_rank(), dist.get_world_size()
kind = {"stock": StreamingDataset, "lance": LanceStreamingDataset}[told["dataset"]]


def build(uri=told["uri"], replication=None):
    # Ranks that have the same samples count as one.
    batch_size = told["global_batch"] * (replication or 1) // size
    stream = LanceStream(uri, shard_rows=20, local=told["local"])
    data = kind(streams=[stream], batch_size=batch_size, shuffle=True, shuffle_seed=7,
                num_canonical_nodes=2, replication=replication)
    # Its state counts samples by the length of a batch's columns.
    return data, StreamingDataLoader(data, batch_size=batch_size, num_workers=told["workers"])


def run(loader, stop=None):
    batches = []
    for batch in loader:
        rows = batch["i"].tolist()
        for row in zip(rows, batch["s"], batch["v"].numpy(), strict=True):
            assert_row(dict(zip(("i", "s", "v"), row)), row[0])
        batches.append(rows)
        if len(batches) == stop:
            break
    return batches


def download_processes():
    names = [" ".join(p.info["cmdline"] or ()) for p in psutil.process_iter(["cmdline"])]
    return sum("lance_stream.service.daemon" in name for name in names)


for step in told["steps"]:
    data, loader = build(**{name: step[name] for name in ("uri", "replication") if name in step})
    if "load" in step:
        loader.load_state_dict(json.loads(Path(step["load"]).read_text()))
    stream = data.streams[0]
    said = {"version": stream.version, "local": stream.local}
    said["batches"] = run(loader, step.get("stop"))
    said["download_processes"] = download_processes()
    if "save" in step and rank == 0:
        Path(step["save"]).write_text(json.dumps(loader.state_dict()))
    dist.barrier()
    Path(told["out"], f"{step['name']}.{rank}").write_text(json.dumps(said))
    del data, loader, stream
dist.destroy_process_group()
"""


def start_node(
    disk: Path, *command: object, env: Mapping[str, str] | None = None, mounts: str = ""
) -> RunningScript:
    """A command as the first process of a node; all of the node ends with it.

    Args:
        disk: A folder that is there. The node has another disk there, for what is its own.
        command: What it runs.
        env: Further variables.
        mounts: Commands of a shell that run before.
    """
    variables = {"GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1", **(env or {})}
    return start_script(_NODE, disk, mounts, *command, env=variables)


class Nodes:
    """Nodes of one job, each with its ranks; ended when the block is left.

    Args:
        folder: Seen by all nodes, as a shared file system is.
        nodes: How many.
        script: What each rank runs.
        env: Of the ranks, besides this process's.
        ranks_per_node: How many on each.
    """

    def __init__(
        self,
        folder: Path,
        nodes: int,
        script: str,
        env: dict[str, str],
        *,
        ranks_per_node: int = 2,
    ) -> None:
        self._stack = ExitStack()
        path = folder / f"rank-{time.monotonic_ns()}.py"
        path.write_text(script)
        # Found at the same path on every node, and another disk on each.
        disk = Path(self._stack.enter_context(tempfile.TemporaryDirectory(dir="/tmp")))
        port = free_port()
        self.nodes: list[RunningScript] = []
        for node in range(nodes):
            torchrun = ["-m", "torch.distributed.run", "--nnodes", nodes, "--node-rank", node]
            torchrun += ["--nproc-per-node", ranks_per_node]
            torchrun += ["--master-addr", "127.0.0.1", "--master-port", port, path]
            started = start_node(disk, sys.executable, *torchrun, env=env)
            self.nodes.append(self._stack.enter_context(started))

    def wait(self, timeout_s: float) -> None:
        """Wait until all nodes have ended well.

        Raises:
            AssertionError: One failed, or none ended in time.
        """
        deadline_s = time.monotonic() + timeout_s
        while any(node.poll() is None for node in self.nodes) and time.monotonic() < deadline_s:
            for node in self.nodes:
                if node.poll() not in (None, 0):
                    node.wait(1).check()
            time.sleep(0.05)
        for node in self.nodes:
            node.wait(0.1).check()

    def __enter__(self) -> Nodes:
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()


def launch(
    folder: Path, uri: str, nodes: int, steps: Sequence[dict[str, Any]], **told: Any
) -> dict[str, list[dict[str, Any]]]:
    """What each rank saw in each step, by the step's name."""
    out = Path(tempfile.mkdtemp(dir=folder))
    told = {
        "uri": uri,
        "out": str(out),
        "steps": list(steps),
        "global_batch": GLOBAL_BATCH,
        "workers": WORKERS,
        "dataset": "stock",
        "local": None,
        **told,
    }
    with Nodes(folder, nodes, _RANK, {"TOLD": json.dumps(told)}) as job:
        job.wait(240)
    return {
        step["name"]: [
            json.loads((out / f"{step['name']}.{rank}").read_text()) for rank in range(2 * nodes)
        ]
        for step in steps
    }


def global_batches(ranks: Sequence[dict[str, Any]]) -> list[list[int]]:
    """The rows of each step of training, of all ranks together."""
    return [
        sorted(chain(*batches)) for batches in zip(*(r["batches"] for r in ranks), strict=True)
    ]


def rows_of(rank: dict[str, Any]) -> list[int]:
    """All rows that a rank saw, in order."""
    return list(chain(*rank["batches"]))


def main(folder: Path, dataset: str = "stock") -> None:
    """Run it all and print what was seen.

    Raises:
        AssertionError: It is not what it should be.
    """
    uri = str(folder / "t.lance")
    write_table(uri, ROWS, 80)
    state = [str(folder / f"state-{number}.json") for number in range(2)]
    say(f"{ROWS} rows, {dataset} dataset, global batches of {GLOBAL_BATCH}, {WORKERS} workers")

    fixed = str(folder / "fixed.lance")
    write_table(fixed, ROWS, 80)
    # One launch for all that this number of nodes does: to start four ranks takes long.
    steps = [
        {"name": "epoch"},
        {"name": "replicated", "uri": fixed, "replication": 2},
        {"name": "whole", "uri": fixed},
        {"name": "first", "uri": fixed, "stop": 7, "save": state[0]},
    ]
    with appending(uri) as appended:
        steps_seen = launch(folder, uri, 2, steps, dataset=dataset)

    say("\n2 nodes x 2 ranks, one epoch, while a producer appends")
    seen = steps_seen["epoch"]
    show(seen)
    versions = {rank["version"] for rank in seen}
    assert len(versions) == 1, versions
    version = versions.pop()
    assert version <= max(appended), (version, appended)
    rows = ROWS + 16 * sum(number <= version for number in appended)
    counts = Counter(chain(*map(rows_of, seen)))
    assert sorted(counts) == list(range(rows)), (version, rows)
    assert counts.total() <= rows + GLOBAL_BATCH
    assert {rank["download_processes"] for rank in seen} == {1}
    say(
        f"  version {version} of {max(appended)} on all; its rows 0 to {rows - 1}: all there; "
        f"{counts.total() - rows} repeated to fill batches; 1 download process per node"
    )

    say("\n2 nodes x 2 ranks: replication=2, one whole epoch, and a third of one that is saved")
    show(steps_seen["replicated"])
    ranks = [rows_of(rank) for rank in steps_seen["replicated"]]
    assert ranks[0] == ranks[1]
    assert ranks[2] == ranks[3]
    assert sorted(ranks[0] + ranks[2]) == list(range(ROWS))
    say("  ranks 0 and 1 saw the same, and 2 and 3; together every row once")
    whole = global_batches(steps_seen["whole"])
    assert sorted(chain(*whole)) == list(range(ROWS))
    say(f"  the whole epoch: {len(whole)} batches, every row once")

    say("\nthe saved third went on with: 1 node x 2 ranks, then 2 nodes x 2 ranks")
    steps = [{"name": "second", "load": state[0], "stop": 6, "save": state[1]}]
    second = launch(folder, fixed, 1, steps, dataset=dataset)["second"]
    steps = [{"name": "third", "load": state[1]}]
    third = launch(folder, fixed, 2, steps, dataset=dataset)["third"]
    parts = [global_batches(ranks) for ranks in (steps_seen["first"], second, third)]
    assert [len(part) for part in parts] == [7, 6, len(whole) - 13]
    assert list(chain(*parts)) == whole
    say(f"  {' + '.join(str(len(part)) for part in parts)} batches: those of the whole epoch, in")
    say("  its order, every row once (num_canonical_nodes=2 throughout)")


def show(ranks: Sequence[dict[str, Any]]) -> None:
    """A line for each rank."""
    for number, rank in enumerate(ranks):
        rows = rows_of(rank)
        first = " ".join(f"{row:3d}" for row in rows[:8])
        say(
            f"  node {number // 2} rank {number}: version {rank['version']}, {len(rows)} rows in "
            f"{len(rank['batches'])} batches: {first} ..."
        )


@contextmanager
def appending(uri: str) -> Iterator[list[int]]:
    """Append 16 rows every second; gives the versions that were made."""
    script = f"""
import sys, time
from tests.support.tables import write_table_here
first = {ROWS}
while True:
    write_table_here({uri!r}, 16, 16, first_row=first, mode="append")
    first += 16
    import lance
    print("version", lance.dataset({uri!r}).version, flush=True)
    time.sleep(1)
"""
    made: list[int] = []
    with start_script(script) as producer:
        producer.wait_for_line("version", timeout_s=60)
        yield made
        # One that is being written as it ends may be seen by nobody.
        made += [int(line.split()[1]) for line in producer.stdout().splitlines()]


def say(text: str) -> None:
    """Print for people."""
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    if os.geteuid() != 0:
        sys.exit("only root may make namespaces")
    subprocess.run(["unshare", "--mount", "--pid", "--fork", "true"], check=True)
    os.chdir(REPO_ROOT)
    with tempfile.TemporaryDirectory(prefix="two-nodes-") as directory:
        main(Path(directory), *sys.argv[1:])
