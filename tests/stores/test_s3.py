"""A table on a real S3 server: exact, read once, and every failure of the store told or survived.

The proxy in front of the server does the harm and counts the requests.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import live_processes
from tests.stores.outcomes import data_reads, epoch, leaks, outcome
from tests.support.fault_proxy import FaultProxy
from tests.support.faults import Fault
from tests.support.forked import run_forked
from tests.support.object_store import S3Server
from tests.support.scripts import start_script
from tests.support.streams import batches, cached_files, dataset, endpoint, ids, wait_until
from tests.support.tables import write_table

DATA = r"/data/[^/?]+\.lance$"
ROWS = list(range(100))
# Not the server's: a search for them finds nothing else.
WRONG = "wr0ngwr0ngwr0ngwr0ng"


@pytest.mark.parametrize("workers", [0, 2])
def test_read_once(
    s3_table: str, options: dict[str, str], fault_proxy: FaultProxy, tmp_path: Path, workers: int
) -> None:
    """A cold epoch asks for each shard once, warm ones for nothing, in this job or the next."""

    def run(epochs: int) -> list[Any]:
        data = dataset(
            s3_table,
            shard_rows=10,
            local=str(tmp_path / "cache"),
            storage_options=options,
            host={"shuffle": True},
        )
        # What planning asks for is another matter.
        reads: list[Counter[str]] = [data_reads(fault_proxy)]
        exact = []
        for _ in range(epochs):
            exact.append(epoch(data, workers)["value"] == ROWS)
            reads.append(data_reads(fault_proxy))
        return [exact, reads]

    exact, (planning, cold, warm) = run_forked(run, 2)
    assert exact == [True, True]
    assert sum(planning.values()) <= 9
    # Three shards of 10 rows lie in each file of 25, wholly or in part; files as small as these
    # are read whole.
    assert len(cold) == 4
    assert max(cold.values()) <= 3, cold
    assert warm == {}

    exact, (_, next_job) = run_forked(run, 1)
    assert exact == [True]
    assert next_job == {}


def test_columns_are_read_once(
    s3_server: S3Server, s3_bucket: str, options: dict[str, str], fault_proxy: FaultProxy
) -> None:
    """Of files too large to be read whole, little more than the wanted rows is sent."""
    uri = f"s3://{s3_bucket}/stores/t20000.lance"
    write_table(uri, 20_000, 10_000, storage_options=s3_server.storage_options())

    def run() -> list[Any]:
        data = dataset(uri, shard_rows=1000, storage_options=options, batch_size=100)
        fault_proxy.log()
        seen = ids(batches(data, 2), check=False)
        records = [r for r in fault_proxy.log() if "/data/" in r.path]
        return [sorted(seen) == list(range(20_000)), len(records), sum(r.bytes for r in records)]

    exact, requests, num_bytes = run_forked(run)
    assert exact
    # A request per run of buffers, and the ends of two files by the readers that begin together.
    assert requests <= 20 * 4 + 2 * 16 * 3
    # Gaps under 64 KiB between two columns are read too.
    assert num_bytes < 2.5 * _stored_bytes(s3_server, s3_bucket, "stores/t20000.lance/data/")


def _stored_bytes(server: S3Server, bucket: str, prefix: str) -> int:
    listing = server.client().list_objects_v2(Bucket=bucket, Prefix=prefix)
    return sum(item["Size"] for item in listing["Contents"])


@pytest.mark.parametrize(
    ("place", "keys", "stream", "error", "says"),
    [
        ("{}", {"secret_access_key": WRONG}, {}, "CredentialsError", "SignatureDoesNotMatch"),
        ("{}", {"access_key_id": WRONG}, {}, "CredentialsError", "InvalidAccessKeyId"),
        ("s3://no-such-bucket/t.lance", {}, {}, "DatasetNotFoundError", "NoSuchBucket"),
        ("{}.not", {}, {}, "DatasetNotFoundError", "no Lance table there"),
        ("{}", {}, {"split": "val"}, "DatasetNotFoundError", "/val: there is no Lance table"),
        ("{}", {}, {"version": 99}, "VersionNotFoundError", "version 99: there is no such"),
        ("{}", {}, {"version": "v1"}, "VersionNotFoundError", "version 'v1': there is no such"),
    ],
    ids=["secret", "key", "bucket", "table", "split", "version", "tag"],
)
def test_what_is_not_there_or_not_allowed(
    s3_table: str,
    s3_server: S3Server,
    options: dict[str, str],
    place: str,
    keys: dict[str, str],
    stream: dict[str, Any],
    error: str,
    says: str,
) -> None:
    """An error when the dataset is built, soon, by name of the table, without the secrets."""
    uri = place.format(s3_table)

    def run() -> list[Any]:
        result = outcome(lambda: dataset(uri, storage_options={**options, **keys}, **stream))
        return [result, leaks([s3_server.secret_key, WRONG])]

    result, leaked = run_forked(run)
    assert result["error"] == error, result
    assert uri in result["message"]
    assert says in result["message"]
    assert result["seconds"] < 15
    assert s3_server.secret_key not in result["text"]
    assert WRONG not in result["text"]
    assert leaked == []


@pytest.mark.parametrize(("retry", "version"), [(0, None), (1, 1)])
def test_nothing_listens(
    s3_table: str, s3_server: S3Server, options: dict[str, str], retry: int, version: int | None
) -> None:
    """Told after the attempts that were asked for, and no later."""
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        away = f"http://127.0.0.1:{unused.getsockname()[1]}"

        def run() -> dict[str, Any]:
            there = {**options, "endpoint": away}
            work = {"storage_options": there, "download_timeout": 5, "download_retry": retry}
            return outcome(lambda: dataset(s3_table, version=version, **work))

        result = run_forked(run)
    assert result["error"] == "SourceUnavailableError", result
    assert s3_table in result["message"]
    assert s3_server.secret_key not in result["text"]
    assert result["seconds"] < 8 * (1 + retry) + 5


def test_hangs_at_open(s3_table: str, options: dict[str, str], fault_proxy: FaultProxy) -> None:
    """A store that takes requests and never answers."""
    fault_proxy.set(Fault(action="hang"))

    def run() -> list[Any]:
        work = {"storage_options": options, "download_timeout": 5, "download_retry": 0}
        stalled = outcome(lambda: dataset(s3_table, **work))
        fault_proxy.clear()
        return [stalled, epoch(dataset(s3_table, shard_rows=10, **work), 0)["value"] == ROWS]

    result, exact_later = run_forked(run)
    assert result["error"] == "SourceUnavailableError", result
    assert s3_table in result["message"]
    assert "download_timeout=5 s" in result["message"]
    assert result["seconds"] < 15
    assert exact_later


@pytest.mark.slow
def test_throttled_at_open(
    s3_table: str, options: dict[str, str], fault_proxy: FaultProxy
) -> None:
    """503 for ever: an error that says so."""
    fault_proxy.set(Fault(fail_rate=1))

    def run() -> dict[str, Any]:
        work = {"storage_options": options, "download_timeout": 5, "download_retry": 0}
        return outcome(lambda: dataset(s3_table, **work))

    result = run_forked(run)
    assert result["error"] == "SourceUnavailableError", result
    assert s3_table in result["message"]
    assert "503" in result["message"] or "SlowDown" in result["message"]
    assert result["seconds"] < 20


def test_hangs_in_mid_epoch(
    s3_table: str, options: dict[str, str], fault_proxy: FaultProxy
) -> None:
    """Reads that never end: the shard's error in the training loop, after its time."""

    def run() -> list[Any]:
        data = dataset(
            s3_table,
            shard_rows=10,
            storage_options=options,
            download_timeout=10,
            download_retry=0,
        )
        fault_proxy.set(Fault(path=DATA, action="hang"))
        stalled = epoch(data, 2)
        fault_proxy.clear()
        return [stalled, epoch(data, 2)["value"] == ROWS]

    result, exact_later = run_forked(run)
    assert result["error"] == "ShardUnavailableError", result
    assert "shard 0 (rows [0, 10))" in result["message"]
    assert f"{s3_table} version 1" in result["message"]
    assert "no answer within 10 s" in result["message"]
    assert 9 < result["seconds"] < 25
    assert exact_later


def test_hangs_for_a_while(
    s3_table: str, options: dict[str, str], fault_proxy: FaultProxy
) -> None:
    """What was asked during the hang is never answered: only asking again helps."""

    def run() -> list[Any]:
        data = dataset(
            s3_table,
            shard_rows=10,
            storage_options=options,
            download_timeout=4,
            download_retry=2,
        )
        fault_proxy.log()
        fault_proxy.set(Fault(path=DATA, action="hang"))
        threading.Timer(3, fault_proxy.clear).start()
        result = epoch(data, 2)
        return [result, sum(r.fault == "hang" for r in fault_proxy.log())]

    result, hung = run_forked(run)
    assert result["value"] == ROWS, result
    assert hung >= 1
    assert 3 < result["seconds"] < 25


@pytest.mark.parametrize(
    "fault",
    [
        Fault(path="/_versions/", action="reset"),
        Fault(path="/_versions/", fail_rate=1),
    ],
    ids=["reset", "503"],
)
def test_manifest_away_for_a_while(
    s3_table: str, options: dict[str, str], fault_proxy: FaultProxy, fault: Fault
) -> None:
    """Seconds in which the table cannot be opened again, in mid-epoch: waited for, then exact."""

    def run() -> dict[str, Any]:
        data = dataset(s3_table, shard_rows=25, storage_options=options, download_retry=10)
        fault_proxy.set(fault)
        threading.Timer(3, fault_proxy.clear).start()
        return epoch(data, 2)

    result = run_forked(run)
    assert result["value"] == ROWS, result
    assert 2 < result["seconds"] < 30


@pytest.mark.parametrize(
    "fault",
    [
        pytest.param(Fault(fail_rate=0.2, seed=3), id="503"),
        pytest.param(Fault(path=DATA, action="body_reset", action_rate=0.2, seed=3), id="reset"),
        pytest.param(
            Fault(path=DATA, action="body_close", action_rate=0.2, seed=3),
            id="close",
            marks=pytest.mark.slow,
        ),
    ],
)
def test_a_fifth_of_the_answers_is_bad(
    s3_table: str, options: dict[str, str], fault_proxy: FaultProxy, fault: Fault
) -> None:
    """Throttled or cut in half: asked again, and every row of two epochs exact."""

    def run() -> list[Any]:
        data = dataset(
            s3_table,
            shard_rows=2,
            storage_options=options,
            download_timeout=15,
            download_retry=5,
            # Room for a third of the shards: the second epoch reads most of them again.
            host={"shuffle": True, "cache_limit": "24kb"},
        )
        fault_proxy.log()
        fault_proxy.set(fault)
        results, counts = [], []
        for _ in range(2):
            results.append(epoch(data, 2))
            counts.append(dict(Counter(str(r.fault) for r in fault_proxy.log()).items()))
        return [results, counts]

    results, counts = run_forked(run, timeout_s=90)
    assert [result["value"] for result in results] == [ROWS, ROWS], results
    for count in counts:
        assert count["None"] >= 30
        assert count[fault.action or "fail"] >= 3


@pytest.mark.parametrize("status", [400, 403])
def test_credentials_lapse_in_mid_epoch(
    s3_table: str, options: dict[str, str], fault_proxy: FaultProxy, status: int
) -> None:
    """Fixed options cannot be renewed: told at once, without hammering the store."""

    def run() -> list[Any]:
        data = dataset(s3_table, shard_rows=25, storage_options=options, download_retry=5)
        fault_proxy.log()
        fault_proxy.set(
            Fault(path=DATA, fail_rate=1, fail_status=status, fail_code="ExpiredToken")
        )
        return [epoch(data, 2), data_reads(fault_proxy)]

    result, reads = run_forked(run)
    assert result["error"] == "ShardCredentialsError", result
    assert "rows [" in result["message"]
    assert s3_table in result["message"]
    assert "ExpiredToken" in result["message"]
    assert "check the credentials" in result["message"]
    assert result["seconds"] < 15
    # A path in the sources of Rust is of no use, and its line numbers look like statuses.
    assert ".rs:" not in result["message"]
    # Lance itself sends each request four times.
    assert sum(reads.values()) <= 4 * 4 * 4, reads


def test_refused_ahead_of_use(
    s3_table: str, options: dict[str, str], fault_proxy: FaultProxy
) -> None:
    """A shard that is refused before anybody needs it is not asked for with every sample."""

    def run() -> list[Any]:
        data = dataset(s3_table, shard_rows=25, storage_options=options, batch_size=1)
        loader = iter(batches(data, 0))
        first = next(loader)[0]["i"]
        wait_until(lambda: len(cached_files(data)) == 1, 10, "the first shard is there")
        fault_proxy.log()
        fault_proxy.set(Fault(path=DATA, fail_rate=1, fail_status=403, fail_code="AccessDenied"))
        seen = [first]

        def train() -> None:
            for batch in loader:
                seen.append(batch[0]["i"])
                time.sleep(0.02)

        return [outcome(train), seen, data_reads(fault_proxy)]

    result, seen, reads = run_forked(run)
    assert result["error"] == "ShardCredentialsError", result
    assert "shard 1 (rows [25, 50))" in result["message"]
    assert seen == ROWS[:25]
    # One attempt ahead of use and one that somebody waits for, of four requests each; and some
    # margin.
    assert max(reads.values()) <= 4 * 4, reads


@pytest.mark.parametrize(
    ("folder", "fault"),
    [
        ("runs-403", Fault(path=DATA, fail_rate=1)),
        ("404 not found", Fault(path=DATA, action="reset")),
    ],
    ids=["403", "404"],
)
def test_names_that_look_like_causes(
    s3_server: S3Server,
    s3_bucket: str,
    options: dict[str, str],
    fault_proxy: FaultProxy,
    folder: str,
    fault: Fault,
) -> None:
    """A folder's name is no status of the store: what may pass is tried again."""
    uri = f"s3://{s3_bucket}/stores/{folder}/t.lance"
    write_table(uri, 100, 25, storage_options=s3_server.storage_options())

    def run() -> dict[str, Any]:
        data = dataset(uri, shard_rows=25, storage_options=options, download_retry=10)
        fault_proxy.set(fault)
        threading.Timer(3, fault_proxy.clear).start()
        return epoch(data, 0)

    result = run_forked(run)
    assert result["value"] == ROWS, result
    assert result["seconds"] > 2


def test_throttled_for_ever(
    s3_table: str, options: dict[str, str], fault_proxy: FaultProxy
) -> None:
    """503 for every read: as many attempts as were asked for, then the error."""

    def run() -> dict[str, Any]:
        data = dataset(
            s3_table, shard_rows=25, storage_options=options, download_timeout=20, download_retry=1
        )
        fault_proxy.set(Fault(path=DATA, fail_rate=1))
        return epoch(data, 2)

    result = run_forked(run)
    assert result["error"] == "ShardUnavailableError", result
    assert "rows [" in result["message"]
    assert "after 2 attempts" in result["message"]
    assert "503" in result["message"] or "SlowDown" in result["message"]
    assert result["seconds"] < 40


def _truncate(server: S3Server, bucket: str, prefix: str) -> None:
    """Cut the largest object below a prefix to half."""
    client = server.client()
    listing = client.list_objects_v2(Bucket=bucket, Prefix=prefix)
    key = max(listing["Contents"], key=lambda item: item["Size"])["Key"]
    body = client.get_object(Bucket=bucket, Key=key)["Body"].read()
    client.put_object(Bucket=bucket, Key=key, Body=body[: len(body) // 2])


def test_a_truncated_object(
    s3_server: S3Server, s3_bucket: str, options: dict[str, str], tmp_path: Path
) -> None:
    """Half a data file is an error of its shard, never fewer or other rows."""
    uri = f"s3://{s3_bucket}/stores/truncated.lance"
    write_table(uri, 100, 25, storage_options=s3_server.storage_options())

    def run() -> list[Any]:
        data = dataset(
            uri, shard_rows=25, storage_options=options, download_timeout=10, download_retry=1
        )
        _truncate(s3_server, s3_bucket, "stores/truncated.lance/data/")
        seen: list[int] = []

        def train() -> None:
            for batch in batches(data, 0):
                seen.extend(ids([batch]))

        return [outcome(train), seen]

    result, seen = run_forked(run)
    assert result["error"] == "ShardUnavailableError", result
    assert "rows [" in result["message"]
    assert uri in result["message"]
    assert seen == ROWS[: len(seen)]
    assert result["seconds"] < 30


@pytest.mark.parametrize("action", ["body_close", "body_reset"])
def test_answers_always_cut(
    s3_table: str, options: dict[str, str], fault_proxy: FaultProxy, action: Any
) -> None:
    """The same from the network: as many attempts as allowed, then an error."""

    def run() -> dict[str, Any]:
        data = dataset(
            s3_table, shard_rows=25, storage_options=options, download_timeout=10, download_retry=1
        )
        fault_proxy.set(Fault(path=DATA, action=action))
        return epoch(data, 2)

    result = run_forked(run)
    assert result["error"] == "ShardUnavailableError", result
    assert "rows [" in result["message"]
    assert "the store did not answer as it should" in result["message"]
    assert result["seconds"] < 40


_KEYS = """
import json, os
from tests.support.fault_proxy import ProxyControl
calls = {calls!r}
def keys():
    with open(calls, "a") as file:
        file.write("call\\n")
    with open(calls) as file:
        number = len(file.readlines())
    options = json.loads({options!r})
    {how}
"""


def _key_module(
    directory: Path, options: dict[str, str], how: str
) -> tuple[str, Callable[[], int]]:
    """A module with a function that gives keys; its name, and how often it was called so far."""
    calls = directory / "calls"
    name = f"keys_{directory.name.replace('-', '_')}"
    source = _KEYS.format(calls=str(calls), options=json.dumps(options), how=how)
    (directory / f"{name}.py").write_text(source)
    return f"{name}:keys", lambda: len(calls.read_text().splitlines())


@pytest.mark.parametrize("split", [None, "t100"])
def test_keys_of_a_function(
    s3_table: str,
    options: dict[str, str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    split: str | None,
) -> None:
    """Asked for once per job, in the download process; refused keys once more."""
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    wrong = f'options["secret_access_key"] = "{WRONG}" if number == 1 else'
    right = 'options["secret_access_key"]'
    function, calls = _key_module(tmp_path, options, f"{wrong} {right}; return options, None")
    uri = s3_table if split is None else s3_table.rpartition("/")[0]

    def run() -> dict[str, Any]:
        data = dataset(uri, split=split, shard_rows=10, storage_options=function)
        return {**epoch(data, 2), "loaded": function.split(":")[0] in sys.modules}

    built = run_forked(lambda: outcome(run))
    assert built["error"] is None, built
    assert built["value"]["value"] == ROWS, built
    assert not built["value"]["loaded"]
    assert calls() == 2


@pytest.mark.slow
def test_keys_that_are_refused_again(
    s3_table: str, options: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two wrong answers in a row are an error, without the keys in it."""
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    wrong = {**options, "secret_access_key": WRONG}
    function, calls = _key_module(tmp_path, wrong, "return options, None")

    def run() -> list[Any]:
        result = outcome(lambda: dataset(s3_table, storage_options=function))
        return [result, leaks([WRONG])]

    result, leaked = run_forked(run)
    assert result["error"] == "CredentialsError", result
    assert s3_table in result["message"]
    assert WRONG not in result["text"]
    assert leaked == []
    assert calls() == 2


def test_keys_lapse_in_mid_epoch(
    s3_table: str,
    options: dict[str, str],
    fault_proxy: FaultProxy,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Refused although not expired: renewed once for all shards that are being read."""
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    # The new keys are good: the store takes them.
    renewed = f"ProxyControl({fault_proxy.control_port}).clear() if number > 1 else None"
    function, calls = _key_module(tmp_path, options, f"{renewed}; return options, None")

    def run() -> list[Any]:
        data = dataset(s3_table, shard_rows=10, storage_options=function, download_retry=0)
        before = calls()
        # Slowly, so that several reads are under way when they are refused.
        refused = {"fail_rate": 1, "fail_status": 403, "fail_code": "ExpiredToken"}
        fault_proxy.set(Fault(path=DATA, latency_ms=300, **refused))
        return [before, epoch(data, 2)]

    before, result = run_forked(run)
    assert before == 1
    assert result["value"] == ROWS, result
    assert calls() == 2


def test_keys_with_an_expiry(
    s3_table: str, options: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Renewed a minute before they lapse, so here with every second, and never refused."""
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    function, calls = _key_module(
        tmp_path, options, "import time; return options, time.time() + 61"
    )

    def run() -> dict[str, Any]:
        data = dataset(s3_table, shard_rows=10, storage_options=function)
        time.sleep(1.1)
        return epoch(data, 2)

    result = run_forked(run)
    assert result["value"] == ROWS, result
    assert 2 <= calls() <= 4


def test_a_function_that_fails(
    s3_table: str, options: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The function's own error, and its name."""
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    function, _ = _key_module(tmp_path, options, 'raise RuntimeError("no vault today")')
    result = run_forked(lambda: outcome(lambda: dataset(s3_table, storage_options=function)))
    assert result["error"] == "CredentialsError", result
    assert function in result["message"]
    assert "no vault today" in result["message"]


_STALLED_JOB = """
import json, os, sys
from pathlib import Path
from tests.support.fault_proxy import ProxyControl
from tests.support.faults import Fault
from tests.support.streams import batches, dataset, wait_until

uri, local, control_port, where = sys.argv[1:]
proxy = ProxyControl(int(control_port))
hang = Fault(path="" if where == "open" else "/data/", action="hang")
if where == "open":
    proxy.set(hang)
# The host does not expect two jobs to begin at the same time: they take the same shared memory.
wait_until(Path(local).exists, 60, "it is the turn of this job")
print("ready", flush=True)
data = dataset(uri, shard_rows=10, local=local, storage_options=json.loads(os.environ["OPTIONS"]))
proxy.set(hang)
print("built", flush=True)
for batch in batches(data, int(where)):
    pass
print("ended", flush=True)
"""


def test_interrupt_of_a_stalled_job(s3_table: str, s3_server: S3Server, tmp_path: Path) -> None:
    """One Ctrl-C ends a job that hangs at open or in mid-epoch, and its download process too."""
    with ExitStack() as stack:
        jobs = {}
        for where in ("open", "0", "2"):
            proxy = stack.enter_context(FaultProxy.start(s3_server.port))
            # Short: a unix socket's path has 107 bytes.
            runtime = stack.enter_context(
                tempfile.TemporaryDirectory(prefix="lst-", dir="/tmp", ignore_cleanup_errors=True)
            )
            job = start_script(
                _STALLED_JOB,
                s3_table,
                tmp_path / where,
                proxy.control_port,
                where,
                env={
                    "OPTIONS": json.dumps(s3_server.storage_options(proxy.endpoint)),
                    "LANCE_STREAM_RUNTIME_DIR": runtime,
                },
            )
            jobs[where] = (stack.enter_context(job), proxy, Path(runtime))
        pids = {}
        for where, (job, proxy, runtime) in jobs.items():
            (tmp_path / where).mkdir()
            job.wait_for_line("ready" if where == "open" else "built", 60)
            wait_until(lambda proxy=proxy: _hangs(proxy), 30, f"the job stalls ({where})")
            (pids[where],) = live_processes(runtime)
        time.sleep(0.5)
        assert {where: job.poll() for where, (job, _, _) in jobs.items()} == dict.fromkeys(jobs)
        for job, _, _ in jobs.values():
            # As the terminal does: to the whole foreground group.
            job.kill_group(signal.SIGINT)
        interrupted_s = time.monotonic()

        def wait_until_all(condition: Callable[[str], bool], limit_s: float, what: str) -> None:
            left_s = interrupted_s + limit_s - time.monotonic()
            wait_until(lambda: all(map(condition, jobs)), left_s, what)

        wait_until_all(lambda where: jobs[where][0].poll() is not None, 5, "the jobs have ended")
        wait_until_all(
            lambda where: not os.path.exists(f"/proc/{pids[where]}"),
            15,
            "the download processes have ended",
        )
        wait_until_all(lambda where: jobs[where][0].group_pids() == [], 15, "no worker is left")
        assert all("KeyboardInterrupt" in job.stderr() for job, _, _ in jobs.values())


def _hangs(proxy: FaultProxy) -> bool:
    return any(record.fault == "hang" for record in proxy.log())


def test_one_process_reads_for_all_workers(
    s3_table: str, options: dict[str, str], fault_proxy: FaultProxy
) -> None:
    """Four workers that all want the same shards: one fetch of each, and one process."""

    def run() -> list[Any]:
        data = dataset(
            s3_table,
            shard_rows=25,
            storage_options=options,
            batch_size=1,
            host={"shuffle": True},
        )
        fault_proxy.log()
        fault_proxy.set(Fault(path=DATA, latency_ms=300))
        before = endpoint(data).pid()
        result = epoch(data, 4)
        return [result, data_reads(fault_proxy), before == endpoint(data).pid()]

    result, reads, same = run_forked(run)
    assert result["value"] == ROWS, result
    assert sorted(reads.values()) == [1, 1, 1, 1]
    assert same
