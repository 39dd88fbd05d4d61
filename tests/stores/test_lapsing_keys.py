"""Access keys that lapse: a proxy refuses each from its expiry on, the server checks the rest."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from lance_stream import LanceStream, LanceStreamingDataset
from lance_stream.errors import CredentialsError, ShardUnavailableError
from tests.stores.outcomes import outcome
from tests.support.fault_proxy import FaultProxy
from tests.support.faults import Fault
from tests.support.forked import run_forked
from tests.support.object_store import S3Server
from tests.support.streams import ORDER, batches, dataset, ids
from tests.support.tables import write_table

ROWS = 100
LIFE_S = 4.0

_VAULT = """
import json, os, time
from pathlib import Path
from tests.support.fault_proxy import ProxyControl
from tests.support.faults import Fault

given = Path({given!r})

def keys():
    made = [json.loads(line) for line in given.read_text().splitlines()] if given.exists() else []
    made.append([{keys!r}[len(made)], time.time() + {life_s}, os.getpid()])
    lapse = [
        Fault(access_key=key, from_unix_s=expiry, fail_rate=1, fail_status=403,
              fail_code="ExpiredToken")
        for key, expiry, _ in made
    ]
    ProxyControl({control_port}).set(*lapse)
    given.write_text("".join(json.dumps(one) + "\\n" for one in made))
    return {{**json.loads({options!r}), "access_key_id": made[-1][0]}}, made[-1][1]
"""


@pytest.fixture(scope="module")
def table(s3_server: S3Server, s3_bucket: str) -> str:
    """The table T(100, 25) on the S3 server."""
    uri = f"s3://{s3_bucket}/lapsing/t100.lance"
    write_table(uri, ROWS, 25, storage_options=s3_server.storage_options())
    return uri


def slowly(data: Any, workers: int, seconds: float) -> list[int]:
    """The ids of an epoch that takes at least so long; shards are asked for all along."""
    seen: list[int] = []
    loader = batches(data, workers, prefetch_factor=1 if workers else None)
    for batch in loader:
        seen += ids([batch])
        time.sleep(seconds * len(batch) / ROWS)
    return sorted(seen)


@pytest.mark.slow
def test_they_are_renewed_before_they_lapse(
    table: str,
    s3_server: S3Server,
    fault_proxy: FaultProxy,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Keys of 4 s, an epoch of 12 s and no second attempt: not one request is refused."""
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    given = tmp_path / "given"
    vault = _VAULT.format(
        given=str(given),
        keys=s3_server.further_keys,
        life_s=LIFE_S,
        control_port=fault_proxy.control_port,
        options=json.dumps(s3_server.storage_options(fault_proxy.endpoint)),
    )
    (tmp_path / "vault_of_tests.py").write_text(vault)

    def run() -> list[Any]:
        data = dataset(
            table,
            shard_rows=5,
            storage_options="vault_of_tests:keys",
            download_retry=0,
            host={"predownload": 5},
        )
        pid = data.streams[0].download_process_pid
        rows = slowly(data, 2, 12.0)
        return [rows, pid, "vault_of_tests" in sys.modules]

    rows, pid, loaded = run_forked(run)
    assert rows == list(range(ROWS))
    made = [json.loads(line) for line in given.read_text().splitlines()]
    # Halfway through their lives, which are short: at 2, 4, ... s, if anything is read then.
    assert 4 <= len(made) <= 8, made
    assert {one[2] for one in made} == {pid}
    assert not loaded
    refused = [record for record in fault_proxy.log() if record.fault or record.status == 403]
    assert refused == []


@pytest.mark.parametrize("kind", ["stock", pytest.param("lance", marks=pytest.mark.slow)])
def test_fixed_ones_that_lapse_are_an_error(
    table: str, s3_server: S3Server, fault_proxy: FaultProxy, kind: str
) -> None:
    """A CredentialsError that names the shard and what to do, soon after they lapsed."""
    key = s3_server.further_keys[0]
    options = s3_server.storage_options(fault_proxy.endpoint, access_key_id=key)

    def build() -> Any:
        if kind == "stock":
            return dataset(table, shard_rows=5, storage_options=options, host={"predownload": 5})
        stream = LanceStream(table, shard_rows=5, storage_options=options)
        return LanceStreamingDataset(
            streams=[stream], batch_size=4, predownload=5, prefetch_shards=1, **ORDER
        )

    def run() -> dict[str, Any]:
        data = build()
        lapse = time.time() + 2
        refused = {"fail_rate": 1, "fail_status": 403, "fail_code": "ExpiredToken"}
        fault_proxy.set(Fault(access_key=key, from_unix_s=lapse, **refused))

        def train() -> None:
            with pytest.raises(CredentialsError) as raised:
                slowly(data, 2, 12.0)
            assert isinstance(raised.value, ShardUnavailableError)
            raise raised.value

        return {**outcome(train), "late_s": time.time() - lapse}

    result = run_forked(run)
    assert result["error"] == "ShardCredentialsError", result
    assert "rows [" in result["message"]
    assert f"{table} version 1" in result["message"]
    assert "ExpiredToken" in result["message"]
    assert "for keys that lapse, name a function" in result["message"]
    assert result["late_s"] < 10
    assert s3_server.secret_key not in result["text"]
