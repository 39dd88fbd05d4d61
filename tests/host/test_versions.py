"""Which table, at which version: named in every way, and kept whatever becomes of it."""

from __future__ import annotations

import json
import os
import pickle
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from streaming import StreamingDataset

from lance_stream import LanceStream
from lance_stream.errors import (
    DatasetNotFoundError,
    PlanError,
    ShardUnavailableError,
    VersionNotFoundError,
)
from tests.support.forked import fork, run_forked
from tests.support.scripts import run_script
from tests.support.streams import batches, cached_files, dataset, ids
from tests.support.tables import assert_row, write_table

FIRST, SECOND, THIRD = (list(range(start, start + 100)) for start in (0, 1000, 2000))
SHUFFLED = {"shuffle": True}

# A change of a table: arguments are its uri and what to do.
_CHANGE = """
import sys, lance
from datetime import timedelta
from tests.support.tables import write_table_here
uri, *changes = sys.argv[1:]
for change in changes:
    table = lance.dataset(uri)
    if change == "append":
        write_table_here(uri, 30, 30, first_row=5000, mode="append")
    elif change == "overwrite":
        write_table_here(uri, 100, 25, first_row=1000, mode="overwrite")
    elif change == "delete":
        table.delete("i % 3 = 0")
    elif change == "delete fragment":
        table.delete("i >= 25 and i < 50")
    elif change == "update":
        table.update({"s": "'changed'"}, where="i % 2 = 0")
    elif change == "compact":
        table.optimize.compact_files(target_rows_per_fragment=1000)
    elif change == "clean up":
        # Compaction and overwriting leave the files of older versions: now they go.
        table.cleanup_old_versions(older_than=timedelta(0), delete_unverified=True)
    elif change.startswith("tag "):
        _, name, version = change.split()
        if name in table.tags.list():
            table.tags.update(name, int(version))
        else:
            table.tags.create(name, int(version))
    else:
        raise ValueError(change)
print(lance.dataset(uri).version)
"""


def change(uri: str, *changes: str) -> int:
    """Change a table in a process of its own; returns the latest version then."""
    return int(run_script(_CHANGE, uri, *changes).check().json())


@pytest.fixture(scope="module")
def versions(tables: Path) -> str:
    """Version 1: 0 to 99; 2: 1000 to 1099; 3: 30 more. Tags ``first`` and ``second``."""
    uri = str(tables / "versions.lance")
    write_table(uri, 100, 25)
    assert change(uri, "overwrite", "append", "tag first 1", "tag second 2") == 3
    return uri


def rows(uri: str | os.PathLike[str], workers: int = 0, **stream: Any) -> list[int]:
    """Sorted ids of an epoch, each row compared with the table's."""
    data = dataset(uri, host=SHUFFLED, **{"shard_rows": 10, **stream})  # type: ignore[arg-type]
    return sorted(ids(batches(data, workers)))


@pytest.mark.parametrize(
    ("version", "expected", "number"),
    [
        (1, FIRST, 1),
        (2, SECOND, 2),
        (3, [*SECOND, *range(5000, 5030)], 3),
        (None, [*SECOND, *range(5000, 5030)], 3),
        ("first", FIRST, 1),
        ("second", SECOND, 2),
    ],
)
def test_numbers_and_tags(
    versions: str, version: int | str | None, expected: list[int], number: int
) -> None:
    """Each version gives its own rows, with one cache root for all."""

    def run() -> list[Any]:
        data = dataset(versions, version=version, shard_rows=10, host=SHUFFLED)
        stream = data.streams[0]
        return [sorted(ids(batches(data, 2))), stream.version, f"version={number}" in repr(stream)]

    assert run_forked(run) == [expected, number, True]


def test_unknown_versions(versions: str) -> None:
    """An error when the dataset is built, that names table and version."""
    for version, words in ((99, "version 99.*no such version"), ("third", "'third'.*or tag")):
        with pytest.raises(VersionNotFoundError, match=f"{versions} {words}|{versions}.*{words}"):
            dataset(versions, version=version)
    for version in (0, -1, True, "", 1.5):
        with pytest.raises(PlanError, match=f"version={version!r} must be"):
            LanceStream(versions, version=version)  # type: ignore[arg-type]


@pytest.mark.parametrize("workers", [0, 2])
def test_latest_is_resolved_once(tmp_path: Path, workers: int) -> None:
    """A producer appends while we iterate: our rows stay; a new dataset has the new ones."""
    uri, local = str(tmp_path / "t.lance"), str(tmp_path / "cache")
    write_table(uri, 100, 25)

    def run() -> list[Any]:
        data = dataset(uri, shard_rows=10, local=local, host=SHUFFLED)
        epochs = []
        for _ in range(2):
            seen = []
            for at, batch in enumerate(batches(data, workers)):
                if at == 3:
                    write_table(uri, 50, 25, first_row=100 + 50 * len(epochs), mode="append")
                seen += ids([batch])
            epochs.append(sorted(seen))
        after = dataset(uri, shard_rows=10, local=str(tmp_path / "other"))
        return [epochs, len(data), data.streams[0].version, len(after), ids(batches(after, 0))]

    epochs, length, version, length_after, after = run_forked(run)
    assert epochs == [FIRST, FIRST]
    assert (length, version) == (100, 1)
    assert length_after == 200
    assert after == list(range(200))


def test_a_tag_is_resolved_once(tmp_path: Path) -> None:
    """A tag that moves while we iterate: our rows stay; a new dataset follows it."""
    uri = str(tmp_path / "t.lance")
    write_table(uri, 100, 25)
    change(uri, "tag prod 1")

    def run() -> list[Any]:
        data = dataset(uri, version="prod", shard_rows=10)
        seen = [data[0]["i"]]
        change(uri, "overwrite", "tag prod 2")
        return [seen, ids(batches(data, 2)), data.streams[0].version]

    assert run_forked(run) == [[0], FIRST, 1]
    assert run_forked(lambda: rows(uri, 0, version="prod")) == SECOND


@pytest.mark.parametrize(
    ("workers", "changes"),
    [
        (0, ["overwrite"]),
        (2, ["delete", "compact"]),
        (0, ["delete fragment"]),
        (0, ["update", "compact"]),
        (2, ["append", "update", "delete", "compact", "overwrite"]),
    ],
    ids=str,
)
def test_changes_after_the_index_was_made(
    tmp_path: Path, workers: int, changes: list[str]
) -> None:
    """Whatever is done to the table between planning and reading, the pinned rows are exact."""
    uri = str(tmp_path / "t.lance")
    write_table(uri, 100, 25)

    def run() -> list[Any]:
        data = dataset(uri, shard_rows=10, host=SHUFFLED)
        change(uri, *changes)
        # Pinned by its number, planned only now.
        pinned = dataset(uri, version=1, shard_rows=30)
        return [sorted(ids(batches(data, workers))), ids(batches(pinned, workers))]

    assert run_forked(run) == [FIRST, FIRST]


def test_deleted_rows_are_there_at_their_version(tmp_path: Path) -> None:
    """Before and after a deletion, for the rows of one fragment and of a whole one."""
    uri = str(tmp_path / "t.lance")
    write_table(uri, 100, 25)
    assert change(uri, "delete", "delete fragment") == 3

    def run() -> list[list[int]]:
        return [rows(uri, version=version) for version in (1, 2, 3, None)]

    second = [i for i in FIRST if i % 3]
    third = [i for i in second if not 25 <= i < 50]
    assert run_forked(run) == [FIRST, second, third, third]


@pytest.mark.parametrize("workers", [0, 2])
def test_a_version_that_is_cleaned_up(tmp_path: Path, workers: int) -> None:
    """In mid-epoch: an error that says so, in that epoch; what is cached can still be read."""
    uri, local = str(tmp_path / "t.lance"), str(tmp_path / "cache")
    write_table(uri, 100, 25)

    def run() -> list[Any]:
        data = dataset(uri, shard_rows=10, local=local)
        cached = [data[row]["i"] for row in (0, 10, 20)]
        change(uri, "overwrite", "clean up")
        seen, message = [], ""
        try:
            for batch in batches(data, workers):
                seen += ids([batch])
        except ShardUnavailableError as error:
            message = str(error) if isinstance(error, VersionNotFoundError) else repr(error)
        again = dataset(uri, shard_rows=10, local=str(tmp_path / "other"))
        still = [data[row] for row in range(30)]
        for i, row in enumerate(still):
            assert_row(row, i)
        return [cached, seen, message, len(cached_files(data)), ids(batches(again, 0))]

    cached, seen, message, files, again = run_forked(run)
    assert cached == [0, 10, 20]
    # Workers hold finished batches back until it is their turn, so not all 30 need come.
    assert seen == FIRST[: len(seen)]
    assert len(seen) <= 30
    assert "shard 3 (rows [30, 40))" in message or "shard 4 (rows [40, 50))" in message
    assert f"{uri} version 1" in message
    assert "the version was cleaned up" in message
    assert not message.startswith("ShardUnavailableError")
    assert "shards that are cached go on working" in message
    assert "pin=True" in message
    assert files == 3
    assert again == SECOND
    with pytest.raises(VersionNotFoundError, match=r"version 1.*cleaned up"):
        dataset(uri, version=1)


def test_cached_shards_outlive_the_version_in_a_new_run(tmp_path: Path) -> None:
    """Without the version no new dataset can be planned: an error, and the cache is kept."""
    uri, local = str(tmp_path / "t.lance"), tmp_path / "cache"
    write_table(uri, 100, 25)
    assert run_forked(lambda: rows(uri, 0, local=str(local), version=1)) == FIRST
    kept = sorted(name for name in os.listdir(local) if name.endswith(".arrow"))
    change(uri, "overwrite", "clean up")
    with pytest.raises(VersionNotFoundError, match="version 1"):
        dataset(uri, version=1, local=str(local))
    assert sorted(name for name in os.listdir(local) if name.endswith(".arrow")) == kept


@pytest.mark.parametrize("names", [("train.lance",), ("train",), ("train", "train.lance")])
def test_split(tmp_path: Path, names: tuple[str, ...]) -> None:
    """``remote/split``, or ``remote/split.lance`` where that exists."""
    remote, local = tmp_path / "data", tmp_path / "cache"
    for name in names:
        write_table(str(remote / name), 100, 25, first_row=0 if name.endswith(".lance") else 1000)
    expected = FIRST if "train.lance" in names else SECOND
    assert run_forked(lambda: rows(remote, 2, split="train")) == expected
    assert run_forked(lambda: rows(remote, 0, split="train", local=local)) == expected
    # As the host does for its own streams: a directory per split.
    assert os.listdir(local) == ["train"]


def test_a_cache_beside_the_splits(tmp_path: Path) -> None:
    """``local`` in the folder of the splits is in no table; in a split's own folder it is."""
    write_table(str(tmp_path / "train.lance"), 100, 25)
    for local in (tmp_path / "train.lance", tmp_path / "train.lance" / "data"):
        with pytest.raises(PlanError, match="lies inside the table"):
            dataset(tmp_path, split="train", local=local)
    local = tmp_path / "cache"
    assert run_forked(lambda: rows(tmp_path, 0, split="train", local=local)) == FIRST


def test_splits_beside_each_other(tmp_path: Path) -> None:
    """Training and validation split in one ``local``, at a time; nested; one that is not there."""
    remote, local = tmp_path / "data", str(tmp_path / "cache")
    write_table(str(remote / "train.lance"), 100, 25)
    write_table(str(remote / "val.lance"), 100, 25, first_row=1000)
    write_table(str(remote / "2024" / "a.lance"), 100, 25, first_row=2000)

    def run() -> list[Any]:
        splits = ["train", "val", "2024/a"]
        data = [dataset(str(remote), split=split, local=local, shard_rows=10) for split in splits]
        loaders = [iter(batches(d, 2)) for d in data]
        seen: list[list[int]] = [[], [], []]
        for step in zip(*loaders, strict=True):
            for at, batch in enumerate(step):
                seen[at] += ids([batch])
        uris = [d.streams[0].index.uri for d in data]
        return [seen, uris, [len(cached_files_of(d)) for d in data]]

    def cached_files_of(data: StreamingDataset) -> list[str]:
        directory = Path(data.streams[0].local, data.streams[0].split)
        return [name for name in os.listdir(directory) if name.endswith(".arrow")]

    seen, uris, counts = run_forked(run)
    assert seen == [FIRST, SECOND, THIRD]
    assert uris == [str(remote / name) for name in ("train.lance", "val.lance", "2024/a.lance")]
    assert counts == [11, 11, 11]
    with pytest.raises(DatasetNotFoundError, match=f"{remote}/test"):
        dataset(str(remote), split="test", local=local)


ODD_NAMES = [
    "plain.lance",
    "with spaces.lance",
    "ünï-码.lance",
    "hash#1.lance",
    "per%20cent.lance",
    "question?x=1.lance",
    "a+b&c=d.lance",
    "quote's [1] {2}.lance",
]


@pytest.fixture(scope="module")
def odd_names(tables: Path) -> Path:
    """One table under every odd name."""
    directory = tables / "odd names #1 ü"
    script = """
import os, shutil, sys
from tests.support.tables import write_table_here
directory, *names = sys.argv[1:]
os.makedirs(directory)
write_table_here(directory + "/plain.lance", 100, 25)
for name in names[1:]:
    shutil.copytree(directory + "/plain.lance", f"{directory}/{name}")
"""
    run_script(script, directory, *ODD_NAMES).check()
    return directory


def test_paths_of_every_form(odd_names: Path, tmp_path: Path) -> None:
    """Absolute, relative, ``file://``, ``os.PathLike``, a trailing slash; names of all kinds."""
    assert run_forked(lambda: [_forms(odd_names, name) for name in ODD_NAMES]) == [
        [] for _ in ODD_NAMES
    ]


def _forms(directory: Path, name: str) -> list[Any]:
    """Forms of naming a table that do not give its rows."""
    path = directory / name
    os.chdir(directory)
    forms: dict[str, Any] = {
        "absolute": str(path),
        "relative": name,
        "file": path.as_uri(),
    }
    if name == ODD_NAMES[0]:
        forms["path"] = path
        forms["slash"] = f"{path}/"
        forms["dotted"] = f"./{name}"
        forms["parent"] = f"../{directory.name}/{name}"
    wrong = []
    for form, remote in forms.items():
        os.chdir(directory)
        try:
            data = dataset(remote, shard_rows=10)
            # Where the process is later does not matter.
            os.chdir("/")
            found = ids(batches(data, 0))
            if found != FIRST or data.streams[0].index.uri != str(path):
                wrong.append([form, data.streams[0].index.uri, len(found)])
        except Exception as error:  # noqa: BLE001
            wrong.append([form, type(error).__name__, str(error)])
    return wrong


def test_a_cache_directory_with_an_odd_name(table_100: str, tmp_path: Path) -> None:
    """``local`` may be relative, with spaces and the like; one row per path, with workers."""

    def run() -> list[Any]:
        os.chdir(tmp_path)
        data = dataset(table_100, shard_rows=10, local="my cache #1 ü/a%20b", host=SHUFFLED)
        os.chdir("/")
        return [sorted(ids(batches(data, 2))), data.streams[0].local]

    found, local = run_forked(run)
    assert found == FIRST
    assert local == str(tmp_path / "my cache #1 ü" / "a%20b")


@pytest.mark.parametrize("storage", ["2.0", "2.1", "2.2"])
def test_data_storage_versions(tmp_path: Path, storage: str) -> None:
    """Files of every format that Lance still writes are read alike, nulls and deletions too."""
    uri = str(tmp_path / "t.lance")
    script = """
import sys, lance, pyarrow as pa
uri, storage = sys.argv[1:]
rows = range(100)
table = pa.table({
    "i": pa.array(rows, pa.int64()),
    "s": pa.array([None if i % 7 == 0 else "x" * (i % 5) for i in rows]),
    "b": pa.array([None if i % 11 == 0 else bytes(i) for i in rows], pa.large_binary()),
    "f": pa.array([i / 4 for i in rows], pa.float32()),
    "l": [None if i % 13 == 0 else list(range(i % 4)) for i in rows],
    "t": pa.array([i % 2 == 0 for i in rows]),
})
lance.write_dataset(table, uri, max_rows_per_file=30, data_storage_version=storage)
lance.dataset(uri).delete("i % 10 = 9")
assert lance.dataset(uri).data_storage_version == storage
"""
    run_script(script, uri, storage).check()

    def run() -> list[Any]:
        data = dataset(uri, shard_rows=7, host=SHUFFLED)
        found = [row for batch in batches(data, 2) for row in batch]
        return [
            [
                row["i"],
                row["s"],
                None if row["b"] is None else row["b"].hex(),
                row["f"],
                None if row["l"] is None else row["l"].tolist(),
                row["t"],
            ]
            for row in sorted(found, key=lambda row: row["i"])
        ]

    assert run_forked(run) == [
        [
            i,
            None if i % 7 == 0 else "x" * (i % 5),
            None if i % 11 == 0 else bytes(i).hex(),
            i / 4,
            None if i % 13 == 0 else list(range(i % 4)),
            i % 2 == 0,
        ]
        for i in range(100)
        if i % 10 != 9
    ]


def _at_the_same_time(uri: str, **arguments: Any) -> StreamingDataset:
    """A dataset that is built while others are: the host finds and takes a name in two steps."""
    for _ in range(100):
        try:
            return dataset(uri, **arguments)
        except FileExistsError as error:
            # The name in shared memory that the host found free was taken meanwhile.
            assert "_locals" in str(error)  # noqa: PT017
    raise AssertionError("no free name in 100 attempts")


def _signalled_epoch(uri: str, mine: Path, other: Path) -> list[Any]:
    """An epoch that goes on only while the other job, too, has its dataset."""
    data = _at_the_same_time(uri, batch_size=25, shard_rows=250, host=SHUFFLED)
    mine.touch()
    deadline = time.monotonic() + 30
    while not other.exists():
        assert time.monotonic() < deadline
        time.sleep(0.01)
    return [sorted(ids(batches(data, 2))) == list(range(5000)), data.streams[0].local]


def test_two_jobs_without_local(table_5000: str, tmp_path: Path) -> None:
    """At the same time, by default: both work, in a directory each; a later run finds one."""
    a, b = tmp_path / "a", tmp_path / "b"
    jobs = [fork(_signalled_epoch, table_5000, *pair) for pair in ((a, b), (b, a))]
    (exact, first), (exact_too, second) = [job.wait(60) for job in jobs]
    assert exact
    assert exact_too
    assert first != second

    def later() -> list[Any]:
        data = dataset(table_5000, shard_rows=250)
        files = len(cached_files(data))
        return [files, data.streams[0].local]

    files, third = run_forked(later)
    assert files == 20
    assert third in (first, second)


def test_training_and_evaluation_in_one_process(table_5000: str, versions: str) -> None:
    """Two datasets of one table by default, in turns, with workers; others beside them."""

    def run() -> list[Any]:
        train = dataset(table_5000, batch_size=25, shard_rows=250, host=SHUFFLED)
        check = dataset(table_5000, batch_size=25, shard_rows=250)
        old = dataset(versions, version=1, shard_rows=10)
        new = dataset(versions, version=2, shard_rows=10)
        locals_ = {data.streams[0].local for data in (train, check, old, new)}
        results = []
        for _ in range(2):
            running = iter(batches(train, 2))
            seen = ids([next(running) for _ in range(60)])
            results.append(ids(batches(check, 1)) == list(range(5000)))
            seen += ids(running)
            results.append(sorted(seen) == list(range(5000)))
            results.append([ids(batches(old, 0)), ids(batches(new, 0))] == [FIRST, SECOND])
        pids = {data.streams[0].download_process_pid for data in (train, check, old, new)}
        return [results, len(locals_), len(pids)]

    assert run_forked(run) == [[True] * 6, 4, 1]


def test_datasets_made_again_and_again(table_100: str) -> None:
    """Thirty times in one process, as in a notebook: no directory, process or file piles up."""

    def run() -> list[Any]:
        locals_, pids, threads = set(), set(), []
        for _ in range(30):
            data = dataset(table_100, shard_rows=10)
            stream = data.streams[0]
            locals_.add(stream.local)
            pids.add(stream.download_process_pid)
            assert [row["i"] for row in data] == FIRST
            threads.append(threading.active_count())
            directory = stream.local
            del data, stream
        ledgers = [name for name in os.listdir(directory) if name.startswith(".ledger")]
        return [len(locals_), len(pids), threads[-1] - threads[4], len(ledgers)]

    locals_, pids, more_threads, ledgers = run_forked(run)
    # One that is still held by a thread of the host may have a second one beside it.
    assert locals_ <= 2
    assert pids == 1
    assert more_threads <= 2
    assert ledgers <= 1


def test_many_jobs_at_the_same_time(table_100: str, tmp_path: Path) -> None:
    """Four processes make five datasets each, as tests do that run in parallel."""

    def run(job: int) -> list[bool]:
        results = []
        for turn in range(5):
            local = None if turn % 2 else str(tmp_path / f"{job}-{turn}")
            data = _at_the_same_time(table_100, shard_rows=10, local=local)
            results.append(ids(batches(data, turn % 3)) == FIRST)
            del data
        return results

    jobs = [fork(run, job) for job in range(4)]
    assert [job.wait(60) for job in jobs] == [[True] * 5] * 4


SECRET = "s3cr3t-s3cr3t-s3cr3t"


def test_an_unbuilt_stream_is_pickled(versions: str) -> None:
    """Every option arrives in another process, also one that shares nothing with this one."""
    stream = LanceStream(
        versions,
        version=1,
        columns={"i": "i", "twice": "i * 2"},
        shard_rows=7,
        storage_options={"secret_access_key": SECRET},
        with_row_id=True,
        zero_copy=True,
        repeat=2,
        download_retry=5,
        download_timeout=33,
    )
    assert SECRET not in repr(stream)
    data = pickle.dumps(stream)
    assert SECRET not in repr(pickle.loads(data))
    script = """
import json, os, pickle, sys
from streaming import StreamingDataset
stream = pickle.loads(bytes.fromhex(sys.stdin.read()))
shown = [repr(stream)]
data = StreamingDataset(streams=[stream], batch_size=4, num_canonical_nodes=1)
rows = list(data)
stream = data.streams[0]
shown.append(repr(stream))
print(json.dumps([
    sorted(row["i"] for row in rows),
    all(row["twice"] == 2 * row["i"] for row in rows),
    list(rows[0]), stream.version, stream.index.num_shards,
    stream.download_retry, stream.download_timeout, shown,
]))
"""
    found = _run_with_stdin(script, data.hex())
    ids_, doubled, names, version, shards, retry, timeout, shown = found
    assert ids_ == sorted(FIRST * 2)
    assert doubled
    assert names == ["i", "twice", "_rowid"]
    assert (version, shards, retry, timeout) == (1, 15, 5, 33)
    for text in shown:
        assert versions in text
        assert SECRET not in text
    assert "version=1" in shown[0]
    assert "rows=100" in shown[1]


def _run_with_stdin(script: str, stdin: str) -> Any:
    """As `run_script`, with a pickle that is too long for a command line."""
    root = Path(__file__).parents[2]
    done = subprocess.run(
        [sys.executable, "-c", script],
        input=stdin,
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, "PYTHONPATH": str(root)},
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


def test_one_stream_for_one_dataset_after_another(tmp_path: Path) -> None:
    """Each dataset that is built on a stream looks its version up anew; weights stay as given."""
    uri = str(tmp_path / "t.lance")
    write_table(uri, 100, 25)

    def run() -> list[Any]:
        stream = LanceStream(uri, shard_rows=10, local=tmp_path / "cache", choose=100)
        found = []
        for what in ("append", "overwrite", "delete"):
            data = StreamingDataset(streams=[stream], batch_size=4, num_canonical_nodes=1)
            seen = [row["i"] for row in data]
            found.append([stream.version, stream.index.num_rows, len(seen), max(seen) >= 1000])
            del data
            change(uri, what)
        return found

    assert run_forked(run) == [[1, 100, 100, False], [2, 130, 100, True], [3, 100, 100, True]]


def test_a_built_stream_is_pickled(tmp_path: Path) -> None:
    """It keeps version, schema and columns, though the table went on; nothing shows secrets."""
    uri, local = str(tmp_path / "t.lance"), str(tmp_path / "cache")
    write_table(uri, 100, 25)

    def run() -> list[Any]:
        options = {"secret_access_key": SECRET}
        data = dataset(
            uri, columns=["v", "i"], shard_rows=10, local=local, storage_options=options
        )
        data[0]
        stream = data.streams[0]
        change(uri, "overwrite")
        copy = pickle.loads(pickle.dumps(stream))
        same = [
            getattr(copy, name) == getattr(stream, name)
            for name in ("version", "fingerprint", "schema", "uri", "local", "split")
        ]
        shards = [pickle.loads(pickle.dumps(shard)) for shard in data.shards]
        read = [shard[0]["i"] for shard in shards[:1]]
        shown = [repr(stream), repr(copy), repr(data.shards[0]), repr(shards[0])]
        return [same, read, shown]

    same, read, shown = run_forked(run)
    assert same == [True] * 6
    assert read == [0]
    for text in shown:
        assert "version" in text
        assert uri in text
        assert SECRET not in text
