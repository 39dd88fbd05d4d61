"""How fast a sample is made of a cached row, without the host's loop around it.

Nested rows (structs, maps, lists of structs, of text and of numbers): lance_stream's sample of
each row against pyarrow's ``to_pylist``, of one row at a time, which is what a shuffled epoch
needs, and of all rows at once, which is the fastest that pyarrow can do. Flat rows (shape M):
against ``MDSReader`` of mosaicml-streaming, with the rows cached as Arrow and as MDS. Every side
reads the same rows from files that are in memory.

Sides alternate, each in a fresh process. The median of the ratios inside rounds counts. Every
process checks what it made, outside the clock.

    python benchmarks/conversion.py [--rows N] [--rounds N] [--seconds S]

Ends with status 1 if a goal is missed.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import shape_m

# What is measured, against what, and the least ratio.
GOALS = {
    ("nested-arrow", "nested-pyarrow-row"): 1.5,
    ("nested-arrow", "nested-pyarrow-all"): 0.7,
    ("flat-arrow", "flat-mdsreader"): 8.0,
    ("flat-mds", "flat-mdsreader"): 5.0,
}
SIDES = list(dict.fromkeys(side for pair in GOALS for side in pair))

_NESTED = pa.schema(
    [
        ("i", pa.int64()),
        ("user", pa.struct([("name", pa.string()), ("age", pa.int32())])),
        (
            "objects",
            pa.list_(
                pa.struct(
                    [
                        ("label", pa.string()),
                        ("box", pa.list_(pa.float32(), 4)),
                        ("score", pa.float64()),
                    ]
                )
            ),
        ),
        ("counts", pa.map_(pa.string(), pa.int64())),
        ("words", pa.list_(pa.string())),
        ("ids", pa.list_(pa.int32())),
    ]
)
_WORDS = [f"{'letters'[: n % 8]}{n}" for n in range(15)]
_KEEP_EVERY = 97

_Samples = Iterator[dict[str, Any]]


def nested_row(i: int) -> dict[str, Any]:
    """Row ``i`` of the nested rows, in the values of pyarrow. Pure."""
    random = np.random.default_rng([shape_m.SEED, i])
    objects = [
        {
            "label": _WORDS[random.integers(len(_WORDS))],
            "box": random.random(4, np.float32).tolist(),
            "score": float(random.random()),
        }
        for _ in range(random.integers(6))
    ]
    return {
        "i": i,
        "user": None if i % 10 == 7 else {"name": f"user {i}", "age": i % 90},
        "objects": objects,
        "counts": [(word, len(word) + i) for word in dict.fromkeys(_WORDS[: random.integers(8)])],
        "words": _WORDS[: random.integers(12)],
        "ids": random.integers(1 << 20, size=random.integers(60)).tolist(),
    }


def write(directory: str, rows: int) -> None:
    """Task: both kinds of rows, in every form that is read."""
    from streaming import MDSWriter

    from lance_stream.shards.shard_file import write_shard

    nested = pa.Table.from_pylist([nested_row(i) for i in range(rows)], _NESTED)
    flat = pa.Table.from_batches(shape_m.batches(rows))
    for name, cache_format, table in (
        ("nested-arrow", "arrow", nested),
        ("flat-arrow", "arrow", flat),
        ("flat-mds", "mds", flat),
    ):
        write_shard(cache_format, f"{directory}/{name}", table, _header(rows))
    columns = {"i": "int", "b": "bytes", "s": "str", "v": "ndarray:float32:128"}
    out = f"{directory}/flat-mdsreader"
    with MDSWriter(out=out, columns=columns, size_limit=None) as writer:
        for i in range(rows):
            writer.write(shape_m.row(i))


def measure(directory: str, side: str, rows: int, seconds: float) -> float:
    """Task: samples per second of one side."""
    make = _MAKERS[side](directory, rows)
    kept = [sample for i, sample in enumerate(make()) if not i % _KEEP_EVERY]
    _check(side, kept)
    del kept
    count, elapsed = 0, 0.0
    while elapsed < seconds:
        started = time.perf_counter()
        for _ in make():
            count += 1
        elapsed += time.perf_counter() - started
    shape_m.require("lance" not in sys.modules, "the measuring process imported lance")
    return count / elapsed


def _header(rows: int) -> Any:
    from lance_stream.shards.header import ShardHeader

    return ShardHeader("f" * 32, 0, rows)


def _ours(side: str) -> Callable[[str, int], Callable[[], _Samples]]:
    def open_side(directory: str, rows: int) -> Callable[[], _Samples]:
        from lance_stream.shards.shard_file import open_shard

        schema = _NESTED if side.startswith("nested") else shape_m.SCHEMA
        cache_format = "mds" if side.endswith("mds") else "arrow"
        path = f"{directory}/{side}"
        shard = open_shard(cache_format, path, _header(rows), schema, verified=None)
        return lambda: map(shard.samples(zero_copy=False), range(rows))

    return open_side


def _pyarrow_all(directory: str, rows: int) -> Callable[[], _Samples]:
    batch = _batch(directory, rows)
    return lambda: iter(batch.to_pylist())


def _pyarrow_row(directory: str, rows: int) -> Callable[[], _Samples]:
    batch = _batch(directory, rows)
    return lambda: (batch.slice(i, 1).to_pylist()[0] for i in range(rows))


def _batch(directory: str, rows: int) -> pa.RecordBatch:
    with pa.memory_map(f"{directory}/nested-arrow") as file:
        (batch,) = pa.ipc.open_file(file).read_all().to_batches()
    shape_m.require(batch.num_rows == rows, f"{batch.num_rows} rows, not {rows}")
    return batch


def _mdsreader(directory: str, rows: int) -> Callable[[], _Samples]:
    import json

    from streaming.base.format.mds.reader import MDSReader

    directory = f"{directory}/flat-mdsreader"
    (shard,) = json.loads(Path(directory, "index.json").read_text())["shards"]
    reader = MDSReader.from_json(directory, None, shard)
    shape_m.require(reader.samples == rows, f"{reader.samples} rows, not {rows}")
    return lambda: map(reader.__getitem__, range(rows))


_MAKERS: dict[str, Callable[[str, int], Callable[[], _Samples]]] = {
    "nested-arrow": _ours("nested-arrow"),
    "nested-pyarrow-row": _pyarrow_row,
    "nested-pyarrow-all": _pyarrow_all,
    "flat-arrow": _ours("flat-arrow"),
    "flat-mds": _ours("flat-mds"),
    "flat-mdsreader": _mdsreader,
}


def _check(side: str, samples: list[dict[str, Any]]) -> None:
    for sample in samples:
        if side.startswith("flat"):
            shape_m.check({**sample, "i": int(sample["i"])})
            continue
        expected = nested_row(sample["i"])
        if side == "nested-arrow":
            expected["counts"] = dict(expected["counts"])
        found = _plain(sample)
        shape_m.require(found == expected, f"{found!r} is not {expected!r}")


def _plain(value: Any) -> Any:
    """A value with lists in place of arrays."""
    if isinstance(value, np.ndarray):
        return value.tolist()
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    return [_plain(item) for item in value] if isinstance(value, list) else value


def _run(directory: str, options: argparse.Namespace) -> bool:
    """All rounds; whether the goals were reached."""
    print(f"{options.rows} rows in {directory}; {shape_m.versions()}", flush=True)
    shape_m.run_child(__file__, "write", {"directory": directory, "rows": options.rows})
    rates: dict[str, list[float]] = {side: [] for side in SIDES}
    for number in range(options.rounds):
        for side in SIDES:
            clock = {"rows": options.rows, "seconds": options.seconds}
            arguments = {"directory": directory, "side": side, **clock}
            rates[side].append(shape_m.run_child(__file__, "measure", arguments))
        found = ", ".join(f"{side} {rates[side][-1]:,.0f}/s" for side in SIDES)
        print(f"round {number + 1}: {found}", flush=True)
    reached = True
    for (side, other), goal in GOALS.items():
        ratio = statistics.median(
            one / two for one, two in zip(rates[side], rates[other], strict=True)
        )
        reached = reached and ratio >= goal
        verdict = "reached" if ratio >= goal else "MISSED"
        print(f"{side} to {other}: median ratio {ratio:.2f}, goal >= {goal}: {verdict}")
    return reached


def main() -> None:
    shape_m.child_main({"write": write, "measure": measure})
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", type=int, default=5_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=1.0, help="clock of one measurement")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="conversion-") as directory:
        reached = _run(directory, options)
    sys.exit(0 if reached else 1)


if __name__ == "__main__":
    main()
