"""Index files: made once, given as path, URL or object, used by whoever comes later."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import shutil
import signal
import time
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from streaming import StreamingDataset

from lance_stream import LanceStream, ShardIndex, build_index
from lance_stream.errors import (
    DatasetNotFoundError,
    IndexFileError,
    IndexFormatError,
    LanceStreamError,
    PlanError,
    VersionNotFoundError,
)
from lance_stream.planning import container
from tests.multi.ranks import environment, free_port
from tests.support.forked import fork, run_forked
from tests.support.object_store import S3Server
from tests.support.scripts import run_script, start_script
from tests.support.streams import batches, dataset, ids, wait_until
from tests.support.tables import write_table

SELECTION: dict[str, Any] = {
    "filter": "i % 3 <> 1",
    "subset": (0, 0.8),
    "subset_key": "s",
    "layout": "scattered",
    "run_rows": 4,
    "shard_rows": 12,
}
SHUFFLED = {"shuffle": True}

_CHANGE = """
import sys, lance
from datetime import timedelta
from tests.support.tables import write_table_here
uri, *changes = sys.argv[1:]
for change in changes:
    table = lance.dataset(uri)
    if change == "append":
        write_table_here(uri, 40, 20, first_row=5000, mode="append")
    elif change == "update":
        table.update({"s": "'changed'"}, where="i % 2 = 0")
    elif change == "delete":
        table.delete("i % 5 = 0")
    elif change == "compact":
        table.optimize.compact_files(target_rows_per_fragment=1000)
    elif change == "clean up":
        table.cleanup_old_versions(older_than=timedelta(0), delete_unverified=True)
    elif change == "make again":
        lance.LanceDataset.drop(uri)
        write_table_here(uri, 200, 40)
    elif change.startswith("tag "):
        _, name, version = change.split()
        if name in table.tags.list():
            table.tags.update(name, int(version))
        else:
            table.tags.create(name, int(version))
    elif change.startswith("branch "):
        branch = table.create_branch(change.split()[1])
        write_table_here(branch.uri, 10, 10, first_row=9000, mode="append")
    else:
        raise ValueError(change)
"""


def change(uri: str, *changes: str) -> None:
    """Change a table in a process of its own."""
    run_script(_CHANGE, uri, *changes).check()


@pytest.fixture(scope="module")
def table(tables: Path) -> str:
    """The table T(200, 40), for tests that only read."""
    uri = str(tables / "indexed.lance")
    write_table(uri, 200, 40)
    return uri


@pytest.fixture
def own(table: str, tmp_path: Path) -> str:
    """A copy of it, to be changed."""
    return str(shutil.copytree(table, tmp_path / "own.lance"))


def make(uri: str, path: Path, **arguments: Any) -> ShardIndex:
    """Make an index and save it."""

    def build() -> None:
        build_index(uri, **{**SELECTION, **arguments}).save(path)

    run_forked(build)
    return ShardIndex.load(path)


def order(uri: str, *, workers: int = 0, **stream: Any) -> list[int]:
    """Ids in the order in which a shuffled epoch gives them, each row checked."""
    return ids(batches(dataset(uri, host=SHUFFLED, **stream), workers))


# --- ways to give an index ---


def test_by_path_url_and_object(table: str, tmp_path: Path) -> None:
    """All give what planning gives: rows, order, cache."""
    path = tmp_path / "an index.idx"
    index = make(table, path)
    relative = os.path.relpath(path, "/")

    def run() -> list[Any]:
        said = []
        os.chdir("/")
        for given in (path, str(path), f"file://{path}", index, relative, None):
            more = SELECTION if given is None else {"index": given}
            stream = LanceStream(table, **more)
            # Where the process goes does not matter.
            os.chdir(tmp_path)
            data = StreamingDataset(
                streams=[stream], batch_size=4, num_canonical_nodes=1, shuffle=True
            )
            os.chdir("/")
            said.append([ids(batches(data, 0)), stream.fingerprint, stream.version])
        return said

    said = run_forked(run)
    assert all(each == said[-1] for each in said)
    rows, fingerprint, version = said[0]
    assert (fingerprint, version) == (index.fingerprint, 1)
    assert len(rows) == len(set(rows)) == index.num_rows
    assert all(i % 3 != 1 for i in rows)


def test_with_workers_and_a_cache_that_was_filled_without(table: str, tmp_path: Path) -> None:
    """An index names the same shard files as planning does."""
    path, local = tmp_path / "x.idx", tmp_path / "cache"
    make(table, path)

    def planned() -> list[int]:
        return order(table, local=str(local), **SELECTION)

    def given() -> list[int]:
        return order(table, local=str(local), index=path, workers=2)

    first = run_forked(planned)
    files = {name: (local / name).stat().st_ino for name in os.listdir(local)}
    shards = [name for name in files if name.endswith(".arrow") and "index" not in name]
    assert run_forked(given) == first
    assert len(shards) >= 8
    assert all((local / name).stat().st_ino == files[name] for name in shards)


def test_nothing_is_planned(table: str, tmp_path: Path) -> None:
    """A filter that would give other rows each time gives those of the index."""
    path = tmp_path / "x.idx"
    index = make(table, path, filter="random() < 0.5", subset=None, subset_key=None)
    first, second = (run_forked(lambda: order(table, index=path)) for _ in range(2))
    assert first == second
    assert len(first) == index.num_rows < 200


def test_a_stream_pickles_by_the_path_of_its_index(table: str, tmp_path: Path) -> None:
    """Whatever the number of shards; spawned workers read by it."""
    path = tmp_path / "x.idx"
    make(table, path, shard_rows=1, layout="contiguous")
    before = pickle.dumps(LanceStream(table, index=path))
    assert len(before) < 3000

    def run() -> list[int]:
        data = dataset(table, index=ShardIndex.load(path))
        stream = data.streams[0]
        again = pickle.loads(pickle.dumps(stream))
        assert again.fingerprint == stream.fingerprint
        return [len(pickle.dumps(stream)), len(pickle.dumps(data)), data.num_shards]

    sizes = run_forked(run)
    assert sizes[0] < 6000
    assert sizes[2] > 80


def test_in_an_object_store(s3_server: S3Server, s3_bucket: str) -> None:
    """Table and index on S3; nothing of the credentials is in the file."""
    uri = f"s3://{s3_bucket}/index/t.lance"
    options = s3_server.storage_options()
    write_table(uri, 100, 25, storage_options=options)
    url = f"s3://{s3_bucket}/index/t with space#1.idx"

    def run() -> list[Any]:
        # What fsspec's S3 client reads.
        os.environ |= {
            "AWS_ACCESS_KEY_ID": s3_server.access_key,
            "AWS_SECRET_ACCESS_KEY": s3_server.secret_key,
            "AWS_ENDPOINT_URL": s3_server.endpoint,
            "AWS_DEFAULT_REGION": "us-east-1",
        }
        index = build_index(uri, shard_rows=9, filter="i % 2 = 0", storage_options=options)
        index.save(url)
        index.save(url)  # over the one that is there
        assert ShardIndex.load(url).fingerprint == index.fingerprint
        secrets = [s3_server.access_key.encode(), s3_server.secret_key.encode()]
        assert not any(secret in index.to_bytes() for secret in secrets)
        rows = ids(batches(dataset(uri, index=url, storage_options=options), 2))
        try:
            dataset(uri, index=f"{url}.not-there", storage_options=options)
        except PlanError as error:
            return [rows, index.num_shards, str(error)]
        return [rows, index.num_shards, ""]

    rows, shards, missing = run_forked(run)
    assert rows == list(range(0, 100, 2))
    assert shards == 6
    assert missing.startswith(f"index='{url}.not-there' cannot be read: FileNotFoundError")


# --- later runs ---


def test_the_same_rows_in_the_same_order_in_a_later_run(own: str, tmp_path: Path) -> None:
    """After appends, updates, deletions and compaction; other caches, other numbers of workers."""
    path = tmp_path / "x.idx"
    make(own, path)
    before = run_forked(lambda: order(own, index=path))
    for changes in (["append"], ["update", "delete"], ["compact"]):
        change(own, *changes)
        assert run_forked(lambda: order(own, index=path, local=str(tmp_path / "c"))) == before
    after = run_forked(lambda: order(own, index=path, workers=2))
    assert sorted(after) == sorted(before)
    now = run_forked(lambda: sorted(order_of_now(own)))
    assert now != sorted(before)


def order_of_now(uri: str) -> list[int]:
    data = dataset(uri, **{**SELECTION, "subset_key": "i"})
    return ids(batches(data, 0), check=False)


def _rank(rank: int, port: int, uri: str, path: Path) -> list[Any]:
    os.environ.update(environment(rank, 2, port))
    data = dataset(uri, index=path, host=SHUFFLED)
    stream = data.streams[0]
    return [ids(batches(data, 1)), stream.fingerprint, stream.download_process_pid]


def test_two_ranks_and_a_later_run(own: str, tmp_path: Path) -> None:
    """Both ranks and the later run read by one file: each row once, one download process."""
    path = tmp_path / "x.idx"
    index = make(own, path)
    port = free_port()
    ranks = [fork(_rank, rank, port, own, path) for rank in range(2)]
    try:
        (mine, name, pid), (theirs, other_name, other_pid) = [rank.wait(60) for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
    assert name == other_name == index.fingerprint
    assert pid == other_pid
    alone = run_forked(lambda: order(own, index=path))
    assert set(mine) | set(theirs) == set(alone)
    assert len(mine) + len(theirs) <= len(alone) + 2
    change(own, "append", "update", "delete", "compact")
    assert run_forked(lambda: order(own, index=path)) == alone


# --- refused ---


def test_an_index_of_something_else(own: str, table: str, tmp_path: Path) -> None:
    """Both sides are named when the dataset is built; nothing is streamed."""
    path = tmp_path / "x.idx"
    make(own, path)
    change(own, "tag prod 1", "append", "tag new 2", "branch exp")
    shown = f"index='{path}'"
    cases: list[tuple[str, dict[str, Any], type[Exception], str]] = [
        (table, {}, PlanError, f"{shown} is an index of {own}, and the stream is of {table}"),
        (own, {"version": 2}, PlanError, f"{shown} was made with version=1, .* version=2"),
        (
            own,
            {"filter": "i > 3"},
            PlanError,
            f"{shown} was made with filter='i % 3 <> 1', .*i > ",
        ),
        (own, {"limit": 3}, PlanError, f"{shown} was made with limit=None, .* limit=3"),
        (own, {"shard_rows": 5}, PlanError, f"{shown} has .* shards of up to 12 rows, .*=5"),
        (
            own,
            {"version": "new"},
            VersionNotFoundError,
            f"{shown} is of version 1 of {own}: .*'new' stands for version 2",
        ),
        (
            own,
            {"version": "exp"},
            VersionNotFoundError,
            f"{shown} is of version 1 of {own}: .*'exp'",
        ),
        (own, {"version": "none"}, VersionNotFoundError, "there is no tag or branch 'none'"),
        (own, {"split": "x"}, PlanError, f"{shown} is an index of {own}, .* {own}/x"),
    ]
    for uri, more, error, says in cases:
        with pytest.raises(error, match=says):
            dataset(uri, index=path, **more)
    good: list[dict[str, Any]] = [{"version": 1}, {"version": "prod"}, dict(SELECTION), {}]
    expected = ShardIndex.load(path).num_rows
    assert run_forked(lambda: [len(order(own, index=path, **more)) for more in good]) == (
        [expected] * 4
    )


def test_an_index_of_a_branch(own: str, tmp_path: Path) -> None:
    """Taken for the branch and for the table it is of; not for a number of the table's own."""
    path = tmp_path / "x.idx"
    change(own, "branch exp", "append")
    index = make(own, path, version="exp", filter=None, subset=None, subset_key=None)
    assert index.uri == f"{own}/tree/exp"
    everything = sorted([*range(200), *range(9000, 9010)])
    ways: list[dict[str, Any]] = [{}, {"version": "exp"}, {"uri": f"{own}/tree/exp"}]

    def run() -> list[Any]:
        return [sorted(order(way.pop("uri", own), index=path, **way)) for way in ways]

    assert run_forked(run) == [everything] * 3
    with pytest.raises(PlanError, match=f"is an index of {own}/tree/exp, and the stream is of"):
        dataset(own, index=path, version=index.version)


def test_a_table_that_was_made_again(own: str, tmp_path: Path) -> None:
    """The same uri and version number, other files: refused."""
    path = tmp_path / "x.idx"
    make(own, path)
    change(own, "make again")
    says = r"version 1 .*the table was made again at the .*make the index again"
    with pytest.raises(VersionNotFoundError, match=says) as caught:
        dataset(own, index=path)
    assert "choose another version" not in str(caught.value)


def test_a_table_that_was_deleted(own: str, tmp_path: Path) -> None:
    """Not a version that is missing, with an index or a version number."""
    path = tmp_path / "x.idx"
    make(own, path)
    shutil.rmtree(own)
    for arguments in ({"index": path}, {"version": 1}, {"version": 2}):
        with pytest.raises(DatasetNotFoundError, match=rf"{own}.*there is no Lance table there"):
            dataset(own, **arguments)


def test_a_version_that_was_cleaned_up(own: str, tmp_path: Path) -> None:
    """Says so, and what to do; a running dataset goes on with what it has cached."""
    path = tmp_path / "x.idx"
    make(own, path)

    def run() -> list[Any]:
        data = dataset(own, index=path, host=SHUFFLED)
        before = ids(batches(data, 0))
        change(own, "append", "update", "compact", "clean up")
        return [before, ids(batches(data, 0))]

    before, after = run_forked(run)
    assert sorted(before) == sorted(after)
    says = rf"index='{path}' is of version 1 .*cleaned up: .*choose another version"
    with pytest.raises(VersionNotFoundError, match=says):
        dataset(own, index=path)


def test_files_that_are_no_index(table: str, tmp_path: Path) -> None:
    """Damaged, cut, foreign, newer, of another kind: named, and refused on every way in."""
    good = tmp_path / "good.idx"
    make(table, good)
    data = good.read_bytes()
    header, _ = container.unpack_header(b"lance_stream.index", data)
    arrays = container.unpack(data)
    flipped = bytearray(data)
    flipped[len(data) // 3] ^= 1
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, pa.schema([("a", pa.int64())])) as writer:
        writer.write_table(pa.table({"a": [1]}))
    newer = container.pack(b"lance_stream.index", {**header, "format": 99}, arrays)
    headless = container.pack(
        b"lance_stream.index", {k: v for k, v in header.items() if k != "layout"}, arrays
    )
    partial = container.pack(b"lance_stream.partial", header, arrays)
    no_stops = {name: a for name, a in arrays.items() if name != "shard_stops"}
    cases = {
        "empty": (b"", "is not a lance_stream shard index, or is damaged"),
        "text": (b"hello" * 100, "is not a lance_stream shard index, or is damaged"),
        "cut": (data[: len(data) // 2], "is not a lance_stream shard index, or is damaged"),
        "cut by one": (data[:-1], "is not a lance_stream shard index, or is damaged"),
        "flipped": (bytes(flipped), "damaged"),
        "arrow": (sink.getvalue().to_pybytes(), "is not a lance_stream shard index"),
        "partial": (partial, "is not a lance_stream shard index"),
        "newer": (newer, "has index format 99, this lance_stream reads .*: make the index again"),
        "headless": (headless, "is a damaged lance_stream shard index: KeyError"),
        "no stops": (
            container.pack(b"lance_stream.index", header, no_stops),
            "is a damaged lance_stream shard index: KeyError",
        ),
    }
    for name, (content, says) in cases.items():
        path = tmp_path / f"{name}.idx"
        path.write_bytes(content)
        with pytest.raises(IndexFormatError, match=f"{path} {says}|{path} is a {says}"):
            ShardIndex.load(path)
        with pytest.raises(IndexFormatError, match=f"{path} "):
            dataset(table, index=path)
    with pytest.raises(PlanError, match="index='/nonexistent' cannot be read: FileNotFoundError"):
        dataset(table, index="/nonexistent")
    with pytest.raises(PlanError, match="cannot be read: IsADirectoryError"):
        dataset(table, index=table)
    for place, says in {
        "/nonexistent": "/nonexistent cannot be read: there is no such file",
        table: f"{table} cannot be read: it is a folder: name a file in it",
        "nosuch://u:hidden@b/x?sig=hidden": "nosuch://.*b/x cannot be read: .* fsspec knows",
    }.items():
        with pytest.raises(IndexFileError, match=says) as caught:
            ShardIndex.load(place)
        assert isinstance(caught.value, LanceStreamError)
        assert isinstance(caught.value, OSError)
        assert "hidden" not in str(caught.value)


def test_a_damaged_index_in_the_cache_is_made_again(table: str, tmp_path: Path) -> None:
    """Its own copy in the cache directory is not trusted by its name."""
    local = tmp_path / "cache"
    before = run_forked(lambda: order(table, local=str(local), **SELECTION))
    (copy,) = (local / name for name in os.listdir(local) if "index" in name)
    whole = copy.read_bytes()
    for content in (whole[:100], b"", whole[:-1] + b"\0"):
        copy.write_bytes(content)
        assert run_forked(lambda: order(table, local=str(local), **SELECTION)) == before
        assert copy.read_bytes() == whole


# --- saving ---


def _save_often(index: ShardIndex, path: str, go_on: Any) -> None:
    while go_on.value:
        index.save(path)


def test_an_index_is_saved_whole_or_not_at_all(table: str, tmp_path: Path) -> None:
    """Who reads while others write sees a whole one; a kill leaves the old one."""
    path = tmp_path / "x.idx"
    index = make(table, path)
    context = multiprocessing.get_context("fork")
    go_on = context.Value("b", 1)
    writers = [
        context.Process(target=_save_often, args=(index, str(path), go_on)) for _ in range(2)
    ]
    for writer in writers:
        writer.start()
    deadline = time.monotonic() + 1.0
    loads = 0
    while time.monotonic() < deadline:
        assert ShardIndex.load(path).fingerprint == index.fingerprint
        loads += 1
    assert loads > 10
    os.kill(writers[0].pid or 0, signal.SIGKILL)
    go_on.value = 0
    for writer in writers:
        writer.join(10)
    assert ShardIndex.load(path).fingerprint == index.fingerprint


def test_a_save_that_fails_leaves_what_was_there(table: str, tmp_path: Path) -> None:
    """No room: the old file stays, and nothing beside it."""
    path = tmp_path / "x.idx"
    index = make(table, path)
    other = tmp_path / "y.idx"

    def run() -> list[str]:
        import resource

        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
        said = []
        for where in (path, other, f"file://{path}"):
            try:
                index.save(where)
                said.append("saved")
            except OSError as error:
                said.append(type(error).__name__)
        return said

    before = path.read_bytes()
    assert run_forked(run) == ["IndexFileError"] * 3
    assert path.read_bytes() == before
    assert sorted(os.listdir(tmp_path)) == ["cache-home", "x.idx"]
    for place, says in {
        tmp_path / "nowhere" / "x.idx": "to .*/nowhere/x.idx: there is no such file or folder",
        tmp_path: f"to {tmp_path}: it is a folder: name a file in it",
        "nosuch://b/x": "to nosuch://b/x: .* fsspec knows: check its protocol",
    }.items():
        with pytest.raises(IndexFileError, match=says) as caught:
            index.save(place)
        assert ".tmp" not in str(caught.value)


# --- long scans ---

# Parts of at most a hundred rows, kept at once.
_LONG = """
import json, os, sys, time
from lance_stream.service import choosing
from lance_stream.source.table import Table
from tests.support.planning import plan
choosing._FIRST_ROWS = choosing._MAX_ROWS = 100
choosing._SAVE_EVERY_S = 0.0
pause_s, parts = 0.0, []
matching = Table.matching
def slowly(self, fragments, part, selection):
    parts.append(part.start)
    print("part", part.start, flush=True)
    time.sleep(pause_s)
    return matching(self, fragments, part, selection)
Table.matching = slowly
def made(uri, partial, predicate):
    parts.clear()
    index = plan(uri, filter=predicate, shard_rows=10, partial_path=partial)
    return [list(parts), index.num_rows, index.fingerprint]
uri, partial = sys.argv[1:3]
"""
_KILLED = (
    _LONG
    + """
pause_s = 0.1
made(uri, partial, "i % 7 = 2")
"""
)
_WHOLE = (
    _LONG
    + """
print(json.dumps(made(uri, partial or None, "i % 7 = 2")))
"""
)
_OTHERS = (
    _LONG
    + """
first = made(uri, partial, "i % 7 = 2")
kept = open(partial, "rb").read()
again = made(uri, partial, "i % 7 = 2")
other = made(uri, partial, "i % 7 = 3")
rest = []
for content in (b"", kept[:-1], b"x" * 1000, kept.replace(b'"next"', b'"nest"')):
    open(partial, "wb").write(content)
    rest.append(made(uri, partial, "i % 7 = 2"))
# Where it cannot be kept, it is made without.
os.unlink(partial)
os.mkdir(partial)
rest.append(made(uri, partial, "i % 7 = 2"))
print(json.dumps([first, again, other, rest]))
"""
)


@pytest.fixture(scope="module", params=[50, 2000], ids=["many fragments", "one fragment"])
def long_table(tables: Path, request: pytest.FixtureRequest) -> str:
    """The table T(2000, 50) or T(2000, 2000), some of it deleted."""
    uri = str(tables / f"long-{request.param}.lance")
    write_table(uri, 2000, request.param)
    change(uri, "delete")
    return uri


def test_a_build_that_was_killed_goes_on(long_table: str, tmp_path: Path) -> None:
    """SIGKILL in the middle, twice: what was looked at is not looked at again."""
    partial = tmp_path / "partial"
    whole, rows, fingerprint = run_script(_WHOLE, long_table, "").json()
    # Two fragments of 40 live rows, or a hundred rows of the one.
    assert len(whole) == (20 if "long-50" in long_table else 16)
    assert rows == len([i for i in range(2000) if i % 7 == 2 and i % 5])
    reached = 0
    for _ in range(2):
        with start_script(_KILLED, long_table, partial) as script:
            script.wait_for_line("part", 30)
            wait_until(lambda: script.stdout().count("part") >= 5, 30, "five parts")
            os.kill(script.pid, signal.SIGKILL)
            seen = [int(line.split()[1]) for line in script.stdout().splitlines()]
        assert seen[0] >= reached
        reached = seen[-1]
    last, again_rows, again = run_script(_WHOLE, long_table, partial).json()
    assert last == whole[whole.index(reached) :]
    assert (again_rows, again) == (rows, fingerprint)


def test_progress_of_something_else_is_not_taken(long_table: str, tmp_path: Path) -> None:
    """Of another filter; damaged, no such thing, or in a place that cannot be written."""
    first, again, other, rest = run_script(_OTHERS, long_table, tmp_path / "partial").json()
    whole, rows, fingerprint = first
    assert again == [[], rows, fingerprint]
    assert other[:2] == [whole, len([i for i in range(2000) if i % 7 == 3 and i % 5])]
    assert rest == [first] * 5


_PARTS = """
import json, sys, lance
import pyarrow as pa
from lance_stream.planning.rows import RowRange
from lance_stream.service import choosing
from tests.support.planning import plan
def looked(uri, **selection):
    index = plan(uri, shard_rows=50, **selection)
    return index.chosen.rows(RowRange(0, index.num_rows)).tolist()
kinds = {
    "plain": {}, "stable": {"enable_stable_row_ids": True},
    "first": {"data_storage_version": "legacy"},
}
said = []
for kind, arguments in kinds.items():
    for indexed in (False, True):
        uri = f"{sys.argv[1]}/{kind}-{indexed}.lance"
        table = pa.table({"i": range(1000), "k": [f"u{j % 100}" for j in range(1000)]})
        lance.write_dataset(table, uri, max_rows_per_file=500, **arguments)
        lance.dataset(uri).delete("i % 5 = 0")
        lance.dataset(uri).update({"k": "'moved'"}, where="i % 50 = 3")
        if indexed:
            lance.dataset(uri).create_scalar_index("i", "BTREE")
        for selection in (
            {"filter": "i % 7 = 2"}, {"filter": "i >= 200 and i < 330 -- few"},
            {"filter": "i % 2 = 1", "subset": (0, 0.5), "subset_key": "k"}, {"subset": (0.5, 1)},
        ):
            for choosing._FIRST_ROWS in (47, 10_000):
                choosing._MAX_ROWS = choosing._FIRST_ROWS
                rows = looked(uri, **selection)
                found = lance.dataset(uri).to_table(columns=["i"]).column("i").to_pylist()
                said.append([kind, indexed, selection, [found[row] for row in rows]])
print(json.dumps(said))
"""


def test_parts_of_fragments_give_what_whole_ones_give(tmp_path: Path) -> None:
    """In every kind of table, with deletions, with an index of the filter's column or none."""
    said = run_script(_PARTS, tmp_path).json()
    live = [i for i in range(1000) if i % 5]
    for in_parts, whole in zip(said[::2], said[1::2], strict=True):
        assert in_parts == whole
        selection, rows = whole[2:]
        if selection.get("filter") == "i % 7 = 2":
            assert sorted(rows) == [i for i in live if i % 7 == 2]
        elif "-- few" in selection.get("filter", ""):
            assert sorted(rows) == [i for i in live if 200 <= i < 330]
        else:
            assert 0.1 < len(rows) / len(live) < 0.8


def test_build_index_keeps_no_progress_of_what_is_done(table: str, tmp_path: Path) -> None:
    """``partial_path`` is gone with the index made; progress was told."""
    partial = tmp_path / "partial"
    partial.write_bytes(b"of an older run")
    told: list[list[Any]] = []

    def run() -> list[Any]:
        index = build_index(
            table,
            filter="i % 2 = 0",
            partial_path=partial,
            progress=lambda *news: told.append(list(news)),
        )
        exact = build_index(
            table, exact=True, shard_bytes=500, progress=lambda *news: told.append(list(news))
        )
        return [index.num_rows, exact.num_rows, told]

    rows, exact_rows, news = run_forked(run)
    assert (rows, exact_rows) == (100, 200)
    assert not partial.exists()
    assert all(0 <= done <= total == 200 for _, done, total in news)
    assert {what for what, _, _ in news} <= {"choosing rows", "measuring rows"}
    assert news


_ALIVE = """
import sys, time
from lance_stream.service import choosing
from lance_stream.source.table import Table
from tests.support.planning import FETCHER, request
uri = sys.argv[1]
choosing._LOOK_EVERY_S = 0.02
requests, reading = 0, True
def count(self):
    global requests
    requests += reading
    return requests
Table.requests = property(count)
def matching(self, *arguments):
    global reading
    time.sleep(0.5)
    reading = False
    time.sleep(0.5)
    told.append("hangs")
    yield from ()
Table.matching = matching
told = []
try:
    FETCHER.plan(request(uri, filter="i < 0"), lambda *news: told.append(time.monotonic()))
except ValueError as error:
    assert "no row" in str(error), error
at = told.index("hangs")
before, after = told[1:at], told[at + 1:]
print(len(before) >= 5, before[-1] - before[0] < 0.7)
assert len(before) >= 5, told
assert before[-1] - before[0] < 0.7, told
"""


def test_a_scan_that_matches_nothing_is_known_to_go_on(table: str) -> None:
    """As long as it reads, and no longer: one that hangs is given up."""
    run_script(_ALIVE, table).check()
