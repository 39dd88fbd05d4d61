"""What a warm contiguous shard costs at the store: requests and bytes, counted by Lance itself.

Reads shards of a table of shape M (int, 1 KB blob, string, vector) as the download process does,
through ``lance_stream.source.table.Table.read``, and asks the data set for its own counters. Warm
means that the table is open and its data files were read from before, so that their footers are
known. The bytes are set against the bytes of the values alone, without offsets.

    python benchmarks/requests_per_shard.py [--rows N] [--shard-rows N] [--endpoint URL --bucket B]

With ``--endpoint``, also on an S3 server; credentials come from AWS_ACCESS_KEY_ID and
AWS_SECRET_ACCESS_KEY. Everything written there is removed. Ends with status 1 if a goal is missed.
"""

from __future__ import annotations

import argparse
import os
import secrets
import statistics
import sys
import tempfile
from typing import Any

import shape_m

BYTES_GOAL = 1.05
FRAGMENTS = 4
COLUMNS = {"all columns": None, "columns i, v": ["i", "v"]}

_EXTRA_REQUESTS = 3


def write(uri: str, rows: int, options: dict[str, str] | None) -> None:
    """Task: write the table, in ``FRAGMENTS`` fragments."""
    shape_m.write_lance(uri, rows, rows // FRAGMENTS, options)


def delete_tenth(uri: str, options: dict[str, str] | None) -> None:
    """Task: delete every tenth row; makes version 2."""
    import lance

    lance.dataset(uri, storage_options=options).delete("i % 10 = 3")


def drop(uri: str, options: dict[str, str] | None) -> None:
    """Task: remove the table and all its files."""
    import lance

    lance.LanceDataset.drop(uri, storage_options=options)


def read(
    uri: str,
    version: int,
    columns: list[str] | None,
    ranges: list[tuple[int, int]],
    options: dict[str, str] | None,
) -> list[dict[str, float]]:
    """Task: requests and bytes of each range of live rows, as the download process reads it."""
    from lance_stream.planning.rows import RowRange
    from lance_stream.planning.selection import Selection
    from lance_stream.source.table import Table, TableAddress

    table = Table(TableAddress(uri, version, 60.0), options or {})
    rows = table.fragment_rows()
    selection = Selection(None if columns is None else tuple((name, name) for name in columns))
    deleted = version > 1
    # The first read of a file also reads its footer, and its deletions: not what is measured.
    for stop in rows.stops.tolist():
        table.read(rows, RowRange(stop - 10, stop), selection, _ROW_BYTES)
    costs = []
    for start, stop in ranges:
        table.dataset.io_stats_incremental()
        found = table.read(rows, RowRange(start, stop), selection, _ROW_BYTES)
        stats = table.dataset.io_stats_incremental()
        ids = found["i"].to_pylist()
        if ids != [_id_of(at, deleted=deleted) for at in range(start, stop)]:
            raise AssertionError(f"rows [{start}, {stop}) have ids {ids[0]} to {ids[-1]}")
        value_bytes = sum(_value_bytes(column) for column in found.columns)
        costs.append(
            {"requests": stats.read_iops, "bytes": stats.read_bytes, "value_bytes": value_bytes}
        )
    return costs


# Only rows that are not consecutive are read by a route that depends on it.
_ROW_BYTES = 1600.0


def _id_of(position: int, *, deleted: bool) -> int:
    """Id of the live row at a position; with deletions, ids that end in 3 are left out."""
    if not deleted:
        return position
    tens, ones = divmod(position, 9)
    return 10 * tens + ones + (ones >= 3)


def _value_bytes(column: Any) -> int:
    from pyarrow import types as pat

    if pat.is_fixed_size_list(column.type):
        return len(column) * column.type.list_size * column.type.value_type.bit_width // 8
    if pat.is_string(column.type) or pat.is_binary(column.type):
        return sum(map(len, column.to_pylist()))  # the text is ASCII
    return len(column) * column.type.bit_width // 8


def _measure(where: str, uri: str, rows: int, shard_rows: int, options: Any) -> bool:
    """Everything about one store; whether its goals were reached."""
    per_fragment = rows // FRAGMENTS
    inside = [
        (start, start + shard_rows)
        for fragment in range(FRAGMENTS)
        for start in range(
            fragment * per_fragment,
            (fragment + 1) * per_fragment - shard_rows + 1,
            shard_rows,
        )
    ]
    borders = [f * per_fragment for f in range(1, FRAGMENTS)]
    spanning = [(at - shard_rows // 2, at + shard_rows - shard_rows // 2) for at in borders]
    live = per_fragment // 10 * 9
    thinned = [
        (start, start + shard_rows)
        for fragment in range(FRAGMENTS)
        for start in range(fragment * live, (fragment + 1) * live - shard_rows + 1, shard_rows)
    ]
    arguments = {"uri": uri, "options": options}
    shape_m.run_child(__file__, "write", {**arguments, "rows": rows})
    try:
        shape_m.run_child(__file__, "delete_tenth", arguments)
        reached = True
        for title, columns in COLUMNS.items():
            goal = len(columns or shape_m.SCHEMA) + _EXTRA_REQUESTS
            for kind, version, ranges in (
                ("in one fragment", 1, inside),
                ("over two fragments", 1, spanning),
                ("in one fragment, 10 % deleted", 2, thinned),
            ):
                costs = shape_m.run_child(
                    __file__,
                    "read",
                    {**arguments, "version": version, "columns": columns, "ranges": ranges},
                )
                judged = goal if kind == "in one fragment" else None
                reached &= _report(f"{where}, {title}, {kind}", costs, judged)
        return reached
    finally:
        shape_m.run_child(__file__, "drop", arguments)


def _report(title: str, costs: list[dict[str, float]], goal: int | None) -> bool:
    requests = [cost["requests"] for cost in costs]
    ratios = [cost["bytes"] / cost["value_bytes"] for cost in costs]
    mean_bytes = statistics.fmean(cost["bytes"] for cost in costs)
    text = (
        f"{title}: {len(costs)} shards, requests per shard median "
        f"{statistics.median(requests):g}, most {max(requests):g}; {mean_bytes:,.0f} bytes, "
        f"ratio to values median {statistics.median(ratios):.3f}, most {max(ratios):.3f}"
    )
    if goal is None:
        print(text, flush=True)
        return True
    reached = max(requests) <= goal and max(ratios) <= BYTES_GOAL
    verdict = "reached" if reached else "MISSED"
    print(f"{text}; goals <= {goal} and <= {BYTES_GOAL}: {verdict}", flush=True)
    return reached


def main() -> None:
    shape_m.child_main({"write": write, "delete_tenth": delete_tenth, "drop": drop, "read": read})
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", type=int, default=40_000, help=f"a multiple of {FRAGMENTS}0")
    parser.add_argument("--shard-rows", type=int, default=2_000)
    parser.add_argument("--endpoint", help="URL of an S3 server")
    parser.add_argument("--bucket", default="lance-stream-benchmarks", help="must exist")
    parser.add_argument("--region", default="us-east-1")
    options = parser.parse_args()
    if options.rows % (10 * FRAGMENTS) or options.shard_rows > options.rows // FRAGMENTS // 10 * 9:
        parser.error(
            "--rows must be a multiple of 40, and a shard must fit in nine tenths of a "
            "quarter of them"
        )
    print(shape_m.versions())
    with tempfile.TemporaryDirectory(prefix="requests_per_shard-") as directory:
        reached = _measure(
            "local", f"{directory}/table.lance", options.rows, options.shard_rows, None
        )
    if options.endpoint:
        reached &= _measure(
            "S3",
            f"s3://{options.bucket}/requests_per_shard-{secrets.token_hex(4)}.lance",
            options.rows,
            options.shard_rows,
            {
                "endpoint": options.endpoint,
                "region": options.region,
                "allow_http": "true",
                "access_key_id": os.environ["AWS_ACCESS_KEY_ID"],
                "secret_access_key": os.environ["AWS_SECRET_ACCESS_KEY"],
            },
        )
    sys.exit(0 if reached else 1)


if __name__ == "__main__":
    main()
