"""Random tables, planned and read as the download process does, against Lance's own answer.

For scripts: imports lance. `main` tries examples and fails with the smallest one that is wrong.
"""

from __future__ import annotations

import dataclasses
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pyarrow.compute as pc
from hypothesis import HealthCheck, given, seed, settings
from hypothesis import strategies as st

from lance_stream.errors import EmptyStreamError
from lance_stream.planning import reads
from lance_stream.planning.row_bytes import row_bytes
from lance_stream.planning.subset import in_subset, places
from tests.support.planning import plan, shards

__all__ = ["check", "main"]

KEYS = (None, "id", "s", "k", "day", "My Key")
FILTERS = (
    None,
    "true",
    "id % 2 = 0",
    "id % 17 = 5",
    "id > 40 and id < 80",
    "s like 'row 1%'",
    "s is null",
    "`My Key` < 0.25",
    "nested.a = 3 or k",
    "_rowid % 3 = 0",
)
COLUMNS: tuple[tuple[tuple[str, str], ...] | None, ...] = (
    None,
    (("id", "id"),),
    (("s", "s"), ("My Key", "My Key"), ("id", "id")),
    (("twice", "id * 2"), ("low", "lower(s)"), ("b", "b")),
    (("a", "nested.a"), ("v", "v"), ("id", "id")),
    (("_rowaddr", "_rowaddr"), ("id", "id")),
)


@dataclasses.dataclass(frozen=True)
class TableShape:
    """How a table came to be."""

    writes: tuple[int, ...]
    per_file: int
    deletes: tuple[str, ...]
    update: bool
    compact: bool
    stable_row_ids: bool


@dataclasses.dataclass(frozen=True)
class Routes:
    """What reading costs, to have small tables read in every way."""

    request_bytes: int
    scan_share: int


SHAPES = st.builds(
    TableShape,
    writes=st.lists(st.integers(1, 60), min_size=1, max_size=4).map(tuple),
    per_file=st.integers(5, 60),
    deletes=st.lists(
        st.sampled_from(["id % 3 = 1", "id < 12", "id % 7 > 2", "id >= 20 and id < 33"]),
        max_size=2,
    ).map(tuple),
    update=st.booleans(),
    compact=st.booleans(),
    stable_row_ids=st.booleans(),
)
REQUESTS = st.fixed_dictionaries(
    {
        "columns": st.sampled_from(COLUMNS),
        "with_row_id": st.booleans(),
        "filter": st.sampled_from(FILTERS),
        "limit": st.none() | st.integers(1, 60),
        "subset": st.none()
        | st.tuples(st.floats(0, 0.6), st.floats(0.61, 1))
        | st.just((0.0, 0.1 + 0.2)),
        "subset_key": st.sampled_from(KEYS),
        "shard_rows": st.integers(1, 50) | st.none(),
        "shard_bytes": st.integers(50, 20_000),
        "layout": st.sampled_from(["contiguous", "scattered"]),
        "run_rows": st.integers(1, 12),
        "layout_seed": st.integers(-(2**63), 2**63 - 1),
        "exact": st.booleans(),
    }
)
ROUTES = st.builds(Routes, st.sampled_from([1, 1000, 100_000]), st.sampled_from([1, 3, 1000]))


def rows_of(start: int, count: int) -> pa.Table:
    """Rows with these ids, of columns of every size and with nulls."""
    ids = range(start, start + count)
    return pa.table(
        {
            "id": pa.array(ids, pa.int64()),
            "s": pa.array(
                [None if i % 5 == 2 else f"row {i} {'x' * (i % 9)}" for i in ids], pa.string()
            ),
            "k": pa.array([None if i % 11 == 0 else i % 2 == 0 for i in ids], pa.bool_()),
            "day": pa.array([i // 4 for i in ids], pa.int32()).view(pa.date32()),
            "My Key": pa.array([None if i % 13 == 0 else i / 100 for i in ids], pa.float64()),
            "v": pa.array([[i + k / 8 for k in range(4)] for i in ids], pa.list_(pa.float32(), 4)),
            "b": pa.array([bytes([i % 256]) * (200 * (i % 3)) for i in ids], pa.binary()),
            "nested": pa.array(
                [None if i % 6 == 0 else {"a": i % 7, "l": list(range(i % 4))} for i in ids],
                pa.struct([("a", pa.int64()), ("l", pa.list_(pa.int16()))]),
            ),
        }
    )


def write(uri: str, shape: TableShape) -> None:
    """Make the table."""
    start, mode = 0, "create"
    for count in shape.writes:
        lance.write_dataset(
            rows_of(start, count),
            uri,
            mode=mode,
            max_rows_per_file=shape.per_file,
            max_rows_per_group=shape.per_file,
            enable_stable_row_ids=shape.stable_row_ids,
        )
        start, mode = start + count, "append"
    for predicate in shape.deletes:
        lance.dataset(uri).delete(predicate)
    if shape.update and lance.dataset(uri).count_rows():
        lance.dataset(uri).update({"s": "'changed'"}, where="id % 4 = 1")
    if shape.compact:
        lance.dataset(uri).optimize.compact_files(target_rows_per_fragment=40)


def expected_rows(uri: str, request: dict[str, Any]) -> pa.Table:
    """What Lance gives for the selection, in table order."""
    dataset = lance.dataset(uri)
    found = dataset.scanner(
        filter=request["filter"], with_row_address=True, scan_in_order=True
    ).to_table()
    # In the order of the table, which a scan with a filter may leave.
    order = dataset.scanner(columns=[], with_row_address=True, scan_in_order=True).to_table()
    at = pc.index_in(found["_rowaddr"], value_set=order["_rowaddr"].combine_chunks())
    found = found.take(pc.sort_indices(at))
    if request["subset"] is not None:
        key = request["subset_key"]
        keys = found["_rowaddr" if key is None else key].combine_chunks()
        found = found.filter(pa.array(in_subset(places(keys), request["subset"])))
    addresses = found["_rowaddr"].to_pylist()[: request["limit"]]
    columns = request["columns"]
    values = dataset.scanner(
        columns=None if columns is None else dict(columns),
        with_row_id=request["with_row_id"],
        with_row_address=True,
        scan_in_order=True,
    ).to_table()
    where = {address: row for row, address in enumerate(values["_rowaddr"].to_pylist())}
    values = values.take(pa.array([where[a] for a in addresses], pa.int64()))
    names = [*(dict(columns) if columns else [n for n in values.schema.names if n[0] != "_"])]
    return values.select([*names, *(["_rowid"] if request["with_row_id"] else [])])


def check(shape: TableShape, request: dict[str, Any], routes: Routes) -> None:
    """Compare one example.

    Raises:
        AssertionError: What came is not what Lance gives.
    """
    request = dict(request)
    if request["subset"] is None:
        request["subset_key"] = None
    if request["exact"]:
        request |= {"layout": "contiguous", "shard_rows": None}
    reads._REQUEST_BYTES, reads._MAX_SCAN_SHARE = routes.request_bytes, routes.scan_share
    directory = tempfile.mkdtemp(prefix="planned-")
    uri = f"{directory}/t.lance"
    try:
        write(uri, shape)
        if not lance.dataset(uri).count_rows():
            return
        expected = expected_rows(uri, request)
        try:
            index = plan(uri, **request)
        except EmptyStreamError:
            require(expected.num_rows == 0, f"{expected.num_rows} rows were not found")
            return
        require(index.num_rows == expected.num_rows, f"{index.num_rows} is a wrong count")
        seen: list[int] = []
        for shard, table in enumerate(shards(index)):
            ranges = index.selected_ranges(shard)
            rows = [row for part in ranges for row in range(part.start, part.stop)]
            require(len(rows) == table.num_rows > 0, f"shard {shard} is short")
            same = table.to_pylist() == expected.take(rows).to_pylist()
            require(same, f"shard {shard}: {table.to_pylist()} are not the rows {rows}")
            require(table.schema.names == expected.schema.names, f"{table.schema.names}")
            seen += rows
            if request["exact"] and table.num_rows > 1:
                size = float(row_bytes(table.combine_chunks().to_batches()[0].columns).sum())
                # And a bit for each value: batches without nulls were measured without those.
                most = request["shard_bytes"] + table.num_rows * table.num_columns / 8
                require(size <= most, f"shard {shard} has {size} bytes")
            elif request["shard_rows"] and request["layout"] == "contiguous":
                require(table.num_rows <= request["shard_rows"], f"shard {shard} is too long")
        require(sorted(seen) == list(range(expected.num_rows)), f"rows {seen}")
        again = plan(uri, **request)
        require(again.to_bytes() == index.to_bytes(), "the same plan gave another index")
    finally:
        shutil.rmtree(directory)


def require(condition: bool, message: str) -> None:
    """Fail unless a condition holds."""
    if not condition:
        raise AssertionError(message)


def main() -> None:
    """Try as many examples as the first argument says, others with each second one."""
    tried = 0

    @seed(int(sys.argv[2]))
    @settings(
        max_examples=int(sys.argv[1]),
        deadline=None,
        database=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(shape=SHAPES, request=REQUESTS, routes=ROUTES)
    def try_one(shape: TableShape, request: dict[str, Any], routes: Routes) -> None:
        nonlocal tried
        tried += 1
        check(shape, request, routes)

    try_one()
    Path("/dev/stdout").write_text(f"{tried}\n")


if __name__ == "__main__":
    main()
