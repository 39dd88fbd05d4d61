"""Where every test keeps its files, and the check that none leaves a process behind."""

from __future__ import annotations

import gc
import os
import shutil
import signal
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.mounts import own_shared_memory
from tests.support.tables import write_table

pytest_plugins = ["tests.support.fixtures"]

# Tests interrupt jobs. A shell's background job ignores SIGINT, and its children inherit that.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


# Suites that take minutes: every seventh of their tests is in `make test`, the others are in
# `make test-slow`.
_LONG = (
    "host/test_batched.py",
    "host/test_cache_format.py",
    "host/test_cache_limit.py",
    "host/test_cache_policy.py",
    "host/test_dataset_checkpoints.py",
    "host/test_dataset_faults.py",
    "host/test_dataset_order.py",
    "host/test_failures.py",
    "host/test_follow.py",
    "host/test_index_files.py",
    "host/test_mixing.py",
    "host/test_pins.py",
    "host/test_selection.py",
    "host/test_stats.py",
    "host/test_transform.py",
    "host/test_types.py",
    "host/test_validate_hash.py",
    "host/test_versions.py",
    "multi/test_ranks.py",
    "process/test_cli_clean.py",
    "process/test_cli_index.py",
    "process/test_cli_status.py",
    "process/test_cli_warm.py",
    "process/test_download_process.py",
    "process/test_export.py",
    "stores/test_export_s3.py",
    "stores/test_fsspec_tier.py",
    "stores/test_memcached.py",
    "stores/test_redis.py",
    "stores/test_s3.py",
    "test_examples.py",
)
_ONE_OF = 7
# What a process of another test has open, whatever shared memory it is in, is in use.
_ALONE = ("process/test_cli_clean.py",)


def pytest_configure(config: pytest.Config) -> None:
    """Tests that run beside others do not meet them in shared memory, where root runs them."""
    if hasattr(config, "workerinput") and os.geteuid() == 0:
        own_shared_memory()


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what is slow only because there is so much of it, and what must run alone."""
    tests = Path(__file__).parent
    counts: dict[str, int] = {}
    for item in items:
        name = item.path.relative_to(tests).as_posix()
        if name in _ALONE:
            item.add_marker(pytest.mark.alone)
        if name in _LONG:
            counts[name] = counts.get(name, 0) + 1
            if counts[name] % _ONE_OF != 1:
                item.add_marker(pytest.mark.slow)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Tell why a test failed that was run once more, whatever came of that."""
    for report in terminalreporter.getreports("rerun"):
        terminalreporter.write_sep("_", f"first run of {report.nodeid}")
        terminalreporter.write_line(report.longreprtext)


@pytest.fixture(scope="session", autouse=True)
def temporary_files(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """A place of this run's own, gone afterwards: killed jobs leave lock files of the host."""
    # pytest's own, which keeps what the last runs made, stays where it is.
    tmp_path_factory.getbasetemp()
    # Short, for the sake of sockets in it.
    place = tempfile.TemporaryDirectory(prefix="lst-", dir="/tmp", ignore_cleanup_errors=True)
    with place as path:
        before = os.environ.get("TMPDIR")
        os.environ["TMPDIR"], tempfile.tempdir = path, path
        yield
        tempfile.tempdir = None
        os.environ.pop("TMPDIR")
        if before is not None:
            os.environ["TMPDIR"] = before


@pytest.fixture(scope="session", autouse=True)
def runtime_directory() -> Iterator[Path]:
    """A private place for sockets, empty again when all tests are done."""
    # Short, whatever the temporary directory: a unix socket's path has 107 bytes.
    directory = Path(tempfile.mkdtemp(prefix="lst-", dir="/tmp"))
    os.environ["LANCE_STREAM_RUNTIME_DIR"] = str(directory)
    yield directory
    gc.collect()
    deadline = time.monotonic() + 15
    while left := live_processes(directory):
        if time.monotonic() > deadline:
            pytest.fail(f"download processes are left behind: {left}")
        time.sleep(0.1)
    shutil.rmtree(directory, ignore_errors=True)


def live_processes(directory: Path) -> list[int]:
    """Pids of the download processes under a runtime directory."""
    from lance_stream.service.runtime import Endpoint

    pids = [Endpoint(str(path)).pid() for path in directory.iterdir()]
    return [pid for pid in pids if pid is not None]


@pytest.fixture(autouse=True)
def cache_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Default caches of one test, away from those of others and of the user."""
    home = tmp_path / "cache-home"
    home.mkdir(mode=0o700)
    monkeypatch.setenv("LANCE_STREAM_CACHE_DIR", str(home))
    return home


@pytest.fixture(scope="session")
def tables(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory for tables that tests only read."""
    return tmp_path_factory.mktemp("tables")


@pytest.fixture(scope="session")
def table_100(tables: Path) -> str:
    """The table T(100, 25)."""
    uri = str(tables / "t100.lance")
    write_table(uri, 100, 25)
    return uri


@pytest.fixture(scope="session")
def table_5000(tables: Path) -> str:
    """The table T(5000, 1000)."""
    uri = str(tables / "t5000.lance")
    write_table(uri, 5000, 1000)
    return uri
