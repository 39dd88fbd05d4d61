"""What a sample holds: columns, types, owned or mapped arrays, row ids."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from lance_stream.errors import PlanError
from tests.support.forked import run_forked
from tests.support.scripts import run_script
from tests.support.streams import batches, dataset, ids


def _first(uri: str, **stream: Any) -> dict[str, Any]:
    return next(iter(dataset(uri, shard_rows=10, **stream)))


def test_column_order_and_expressions(table_100: str) -> None:
    """Columns come in the order asked for; expressions are computed at the source."""

    def run() -> list[Any]:
        listed = list(_first(table_100, columns=["v", "i"]))
        computed = dataset(table_100, columns={"double": "i * 2", "s": "s"})
        rows = list(computed)
        return [listed, list(rows[7]), rows[7]["double"], rows[7]["s"]]

    listed, names, double, text = run_forked(run)
    assert listed == ["v", "i"]
    assert names == ["double", "s"]
    assert double == 14
    assert text.startswith("row 7 ")


def test_row_id_finds_the_row(table_100: str) -> None:
    """``_rowid`` is the id that the table takes the row by."""

    def run() -> list[list[int]]:
        data = dataset(table_100, with_row_id=True, shard_rows=30)
        return [[row["_rowid"], row["i"]] for row in data]

    pairs = run_forked(run)
    script = """
import json, sys, lance
table = lance.dataset(sys.argv[1])
row_ids = json.loads(sys.argv[2])
print(json.dumps(table._take_rows(row_ids, columns=["i"])["i"].to_pylist()))
"""
    taken = run_script(script, table_100, str([p[0] for p in pairs])).check().json()
    assert taken == [p[1] for p in pairs] == list(range(100))


def test_arrays_are_owned_or_mapped(table_100: str) -> None:
    """By default arrays are the user's own; with zero_copy read-only views, equal in value."""

    def run() -> list[Any]:
        own, view = _first(table_100)["v"], _first(table_100, zero_copy=True)["v"]
        own[0] = 1e9  # Nobody else's.
        again = _first(table_100)["v"]
        return [own.flags.owndata, view.flags.writeable, view.tolist(), again.tolist()]

    owned, writeable, view, again = run_forked(run)
    assert owned
    assert not writeable
    assert view == again == (np.arange(8) / 8).tolist()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"columns": []}, "columns=\\[\\] selects nothing"),
        ({"columns": ["i", "i"]}, "columns names 'i' more than once"),
        ({"columns": "i"}, "columns='i' must be a list"),
        ({"columns": ["nope"]}, "no column 'nope'; the table has i, s, v"),
        ({"columns": {"x": "i +"}}, "columns=.*i \\+"),
        ({"columns": {"x": "nope + 1"}}, "columns=.*nope"),
        ({"shard_rows": 0}, "shard_rows=0 must be a positive"),
        ({"shard_bytes": "32 apples"}, "shard_bytes='32 apples' is not a size"),
        ({"version": 0}, "version=0 must be a positive number"),
        ({"storage_options": {"timeout": 5}}, "storage_options\\['timeout'\\] must be text"),
        ({"validate_hash": "nope"}, "validate_hash='nope' is not a hash"),
    ],
)
def test_bad_arguments_are_named(table_100: str, arguments: dict[str, Any], words: str) -> None:
    """A wrong argument is an error in the main process that names it."""
    with pytest.raises(PlanError, match=words):
        dataset(table_100, **arguments)


def test_cache_inside_the_table_is_refused(table_100: str) -> None:
    """Eviction removes files: never from a table."""
    for local in (table_100, f"{table_100}/data"):
        with pytest.raises(PlanError, match="lies inside the table"):
            dataset(table_100, local=local)


def test_registered_by_name(table_100: str) -> None:
    """The host finds the stream by name, without importing lance_stream."""

    def run() -> list[int]:
        from streaming import StreamingDataset

        data = StreamingDataset(
            stream_name="lance",
            remote=table_100,
            stream_config={"shard_rows": 7, "columns": ["i"]},
            batch_size=4,
        )
        assert data.streams[0].version >= 1
        return ids(batches(data, 0))

    assert run_forked(run) == list(range(100))
