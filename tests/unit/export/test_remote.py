from __future__ import annotations

import errno
import os
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fsspec
import pytest

from lance_stream.errors import PlanError
from lance_stream.export import lease, remote
from lance_stream.export.plan import Found
from lance_stream.export.remote import RemoteDestination
from lance_stream.offline import attempts
from lance_stream.offline.attempts import CallFailedError, Policy
from lance_stream.processes import this_process

URL = "memory://bucket/out"


@pytest.fixture(autouse=True)
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The files of fsspec's store in memory, and a temporary directory for uploads."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(lease, "_SETTLE_S", 0.0)
    monkeypatch.setattr(attempts, "_FIRST_DELAY_S", 0.001)
    files = fsspec.filesystem("memory")
    files.store.clear()
    yield files.store
    files.store.clear()
    files.pseudo_dirs[:] = [""]


def destination(url: str = URL) -> RemoteDestination:
    return RemoteDestination(url, {}, Policy(2, 10.0, threading.Event()))


def put(to: RemoteDestination, name: str, text: str) -> None:
    path = to.temporary_path(name)
    Path(path).write_text(text)
    to.publish(path, name)
    assert not Path(path).exists()


def test_a_published_file_is_read_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lance_stream.export.remote.PIECE_BYTES", 4)
    to = destination()
    for text in ("", "abc", "abcd", "abcdefghi"):
        put(to, "file", text)
        assert b"".join(to.pieces("file")) == text.encode()
    with pytest.raises(FileNotFoundError):
        list(to.pieces("gone"))


def test_an_export_from_beginning_to_end(store: Any) -> None:
    to = destination()
    assert to.look() == Found({}, None, None)
    to.claim()
    assert to.look() == Found({}, None, None)
    assert to.records() == {}
    to.begin({"x": 1})
    put(to, "shard.00000.mds", "abc")
    to.record(0, {"y": 2})
    assert to.look() == Found({"shard.00000.mds": 3}, {"x": 1}, None)
    assert to.records() == {0: {"y": 2}}
    to.record(12, {"y": 3})
    assert to.records() == {0: {"y": 2}, 12: {"y": 3}}
    to.publish_index('{"z": 3}')
    to.clean_up()
    to.release()
    assert to.look() == Found({"shard.00000.mds": 3, "index.json": 8}, None, {"z": 3})
    assert sorted(store) == ["/bucket/out/index.json", "/bucket/out/shard.00000.mds"]


def test_what_is_released_can_be_claimed_again(store: Any) -> None:
    to = destination()
    to.claim()
    to.begin({"x": 1})
    to.release()
    to.release()
    assert list(store) == ["/bucket/out/.lance_stream_export/plan.json"]
    again = destination()
    again.claim()
    assert again.look().state == {"x": 1}
    again.release()


def test_leftovers_of_killed_exports_are_swept(tmp_path: Path) -> None:
    folder = tmp_path / f"lance-stream-export-{os.getuid()}"
    folder.mkdir(mode=0o700)
    pid, started = this_process()
    (folder / f".tmp-{pid}-{started - 500}-0-x").write_text("x")
    (folder / f".tmp-{pid}-{started}-0-x").write_text("x")
    to = destination()
    path = Path(to.temporary_path("y"))
    assert os.listdir(folder) == [f".tmp-{pid}-{started}-0-x"]
    path.write_text("x")
    to.release()
    assert os.listdir(folder) == []


def test_a_folder_that_others_can_read_is_not_used(tmp_path: Path) -> None:
    folder = tmp_path / f"lance-stream-export-{os.getuid()}"
    folder.mkdir()
    folder.chmod(0o755)
    with pytest.raises(PlanError, match=f"{folder} is not a private folder of this user"):
        destination().temporary_path("x")


def test_a_store_that_there_is_not() -> None:
    with pytest.raises(PlanError, match="--out nonsense://b/x: Protocol not known: nonsense"):
        destination("nonsense://b/x")


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (ImportError("Install s3fs to access S3"), r"access S3; .*, as lance-stream\[s3\]"),
        (TypeError("unexpected keyword argument 'x'"), "--out s3://b/x: unexpected keyword"),
        (ConnectionRefusedError("refused"), "--out s3://b/x: refused"),
    ],
)
def test_a_store_that_cannot_be_had(
    monkeypatch: pytest.MonkeyPatch, error: Exception, words: str
) -> None:
    def fail(*_arguments: Any, **_options: Any) -> None:
        raise error

    monkeypatch.setattr(fsspec.core, "url_to_fs", fail)
    with pytest.raises(PlanError, match=words):
        destination("s3://b/x")


@pytest.mark.parametrize(
    ("error", "kind", "calls"),
    [
        (PermissionError("Forbidden"), "CREDENTIALS", 1),
        (PermissionError("whatever the store says"), "CREDENTIALS", 1),
        (FileNotFoundError("The specified bucket does not exist"), "NOT_FOUND", 1),
        (FileNotFoundError(errno.ENOENT, "x"), "NOT_FOUND", 1),
        (TimeoutError(), "UNAVAILABLE", 2),
        (ConnectionResetError(), "UNAVAILABLE", 2),
        (OSError(errno.EIO, "whatever"), "UNAVAILABLE", 2),
        (OSError(errno.EBUSY, "SlowDown: reduce your request rate"), "UNAVAILABLE", 2),
        (RuntimeError("whatever"), "UNAVAILABLE", 2),
    ],
)
def test_what_an_error_of_the_store_means(
    monkeypatch: pytest.MonkeyPatch, error: Exception, kind: str, calls: int
) -> None:
    seen = []

    def fail(*_arguments: Any, **_options: Any) -> None:
        seen.append(1)
        raise error

    to = destination()
    to.claim()
    monkeypatch.setattr(to._files, "put_file", fail)
    try:
        with pytest.raises(CallFailedError, match="uploading shard") as caught:
            put(to, "shard", "x")
    finally:
        to.release()
    assert caught.value.failure.kind.name == kind
    assert len(seen) == calls


def test_a_full_disk_is_told_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_arguments: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    to = destination()
    monkeypatch.setattr(to._files, "put_file", fail)
    with pytest.raises(OSError, match="No space left"):
        put(to, "shard", "x")
    to.release()


def test_a_slow_upload_has_more_time(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def attempt(call: Any, _policy: Any, _what: str, more_s: float = 0.0) -> Any:
        asked.append(more_s)
        return call()

    monkeypatch.setattr(remote, "attempt", attempt)
    put(destination(), "shard", "x" * (1 << 20))
    assert asked == [4.0]
