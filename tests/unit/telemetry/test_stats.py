"""Boards put together."""

from __future__ import annotations

import json
from dataclasses import replace

from lance_stream.telemetry.board import Reading
from lance_stream.telemetry.stats import add_up, prometheus, stream_label
from lance_stream.tiers.counts import SharedTierCounts, TierCounts


def worker(pid: int, rows: int, *, rank: int = 0, number: int = 0, epochs: int = 1) -> Reading:
    """What a worker shows."""
    return Reading(
        {"role": "worker", "pid": pid, "rank": rank, "worker": number},
        {"rows": rows, "waited_ns": 500_000_000, "epochs": epochs},
    )


SERVER = Reading({"role": "server", "pid": 1}, {"requested": 5, "lance_ns": 2 * 10**9, "new": 1})


def test_nothing_yet() -> None:
    """A dataset that nobody has iterated."""
    stats = add_up("u", 7, [], [])
    assert (stats.uri, stats.shards, stats.epoch, stats.rows) == ("u", 7, -1, 0)
    assert stats.in_epoch(3).epoch == 3
    assert stats.workers == ()


def test_two_streams_of_one_dataset() -> None:
    """A process that reads both is one worker; bytes are by the mean of each stream."""
    boards = [
        (worker(10, 4, number=1, epochs=2), 100.0),
        (worker(10, 6, number=1, epochs=1), 10.0),
        (worker(9, 1, rank=1), 100.0),
        (SERVER, 100.0),
        (SERVER, 10.0),
    ]
    stats = add_up("u", 3, boards, [])
    assert [(one.pid, one.rows, one.bytes, one.epoch) for one in stats.workers] == [
        (10, 10, 460, 1),
        (9, 1, 100, 0),
    ]
    assert (stats.rows, stats.bytes, stats.epoch, stats.seconds_waited) == (11, 560, 1, 1.5)
    assert (stats.requested, stats.lance_seconds) == (10, 4.0)


def test_boards_of_other_releases() -> None:
    """What is missing counts as nothing."""
    stats = add_up("u", 1, [(Reading({}, {}), 1.0), (Reading({"role": "server"}, {}), 1.0)], [])
    assert stats.rows == 0
    assert stats.workers[0].epoch == -1


def test_counters_are_summed() -> None:
    """Over processes, by name."""
    counters = [Reading({}, {"a": 1, "b": 5}), Reading({}, {"a": 2})]
    assert add_up("u", 1, [], counters).counters == {"a": 3, "b": 5}


def test_as_dict_is_json() -> None:
    """All of it."""
    stats = add_up("u", 1, [(worker(1, 2), 3.0)], [Reading({}, {"a": 1})])
    found = json.loads(json.dumps(stats.as_dict()))
    assert found["workers"][0]["rows"] == 2
    assert found["counters"] == {"a": 1}


def test_prometheus() -> None:
    """Each metric once with help and type; quotes, backslashes and newlines are escaped."""
    stats = add_up('a"\\\nb', 1, [(worker(1, 2), 3.0)], [Reading({}, {'to"k': 9})])
    lines = stats.to_prometheus().splitlines()
    assert 'lance_stream_rows_total{uri="a\\"\\\\\\nb",stream=""} 2' in lines
    assert 'lance_stream_counter_total{name="to\\"k"} 9' in lines
    names = [line.split()[2] for line in lines if line.startswith("# TYPE")]
    assert len(names) == len(set(names))
    for line in lines:
        assert line.startswith("#") or line.split("{")[0] in names
    assert stats.to_prometheus().endswith("\n")


def test_no_series_twice() -> None:
    """Streams of one table have a label of their own; so have two of the same rows."""
    boards = [(worker(1, 2), 3.0)]
    one = add_up("u", 1, boards, [])
    labels = [stream_label("f", "/a"), stream_label("g", "/a"), stream_label("f", "/a")]
    tier = TierCounts("redis://a", hits=2, errors=1)
    shared = (SharedTierCounts(taken=2, tiers=(tier,)), SharedTierCounts(tiers=(tier,)))
    streams = [replace(one, stream=label, shared_caches=shared) for label in labels]
    lines = [line for line in prometheus(streams).splitlines() if not line.startswith("#")]
    series = [line.rsplit(" ", 1)[0] for line in lines]
    assert len(series) == len(set(series))
    found = [line for line in lines if line.startswith("lance_stream_rows_total")]
    assert [f'stream="{label}"' in found[i] for i, label in enumerate(labels)] == [
        True,
        True,
        False,
    ]
    assert f'stream="{labels[0]}-2"' in found[2]
    # Those of one name are one series.
    assert 'lance_stream_shared_cache_errors_total{tier="redis://a"} 2' in lines
    assert 'lance_stream_shared_cache_taken_total{tier="redis://a"} 2' in lines


def test_damaged_files_are_retries() -> None:
    """And failures where they are damaged again; both are seen by who reads them."""
    reader = Reading({"role": "worker", "pid": 3}, {"rows": 1, "damaged": 2, "failed": 1})
    server = Reading({"role": "server"}, {"retries": 5, "failures": 1})
    stats = add_up("u", 1, [(reader, 1.0), (server, 1.0)], [])
    assert (stats.retries, stats.failures) == (7, 2)
