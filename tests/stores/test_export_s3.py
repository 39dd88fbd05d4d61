"""``lance-stream export`` from a real S3 server to the same one."""

from __future__ import annotations

import json
import os
import random
import re
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.fault_proxy import FaultProxy
from tests.support.faults import Fault
from tests.support.forked import run_forked
from tests.support.object_store import S3Server
from tests.support.scripts import RunningScript, ScriptResult, start_script
from tests.support.streams import wait_until
from tests.support.tables import assert_row, write_table

COMMAND = "import sys\nfrom lance_stream.cli.main import main\nsys.exit(main())\n"
STATE = ".lance_stream_export"


class Exports:
    """Exports of a table to a folder of the bucket."""

    def __init__(self, server: S3Server, bucket: str, endpoint: str, tmp_path: Path) -> None:
        self.endpoint = endpoint
        self._server, self._bucket = server, bucket
        self._prefix = f"exports/{tmp_path.name}"
        self.url = f"s3://{bucket}/{self._prefix}"
        self._options = tmp_path / "options.json"
        self._options.write_text(json.dumps(server.storage_options(endpoint)))

    def start(self, uri: str, *more: object, **environment: str) -> RunningScript:
        """Begin an export, with secrets in a file and in the environment."""
        return start_script(
            COMMAND,
            *("export", uri, "--out", self.url, "--storage-options-from", self._options),
            *("--out-option", f"endpoint_url={self.endpoint}"),
            *("--out-option-env", "key=OUT_KEY", "--out-option-env", "secret=OUT_SECRET"),
            *more,
            env={
                "OUT_KEY": self._server.access_key,
                "OUT_SECRET": self._server.secret_key,
                **environment,
            },
        )

    def run(self, uri: str, *more: object, **environment: str) -> ScriptResult:
        with self.start(uri, *more, **environment) as script:
            return script.wait(60)

    def objects(self) -> dict[str, int]:
        """Names and bytes of what is in the folder."""
        listing = self._server.client().list_objects_v2(
            Bucket=self._bucket, Prefix=f"{self._prefix}/"
        )
        found = {
            o["Key"].removeprefix(f"{self._prefix}/"): o["Size"]
            for o in listing.get("Contents", ())
        }
        return {name: size for name, size in found.items() if not name.endswith("/")}

    def put(self, name: str, text: str) -> None:
        self._server.client().put_object(
            Bucket=self._bucket, Key=f"{self._prefix}/{name}", Body=text.encode()
        )

    def records(self) -> int:
        return sum(bool(re.search(r"/\d{8}\.json$", f"/{name}")) for name in self.objects())

    def read_all(self, local: Path) -> list[int]:
        """Every row that the stock dataset gives, compared with the table's; their numbers."""
        os.environ["S3_ENDPOINT_URL"] = self._server.endpoint
        os.environ["AWS_ACCESS_KEY_ID"] = self._server.access_key
        os.environ["AWS_SECRET_ACCESS_KEY"] = self._server.secret_key
        os.environ["AWS_DEFAULT_REGION"] = "us-east-1"
        from streaming import StreamingDataset

        found = []
        for sample in StreamingDataset(remote=self.url, local=str(local), batch_size=10):
            row = {"i": int(sample["i"]), "s": sample["s"], "v": sample["v"]}
            assert_row(row, row["i"])
            found.append(row["i"])
        return found


@pytest.fixture
def exports(
    s3_server: S3Server, s3_bucket: str, fault_proxy: FaultProxy, tmp_path: Path
) -> Exports:
    return Exports(s3_server, s3_bucket, fault_proxy.endpoint, tmp_path)


@pytest.fixture(autouse=True)
def no_leftovers() -> Iterator[None]:
    yield
    import tempfile

    folder = Path(tempfile.gettempdir(), f"lance-stream-export-{os.getuid()}")
    assert not folder.exists() or not os.listdir(folder)


def names(count: int, ending: str = "") -> list[str]:
    return ["index.json", *(f"shard.{number:05}.mds{ending}" for number in range(count))]


def refusal(result: ScriptResult, status: int = 1) -> str:
    assert result.returncode == status, result.stderr
    assert result.stdout == ""
    assert result.stderr.count("\n") == 1, result.stderr
    assert "not-a-secret-of-anybody" not in result.stderr
    return result.stderr


def test_the_stock_dataset_reads_it(s3_table: str, exports: Exports, tmp_path: Path) -> None:
    summary = exports.run(s3_table, "--shard-rows", 30, "--json").json()
    found = exports.objects()
    assert sorted(found) == names(4)
    assert (summary["rows"], summary["shards"], summary["kept_shards"]) == (100, 4, 0)
    assert (summary["out"], summary["uri"]) == (exports.url, s3_table)
    assert summary["bytes"] == sum(found.values()) - found["index.json"]
    assert run_forked(exports.read_all, tmp_path / "copy") == list(range(100))

    again = exports.run(s3_table, "--shard-rows", 30, "--json").json()
    assert again["kept_shards"] == 4
    assert exports.objects() == found
    text = refusal(exports.run(s3_table, "--shard-rows", 20))
    assert f"{exports.url} holds another export (shards 4 there, 5 here)" in text
    assert exports.objects() == found


@pytest.mark.slow
def test_killed_at_random_moments(
    s3_server: S3Server, s3_bucket: str, exports: Exports, tmp_path: Path
) -> None:
    uri = f"s3://{s3_bucket}/exports/t1000.lance"
    write_table(uri, 1000, 1000, storage_options=s3_server.storage_options())
    chosen, killed = random.Random(3), 0
    for _ in range(3):
        with exports.start(uri, "--shard-rows", 20) as script:
            time.sleep(chosen.uniform(0.7, 1.5))
            killed += script.poll() is None
        left = exports.objects()
        assert "index.json" not in left or set(names(50)) <= set(left)
    summary = exports.run(uri, "--shard-rows", 20, "--json").json()
    assert summary["rows"] == 1000
    assert killed
    assert sorted(exports.objects()) == names(50)
    assert run_forked(exports.read_all, tmp_path / "copy") == list(range(1000))


def test_two_at_once(s3_table: str, exports: Exports, fault_proxy: FaultProxy) -> None:
    fault_proxy.set(Fault(method="PUT", path=r"shard\.0000[5-9]", latency_ms=4000))
    with exports.start(s3_table, "--shard-rows", 5, "--workers", 1) as script:
        wait_until(lambda: exports.records() > 2 or script.poll(), 20, "some shards")
        assert script.poll() is None, script.stderr()
        text = refusal(exports.run(s3_table, "--shard-rows", 5))
        assert f"another export to {exports.url} is running, with pid {script.pid} on" in text
        fault_proxy.clear()
        script.wait(30).check()
    assert sorted(exports.objects()) == names(20)


def test_interrupted(s3_table: str, exports: Exports, fault_proxy: FaultProxy) -> None:
    fault_proxy.set(Fault(method="PUT", path=r"shard\.00005", action="hang", hang_s=60))
    with exports.start(s3_table, "--shard-rows", 5, "--workers", 2) as script:
        wait_until(lambda: exports.records() == 19 or script.poll(), 20, "all but one")
        script.kill_group(signal.SIGINT)
        started = time.monotonic()
        result = script.wait(20)
        assert time.monotonic() - started < 12
    assert refusal(result, 130) == "lance-stream export: interrupted\n"
    fault_proxy.clear()
    # The lease was given back, and not only because its process is gone.
    assert f"{STATE}/lock.json" not in exports.objects()
    assert exports.run(s3_table, "--shard-rows", 5, "--json").json()["kept_shards"] == 19
    assert sorted(exports.objects()) == names(20)


@pytest.mark.slow
@pytest.mark.parametrize(
    "fault",
    [
        Fault(method="PUT", path=r"shard\.00001", fail_next=2),
        Fault(method="GET", path=r"/data/", action="reset", action_next=2),
    ],
    ids=["an upload", "a read"],
)
def test_what_passes_is_survived(
    s3_table: str, exports: Exports, fault_proxy: FaultProxy, fault: Fault
) -> None:
    fault_proxy.set(fault)
    exports.run(s3_table, "--shard-rows", 30).check()
    assert sorted(exports.objects()) == names(4)


def test_a_read_that_hangs_ends_in_time(
    s3_table: str, exports: Exports, fault_proxy: FaultProxy
) -> None:
    fault_proxy.set(Fault(method="GET", path=r"/data/", action="hang", hang_s=60))
    result = exports.run(s3_table, "--download-timeout", 1, "--download-retry", 1)
    assert result.seconds < 20
    assert "download-timeout" in refusal(result) or "did not answer" in result.stderr
    assert exports.objects() == {}


def test_an_upload_that_stays_refused(
    s3_table: str, exports: Exports, fault_proxy: FaultProxy
) -> None:
    fault_proxy.set(
        Fault(
            method="PUT",
            path=r"shard\.00001",
            fail_rate=1,
            fail_status=403,
            fail_code="AccessDenied",
        )
    )
    text = refusal(exports.run(s3_table, "--shard-rows", 30, "--workers", 1))
    assert re.search(rf"{exports.url}: the store refused access: .*shard\.00001\.mds", text)
    assert "index.json" not in exports.objects()
    fault_proxy.clear()
    exports.run(s3_table, "--shard-rows", 30).check()
    assert sorted(exports.objects()) == names(4)


def test_wrong_credentials(s3_table: str, exports: Exports) -> None:
    wrong = "wr0ngwr0ngwr0ngwr0ng"
    text = refusal(exports.run(s3_table, OUT_SECRET=wrong))
    assert f"{exports.url}: the store refused access" in text
    assert wrong not in text
    assert exports.objects() == {}


def test_a_folder_of_somebody_else(s3_table: str, exports: Exports) -> None:
    exports.put("thesis.txt", "x")
    text = refusal(exports.run(s3_table))
    assert f"{exports.url} is not empty, and not an export (thesis.txt)" in text
    assert sorted(exports.objects()) == ["thesis.txt"]


@pytest.mark.slow
def test_compressed(s3_table: str, exports: Exports, tmp_path: Path) -> None:
    arguments: Any = ("--shard-rows", 30, "--compression", "gz:1", "--hashes", "sha1")
    exports.run(s3_table, *arguments).check()
    assert sorted(exports.objects()) == names(4, ".gz")
    assert run_forked(exports.read_all, tmp_path / "copy") == list(range(100))
