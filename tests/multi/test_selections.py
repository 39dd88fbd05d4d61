"""Selections, branches and index files on several nodes, each of which plans for itself."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from lance_stream import build_index
from lance_stream.errors import PlanError
from tests.multi.ranks import ForkedRanks
from tests.support.forked import run_forked
from tests.support.scripts import run_script
from tests.support.streams import batches, dataset, ids
from tests.support.tables import write_table

_BRANCH = """
import sys, lance
from tests.support.tables import write_table_here
uri = sys.argv[1]
write_table_here(lance.dataset(uri).create_branch("exp").uri, 20, 20, first_row=500, mode="append")
write_table_here(uri, 10, 10, first_row=900, mode="append")
lance.dataset(uri).tags.create("tagged", ("exp", 2))
"""


@pytest.fixture(scope="module")
def table(tables: Path) -> str:
    """T(100, 25); version 2 has 900 to 909 too, version 2 of branch ``exp`` 500 to 519."""
    uri = str(tables / "branched.lance")
    write_table(uri, 100, 25)
    run_script(_BRANCH, uri).check()
    return uri


@pytest.mark.parametrize(
    ("stream", "expected"),
    [
        # The number that rank 0 found is one of the branch.
        ({"version": "exp"}, [*range(100), *range(500, 520)]),
        ({"version": "tagged"}, [*range(100), *range(500, 520)]),
        ({"version": 2}, [*range(100), *range(900, 910)]),
        ({"filter": "i % 3 = 1 and i < 100"}, list(range(1, 100, 3))),
        ({"layout": "scattered", "run_rows": 4, "limit": 60}, list(range(60))),
    ],
    ids=lambda value: str(value)[:40],
)
def test_every_node_plans_the_same(
    table: str, tmp_path: Path, stream: dict[str, Any], expected: list[int]
) -> None:
    """Of a branch too; each row is on one of the nodes."""

    def run(rank: int) -> list[Any]:
        data = dataset(table, shard_rows=10, local=str(tmp_path / f"c{rank}"), **stream)
        index = data.streams[0].index
        return [ids(batches(data, 1)), index.uri, index.version]

    with ForkedRanks(run, 2, per_node=1) as job:
        (mine, uri, version), (theirs, other_uri, other_version) = job.results()
    assert sorted({*mine, *theirs}) == expected
    assert (uri, version) == (other_uri, other_version)
    assert len(mine) == len(theirs)


def test_an_index_for_every_node(table: str, tmp_path: Path) -> None:
    """Also of a branch, and of a filter that would give other rows each time."""
    path = tmp_path / "x.idx"

    def build() -> int:
        index = build_index(table, version="exp", filter="random() < 0.5", shard_rows=5)
        index.save(path)
        return index.num_rows

    def run(rank: int) -> list[Any]:
        # A path that only this node has.
        own = shutil.copy(path, tmp_path / f"node{rank}.idx")
        data = dataset(table, index=own, local=str(tmp_path / f"c{rank}"))
        return [ids(batches(data, 1)), data.streams[0].index.uri]

    count = run_forked(build)
    with ForkedRanks(run, 2, per_node=1) as job:
        (mine, uri), (theirs, other_uri) = job.results()
    assert uri == other_uri == f"{table}/tree/exp"
    assert len({*mine, *theirs}) == count


def test_a_filter_that_gives_other_rows_each_time(table: str, tmp_path: Path) -> None:
    """Nodes that cannot agree say so, all of them."""

    def run(rank: int) -> str:
        try:
            dataset(table, filter="random() < 0.5", local=str(tmp_path / f"c{rank}"))
        except PlanError as error:
            return str(error)
        return ""

    with ForkedRanks(run, 2, per_node=1) as job:
        for said in job.results():
            assert f"{table} version 2 is not the same table on this node as on rank 0" in said
            assert "or its filter gives other rows each time" in said
