"""``lance-stream warm`` and ``verify``: the cache is the one that training finds."""

from __future__ import annotations

import json
import os
import shutil
import signal
import stat
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.support.commands import COMMAND, lance_stream, refusal, start_lance_stream
from tests.support.mounts import as_root, mounted
from tests.support.scripts import run_script, start_script
from tests.support.streams import wait_until
from tests.support.tables import write_table

# What is asked of the command, and of the stream.
CASES: dict[str, tuple[tuple[object, ...], dict[str, Any]]] = {
    "plain": (("--shard-rows", 700), {"shard_rows": 700}),
    "filtered and scattered": (
        (
            *("--filter", "i % 3 = 1", "--shard-rows", 200, "--layout", "scattered"),
            *("--run-rows", 8, "--with-row-id", "--validate-hash", "sha1"),
        ),
        {
            "filter": "i % 3 = 1",
            "shard_rows": 200,
            "layout": "scattered",
            "run_rows": 8,
            "with_row_id": True,
            "validate_hash": "sha1",
        },
    ),
    "mds": (
        ("--columns", "i,s", "--shard-bytes", "16kb", "--cache-format", "mds"),
        {"columns": ["i", "s"], "shard_bytes": "16kb", "cache_format": "mds"},
    ),
}

TRAIN = """
import json, os, sys
from streaming import StreamingDataset
from lance_stream import LanceStream

# Each dataset in turn: build it, take its table away, and see that every row comes.
found = []
for root, uri, local, arguments in json.loads(sys.argv[1]):
    stream = LanceStream(root, local=local, **arguments)
    data = StreamingDataset(streams=[stream], batch_size=8, shuffle=True, num_canonical_nodes=1)
    files = lambda: {e.name: e.stat().st_ino for e in os.scandir(stream.local) if e.name[0] != "."}
    before = files()
    os.rename(uri, uri + ".away")
    try:
        rows = sorted(int(row["i"]) for row in data)
    finally:
        os.rename(uri + ".away", uri)
    found.append([rows, before == files()])
print(json.dumps(found))
"""


@pytest.fixture
def table(table_5000: str, tmp_path: Path) -> str:
    """A copy of T(5000, 1000) of one's own."""
    uri = str(tmp_path / "own.lance")
    shutil.copytree(table_5000, uri)
    return uri


def shards(local: Path) -> list[str]:
    names = (name for name in os.listdir(local) if name[0] != "." and "index" not in name)
    return sorted(names)


def test_training_fetches_nothing(table: str, tmp_path: Path) -> None:
    jobs, expected = [], []
    for number, (options, arguments) in enumerate(CASES.values()):
        local = tmp_path / f"cache{number}"
        told = lance_stream("warm", table, "--local", local, *options, "--json").json()
        assert told["shards"] == len(shards(local))
        assert told["kept_shards"] == 0
        sizes = sum((local / name).stat().st_size for name in shards(local))
        assert told["bytes"] == told["fetched_bytes"] == sizes
        found = lance_stream("verify", table, "--local", local, *options, "--json").json()
        assert found["ok"]
        assert found["compared_shards"] == found["cached_shards"] == told["shards"]
        assert found["fingerprint"] == told["fingerprint"]
        assert found["findings"] == []
        jobs.append([table, table, str(local), arguments])
        expected.append(list(range(1, 5000, 3) if "filter" in arguments else range(5000)))
    # With an index, and a split.
    root, val = tmp_path / "data", str(tmp_path / "data" / "val.lance")
    index, local = tmp_path / "val.index", tmp_path / "cache"
    write_table(val, 300, 100)
    given = ("index", root, "--split", "val", "--filter", "i > 9", "--shard-rows", 50)
    lance_stream(*given, "--out", index).check()
    warm = ("warm", root, "--split", "val", "--local", local, "--index", index)
    lance_stream(*warm).check()
    assert len(shards(local / "val")) == 6
    jobs.append([str(root), val, str(local), {"split": "val", "index": str(index)}])
    expected.append(list(range(10, 300)))
    assert run_script(TRAIN, json.dumps(jobs)).json() == [[rows, True] for rows in expected]
    assert "was made with limit=None" in refusal(lance_stream(*warm, "--limit", 5))


def test_a_killed_run_is_gone_on_with(table: str, tmp_path: Path) -> None:
    local = tmp_path / "cache"
    arguments = ("warm", table, "--local", local, "--shard-rows", 10, "--workers", 2)
    with start_lance_stream(*arguments) as script:
        wait_until(lambda: local.is_dir() and len(shards(local)) > 20, 30, "some shards")
        script.kill_group(signal.SIGSTOP)
        there = len(shards(local))
        assert there < 500
        # Meanwhile nobody else may use the directory.
        text = refusal(lance_stream(*arguments))
        assert f"local='{local}' is in use by process {script.pid}" in text
        script.kill_group()
        script.wait(10)
    (local / shards(local)[3]).write_bytes(b"cut")
    (local / ".tmp-999999-1-x").write_text("of a dead writer")
    told = lance_stream(*arguments, "--json").json()
    assert (told["shards"], told["kept_shards"]) == (500, there - 1)
    assert len(shards(local)) == 500
    assert not [name for name in os.listdir(local) if name.startswith(".tmp-")]
    again = lance_stream(*arguments, "--json").json()
    assert (again["kept_shards"], again["fetched_bytes"]) == (500, 0)


def test_interrupted(table: str, tmp_path: Path) -> None:
    local = tmp_path / "cache"
    with start_lance_stream("warm", table, "--local", local, "--shard-rows", 5) as script:
        wait_until(lambda: local.is_dir() and len(shards(local)) > 5, 30, "some shards")
        script.kill_group(signal.SIGINT)
        assert refusal(script.wait(10), 130) == "lance-stream warm: interrupted\n"
    assert not [name for name in os.listdir(local) if name.startswith(".tmp-")]


@pytest.mark.slow
def test_a_directory_of_a_live_job_is_refused(table: str, tmp_path: Path) -> None:
    local = tmp_path / "cache"
    script = """
    import sys, time
    from streaming import StreamingDataset
    from lance_stream import LanceStream
    data = StreamingDataset(streams=[LanceStream(sys.argv[1], local=sys.argv[2])], batch_size=1)
    print("ready")
    time.sleep(60)
    """
    with start_script(script, table, local) as job:
        job.wait_for_line("ready", 60)
        text = refusal(lance_stream("warm", table, "--local", local))
        assert f"in use by process {job.pid}" in text
        assert lance_stream("verify", table, "--local", local, "--json").json()["ok"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--columns", "nope"), "there is no column 'nope'"),
        (("--validate-hash", "md6"), "is not a hash"),
        (("--transform", "no_such_module:f"), "no_such_module"),
        (("--split", "nope"), "there is no Lance table there"),
    ],
)
def test_what_is_refused(
    table_100: str, tmp_path: Path, arguments: tuple[object, ...], words: str
) -> None:
    local = tmp_path / "cache"
    assert words in refusal(lance_stream("warm", table_100, "--local", local, *arguments))
    assert not local.exists()


def test_a_cache_in_the_table_is_refused(table_100: str) -> None:
    text = refusal(lance_stream("warm", table_100, "--local", f"{table_100}/cache"))
    assert "lies inside the table" in text
    assert "give one of --local and" in refusal(lance_stream("warm", table_100), 2)


def test_a_transform_of_the_working_directory(table_100: str, tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(
        "import pyarrow as pa\n"
        "def double(batch):\n"
        "    twice = pa.array([2 * x.as_py() for x in batch['i']])\n"
        "    return pa.record_batch({'i': batch['i'], 'd': twice})\n"
        "def fails(batch):\n    raise ValueError('no good')\n"
    )
    arguments = ("--local", tmp_path / "c", "--transform", "own:double")
    lance_stream("warm", table_100, *arguments, cwd=tmp_path).check()
    assert lance_stream("verify", table_100, *arguments, "--json", cwd=tmp_path).json()["ok"]
    arguments = ("--local", tmp_path / "c", "--transform", "own:fails")
    text = refusal(lance_stream("warm", table_100, *arguments, cwd=tmp_path))
    assert "no good" in text


@as_root
def test_a_full_disk(table: str, tmp_path: Path) -> None:
    local = tmp_path / "cache"
    local.mkdir()
    with mounted(local, "size=100k"):
        arguments = ("warm", table, "--local", local, "--shard-rows", 100)
        text = refusal(lance_stream(*arguments))
        assert "bytes free, the shard needs about" in text
        assert shards(local)
        assert not [name for name in os.listdir(local) if name.startswith(".tmp-")]
        subprocess.run(["mount", "-o", "remount,size=10m", str(local)], check=True)
        assert lance_stream(*arguments, "--json").json()["kept_shards"] > 0


def test_progress(table_100: str, tmp_path: Path) -> None:
    done = lance_stream("warm", table_100, "--local", tmp_path / "c", "--progress").check()
    assert "100%" in done.stderr
    assert done.stdout.startswith(f"100 rows of {table_100} version 1 are in {tmp_path / 'c'}")


# --- verify ---


@pytest.fixture(scope="module")
def growing(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path]:
    """A table of two versions, and a cache of the first."""
    folder = tmp_path_factory.mktemp("growing")
    uri, local = str(folder / "t.lance"), folder / "cache"
    write_table(uri, 100, 50)
    lance_stream("warm", uri, "--local", local, "--shard-rows", 10).check()
    write_table(uri, 20, 50, first_row=100, mode="append")
    return uri, local


@pytest.fixture
def cache(growing: tuple[str, Path], tmp_path: Path) -> Path:
    """A copy of that cache."""
    return Path(shutil.copytree(growing[1], tmp_path / "copy"))


def verify(uri: str, local: Path, *more: object) -> Any:
    """The exit status, and what was found by file."""
    result = lance_stream("verify", uri, "--local", local, "--shard-rows", 10, "--json", *more)
    told = json.loads(result.stdout)
    assert told["ok"] == (result.returncode == 0)
    assert bool(result.stderr) == (result.returncode == 1)
    return told, {item["file"]: (item["kind"], item["reason"]) for item in told["findings"]}


def test_all_is_right(growing: tuple[str, Path], cache: Path) -> None:
    told, findings = verify(growing[0], cache, "--version", 1)
    assert (told["ok"], told["cached_shards"], told["compared_shards"]) == (True, 10, 10)
    assert findings == {}
    told, _ = verify(growing[0], cache, "--version", 1, "--sample", 3)
    assert (told["cached_shards"], told["compared_shards"]) == (10, 3)


def test_stale_files(growing: tuple[str, Path], cache: Path) -> None:
    told, findings = verify(growing[0], cache)
    assert not told["ok"]
    assert len(findings) == 10
    assert set(findings.values()) == {("stale", "of version 1, and version 2 is asked for")}
    assert verify(growing[0], cache, "--allow-stale")[0]["ok"]
    text = lance_stream("verify", growing[0], "--local", cache, "--shard-rows", 10)
    assert text.returncode == 1
    assert f"lance-stream verify: {cache} has 10 stale files" in text.stderr
    for index in cache.glob("*.index.arrow"):
        index.unlink()
    _, findings = verify(growing[0], cache)
    assert {reason for _, reason in findings.values()} == {
        "of a table, version or selection that is not known"
    }


def test_bad_files(growing: tuple[str, Path], cache: Path) -> None:
    names = shards(cache)
    with (cache / names[0]).open("r+b") as file:
        file.seek(700)
        file.write(b"\xff")
    with (cache / names[1]).open("r+b") as file:
        file.truncate(100)
    (cache / names[2]).write_bytes(b"")
    shutil.copyfile(cache / names[4], cache / names[3])
    plant_other_rows(growing[0], cache / names[5], 5)
    index = next(cache.glob("*.index.arrow"))
    index.write_bytes(index.read_bytes()[:-30])
    (cache / "notes.txt").write_text("x")
    (cache / ".tmp-999999-1-x").write_text("x")
    before = {path: path.stat().st_mtime_ns for path in cache.iterdir()}
    told, findings = verify(growing[0], cache, "--version", 1)
    assert not told["ok"]
    kinds = {name: kind for name, (kind, _) in findings.items()}
    assert kinds == {
        **dict.fromkeys([*(names[i] for i in (0, 1, 2, 3, 5)), index.name], "bad"),
        "notes.txt": "foreign",
        ".tmp-999999-1-x": "leftover",
    }
    assert "checksum does not match" in findings[names[0]][1]
    assert "row 4 of the shard, column 's': 'planted' in the file" in findings[names[5]][1]
    assert {path: path.stat().st_mtime_ns for path in cache.iterdir()} == before


def test_planted_files(growing: tuple[str, Path], cache: Path) -> None:
    """Pipes are not waited for, links not followed: found by verify, and replaced by warm."""
    names = shards(cache)
    away = cache.parent / "away"
    os.rename(cache / names[2], away)
    for name in names[:2]:
        (cache / name).unlink()
    os.mkfifo(cache / names[0])
    (cache / names[1]).symlink_to("/nonexistent/x")
    (cache / names[2]).symlink_to(away)
    index = next(cache.glob("*.index.arrow"))
    index.unlink()
    os.mkfifo(index)
    told, findings = verify(growing[0], cache, "--version", 1)
    assert not told["ok"]
    assert set(findings) == {*names[:3], index.name}
    assert all(kind == "bad" for kind, _ in findings.values())
    assert all("not a plain file" in reason for _, reason in findings.values())
    repair = ("--version", 1, "--local", cache, "--shard-rows", 10, "--json")
    warmed = json.loads(lance_stream("warm", growing[0], *repair).stdout)
    assert (warmed["shards"], warmed["kept_shards"]) == (10, 7)
    assert verify(growing[0], cache, "--version", 1)[1] == {}
    assert all(stat.S_ISREG(path.lstat().st_mode) for path in cache.iterdir())


def plant_other_rows(uri: str, path: Path, shard: int) -> None:
    """Write a shard file that is whole and signed, with one other value."""
    script = """
    import os, sys, pyarrow as pa
    from lance_stream.shards.header import ShardHeader
    from lance_stream.shards.shard_file import write_shard
    path, shard = sys.argv[1], int(sys.argv[2])
    table = pa.ipc.open_file(path).read_all()
    header = pa.ipc.open_file(path).metadata[b"lance_stream.shard"]
    import json
    fingerprint = json.loads(header)["fingerprint"]
    values = table.column("s").to_pylist()
    values[4] = "planted"
    table = table.set_column(1, table.schema.field("s"), pa.array(values))
    os.unlink(path)
    write_shard("arrow", path, table, ShardHeader(fingerprint, shard, table.num_rows))
    """
    run_script(script, path, shard).check()


def test_shards_of_another_table_are_not_wrong(
    growing: tuple[str, Path], cache: Path, table_100: str
) -> None:
    lance_stream("warm", table_100, "--local", cache, "--columns", "i").check()
    told, findings = verify(growing[0], cache, "--version", 1)
    assert told["ok"]
    assert set(findings.values()) == {("other", f"of {table_100} version 1")}


def test_nothing_to_verify(table_100: str, tmp_path: Path) -> None:
    text = refusal(lance_stream("verify", table_100, "--local", tmp_path / "none"))
    assert "there is no such directory" in text
    assert "Missing argument 'URI'" in refusal(lance_stream("verify"), 2)


# --- a shared cache, and many nodes ---

FROM_TIER = """
import json, sys
import lance_stream
from streaming import StreamingDataset

uri, url, local = sys.argv[1:]
stream = lance_stream.LanceStream(
    uri, shared_cache=url, local=local, shard_rows=700, validate_hash="sha1"
)
data = StreamingDataset(streams=[stream], batch_size=8)
rows = [int(row["i"]) for row in data]
stats = lance_stream.stats(data).as_dict()
print(json.dumps([sorted(rows) == list(range(5000)), stats["shards"], stats["from_tier"]]))
"""
SHARED = ("--shard-rows", 700, "--validate-hash", "sha1")


@pytest.mark.slow
def test_training_takes_all_from_a_shared_cache(table: str, tmp_path: Path) -> None:
    url = f"file://{tmp_path}/shared"
    told = lance_stream("warm", table, "--shared-cache", url, *SHARED, "--json").json()
    assert (told["shards"], told["kept_shards"]) == (8, 0)
    assert told["where"] == f"shared cache {tmp_path}/shared"
    told = lance_stream(
        *("warm", table, "--shared-cache-env", "THE_URL", *SHARED, "--json"), env={"THE_URL": url}
    ).json()
    assert (told["kept_shards"], told["fetched_bytes"]) == (8, 0)
    assert run_script(FROM_TIER, table, url, tmp_path / "local").json() == [True, 8, 8]


def test_a_shared_cache_that_is_down(table_100: str) -> None:
    url = "redis://:hushhush@127.0.0.1:1/0"
    text = refusal(lance_stream("warm", table_100, "--shared-cache", url))
    assert "did not take shard 0 (rows [0, 100)" in text
    assert "hushhush" not in text
    text = refusal(lance_stream("warm", table_100, "--shared-cache", "nope://x"))
    assert "--shared-cache='nope://x'" in text
    text = refusal(lance_stream("warm", table_100, "--shared-cache-env", "NOT_SET"), 2)
    assert "NOT_SET is not in the environment" in text
    both = ("--local", "/x", "--shared-cache", "/y")
    assert "give one of" in refusal(lance_stream("warm", table_100, *both), 2)


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("place", ["--local", "--shared-cache"])
def test_over_ray(table: str, tmp_path: Path, place: str) -> None:
    where = tmp_path / "place"
    arguments = ("warm", table, place, where, "--shard-rows", 100, "--json", "--engine", "ray")
    told = lance_stream(*arguments, timeout_s=200).json()
    assert (told["shards"], told["kept_shards"]) == (50, 0)
    assert len(told["nodes"]) == 1
    if place == "--local":
        verified = ("verify", table, "--local", where, "--shard-rows", 100, "--json")
        assert lance_stream(*verified).json()["compared_shards"] == 50
    # Nothing is left to do, so no cluster is asked for.
    told = lance_stream(*arguments, "--ray-address", "127.0.0.1:1").json()
    assert told["kept_shards"] == 50


def test_ray_that_cannot_be_had(table_100: str, tmp_path: Path) -> None:
    arguments = ("warm", table_100, "--local", tmp_path / "c", "--engine", "ray")
    without = "import sys\nsys.modules['ray'] = None\n"
    text = refusal(run_script(without + COMMAND, *arguments))
    assert "pip install 'lance-stream[ray]'" in text
    text = refusal(lance_stream("warm", table_100, "--local", "/x", "--ray-address", "y"), 2)
    assert "--ray-address is for --engine ray" in text
