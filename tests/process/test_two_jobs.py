"""Jobs of one machine at the same time or one after the other, and other users of it."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.stores.outcomes import data_reads, outcome
from tests.support.fault_proxy import FaultProxy
from tests.support.forked import fork, run_forked
from tests.support.mounts import as_root
from tests.support.object_store import S3Server
from tests.support.scripts import start_script
from tests.support.streams import batches, dataset, ids, wait_until
from tests.support.tables import write_table

ROWS = list(range(100))
NOBODY = 65534


def at_once(work: Any, count: int, folder: Path) -> list[Any]:
    """The results of processes that begin their work in the same moment."""
    go = folder / "go"
    go.unlink(missing_ok=True)

    def run(number: int) -> Any:
        Path(folder, f"ready{number}").touch()
        while not go.exists():
            pass
        return work(number)

    jobs = [fork(run, number) for number in range(count)]
    try:
        wait_until(lambda: len(list(folder.glob("ready*"))) == count, 30, "all are ready")
        go.touch()
        return [job.wait(60) for job in jobs]
    finally:
        for job in jobs:
            job.kill()
        for path in folder.glob("ready*"):
            path.unlink()


@pytest.mark.slow
def test_default_directories_at_once(
    s3_server: S3Server, s3_bucket: str, fault_proxy: FaultProxy, tmp_path: Path
) -> None:
    """Same table, no ``local``: every row for both; each shard fetched once or twice."""
    uri = f"s3://{s3_bucket}/two-jobs/t100.lance"
    write_table(uri, 100, 25, storage_options=s3_server.storage_options())
    options = s3_server.storage_options(fault_proxy.endpoint)

    def run(number: int) -> list[Any]:
        data = dataset(uri, shard_rows=25, storage_options=options)
        fetched = [sorted(ids(batches(data, 2))) for _ in range(2)]
        return [fetched, data.streams[0].local, data.streams[0].download_process_pid]

    first, second = at_once(run, 2, tmp_path)
    assert first[0] == second[0] == [ROWS, ROWS]
    assert first[1] != second[1]
    assert first[2] != second[2]
    reads = data_reads(fault_proxy)
    assert len(reads) == 4
    # A shard is a file here. Each job plans (a few rows of a file or two) and fetches each once;
    # a shard's columns are read by a request or two.
    assert max(reads.values()) <= 2 * 4, reads


def test_many_begin_in_the_same_moment(
    table_100: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The host looks for free shared memory first and takes it later; here it is one step."""
    from streaming.base.shared import prefix

    from lance_stream.host import starting

    look = prefix._check_and_find_retrying

    def look_for_long(*args: Any, **options: Any) -> int:
        found = look(*args, **options)
        # All of them find the same before one has taken it.
        time.sleep(0.1)
        return found

    for module in (prefix, starting):
        monkeypatch.setattr(module, "_check_and_find_retrying", look_for_long)

    def run(number: int) -> Any:
        data = dataset(table_100, shard_rows=50)
        return [sorted(ids(batches(data, 0))), data._shm_prefix_int]

    results = at_once(run, 3, tmp_path)
    assert [rows for rows, _ in results] == [ROWS] * 3
    assert len({number for _, number in results}) == 3


_LEFT = """
import sys
from pathlib import Path
from streaming import StreamingDataset
from streaming.base.constant import SHM_TO_CLEAN
from streaming.base.shared.prefix import _check_and_find
from lance_stream import LanceStream, LanceStreamingDataset

stream = dict(shard_rows=10, local=sys.argv[2])
host = dict(batch_size=4, num_canonical_nodes=1)
ours = [f"lance_stream_{name}" for name in ("barrier", "preparers_10")]
taken = set()
for name in [*SHM_TO_CLEAN, *ours]:
    prefix = max(_check_and_find([], [], other) for other in SHM_TO_CLEAN)
    left = Path(f"/dev/shm/{prefix:06}_{name}")
    # Too small for what it was, and with another content.
    left.write_bytes(bytes(4))
    try:
        for kind in (StreamingDataset, LanceStreamingDataset):
            data = kind(streams=[LanceStream(sys.argv[1], **stream)], **host)
            assert sorted(row["i"] for row in data) == list(range(100)), name
            taken.add(data._shm_prefix_int == prefix)
            del data
    finally:
        left.unlink()
print(sorted(taken))
"""


def test_any_name_that_a_dead_job_left(table_100: str, tmp_path: Path) -> None:
    """The host looks at each name apart, and a job fails where one that it needs is not free."""
    script = start_script(_LEFT, table_100, tmp_path / "cache")
    assert script.wait(100).check().stdout.splitlines()[-1] == "[False]"


def test_one_explicit_directory_at_once(table_100: str, tmp_path: Path) -> None:
    """One has it, the other is refused and told the pid of the first, which is alive."""
    local = str(tmp_path / "cache")

    def run(number: int) -> dict[str, Any]:
        def build() -> list[int]:
            data = dataset(table_100, local=local)
            time.sleep(3)
            return sorted(ids(batches(data, 2)))

        return {**outcome(build), "pid": os.getpid()}

    results = at_once(run, 2, tmp_path)
    (winner,) = [one for one in results if one["error"] is None]
    (loser,) = [one for one in results if one["error"] is not None]
    assert winner["value"] == ROWS
    assert loser["error"] == "CacheInUseError"
    assert f"local={local!r} is in use by process {winner['pid']}:" in loser["message"]


_KILLED = """
import sys
from tests.support.streams import batches, dataset
data = dataset(sys.argv[1], shard_rows=5, local=sys.argv[2] or None)
for number, batch in enumerate(batches(data, 2)):
    if number == 5:
        print("trains", flush=True)
        import time
        time.sleep(60)
"""


@pytest.mark.slow
@pytest.mark.parametrize("explicit", [True, False])
def test_another_temporary_directory_after_a_crash(
    table_100: str, tmp_path: Path, explicit: bool
) -> None:
    """kill -9 of all of a job, then its restart with another TMPDIR: nothing is in its way."""
    local = str(tmp_path / "cache") if explicit else ""
    folders = [tmp_path / "tmp-a", tmp_path / "tmp-b"]
    for folder in folders:
        folder.mkdir()
    # As users have it: the default directories lie in TMPDIR.
    variables = {"LANCE_STREAM_CACHE_DIR": None}
    before = set(os.listdir("/dev/shm"))
    try:
        with start_script(
            _KILLED, table_100, local, env={**variables, "TMPDIR": str(folders[0])}
        ) as job:
            job.wait_for_line("trains", timeout_s=60)
            job.kill_group(signal.SIGKILL)

        def again() -> list[Any]:
            os.environ["TMPDIR"] = str(folders[1])
            del os.environ["LANCE_STREAM_CACHE_DIR"]
            tempfile.tempdir = None
            started = time.monotonic()
            data = dataset(table_100, shard_rows=5, local=local or None)
            built_s = time.monotonic() - started
            return [built_s, sorted(ids(batches(data, 2)))]

        built_s, rows = run_forked(again)
        assert rows == ROWS
        # The kernel lets go of what a killed process held within a moment.
        assert built_s < 15
    finally:
        # What a killed host leaves in shared memory.
        for name in set(os.listdir("/dev/shm")) - before:
            if re.fullmatch(r"\d{6}_\w+", name):
                Path("/dev/shm", name).unlink()


_OTHER_USER = """
import json, os, sys, time
from pathlib import Path
from lance_stream.errors import LanceStreamError
from tests.support.streams import batches, dataset, ids
uri, meet, me, local = sys.argv[1:]
os.umask(0o077)
said = {"uid": os.getuid(), "refused": None}
if local:
    try:
        dataset(uri, local=local)
    except LanceStreamError as error:
        said["refused"] = f"{type(error).__name__}: {error}"
data = dataset(uri, shard_rows=10)
Path(meet, me).touch()
deadline = time.monotonic() + 60
while len(os.listdir(meet)) < 2 and time.monotonic() < deadline:
    time.sleep(0.05)
said["rows"] = [sorted(ids(batches(data, 2))) for _ in range(2)]
said["local"] = data.streams[0].local
Path(meet, me + "-done").touch()
print(json.dumps(said), flush=True)
"""


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A folder in which everybody may write, as in /tmp."""
    folder = Path(tempfile.mkdtemp(dir="/tmp"))
    folder.chmod(0o1777)
    yield folder
    shutil.rmtree(folder)
    shutil.rmtree(f"/tmp/lance-stream-{NOBODY}", ignore_errors=True)


@pytest.mark.slow
@as_root
def test_a_second_user(open_folder: Path) -> None:
    """Two users train on one table at the same time, with the same /tmp and /dev/shm."""
    uri, meet, tmp = (open_folder / name for name in ("t.lance", "meet", "tmp"))
    for folder in (meet, tmp):
        folder.mkdir()
        folder.chmod(0o1777)
    write_table(str(uri), 100, 25)
    script = open_folder / "job.py"
    script.write_text(_OTHER_USER)
    mine = open_folder / "mine"
    mine.mkdir(mode=0o700)
    env = {
        "TMPDIR": str(tmp),
        "HOME": str(tmp),
        "LANCE_STREAM_CACHE_DIR": None,
        "LANCE_STREAM_RUNTIME_DIR": None,
    }
    # The interpreter and this repository may lie where only root can read: that much is allowed.
    as_nobody = f"""
import os, sys
change = ["--reuid={NOBODY}", "--regid={NOBODY}", "--clear-groups"]
change += ["--inh-caps=-all,+dac_read_search", "--ambient-caps=-all,+dac_read_search"]
os.execvp("setpriv", ["setpriv", *change, sys.executable, *sys.argv[1:]])
"""
    with ExitStack() as stack:
        root = stack.enter_context(start_script(script, uri, meet, "root", "", env=env))
        other = stack.enter_context(
            start_script(as_nobody, script, uri, meet, "nobody", mine, env=env)
        )
        said = [job.wait(90).check().json() for job in (root, other)]
    assert [job["uid"] for job in said] == [0, NOBODY]
    for job in said:
        assert job["rows"] == [ROWS, ROWS]
        assert job["local"].startswith(f"{tmp}/lance-stream-{job['uid']}/cache/")
    # A directory of the other's is refused by name, and nothing of the other's is touched.
    assert said[1]["refused"].startswith(f"PlanError: local={str(mine)!r} cannot be used")
    assert json.dumps(os.listdir(mine)) == "[]"
