"""Rows of very different size: a column of more than 2^31 bytes in one shard, which is the limit
of 32-bit offsets. What is on disk is small, since it compresses."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from lance_stream.errors import PlanError
from tests.support.forked import run_forked
from tests.support.scripts import run_script
from tests.support.streams import dataset

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

_WRITE = """
import sys
import lance, pyarrow as pa

def rows(first, texts):
    ids = pa.array(range(first, first + len(texts)))
    return pa.record_batch([ids, pa.array(texts)], ["i", "s"])

def parts():
    yield rows(0, ["a"] * 20_000)
    for part in range(25):
        yield rows(20_000 + 100 * part, ["q" * (1 << 20)] * 100)
    yield rows(22_500, ["a"] * 20_000)

schema = pa.schema([("i", pa.int64()), ("s", pa.string())])
lance.write_dataset(parts(), sys.argv[1], schema=schema, data_storage_version="2.1")
lance.write_dataset(pa.table({"i": [0, 1], "s": ["0123456789"] * 2}), sys.argv[2])
"""
_COMMAND = "import sys\nfrom lance_stream.cli.main import main\nsys.exit(main())\n"


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    """A table with 2,500 rows of 1 MiB in the middle of 40,000 tiny ones, and one to repeat."""
    folder = tmp_path_factory.mktemp("large")
    uris = str(folder / "skewed.lance"), str(folder / "two.lance")
    run_script(_WRITE, *uris, timeout_s=300).check()
    return uris


@pytest.mark.parametrize("cache_format", ["arrow", "mds"])
def test_one_shard_of_more_than_two_gib(
    written: tuple[str, str], tmp_path: Path, cache_format: str
) -> None:
    """The sample of the planner sees small rows only."""

    def run() -> list[Any]:
        data = dataset(
            written[0],
            local=str(tmp_path / "cache"),
            cache_format=cache_format,
            download_timeout=240,
        )
        rows = [data[i] for i in (0, 19_999, 20_000, 21_249, 21_250, 22_499, 22_500, 42_499)]
        return [data.streams[0].index.num_shards, [(row["i"], len(row["s"])) for row in rows]]

    shards, rows = run_forked(run, timeout_s=500)
    assert shards == 1
    large = [20_000, 21_249, 21_250, 22_499]
    assert [i for i, length in rows if length == 1 << 20] == large
    assert [i for i, length in rows if length == 1] == [0, 19_999, 22_500, 42_499]


def test_exact_bytes_cut_it(written: tuple[str, str], tmp_path: Path) -> None:
    result = run_script(
        _COMMAND, "index", written[0], "--exact", "--out", tmp_path / "x.idx", timeout_s=500
    )
    assert "42,500 rows" in result.check().stdout

    from lance_stream.planning.index import ShardIndex

    index = ShardIndex.load(tmp_path / "x.idx")
    # 31 rows of 1 MiB each in 32 MB.
    assert 75 <= index.num_shards <= 85


def test_one_value_that_no_column_can_hold(written: tuple[str, str], tmp_path: Path) -> None:
    """Named when the dataset is built, with its row and column."""

    columns = {"i": "i", "big": "repeat(s, 300000000)"}
    with pytest.raises(PlanError, match=r"column 'big' \(string\) has a value of more than 2\^31"):
        dataset(written[1], local=str(tmp_path / "cache"), columns=columns, download_timeout=240)


def test_expressions_that_are_large_together(written: tuple[str, str], tmp_path: Path) -> None:
    """Lance panics in them, which is not told from other faults: fewer rows at a time."""

    def run() -> list[int]:
        columns = {"i": "i", "big": "repeat(s, 120000000)"}
        data = dataset(
            written[1],
            local=str(tmp_path / "cache"),
            columns=columns,
            shard_rows=2,
            download_timeout=240,
        )
        return [len(data[i]["big"]) for i in range(2)]

    assert run_forked(run, timeout_s=500) == [1_200_000_000] * 2
