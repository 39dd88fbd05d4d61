"""Whole datasets over a shared cache that is hostile, dies, hangs, returns: every row."""

from __future__ import annotations

import os
import pickle
import struct
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import redis
from torch.utils.data import DataLoader

import lance_stream
from lance_stream import LanceStreamingDataset, open_shard_cache
from lance_stream.tiers.frame import HEADER_BYTES, make_frame, stored_name
from lance_stream.tiers.shared_tier import shard_key
from tests.support.commands import lance_stream as command
from tests.support.forked import run_forked
from tests.support.servers import LoopbackServer, start_memcached, start_redis
from tests.support.streams import batches, dataset, ids, wait_until
from tests.support.tables import write_table

SHARDS = 10


@pytest.fixture
def server(tmp_path: Path) -> Iterator[LoopbackServer]:
    """For this test alone."""
    with start_redis(tmp_path) as running:
        yield running


def epoch(table: str, url: str, local: Path, **host: Any) -> list[Any]:
    """Ids in order, shards from Lance and from the tier, seconds, fingerprint."""
    data = dataset(table, shard_rows=10, shared_cache=url, local=str(local), host=host)
    started = time.monotonic()
    seen = ids(batches(data, 2))
    seconds = time.monotonic() - started
    found = lance_stream.stats(data)
    return [sorted(seen), found.from_lance, found.from_tier, seconds, data.streams[0].fingerprint]


def only(batch: list[Any]) -> list[int]:
    """A collate function that keeps the ids."""
    return [row["i"] for row in batch]


class Marked:
    """Unpickled, it leaves a file."""

    def __init__(self, path: str) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return os.system, (f"touch {self.path}",)


def test_planted_values(table_100: str, server: LoopbackServer, tmp_path: Path) -> None:
    """Under the right keys: each found, dropped, fetched from Lance, and overwritten."""
    url, ran = f"redis://{server.address}", tmp_path / "ran"
    first = run_forked(epoch, table_100, url, tmp_path / "a")
    assert first[:3] == [list(range(100)), SHARDS, 0]
    client = redis.Redis(port=server.port)
    names = [stored_name(shard_key(first[4], shard, "arrow")) for shard in range(SHARDS)]
    values: list[Any] = [client.get(f"lance-stream:{name}") for name in names]
    assert all(values)
    content = values[0][HEADER_BYTES:]
    code = pickle.dumps(Marked(str(ran)))
    planted = [
        b"",
        os.urandom(len(values[1])),
        values[2][:-7],
        # Another row count, in a header that is right in itself.
        make_frame(names[3], values[3][HEADER_BYTES:], rows=9, max_value_bytes=None).value(
            values[3][HEADER_BYTES:]
        ),
        # Another version of the frame.
        values[4][:4] + struct.pack("<I", 999) + values[4][8:],
        # Another shard's value, and its content in a frame of this key: same rows, right hashes.
        values[0],
        make_frame(names[6], content, rows=10, max_value_bytes=None).value(content),
        # Code.
        code,
        make_frame(names[8], code, rows=10, max_value_bytes=None).value(code),
    ]
    for name, value in zip(names, planted, strict=False):
        client.set(f"lance-stream:{name}", value)
    # And a value that is no string.
    client.delete(f"lance-stream:{names[9]}")
    client.rpush(f"lance-stream:{names[9]}", "a", "b")
    second = run_forked(epoch, table_100, url, tmp_path / "b")
    assert len(planted) == SHARDS - 1
    assert second[:3] == [list(range(100)), SHARDS, 0]
    assert [client.get(f"lance-stream:{name}") for name in names] == values
    third = run_forked(epoch, table_100, url, tmp_path / "c")
    assert third[:3] == [list(range(100)), 0, SHARDS]
    assert not ran.exists()
    client.close()


@pytest.mark.slow
def test_a_server_that_dies_hangs_and_returns(
    table_100: str, server: LoopbackServer, tmp_path: Path
) -> None:
    """Down from the start, then there, paused, killed in mid-epoch, and there again."""
    url = f"redis://{server.address}?timeout=1s"
    server.kill()
    down = run_forked(epoch, table_100, url, tmp_path / "a")
    assert down[:3] == [list(range(100)), SHARDS, 0]
    server.start_again()
    assert run_forked(epoch, table_100, url, tmp_path / "b")[1] == SHARDS
    server.pause()
    paused = run_forked(epoch, table_100, url, tmp_path / "c")
    server.resume()
    assert paused[:3] == [list(range(100)), SHARDS, 0]
    # One timeout, for looks and claims, whatever the number of shards.
    assert paused[3] < down[3] + 8
    again = run_forked(epoch, table_100, url, tmp_path / "d")
    assert again[:3] == [list(range(100)), 0, SHARDS]

    def through_it_all() -> list[Any]:
        data = LanceStreamingDataset(
            streams=[
                lance_stream.LanceStream(
                    table_100, shard_rows=10, shared_cache=url, local=str(tmp_path / "e")
                )
            ],
            batch_size=4,
            num_canonical_nodes=1,
            prefetch_shards=1,
        )
        seen = []
        for number, batch in enumerate(batches(data, 2)):
            seen += ids([batch])
            if number == 5:
                (tmp_path / "kill").touch()
                wait_until((tmp_path / "killed").exists, 20, "it is killed")
            if number == 12:
                (tmp_path / "start").touch()
                wait_until((tmp_path / "started").exists, 20, "it is started")
        found = lance_stream.stats(data)
        return [sorted(seen), found.from_lance + found.from_tier, found.failures]

    from tests.support.forked import fork

    job = fork(through_it_all)
    wait_until((tmp_path / "kill").exists, 60, "the epoch is under way")
    server.kill()
    (tmp_path / "killed").touch()
    wait_until((tmp_path / "start").exists, 60, "the epoch goes on without")
    server.start_again()
    (tmp_path / "started").touch()
    assert job.wait(60) == [list(range(100)), SHARDS, 0]


@pytest.mark.slow
def test_a_wrong_password_is_no_failure(table_100: str, tmp_path: Path) -> None:
    """Every row, one warning, and no secret in the log or in the list of streams."""
    with start_redis(tmp_path, "--requirepass", "correct-horse") as server:
        url = f"redis://:wr0ngwr0ng@{server.address}"

        def run() -> list[Any]:
            from tests.support.streams import endpoint

            data = dataset(table_100, shard_rows=10, shared_cache=url, local=str(tmp_path / "a"))
            seen = ids(batches(data, 2))
            place = endpoint(data)
            log = Path(place.log_path).read_text()
            status = Path(place.status_path).read_text()
            return [sorted(seen), log.count("cannot "), "wr0ngwr0ng" in log + status]

        assert run_forked(run) == [list(range(100)), 1, False]


@pytest.mark.slow
def test_memcached_that_loses_values(tmp_path: Path) -> None:
    """Shards of 2 MB, more than an item takes, in a server with room for some: every row."""
    with start_memcached(tmp_path, "-m", "4") as server:
        url = f"memcached://{server.address}"

        table = str(tmp_path / "t.lance")
        write_table(table, 120_000, 60_000)

        def run(local: str) -> list[Any]:
            data = dataset(table, shard_rows=30_000, shared_cache=url, local=local, **batch)
            loader = DataLoader(data, 500, num_workers=2, collate_fn=only)
            seen = [i for batch in loader for i in batch]
            found = lance_stream.stats(data)
            size = found.lance_bytes + found.tier_bytes
            return [len(set(seen)), found.from_lance + found.from_tier, found.failures, size]

        batch: dict[str, Any] = {"batch_size": 500}
        for name in ("a", "b"):
            rows, shards, failures, size = run_forked(run, str(tmp_path / name))
            assert [rows, shards, failures] == [120_000, 4, 0]
            assert size > 4 << 20


def test_a_server_that_hangs_is_seen(
    table_100: str, server: LoopbackServer, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """In stats and status, in the log of the job, and not as time of Lance."""
    url = f"redis://{server.address}?timeout=500ms"

    def run() -> dict[str, Any]:
        server.pause()
        try:
            data = dataset(table_100, shard_rows=10, shared_cache=url, local=str(tmp_path / "a"))
            caplog.clear()
            assert sorted(ids(batches(data, 0))) == list(range(100))

            def not_taken() -> int:
                return sum(one.not_taken for one in lance_stream.stats(data).shared_caches)

            # What shared caches did is shown soon after, not at once.
            wait_until(lambda: not_taken() >= SHARDS, 5, "all shards are told")
            found = lance_stream.stats(data)
        finally:
            server.resume()
        status = command("status", "--json").json()["jobs"]
        text = command("status").check().stdout
        told = [record.getMessage() for record in caplog.records]
        return {
            "stats": found.as_dict(),
            "text": found.to_prometheus(),
            "status": [one["shared_caches"] for one in status if one["shared_caches"]],
            "shown": text,
            "told": [text for text in told if "shared cache" in text],
        }

    found = run_forked(run)
    (cache,) = found["stats"]["shared_caches"]
    (tier,) = cache["tiers"]
    assert tier["tier"] == f"redis://{server.address}"
    assert tier["errors"] >= 1
    assert tier["outages"] == 1
    assert cache["not_taken"] >= SHARDS
    assert f'lance_stream_shared_cache_outages_total{{tier="{tier["tier"]}"}} 1' in found["text"]
    assert found["status"][-1][0]["tiers"][0]["outages"] == 1
    assert f"shared cache redis://{server.address}" in found["shown"]
    assert len(found["told"]) == 1
    assert "read from Lance" in found["told"][0]
    # At least one call waited for half a second; plain rows take Lance some milliseconds.
    assert found["stats"]["tier_seconds"] > 0.4
    assert found["stats"]["lance_seconds"] < found["stats"]["tier_seconds"]


def test_keys_lead_nowhere_else(tmp_path: Path) -> None:
    """Names of files are hashes, whatever the keys are."""
    folder = tmp_path / "tier" / "deep"
    folder.mkdir(parents=True)
    cache = open_shard_cache(str(folder))
    keys = ["../../evil", "/etc/evil", "a/../../../evil", "\0", "x" * 10_000, "..", "#claim:x"]
    for key in keys:
        cache.put(key, key.encode())
    assert [cache.get(key) for key in keys] == [key.encode() for key in keys]
    cache.close()
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert len(files) == len(keys)
    assert all(folder in path.parents for path in files)
