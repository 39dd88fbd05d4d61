"""Rounds of a table that grows: exact, in whatever way the table is written; or refused."""

from __future__ import annotations

import gc
import json
import logging
import os
import re
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from streaming import StreamingDataset

import lance_stream
from lance_stream import LanceStream, LanceStreamingDataset, follow
from lance_stream.errors import (
    EmptyStreamError,
    NoNewDataError,
    PlanError,
    StateMismatchError,
    TableChangedError,
)
from lance_stream.host.settling import job_endpoint
from tests.support.forked import fork, run_forked
from tests.support.producer import Producer
from tests.support.streams import ORDER, batches, ids, wait_until

FAST: dict[str, Any] = {"poll_seconds": 0.02, "timeout": 0.0, "shard_rows": 7}


@pytest.fixture
def uri(tmp_path: Path) -> str:
    return str(tmp_path / "t.lance")


@pytest.fixture(params=[False, True], ids=["addresses", "stable ids"])
def producer(request: pytest.FixtureRequest, uri: str) -> Iterator[Producer]:
    with Producer(uri, stable_row_ids=request.param) as process:
        yield process


@pytest.fixture
def plain(uri: str) -> Iterator[Producer]:
    with Producer(uri) as process:
        yield process


def rows_of(stream: Any, kind: type[StreamingDataset] = LanceStreamingDataset) -> list[int]:
    """Every ``i`` of an epoch in the order of the stream; the other column is looked at too."""
    data = kind(streams=[stream], batch_size=4, shuffle=False, **ORDER)
    found = []
    for row in data:
        assert row["x"] == row["i"]
        found.append(int(row["i"]))
    return found


def fetched(stream: Any) -> int:
    """Shards that were read from Lance for a stream."""
    return lance_stream.stats(stream).from_lance


def seen_by_follower(uri: str, state: Any, **options: Any) -> Any:
    """The state after a round; or, of one that goes on from a state, why the table is refused."""

    def run() -> Any:
        follower = follow(uri, rows_per_round=10, **options, **FAST)
        if state is None:
            next(follower)
            return follower.state_dict()
        follower.load_state_dict(state)
        with pytest.raises(TableChangedError) as caught:
            next(follower)
        return str(caught.value)

    return run_forked(run)


def rounds(follower: Any) -> Iterator[Any]:
    """The rounds that are there."""
    try:
        yield from follower
    except NoNewDataError as error:
        assert f"round {follower.state_dict()['round']} needs" in str(error)  # noqa: PT017


def test_each_row_is_in_one_round_in_order_of_appending(producer: Producer, uri: str) -> None:
    producer.append(10)
    producer.append(3, times=5)

    def run() -> list[Any]:
        said = []
        follower = follow(uri, rows_per_round=6, **FAST)
        for each in rounds(follower):
            rows = rows_of(each.stream())
            said.append([each.number, list(each.rows), each.version, rows])
        with pytest.raises(NoNewDataError, match=r"has 25 rows, round 4 needs 30, and nothing"):
            next(follower)
        return said

    assert run_forked(run) == [
        [n, [6 * n, 6 * n + 6], 6, list(range(6 * n, 6 * n + 6))] for n in range(4)
    ]


def test_compaction_in_between_moves_no_row(producer: Producer, uri: str) -> None:
    """Small fragments between large ones come last in the table; a round is what it was."""
    producer.append(40)
    producer.append(5, times=3)
    producer.append(40)

    def first() -> Any:
        follower = follow(uri, rows_per_round=40, window_rounds=2, **FAST)
        each = next(follower)
        assert rows_of(each.stream()) == list(range(40))
        return follower.state_dict()

    def second(state: Any) -> Any:
        follower = follow(uri, rows_per_round=40, window_rounds=2, **FAST)
        follower.load_state_dict(state)
        said = []
        for each in rounds(follower):
            stream = each.stream()
            said.append([each.number, rows_of(stream), fetched(stream)])
            state = follower.state_dict()
        return [said, state]

    state = run_forked(first)
    producer.compact(30)
    producer.append(4, times=2)
    said, state = run_forked(second, state)
    # The shards of round 0 are those of before: none is read again.
    assert said == [[0, list(range(40)), 0], [1, list(range(80)), 6]]
    assert state["seen"]["order"] == [[0, 40], [80, 95], [40, 80], [95, 103]]
    producer.compact(30)
    producer.append(30)
    producer.run("index")
    producer.append(17)
    said, state = run_forked(second, state)
    assert said == [[1, list(range(80)), 0], [2, list(range(40, 120)), 6]]


@pytest.mark.parametrize("stable", [False, True], ids=["addresses", "stable ids"])
def test_a_follower_that_was_away_while_versions_were_cleaned_up(uri: str, stable: bool) -> None:
    """Appends are known by fragments. A compaction needs the versions, or stable row ids."""

    def go_on(state: Any) -> Any:
        follower = follow(uri, rows_per_round=10, **FAST)
        follower.load_state_dict(state)
        try:
            return [rows_of(next(follower).stream()) for _ in range(2)], follower.state_dict()
        except TableChangedError as error:
            return str(error)

    def begin() -> Any:
        follower = follow(uri, rows_per_round=10, **FAST)
        next(follower)
        return follower.state_dict()

    with Producer(uri, stable_row_ids=stable) as producer:
        producer.append(10)
        producer.append(2, times=5)
        producer.append(10)
        state = run_forked(begin)
        producer.append(2, times=5)
        producer.run("cleanup")
        rows, state = run_forked(go_on, state)
        assert rows == [list(range(10)), list(range(10, 20))]
        producer.compact(8)
        producer.append(3, times=5)
        producer.run("cleanup")
        said = run_forked(go_on, state)
        if stable:
            assert said[0] == [list(range(10, 20)), list(range(20, 30))]
            producer.run("update", where="i = 25")
            producer.compact(30)
            producer.run("cleanup")
            said = run_forked(go_on, said[1])
            assert "rows were updated, between version" in said
        else:
            assert "versions in between were cleaned up" in said
            assert "enable_stable_row_ids" in said


CHANGES: dict[str, tuple[str, dict[str, Any], str]] = {
    "delete": (
        "delete",
        {"where": "i = 3"},
        r"a delete \(Delete\), between version 2.* version 3",
    ),
    "delete ahead": ("delete", {"where": "i = 18"}, r"a delete \(Delete\)"),
    "update": ("update", {"where": "i = 3"}, r"an update or merge \(Update\)"),
    "overwrite": ("overwrite", {"rows": 100}, r"an overwrite \(Overwrite\)"),
    "restore": ("restore", {"version": 1}, r"a restore .* \(Restore\)"),
    "drop": ("drop", {}, "was there in version 2, and is gone"),
}


@pytest.mark.parametrize("hidden", [False, True], ids=["", "then compacted and appended to"])
@pytest.mark.parametrize("change", CHANGES)
def test_what_is_no_append_is_refused(
    producer: Producer, uri: str, tmp_path: Path, change: str, hidden: bool
) -> None:
    """Also where the table looks as if it had only grown."""
    op, arguments, says = CHANGES[change]
    go = tmp_path / "go"
    producer.append(10)
    producer.append(10)

    def run() -> Any:
        follower = follow(uri, rows_per_round=10, poll_seconds=0.02, timeout=30)
        assert rows_of(next(follower).stream()) == list(range(10))
        Path(f"{go}.seen").touch()
        while not go.exists():
            time.sleep(0.01)
        with pytest.raises(TableChangedError, match=says) as caught:
            next(follower)
        return str(caught.value)

    process = fork(run)
    try:
        deadline = time.monotonic() + 60
        while not Path(f"{go}.seen").exists():
            assert process.poll() is None, process.output()
            assert time.monotonic() < deadline
            time.sleep(0.01)
        producer.run(op, **arguments)
        if hidden and op != "drop":
            producer.compact()
            producer.append(50)
        go.touch()
        said = process.wait(60)
    finally:
        process.kill()
    assert uri in said


@pytest.mark.parametrize("undo", ["delete", "restore"])
@pytest.mark.parametrize("cleanup", [False, True], ids=["", "then cleaned up"])
def test_rows_that_came_and_went_are_told_whenever_one_looks(
    producer: Producer, uri: str, undo: str, cleanup: bool
) -> None:
    """Between two looks, with the table as before at the second: then, not at the third."""
    producer.append(10)
    producer.append(5)

    state = seen_by_follower(uri, None)
    producer.append(7)
    producer.run(undo, **({"where": "i >= 15"} if undo == "delete" else {"version": 2}))
    if cleanup:
        producer.run("cleanup")
    early = seen_by_follower(uri, state)
    producer.append(10)
    late = seen_by_follower(uri, state)
    for said in (early, late):
        if not cleanup:
            assert f"{undo.title()}), between version 2, which was seen, and version 4" in said
        else:
            assert "missing" in said or "versions in between were cleaned up" in said


def test_merges_with_only_new_rows_are_appends(producer: Producer, uri: str) -> None:
    """merge, update 3 and insert 2, is refused; insert 2 alone is not."""
    producer.append(10)
    producer.merge(0, 2)

    def run(state: Any) -> Any:
        follower = follow(uri, rows_per_round=6, **FAST)
        if state is not None:
            follower.load_state_dict(state)
        said = []
        try:
            said += [sorted(rows_of(each.stream())) for each in rounds(follower)]
            return [said, follower.state_dict()]
        except TableChangedError as error:
            return [said, str(error)]

    said, state = run_forked(run, None)
    assert said == [list(range(6)), list(range(6, 12))]
    producer.merge(3, 2)
    producer.run("delete", where="i = 5")
    producer.compact()
    producer.append(20)
    said, text = run_forked(run, state)
    assert said == []
    assert "an update or merge (Update), between version 2, which was seen, and version 3" in text


def test_a_table_made_again_at_the_same_uri(plain: Producer, uri: str) -> None:
    """Even with as many versions and rows."""
    plain.append(10, times=2)

    def run(state: Any) -> Any:
        follower = follow(uri, rows_per_round=10, **FAST)
        if state is not None:
            follower.load_state_dict(state)
            with pytest.raises(TableChangedError, match="made again"):
                next(follower)
            return None
        next(follower)
        return follower.state_dict()

    state = run_forked(run, None)
    plain.run("drop")
    plain.rows = 0
    plain.append(10, times=2)
    run_forked(run, state)


def test_columns_may_come_and_go_but_for_those_that_are_followed(
    producer: Producer, uri: str
) -> None:
    producer.append(10)

    def run(state: Any, columns: list[str] | None) -> Any:
        follower = follow(uri, rows_per_round=10, columns=columns, **FAST)
        if state is not None:
            follower.load_state_dict(state)
            assert list(next(follower).stream()._wanted.selection.columns or ())
        try:
            stream = next(follower).stream()
            LanceStreamingDataset(streams=[stream], batch_size=2, **ORDER)
            return [stream.schema.names, follower.state_dict()]
        except TableChangedError as error:
            return [str(error)]

    names, state = run_forked(run, None, None)
    assert names == ["i", "x"]
    _, only_i = run_forked(run, None, ["i"])
    producer.run("add_column", name="y")
    producer.run("index")

    def more(state: Any) -> Any:
        """With the third column in what is appended from now on."""
        return run(state, None)

    # Rows without the new column cannot be appended: the producer drops it again.
    producer.run("drop_column", name="y")
    producer.append(10)
    names, _ = run_forked(more, state)
    assert names == ["i", "x"]
    producer.run("retype", name="x")
    with pytest.raises(
        AssertionError, match="column 'x' was double up to version 1, and is float"
    ):
        run_forked(more, state)
    producer.run("drop_column", name="x")
    with pytest.raises(
        AssertionError, match="column 'x' was double up to version 1, and was drop"
    ):
        run_forked(more, state)
    names, _ = run_forked(run, only_i, ["i"])
    assert names == ["i"]


def swap(producer: Producer, away: str) -> None:
    """Another column of the same type takes the place of ``x``."""
    producer.run("add_column", name="y")
    if away == "drop":
        producer.run("drop_column", name="x")
    else:
        producer.run("rename", name="x", to="z")
    producer.run("rename", name="y", to="x")


@pytest.mark.parametrize(
    ("options", "column"),
    [
        ({}, "x"),
        ({"columns": ["i", "x"]}, "x"),
        ({"columns": {"i": "i", "twice": "x * 2"}}, "x"),
        ({"columns": ["i"], "filter": "x >= 0"}, "x"),
    ],
    ids=["all", "named", "expression", "filter"],
)
@pytest.mark.parametrize("away", ["drop", "rename"])
@pytest.mark.parametrize("gone", [False, True], ids=["replaced", "gone"])
def test_a_column_whose_name_is_anothers_is_refused(
    plain: Producer, uri: str, options: dict[str, Any], column: str, away: str, gone: bool
) -> None:
    """While a state that knows no fields goes on."""
    plain.append(20)

    state = seen_by_follower(uri, None, **options)
    if gone:
        plain.run("drop_column", name=column)
    else:
        swap(plain, away)
    said = seen_by_follower(uri, state, **options)
    what = "was dropped or renamed" if gone else ""
    assert re.search(rf"column '{column}' was (double|there) up to version 1, and {what}", said)
    if gone:
        return

    def old() -> Any:
        follower = follow(uri, rows_per_round=10, **options, **FAST)
        follower.load_state_dict({key: state[key] for key in state if key != "fields"})
        next(follower)
        return follower.state_dict()["fields"] != state["fields"]

    assert run_forked(old)


def test_a_swapped_column_is_not_taken_from_the_cache_of_another(
    plain: Producer, uri: str
) -> None:
    """By a follower without a state, with files of the same names in the same directory."""
    plain.append(10)
    plain.run("add_column", name="y")

    def run() -> Any:
        each = next(follow(uri, rows_per_round=10, columns=["i", "x"], **FAST))
        data = LanceStreamingDataset(streams=[each.stream(f"{uri}.cache")], batch_size=5, **ORDER)
        return [float(row["x"]) for row in data]

    assert run_forked(run) == [float(i) for i in range(10)]
    plain.run("rename", name="x", to="z")
    plain.run("rename", name="y", to="x")
    assert run_forked(run) == [2.0 * i for i in range(10)]


@pytest.mark.parametrize("stable", [False, True], ids=["addresses", "stable ids"])
def test_a_column_that_is_not_selected_may_be_retyped(uri: str, stable: bool) -> None:
    """And the table compacted after that."""

    def run(state: Any, column: str) -> Any:
        follower = follow(uri, rows_per_round=10, columns=[column], **FAST)
        if state is None:
            next(follower)
            return follower.state_dict()
        follower.load_state_dict(state)
        try:
            stream = next(follower).stream()
            data = LanceStreamingDataset(streams=[stream], batch_size=5, shuffle=False, **ORDER)
            return [int(row[column]) for row in data]
        except TableChangedError as error:
            return str(error)

    with Producer(uri, stable_row_ids=stable) as producer:
        producer.append(10)
        producer.append(10)
        i, x = run_forked(run, None, "i"), run_forked(run, None, "x")
        producer.run("retype", name="x")
        producer.compact()
        assert run_forked(run, i, "i") == list(range(10))
        assert "column 'x' was double up to version 2, and is float in v" in run_forked(
            run, x, "x"
        )


def test_the_first_rows_of_a_table_put_the_timeout_off(uri: str) -> None:
    """It counts from the last new row: here 2 s before the one that is waited for."""

    def run() -> Any:
        with Producer(uri) as producer:

            def produce() -> None:
                for _ in range(2):
                    time.sleep(2)
                    producer.append(1)

            thread = threading.Thread(target=produce)
            thread.start()
            each = next(follow(uri, rows_per_round=2, poll_seconds=0.05, timeout=3.5))
            thread.join()
            return list(each.rows)

    assert run_forked(run) == [0, 2]


@pytest.mark.parametrize(
    ("op", "arguments", "says"),
    [
        # It has the name and the type of the old one.
        ("swap", {"columns": ["x"]}, "column 'x' was double up to version 1, and was dropped"),
        ("swap", {"columns": {"w": "x * 2"}}, "column 'x' was there up to version 1, and was"),
        ("drop", {"columns": {"w": "x * 2"}}, "column 'x' was there .* was dropped or renamed"),
        ("drop", {"columns": ["i"], "filter": "x >= 0"}, "column 'x' was there .* was dropped"),
        ("drop", {"columns": ["i"], "filter": "i >= 0 OR 'x' = 'y'"}, ""),
        ("retype", {"columns": {"w": "i * 2"}}, ""),
    ],
)
def test_a_column_that_is_used_stays_what_it_was(
    plain: Producer, uri: str, op: str, arguments: dict[str, Any], says: str
) -> None:
    """In expressions and filters too, and where another took its name."""
    plain.append(10)

    def run(state: Any) -> Any:
        follower = follow(uri, rows_per_round=10, **arguments, **FAST)
        if state is not None:
            follower.load_state_dict(state)
        try:
            next(follower)
        except NoNewDataError:
            return ""
        except TableChangedError as error:
            return str(error)
        return json.loads(json.dumps(follower.state_dict()))

    state = run_forked(run, None)
    if op == "swap":
        plain.run("add_column", name="w")
        plain.run("drop_column", name="x")
        plain.run("rename", name="w", to="x")
    else:
        plain.run("drop_column" if op == "drop" else op, name="x")
    said = run_forked(run, state)
    if says:
        assert re.search(says, said), said
    else:
        assert isinstance(said, dict), said


def test_waits_for_a_table_that_is_not_there_or_empty(uri: str) -> None:
    """And says so; only what is committed counts."""

    def run() -> Any:
        heard: list[str] = []
        handler = logging.Handler()
        handler.emit = lambda record: heard.append(record.getMessage())  # type: ignore[method-assign]
        logging.getLogger("lance_stream.host.follow").addHandler(handler)
        with pytest.raises(NoNewDataError, match=r"there is no table at .*t\.lance yet"):
            next(follow(uri, rows_per_round=4, poll_seconds=0.05, timeout=0.2))
        with Producer(uri) as producer:
            producer.run("create_empty")
            with pytest.raises(NoNewDataError, match="has 0 rows, round 0 needs 4"):
                next(follow(uri, rows_per_round=4, poll_seconds=0.05, timeout=0.2))
            follower = follow(uri, rows_per_round=4, poll_seconds=0.05, timeout=20)
            threading.Timer(0.3, lambda: producer.append(5)).start()
            producer.rows = 1
            each = next(follower)
            return [rows_of(each.stream()), heard[0]]

    rows, heard = run_forked(run)
    assert rows == [1, 2, 3, 4]
    assert "there is no table" in heard
    assert "waiting" in heard


def test_stop_ends_the_wait(plain: Producer, uri: str) -> None:
    plain.append(5)

    def run() -> Any:
        stop = threading.Event()
        follower = follow(uri, rows_per_round=4, poll_seconds=60, stop=stop)
        rounds = [next(follower).number]
        threading.Timer(0.5, stop.set).start()
        began = time.monotonic()
        rounds += [each.number for each in follower]
        assert time.monotonic() - began < 20
        return [rounds, follower.state_dict()["round"]]

    assert run_forked(run) == [[0], 1]


def test_a_window_slides_over_its_shards(plain: Producer, uri: str, tmp_path: Path) -> None:
    """Each shard is read once in all; those that left the window are removed."""
    plain.append(30)
    local = tmp_path / "cache"

    def run() -> Any:
        said = []
        options = {**FAST, "shard_rows": 4}
        for each in rounds(follow(uri, rows_per_round=6, window_rounds=3, start=2, **options)):
            stream = each.stream(local)
            rows = rows_of(stream, StreamingDataset)
            shards = [name for name in os.listdir(local) if "index" not in name]
            shards = [name for name in shards if name.endswith(".arrow")]
            said.append([rows, fetched(stream), len(shards)])
        return said

    assert run_forked(run) == [
        [list(range(2, 8)), 2, 2],
        [list(range(2, 14)), 2, 4],
        [list(range(2, 20)), 2, 6],
        [list(range(8, 26)), 2, 6],
    ]


def test_the_data_of_an_earlier_round_goes_on(plain: Producer, uri: str) -> None:
    """Kept to evaluate on, with workers that are started when its index is three rounds old."""
    plain.append(60)

    def run() -> Any:
        kept, said = None, []
        for each in rounds(follow(uri, rows_per_round=10, **FAST)):
            data = LanceStreamingDataset(streams=[each.stream()], batch_size=5, shuffle=True)
            kept = kept or data
            said.append([sorted(ids(batches(one, 1), check=False)) for one in (data, kept)])
        return said

    assert run_forked(run) == [
        [list(range(first, first + 10)), list(range(10))] for first in range(0, 60, 10)
    ]


def _apart(uri: str, local: Any, gate: Path, number: int) -> list[Any]:
    """A job that drops each dataset before the next round; which directory, and what it read."""
    said = []
    for each in rounds(
        follow(uri, rows_per_round=4, window_rounds=3, **{**FAST, "shard_rows": 2})
    ):
        stream = each.stream(local)
        data = LanceStreamingDataset(streams=[stream], batch_size=2)
        found = sorted(int(row["i"]) for row in data)
        said.append([found, data.streams[0].local, fetched(stream)])
        del data, stream
        gc.collect()
        # The other job begins its round now, where nothing of this one is in use.
        (gate / f"{number}-{each.number}").touch()
        other = gate / f"{1 - number}-{each.number}"
        wait_until(other.exists, 30, "the other job has read this round")
    return said


def test_jobs_keep_their_directories_between_rounds(
    plain: Producer, uri: str, tmp_path: Path
) -> None:
    plain.append(24)
    jobs = [fork(_apart, uri, None, tmp_path, number) for number in range(2)]
    places = set()
    for job in jobs:
        said = job.wait(60)
        assert [len(rows) for rows, *_ in said] == [4, 8, 12, 12, 12, 12]
        # Each shard is read once, whatever the other job does meanwhile.
        assert [num for *_, num in said] == [2] * 6
        assert len({place for _, place, _ in said}) == 1
        places.add(said[0][1])
    assert len(places) == 2


def test_another_job_is_refused_also_between_two_rounds(
    plain: Producer, uri: str, tmp_path: Path
) -> None:
    plain.append(20)
    local = str(tmp_path / "cache")

    def run() -> None:
        follower = follow(uri, rows_per_round=10, local=local, **FAST)
        assert rows_of(next(follower).stream()) == list(range(10))
        gc.collect()
        said = fork(lambda: rows_of(LanceStream(uri, local=local, shard_rows=7)))
        with pytest.raises(AssertionError, match=f"is in use by process {os.getpid()}"):
            said.wait(30)
        assert rows_of(next(follower).stream()) == list(range(10, 20))
        follower.close()
        gc.collect()
        again = fork(lambda: rows_of(LanceStream(uri, local=local, shard_rows=7)))
        assert again.wait(30) == list(range(20))

    run_forked(run)


def test_one_download_process_for_all_looks_after_one_was_killed(
    plain: Producer, uri: str
) -> None:
    """Which is longer between two looks than a download process stays without a hold."""
    plain.append(5)

    def run() -> list[Any]:
        stop, pids = threading.Event(), []
        follower = follow(uri, rows_per_round=10, poll_seconds=4.0, stop=stop)
        waiting = threading.Thread(target=lambda: list(follower))
        waiting.start()

        def pid() -> int | None:
            return job_endpoint().pid()

        wait_until(lambda: follower.state_dict()["seen"], 20, "the first look was made")
        first = pid()
        assert first is not None
        os.kill(first, signal.SIGKILL)
        wait_until(lambda: pid() not in (None, first), 20, "the next look was made")
        for _ in range(90):
            pids.append(pid())
            time.sleep(0.1)
        stop.set()
        waiting.join(20)
        return pids

    assert len(set(run_forked(run))) == 1


def test_filters_and_layouts_go_by_round(producer: Producer, uri: str) -> None:
    producer.append(60)
    producer.append(5, times=8)
    producer.append(60)

    def run(options: dict[str, Any], state: Any) -> Any:
        follower = follow(uri, rows_per_round=50, window_rounds=2, **{**FAST, **options})
        if state is not None:
            follower.load_state_dict(state)
        said = []
        for each in rounds(follower):
            stream = each.stream()
            said.append([rows_of(stream), fetched(stream)])
            state = follower.state_dict()
        return [said, state]

    even = {"filter": "i % 2 = 0"}
    scattered = {"layout": "scattered", "run_rows": 4, "shard_rows": 16}
    before = [run_forked(run, options, None) for options in (even, scattered)]
    producer.compact(50)
    producer.append(50)
    after = [run_forked(run, o, s) for o, (_, s) in zip((even, scattered), before, strict=True)]
    for number, step in enumerate((2, 1)):
        (first, second, third), (again, fourth) = before[number][0], after[number][0]
        wanted = [range(50), range(100), range(50, 150), range(100, 200)]
        for (rows, _), window in zip((first, second, third, fourth), wanted, strict=True):
            assert sorted(rows) == list(window)[::step]
        # After the compaction the same rows in the same order, from the same files.
        assert again == [third[0], 0]


def test_a_round_without_a_selected_row_is_told(plain: Producer, uri: str) -> None:
    plain.append(10)

    def run() -> None:
        each = next(follow(uri, rows_per_round=5, filter="i > 7", **FAST))
        with pytest.raises(EmptyStreamError, match=r"no row of \[0, 5\)"):
            rows_of(each.stream())
        # As docs/online.md says: go on with the next round.
        found = []
        for each in rounds(follow(uri, rows_per_round=5, filter="i > 7", **FAST)):
            try:
                found.append(rows_of(each.stream()))
            except EmptyStreamError:
                continue
        assert found == [[8, 9]]

    run_forked(run)


def test_states_of_follower_and_dataset_resume_inside_a_round(plain: Producer, uri: str) -> None:
    """In another version of the table, compacted meanwhile."""
    from torch.utils.data import DataLoader

    plain.append(40)
    plain.append(5, times=4)
    plain.append(40)

    def loader(each: Any) -> Any:
        data = LanceStreamingDataset(streams=[each.stream()], batch_size=4, shuffle=True, **ORDER)
        return data, DataLoader(data, 4, num_workers=2, collate_fn=list)

    def begin() -> Any:
        follower = follow(uri, rows_per_round=40, window_rounds=2, **FAST)
        next(follower)
        data, batches = loader(next(follower))
        rows = [[row["i"] for row in batch] for batch, _ in zip(batches, range(7), strict=False)]
        del batches
        return [rows, json.dumps([follower.state_dict(), data.state_dict(28, True)])]

    def go_on(text: str) -> Any:
        states = json.loads(text)
        follower = follow(uri, rows_per_round=40, window_rounds=2, **FAST)
        follower.load_state_dict(states[0])
        each = next(follower)
        data, batches = loader(each)
        data.load_state_dict(states[1])
        return [each.number, each.version, [[row["i"] for row in batch] for batch in batches]]

    head, text = run_forked(begin)
    number, version, whole = run_forked(
        go_on, json.dumps([json.loads(text)[0], {**json.loads(text)[1], "sample_in_epoch": 0}])
    )
    assert (number, version) == (1, 6)
    plain.compact(30)
    number, version, rest = run_forked(go_on, text)
    assert (number, version) == (1, 8)
    assert head + rest == whole
    assert sorted(i for batch in whole for i in batch) == list(range(80))


def test_arguments_and_states_are_checked(uri: str) -> None:
    def run() -> None:
        for arguments, says in (
            ({"rows_per_round": 0}, "rows_per_round=0 must be a whole number of at least 1"),
            ({"rows_per_round": 4, "window_rounds": 0}, "window_rounds=0"),
            ({"rows_per_round": 4, "start": -1}, "start=-1"),
            ({"rows_per_round": 4, "poll_seconds": 0}, "poll_seconds=0"),
            ({"rows_per_round": 4, "poll_seconds": "1"}, "poll_seconds='1' must be a number"),
            ({"rows_per_round": 4, "poll_seconds": float("inf")}, "poll_seconds=inf"),
            ({"rows_per_round": 4, "timeout": -1}, "timeout=-1"),
            ({"rows_per_round": 4, "timeout": "3"}, "timeout='3' must be a number"),
            ({"rows_per_round": 4, "timeout": float("nan")}, "timeout=nan"),
            ({"rows_per_round": 4, "stop": True}, "stop=True must be a threading.Event"),
            ({"rows_per_round": 4, "version": 3}, "version=3 cannot be given to follow"),
            ({"rows_per_round": 4, "limit": 3}, "limit=3 cannot be given to follow"),
            ({"rows_per_round": 4, "subset": (0, 0.5)}, "give follow.. a subset_key="),
            ({"rows_per_round": 4, "shard_rows": 0}, "shard_rows"),
        ):
            with pytest.raises(PlanError, match=says):
                follow(uri, **arguments)
        for name in ("colums", "remote"):
            unknown: dict[str, Any] = {name: "i"}
            with pytest.raises(TypeError, match=rf"^follow.. got an unexpected .* '{name}'"):
                follow(uri, rows_per_round=4, **unknown)
        state = follow(uri, rows_per_round=4).state_dict()
        assert state["round"] == 0
        follow(uri, rows_per_round=4).load_state_dict(state)
        with pytest.raises(StateMismatchError, match="rows_per_round=4, and this one was given"):
            follow(uri, rows_per_round=5).load_state_dict(state)
        with pytest.raises(StateMismatchError, match="filter=None, and this one was given"):
            follow(uri, rows_per_round=4, filter="i > 1").load_state_dict(state)
        with pytest.raises(StateMismatchError, match="not a state of follow"):
            follow(uri, rows_per_round=4).load_state_dict({"epoch": 1})
        with pytest.raises(StateMismatchError, match="format 99"):
            follow(uri, rows_per_round=4).load_state_dict({**state, "format": 99})

    run_forked(run)
