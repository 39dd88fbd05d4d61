"""A cold shuffled epoch of shape M from an S3 server, behind a proxy that delays each request.

Every measurement is a fresh process with an empty cache directory; a round measures all sides one
after the other, and what counts is the median of the ratios inside rounds. Sides:

    scan        a plain scan of the table by Lance: no shuffle, no samples, no cache
    ours        LanceStreamingDataset, samples as dicts
    ours_2      the same in a DataLoader with 2 workers
    stock       StreamingDataset over MDS of the same rows and shards in the same bucket
    stock_2     the same in a DataLoader with 2 workers
    lancedb     LanceDB's StreamingDataset(shuffle=True), by row (extra ``bench``)

    python benchmarks/cold_epoch.py [--rounds N] [--latency MS] [--more-latency MS]
                                    [--peers lancedb]

Rows per second are those from the request for the first sample to the last one, of ``stock`` and
``lancedb`` to the last one in --seconds; the time to the first batch is from the construction of
the dataset to its 64th sample. Blocks of the shuffle are larger than the data, as they are by
default, so the first batch needs nearly every shard. SeaweedFS and the proxy are
started here and ended. Ends with status 1 if a goal is missed.
"""

from __future__ import annotations

import argparse
import dataclasses
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import peers
import shape_m
import shapes
from botocore.exceptions import ClientError

sys.path.insert(0, str(Path(__file__).parents[1]))

from tests.support.fault_proxy import Fault, FaultProxy
from tests.support.object_store import S3Server

# At least so many times the rows per second of the peer.
GOALS = {"scan": 0.5, "stock": 4.0, "lancedb": 20.0}
# With more latency: what must be left of the rows per second.
LEFT_GOAL = 0.5

_BUCKET = "cold-epoch"
_BATCH_SIZE = 64
_SHAPE = dataclasses.replace(shapes.SHAPES["M"], rows=240_000)
_UPLOADS = 10
_TRIES = 4


def measure(side: str, options: dict[str, str], seconds: float) -> dict[str, float]:
    """Task: ``{"rate": rows/s, "first": seconds to the first batch}`` of one cold epoch."""
    os.environ["S3_ENDPOINT_URL"] = options["endpoint"]
    os.environ["AWS_ACCESS_KEY_ID"] = options["access_key_id"]
    os.environ["AWS_SECRET_ACCESS_KEY"] = options["secret_access_key"]
    os.environ["AWS_REGION"] = os.environ["AWS_DEFAULT_REGION"] = options["region"]
    if side == "scan":
        return _scan(options)
    import torch.utils.data  # noqa: F401  its import is nobody's first batch

    if side.startswith("stock"):
        import streaming  # noqa: F401
    elif side.startswith("ours"):
        from lance_stream import LanceStreamingDataset  # noqa: F401
    else:
        import lancedb.streaming  # noqa: F401  # pyright: ignore[reportMissingImports]
    with tempfile.TemporaryDirectory(prefix="cold-epoch-", ignore_cleanup_errors=True) as local:
        return _epoch(side, options, local, seconds)


def _scan(options: dict[str, str]) -> dict[str, float]:
    import lance

    started = time.perf_counter()
    table = lance.dataset(f"s3://{_BUCKET}/M.lance", storage_options=options)
    rows, first = 0, 0.0
    for batch in table.scanner().to_batches():
        first = first or time.perf_counter() - started
        rows += batch.num_rows
    shape_m.require(rows == _SHAPE.rows, f"the scan gave {rows} rows")
    return {"rate": rows / (time.perf_counter() - started), "first": first}


def _epoch(side: str, options: dict[str, str], local: str, seconds: float) -> dict[str, float]:
    from torch.utils.data import DataLoader

    constructed = time.perf_counter()
    dataset = _dataset(side, options, local)
    items: Any = dataset
    if side.endswith("_2"):
        items = DataLoader(dataset, _BATCH_SIZE, num_workers=2, collate_fn=list)
    seen = [False] * _SHAPE.rows
    rows, first = 0, 0.0
    started = time.perf_counter()
    for item in items:
        for sample in item if isinstance(item, list) else (item,):
            seen[sample["i"]] = True
            rows += 1
        if not first and rows >= _BATCH_SIZE:
            first = time.perf_counter() - constructed
        limited = not side.startswith("ours")
        if limited and not rows % 256 and time.perf_counter() - started > seconds:
            break
    else:
        shape_m.require(all(seen) and rows == _SHAPE.rows, f"{side}: not every row once")
    return {"rate": rows / (time.perf_counter() - started), "first": first}


def _dataset(side: str, options: dict[str, str], local: str) -> Any:
    if side == "lancedb":
        return peers.lancedb_dataset(f"s3://{_BUCKET}/M.lance", options)
    common: dict[str, Any] = {"batch_size": _BATCH_SIZE, "shuffle": True}
    if side.startswith("stock"):
        from streaming import StreamingDataset

        return StreamingDataset(remote=f"s3://{_BUCKET}/M.mds", local=local, **common)
    from lance_stream import LanceStream, LanceStreamingDataset

    stream = LanceStream(
        f"s3://{_BUCKET}/M.lance",
        local=local,
        shard_rows=_SHAPE.shard_rows,
        storage_options=options,
    )
    return LanceStreamingDataset(streams=[stream], **common)


def write(directory: str, options: dict[str, str]) -> None:
    """Task: the rows as a table and as MDS, both in the bucket."""
    import lance

    for rows in shapes.chunks(_SHAPE):
        lance.write_dataset(rows, f"{directory}/M.lance", mode="append")
    local = lance.dataset(f"{directory}/M.lance").to_table().to_reader()
    lance.write_dataset(
        local,
        f"s3://{_BUCKET}/M.lance",
        max_rows_per_file=_SHAPE.rows // 5,
        storage_options=options,
    )
    shapes.write_mds(directory, "M", _SHAPE.rows)


def _upload(server: S3Server, directory: Path) -> None:
    client = server.client()
    for path in directory.iterdir():
        # A SeaweedFS that makes room for more data may refuse a few times; this client never
        # asks twice by itself.
        for left in reversed(range(_UPLOADS)):
            try:
                client.put_object(Bucket=_BUCKET, Key=f"M.mds/{path.name}", Body=path.read_bytes())
                break
            except ClientError:
                if not left:
                    raise
                time.sleep(1)


def _measured(
    sides: list[str], options: dict[str, str], arguments: argparse.Namespace
) -> dict[str, list[dict[str, float]]]:
    found: dict[str, list[dict[str, float]]] = {side: [] for side in sides}
    for _ in range(arguments.rounds):
        for side, results in found.items():
            task = {"side": side, "options": options, "seconds": arguments.seconds}
            results.append(_measured_once(side, task))
    for side, results in found.items():
        rate = statistics.median(result["rate"] for result in results)
        first = statistics.median(result["first"] for result in results)
        print(f"{side}: {rate:,.0f} rows/s, first batch after {first:.2f} s", flush=True)
    return found


def _measured_once(side: str, task: dict[str, Any]) -> dict[str, float]:
    """Of the stock class, which with workers may read a shard before it is complete, once more."""
    for left in reversed(range(_TRIES if side.startswith("stock") else 1)):
        try:
            return shape_m.run_child(__file__, "measure", task)
        except SystemExit:
            if not left:
                raise
            print(f"{side} failed, see above; once more", flush=True)
    raise AssertionError("the last try returns or raises")


def _run(server: S3Server, proxy: FaultProxy, directory: str, options: argparse.Namespace) -> bool:
    others = [peer for peer in options.peers.split(",") if peer]
    print(f"{_SHAPE.rows} rows of shape M; {shape_m.versions()}", flush=True)
    server.create_bucket(_BUCKET)
    shape_m.run_child(
        __file__, "write", {"directory": directory, "options": server.storage_options()}
    )
    _upload(server, Path(directory, "M.mds"))
    through = server.storage_options(proxy.endpoint)
    proxy.set(Fault(latency_ms=options.latency))
    print(f"{options.latency} ms per request", flush=True)
    found = _measured(["scan", "ours", "ours_2", "stock", "stock_2", *others], through, options)
    proxy.set(Fault(latency_ms=options.more_latency))
    print(f"{options.more_latency} ms per request", flush=True)
    slow = _measured(["scan", "ours", "ours_2"], through, options)
    reached = True
    reached &= _verdict("ours / scan", _ratio(found, "ours", "scan"), GOALS["scan"])
    # Bound by the cores, which scan, server, proxy and workers share.
    print(f"ours_2 / scan: median ratio {_ratio(found, 'ours_2', 'scan'):.2f}", flush=True)
    for ours, stock in (("ours", "stock"), ("ours_2", "stock_2")):
        reached &= _verdict(f"{ours} / {stock}", _ratio(found, ours, stock), GOALS["stock"])
        sooner = _ratio(found, stock, ours, "first")
        reached &= _verdict(f"time to first batch, {stock} / {ours}", sooner, 1)
        left = _median(slow[ours], "rate") / _median(found[ours], "rate")
        reached &= _verdict(f"{ours} with more latency / with less", left, LEFT_GOAL)
    for peer in others:
        reached &= _verdict(f"ours / {peer}", _ratio(found, "ours", peer), GOALS[peer])
    return reached


def _median(results: list[dict[str, float]], what: str) -> float:
    return statistics.median(result[what] for result in results)


def _ratio(
    found: dict[str, list[dict[str, float]]], ours: str, theirs: str, what: str = "rate"
) -> float:
    pairs = zip(found[ours], found[theirs], strict=True)
    return statistics.median(a[what] / b[what] for a, b in pairs)


def _verdict(what: str, ratio: float, goal: float) -> bool:
    verdict = "reached" if ratio >= goal else "MISSED"
    print(f"{what}: median ratio {ratio:.2f}, goal >= {goal}: {verdict}", flush=True)
    return ratio >= goal


def main() -> None:
    shape_m.child_main({"write": write, "measure": measure})
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--latency", type=int, default=20, help="milliseconds per request")
    parser.add_argument("--more-latency", type=int, default=200)
    parser.add_argument("--peers", default="", help="lancedb")
    parser.add_argument("--seconds", type=float, default=10.0, help="clock of such a peer")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="cold-epoch-") as temporary:
        store, data = Path(temporary, "store"), Path(temporary, "data")
        store.mkdir()
        data.mkdir()
        server = S3Server.start(store)
        try:
            with FaultProxy.start(server.port) as proxy:
                reached = _run(server, proxy, str(data), options)
        finally:
            server.stop()
    sys.exit(0 if reached else 1)


if __name__ == "__main__":
    main()
