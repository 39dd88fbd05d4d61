"""``lance-stream clean``: what dead jobs left goes, what a live process uses stays."""

from __future__ import annotations

import contextlib
import fcntl
import json
import mmap
import os
import pty
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.commands import lance_stream, refusal
from tests.support.scripts import RunningScript, start_script
from tests.support.streams import wait_until

SHM = Path("/dev/shm")
FINGERPRINT = "0123456789abcdef0123"


class Place:
    """Directories of one test: temporary files, default caches, sockets."""

    def __init__(self, root: Path) -> None:
        self.temporary, self.caches, self.sockets = root / "tmp", root / "caches", root / "run"
        for path in (self.temporary, self.caches, self.sockets):
            path.mkdir(mode=0o700)

    @property
    def environment(self) -> dict[str, str]:
        return {
            "TMPDIR": str(self.temporary),
            "LANCE_STREAM_CACHE_DIR": str(self.caches),
            "LANCE_STREAM_RUNTIME_DIR": str(self.sockets),
        }

    def clean(self, *arguments: object) -> tuple[dict[str, str], dict[str, str]]:
        """What was, or would be, removed; and what stayed, and why."""
        told = lance_stream("clean", "--json", *arguments, env=self.environment).json()
        gone = told["would_remove" if told["dry_run"] else "removed"]
        assert told["dry_run"] == ("--dry-run" in arguments)
        return (
            {item["path"]: item["kind"] for item in gone},
            {item["path"]: item["why"] for item in told["kept"]},
        )

    def cache(self, number: int, age_s: float) -> Path:
        """A default cache that was used so long ago."""
        path = self.caches / f"{FINGERPRINT[:-1]}{number}"
        path.mkdir(mode=0o700)
        (path / ".lance_stream.lock").write_text("1 1")
        (path / f"{FINGERPRINT}.00000000.arrow").write_text("x" * 1000)
        for file in (path / ".lance_stream.lock", path):
            os.utime(file, (time.time() - age_s,) * 2)
        return path

    def socket(self, token: str, *, alive: bool, age_s: float) -> Path:
        """The directory of a download process."""
        path = self.sockets / token
        for name in ("running", "plans"):
            (path / name).mkdir(parents=True)
        (path / "log").write_text("x")
        if alive:
            (path / "alive").write_text("1")
        for file in (*path.iterdir(), path):
            os.utime(file, (time.time() - age_s,) * 2)
        return path


@pytest.fixture
def place(tmp_path: Path) -> Place:
    # Short, for the sake of the socket.
    return Place(tmp_path)


DAY = 86400.0


def test_old_caches(place: Place) -> None:
    old, young, claimed = place.cache(1, 8 * DAY), place.cache(2, 6 * DAY), place.cache(3, 9 * DAY)
    (place.caches / "notes").mkdir()
    (place.caches / "notes" / "x").write_text("x")
    os.utime(place.caches / "notes", (0, 0))
    leftover = young / ".tmp-999999-1-x"
    leftover.write_text("x" * 10)
    ledger = young / ".ledger-999999-1-abc"
    ledger.write_text("x")
    os.utime(young, (time.time() - 6 * DAY,) * 2)
    with (claimed / ".lance_stream.lock").open("r+") as lock:
        fcntl.lockf(lock, fcntl.LOCK_EX)
        expected = {
            str(old): "cache",
            str(leftover): "temporary file",
            str(ledger): "ledger",
        }
        gone, kept = place.clean("--dry-run")
        assert expected.items() <= gone.items()
        assert kept[str(claimed)] == "in use by a job"
        assert kept[str(young)] == "used 6 days ago"
        assert old.exists()
        assert leftover.exists()
        gone, _ = place.clean()
        assert expected.items() <= gone.items()
    assert sorted(os.listdir(place.caches)) == sorted([young.name, claimed.name, "notes"])
    assert not leftover.exists()
    assert not ledger.exists()
    assert len(os.listdir(young)) == 2
    place.clean("--older-than", "1h")
    assert os.listdir(place.caches) != []
    assert not claimed.exists()


def test_why_things_stay(place: Place) -> None:
    """Told without --json too, by how many there are of each kind."""
    caches = [place.cache(number, 3 * DAY) for number in (1, 2)]
    said = lance_stream("clean", "--dry-run", env=place.environment).check().stdout
    assert "  2: used ...\n" in said
    # What dead jobs of other tests left on this machine may be told too.
    assert not any(cache.name in said for cache in caches)


def test_a_cache_that_is_mapped(place: Place) -> None:
    cache = place.cache(1, 30 * DAY)
    with (cache / f"{FINGERPRINT}.00000000.arrow").open("rb") as file:
        mapped = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
    _, kept = place.clean()
    assert kept[str(cache)] == f"in use by process {os.getpid()}"
    mapped.close()
    place.clean()
    assert not cache.exists()


def test_sockets(place: Place) -> None:
    dead = place.socket("0123456789ab", alive=True, age_s=60)
    starting = place.socket("1123456789ab", alive=False, age_s=60)
    abandoned = place.socket("2123456789ab", alive=False, age_s=600)
    just_dead = place.socket("3123456789ab", alive=True, age_s=0)
    live = place.socket("4123456789ab", alive=True, age_s=600)
    (place.sockets / "else").mkdir()
    with (live / "alive").open("r+") as lock:
        fcntl.lockf(lock, fcntl.LOCK_EX)
        gone, kept = place.clean("--dry-run")
        assert {path for path, kind in gone.items() if kind == "socket"} == {
            str(dead),
            str(abandoned),
        }
        assert {str(starting), str(just_dead), str(live)} <= set(kept)
        place.clean("--no-dry-run")
    left = {starting.name, just_dead.name, live.name, "else"}
    assert set(os.listdir(place.sockets)) == left


def test_unfinished_indexes(place: Place) -> None:
    folder = place.temporary / f"lance-stream-{os.getuid()}" / "partial"
    folder.mkdir(parents=True)
    for name, age in (("old", 8 * DAY), ("new", DAY)):
        (folder / name).write_text("x")
        os.utime(folder / name, (time.time() - age,) * 2)
    gone, _ = place.clean()
    assert gone[str(folder / "old")] == "unfinished index"
    assert os.listdir(folder) == ["new"]


def test_unfinished_files_of_a_given_cache(place: Place, tmp_path: Path) -> None:
    local = tmp_path / "given"
    local.mkdir()
    me = f".tmp-{os.getpid()}-{_started()}-x"
    for name in (".tmp-999999-1-x", me, "0" * 20 + ".00000000.arrow", "notes"):
        (local / name).write_text("x")
    gone, _ = place.clean("--local", local)
    assert gone == {str(local / ".tmp-999999-1-x"): "temporary file"} | {
        path: kind for path, kind in gone.items() if not path.startswith(str(local))
    }
    assert (local / me).exists()
    assert len(os.listdir(local)) == 4  # with the lock
    text = refusal(lance_stream("clean", "--local", tmp_path / "none", env=place.environment))
    assert "there is no such directory" in text


def _started() -> int:
    from lance_stream.processes import this_process

    return this_process()[1]


JOB = """
import os, sys, time
from pathlib import Path
from streaming import StreamingDataset
from lance_stream import LanceStream

stream = LanceStream(sys.argv[1], shard_rows=500)
data = StreamingDataset(streams=[stream], batch_size=8, num_canonical_nodes=1)
rows = iter(data)
first = [int(next(rows)["i"]) for _ in range(700)]
print("half", flush=True)
go = Path(sys.argv[2])
while not go.exists():
    time.sleep(0.02)
rest = [int(row["i"]) for row in rows]
assert sorted(first + rest) == list(range(5000))
print("second", flush=True)
assert len(list(data)) == 5000
print("done", flush=True)
"""


@pytest.fixture
def job(place: Place, table_5000: str, tmp_path: Path) -> Iterator[RunningScript]:
    """A job in the middle of its first epoch; it goes on when the file ``go`` is there."""
    environment = {**place.environment, "PYTHONFAULTHANDLER": "1"}
    with start_script(JOB, table_5000, tmp_path / "go", env=environment) as script:
        script.wait_for_line("half", 60)
        yield script


def test_a_live_job_is_left_alone_and_a_dead_one_is_not(
    place: Place, job: RunningScript, tmp_path: Path
) -> None:
    mine = segments(job.pid)
    assert mine
    locks = {path.name for path in place.temporary.glob("*_filelock")}
    assert locks
    before = everything(place)
    gone, kept = place.clean("--no-dry-run", "--older-than", "0s")
    assert not set(gone) & before
    assert not set(gone) & {str(SHM / name) for name in mine}
    for name in mine:
        assert "in use by" in kept[str(SHM / name)]
    assert everything(place) == before
    (tmp_path / "go").write_text("")
    job.wait_for_line("second", 60)
    place.clean("--no-dry-run", "--older-than", "0s")
    job.wait_for_line("done", 60)
    job.wait(30).check()


def test_a_killed_job(place: Place, job: RunningScript) -> None:
    mine = segments(job.pid)
    job.kill_group()
    job.wait(10)
    # The download process ends some seconds after its last client.
    wait_until(lambda: not live(place), 30, "the end of the download process")
    gone, _ = place.clean("--dry-run", "--older-than", "0s")
    assert {str(SHM / name) for name in mine} <= set(gone)
    assert "cache" in gone.values()
    assert "lock file" in gone.values()
    assert all((SHM / name).exists() for name in mine)
    place.clean("--older-than", "0s")
    assert not any((SHM / name).exists() for name in mine)
    assert not list(place.temporary.glob("*_filelock"))
    assert os.listdir(place.caches) == []


def segments(pid: int) -> set[str]:
    """Shared memory of the host that a process has mapped."""
    text = Path(f"/proc/{pid}/maps").read_text()
    return {line.split("/dev/shm/")[1] for line in text.splitlines() if "/dev/shm/0" in line}


def everything(place: Place) -> set[str]:
    """Files that must stay, without the lock files of the host."""
    found = set()
    for root in (place.caches, place.sockets):
        for folder, _, names in os.walk(root):
            found |= {os.path.join(folder, name) for name in names if "running" not in folder}
    return found


def live(place: Place) -> bool:
    from lance_stream.service.runtime import Endpoint

    return any(Endpoint(str(path)).pid() for path in place.sockets.iterdir())


@pytest.fixture
def segment() -> Iterator[Path]:
    """A segment that looks like one of a dead job."""
    path = SHM / f"{900000 + os.getpid() % 99999}_barrier"
    path.write_bytes(b"x" * 12)
    yield path
    with contextlib.suppress(FileNotFoundError):
        path.unlink()


def test_a_segment_stays_while_any_of_its_job_is_open(place: Place, segment: Path) -> None:
    lock = place.temporary / segment.name.replace("barrier", "cache_filelock")
    lock.write_text("")
    with lock.open("r+"):
        _, kept = place.clean()
        assert kept[str(segment)] == kept[str(lock)] == f"in use by process {os.getpid()}"
    gone, _ = place.clean()
    assert (gone[str(segment)], gone[str(lock)]) == ("shared memory", "lock file")
    assert not segment.exists()
    assert not lock.exists()


def test_lock_files_alone_are_kept_for_a_while(place: Place) -> None:
    lock = place.temporary / "899999_barrier_filelock"
    lock.write_text("")
    assert "another container" in place.clean()[1][str(lock)]
    os.utime(lock, (time.time() - 8 * DAY,) * 2)
    assert str(lock) in place.clean()[0]
    assert not lock.exists()


def test_what_is_printed(place: Place) -> None:
    old = place.cache(1, 8 * DAY)
    text = lance_stream("clean", "--dry-run", env=place.environment).check().stdout
    assert f"{old}" in text
    assert "not used for 8 days" in text
    assert "would be removed" in text
    assert old.exists()
    text = lance_stream("clean", "--yes", env=place.environment).check().stdout
    assert "1 thing was removed" in text
    assert not old.exists()


def test_wrong_arguments(place: Place) -> None:
    text = refusal(lance_stream("clean", "--older-than", "soon", env=place.environment), 2)
    assert "'soon' must be an age, as 7d, 12h or 30m" in text


@pytest.mark.parametrize(("answer", "status"), [("n", 1), ("y", 0)])
def test_a_terminal_is_asked(place: Place, answer: str, status: int) -> None:
    old = place.cache(1, 8 * DAY)
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "lance_stream.cli", "clean"],
        stdin=theirs,
        stdout=subprocess.PIPE,
        stderr=theirs,
        env={**os.environ, **place.environment},
    )
    os.close(theirs)
    os.write(ours, f"{answer}\n".encode())
    output, _ = process.communicate(timeout=60)
    os.close(ours)
    assert str(old).encode() in output
    assert (process.returncode, old.exists()) == (status, answer == "n")


def test_json_is_one_line(place: Place) -> None:
    done = lance_stream("clean", "--dry-run", "--json", env=place.environment).check()
    told: Any = json.loads(done.stdout)
    assert told.keys() == {"dry_run", "would_remove", "bytes", "kept"}
    assert done.stderr == ""
