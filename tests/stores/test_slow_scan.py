"""Looking for nulls reads a table once; however long that takes, it is not a time-out."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest

from lance_stream.errors import UnsupportedTypeError
from tests.support.fault_proxy import FaultProxy
from tests.support.faults import Fault
from tests.support.forked import run_forked
from tests.support.object_store import S3Server
from tests.support.scripts import run_script
from tests.support.streams import dataset

FILES, ROWS_PER_FILE = 100, 64
TIMEOUT_S = 1.5

_SCRIPT = """
import json, os, sys, lance, pyarrow as pa
files, per_file = map(int, sys.argv[2:])
rows = range(files * per_file)
lance.write_dataset(
    pa.table({"i": rows, "n": [*rows[:-1], None]}),
    sys.argv[1],
    max_rows_per_file=per_file,
    storage_options=json.loads(os.environ["OPTIONS"]),
)
"""


@pytest.fixture(scope="module")
def many_files(s3_server: S3Server, s3_bucket: str) -> str:
    """A table of 100 files, with a null in the last row of one column."""
    uri = f"s3://{s3_bucket}/stores/many-files.lance"
    env = {"OPTIONS": json.dumps(s3_server.storage_options())}
    run_script(_SCRIPT, uri, FILES, ROWS_PER_FILE, env=env, timeout_s=100).check()
    return uri


@pytest.mark.slow
def test_a_scan_may_take_longer_than_a_timeout(
    many_files: str,
    options: dict[str, str],
    fault_proxy: FaultProxy,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A hundred files, four requests at a time, each a tenth of a second."""
    monkeypatch.setenv("LANCE_IO_THREADS", "4")
    fault_proxy.set(Fault(path=r"/data/[^/?]+\.lance", latency_ms=100))

    def build(column: str) -> list[Any]:
        started = time.monotonic()
        stream = {"storage_options": options, "download_timeout": TIMEOUT_S, "download_retry": 0}
        try:
            data = dataset(many_files, cache_format="mds", columns=[column], **stream)
        except UnsupportedTypeError as error:
            return [str(error), time.monotonic() - started]
        return [len(data), time.monotonic() - started]

    rows, seconds = run_forked(build, "i")
    assert rows == FILES * ROWS_PER_FILE
    message, seconds_refused = run_forked(build, "n")
    assert f"{many_files} version 1: MDS cannot hold nulls, and there are some in 'n'" in message
    # Otherwise this would show nothing.
    assert min(seconds, seconds_refused) > TIMEOUT_S + 0.5
