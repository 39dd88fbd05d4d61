"""``lance-stream index`` and ``inspect``, run as processes."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

import pytest

from lance_stream import ShardIndex
from lance_stream.errors import IndexFormatError
from tests.support.commands import lance_stream, refusal, start_lance_stream
from tests.support.scripts import run_script, start_script
from tests.support.streams import wait_until
from tests.support.tables import write_table

SELECTION = ("--filter", "i % 3 = 1", "--limit", 900, "--subset", "0,0.9", "--subset-key", "i")
LAYOUT = ("--shard-rows", 64, "--layout", "scattered", "--run-rows", 8, "--layout-seed", 5)


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return tmp_path / "made" / "index.arrow"


def built(uri: str, **arguments: Any) -> str:
    """The fingerprint of what ``build_index`` makes."""
    script = """
    import json, sys
    from lance_stream import build_index
    print(json.dumps(build_index(sys.argv[1], **json.loads(sys.argv[2])).fingerprint))
    """
    return run_script(script, uri, json.dumps(arguments)).json()


@pytest.mark.parametrize("name", ["clean", "export", "index", "inspect", "verify", "warm"])
def test_help(name: str) -> None:
    done = lance_stream(name, "--help").check()
    assert done.stdout.startswith(f"Usage: lance-stream {name} [OPTIONS]")
    assert "--json" in done.stdout
    assert done.stderr == ""


def test_an_index(table_5000: str, out: Path) -> None:
    done = lance_stream("index", table_5000, "--out", out, "--shard-rows", 700).check()
    index = ShardIndex.load(out)
    assert (index.num_rows, index.num_shards, index.version) == (5000, 8, 1)
    assert f"5,000 rows of {table_5000} version 1 in 8 shards: {out}" in done.stdout
    assert done.stderr == ""
    assert os.listdir(out.parent) == ["index.arrow"]


def test_every_planning_option(table_5000: str, out: Path) -> None:
    told = lance_stream(
        *("index", table_5000, "--out", out, "--json", *SELECTION, *LAYOUT),
        *("--columns", "i", "--columns", "n=length(s)", "--with-row-id", "--version", 1),
    ).json()
    index = ShardIndex.load(out)
    assert (
        (told["num_rows"], told["num_shards"]) == (900, 15) == (index.num_rows, index.num_shards)
    )
    assert (told["out"], told["bytes"]) == (str(out), out.stat().st_size)
    assert told["fingerprint"] == index.fingerprint
    assert index.fingerprint == built(
        table_5000,
        filter="i % 3 = 1",
        limit=900,
        subset=[0, 0.9],
        subset_key="i",
        shard_rows=64,
        layout="scattered",
        run_rows=8,
        layout_seed=5,
        columns={"i": "i", "n": "length(s)"},
        with_row_id=True,
    )


_SKEWED = """
import os, sys, lance
import pyarrow as pa
# One row in 2,000 is large; the samples of a few runs hold none of them.
rows = [os.urandom(300_000) if i % 2000 == 999 else b"abc" for i in range(40_000)]
lance.write_dataset(pa.table({"b": rows}), sys.argv[1], max_rows_per_file=20_000)
lance.write_dataset(pa.table({"b": rows, "i": range(len(rows))}), sys.argv[2])
lance.dataset(sys.argv[2]).drop_columns(["b"])
"""


def test_rare_large_rows(tmp_path: Path, out: Path) -> None:
    """Sizes of files count where the samples miss them; all rows do with --exact."""
    uri, dropped = str(tmp_path / "skewed.lance"), str(tmp_path / "dropped.lance")
    run_script(_SKEWED, uri, dropped).check()
    total = 20 * 300_000 + 40_000 * 7

    def told(table: str, *arguments: object) -> dict[str, Any]:
        whole = ("index", table, "--out", out, "--shard-bytes", "1mb", "--json", *arguments)
        return json.loads(lance_stream(*whole).stdout)

    plain = told(uri)
    assert 0.8 * total < plain["estimated_bytes"] < 1.25 * total
    assert 0.75 * total / (1 << 20) < plain["num_shards"] < 1.5 * total / (1 << 20)
    exact = told(uri, "--exact")
    assert abs(exact["estimated_bytes"] - total) < 0.02 * total
    index = ShardIndex.load(out)
    assert all(shard.estimated_bytes < (1 << 20) + 10_000 for shard in index.shards)
    assert sum(shard.estimated_bytes for shard in index.shards) < 1.1 * total
    # A file that still holds a column that was dropped says nothing of the others.
    assert told(dropped)["estimated_bytes"] < 1.25 * 40_000 * 8


def test_exact_cuts(table_5000: str, out: Path) -> None:
    lance_stream("index", table_5000, "--out", out, "--exact", "--shard-bytes", "8kb").check()
    assert ShardIndex.load(out).fingerprint == built(table_5000, exact=True, shard_bytes="8kb")
    text = refusal(
        lance_stream("index", table_5000, "--out", out, "--exact", "--shard-rows", 9), 2
    )
    assert "--exact cuts by --shard-bytes, contiguously" in text


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--subset", "0,2"), "--subset=(0.0, 2.0) must be"),
        (("--subset-key", "i"), "--subset-key is given without a subset"),
        (("--storage-option", "foo"), "--storage-option must be KEY=VALUE"),
        (("--shard-rows", 5, "--shard-bytes", "1mb"), "both say how large a shard is"),
        (("--out", "/"), "--out / is a directory: name a file in it"),
        (("--out", "memory://x"), "--out memory://x would be lost when this process ends"),
        (("--filter", "i > 5; drop table x"), "there is text after a ';'"),
    ],
)
def test_wrong_arguments(
    table_100: str, out: Path, arguments: tuple[object, ...], words: str
) -> None:
    assert words in refusal(lance_stream("index", table_100, "--out", out, *arguments), 2)
    assert not out.exists()


def test_a_directory_for_the_progress(table_100: str, out: Path) -> None:
    Path(f"{out}.partial").mkdir(parents=True)
    text = refusal(lance_stream("index", table_100, "--out", out))
    assert f"{out}.partial, which keeps the progress, is a directory: name a file with" in text


def test_one_shard_is_not_shards(table_100: str, out: Path) -> None:
    assert "in 1 shard: " in lance_stream("index", table_100, "--out", out).check().stdout


def test_a_url(table_100: str, tmp_path: Path) -> None:
    lance_stream("index", table_100, "--out", f"file://{tmp_path}/a/b.arrow").check()
    lance_stream("index", table_100, "--out", f"local://{tmp_path}/c/d.arrow", "--filter", "i>5")
    assert ShardIndex.load(tmp_path / "a" / "b.arrow").num_rows == 100
    assert ShardIndex.load(tmp_path / "c" / "d.arrow").num_rows == 94
    assert sorted(os.listdir(tmp_path / "c")) == ["d.arrow"]


def test_progress(table_100: str, out: Path) -> None:
    done = lance_stream("index", table_100, "--out", out, "--filter", "i>5", "--progress").check()
    assert "choosing rows" in done.stderr
    assert "100%" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--filter", "nope = 1"), "No field named nope"),
        (("--filter", "i < 0"), "no row of 100 is selected by filter='i < 0'"),
        (("--version", 9), "there is no such version or tag"),
        (("--partial", "/no/such/place"), "--partial /no/such/place: there is no such directory"),
    ],
)
def test_what_is_refused(
    table_100: str, out: Path, arguments: tuple[object, ...], words: str
) -> None:
    assert words in refusal(lance_stream("index", table_100, "--out", out, *arguments))
    assert not out.exists()


def test_places_that_are_refused(table_100: str, tmp_path: Path) -> None:
    assert "is a directory" in refusal(lance_stream("index", table_100, "--out", tmp_path), 2)
    text = refusal(lance_stream("index", table_100, "--out", "s3://k:hidden@bucket/x"), 2)
    assert "carries credentials" in text
    assert "hidden" not in text
    (tmp_path / "file").write_text("x")
    assert "cannot be written" in refusal(
        lance_stream("index", table_100, "--out", tmp_path / "file" / "x")
    )
    text = refusal(lance_stream("index", tmp_path / "none", "--out", tmp_path / "x"))
    assert "there is no Lance table there" in text
    assert "see lance-stream index --help" in refusal(lance_stream("index", table_100), 2)


@pytest.mark.slow
@pytest.mark.parametrize("rows_per_file", [1000, 200_000])
def test_a_killed_scan_is_gone_on_with(tmp_path: Path, out: Path, rows_per_file: int) -> None:
    uri = str(tmp_path / "long.lance")
    write_table(uri, 200_000, rows_per_file, columns=("i",))
    # Parts of a thousand rows, kept at once, and looked at slowly.
    slow = """
    import sys, time
    from lance_stream.service import choosing
    from lance_stream.cli.main import main
    choosing._FIRST_ROWS = choosing._MAX_ROWS = 1000
    choosing._SAVE_EVERY_S = 0.0
    keep = choosing._keep
    def slow_keep(*arguments):
        keep(*arguments)
        print(arguments[-1], flush=True)
        time.sleep(0.05)
    choosing._keep = slow_keep
    sys.exit(main())
    """
    arguments = ("index", uri, "--out", out, "--filter", "i % 2 = 0", "--shard-rows", 1000)
    partial = Path(f"{out}.partial")
    with start_script(slow, *arguments) as script:
        wait_until(lambda: "20000\n" in script.stdout(), 30, "some parts")
        script.kill_group()
        script.wait(10)
    assert partial.exists()
    assert not out.exists()
    with start_script(slow, *arguments) as script:
        lines = script.wait(60).check().stdout.split()
    assert int(lines[0]) > 20_000
    assert not partial.exists()
    assert ShardIndex.load(out).fingerprint == built(uri, filter="i % 2 = 0", shard_rows=1000)


def test_interrupted(table_5000: str, out: Path) -> None:
    script = start_lance_stream("index", table_5000, "--out", out, "--exact")
    time.sleep(0.3)
    script.kill_group(2)
    assert script.wait(10).returncode in (0, 1, 130, -2)
    if out.exists():
        ShardIndex.load(out)


# --- inspect ---


@pytest.fixture(scope="module")
def rich_table(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Three versions, two tags, a branch; a column that a sample cannot hold."""
    uri = str(tmp_path_factory.mktemp("rich") / "t.lance")
    script = """
    import sys, lance, pyarrow as pa
    table = pa.table({
        "i": pa.array(range(1000), pa.int64()),
        "emb": pa.array([[1.0, 2.0]] * 1000, pa.list_(pa.float32(), 2)),
        "odd": pa.array([None] * 1000, pa.timestamp("us", "Nowhere/Else")),
    })
    dataset = lance.write_dataset(table, sys.argv[1], max_rows_per_file=250)
    dataset.tags.create("first", 1)
    dataset.delete("i < 10")
    dataset.delete("i < 20")
    dataset.tags.create("second", 2)
    dataset.create_branch("try")
    """
    run_script(script, uri).check()
    return uri


def test_inspect_a_table(rich_table: str) -> None:
    told = lance_stream("inspect", rich_table, "--json", "--shard-rows", 100).json()
    assert told["kind"] == "table"
    assert (told["uri"], told["version"], told["latest_version"]) == (rich_table, 3, 3)
    assert (told["num_versions"], told["num_rows"], told["num_fragments"]) == (3, 980, 4)
    assert told["tags"] == {"first": 1, "second": 2}
    assert told["branches"] == ["try"]
    assert [(c["name"], c["arrow_type"], c["sample_type"]) for c in told["columns"]] == [
        ("i", "int64", "int"),
        ("emb", "fixed_size_list<item: float>[2]", "numpy.ndarray"),
        ("odd", "timestamp[us, tz=Nowhere/Else]", None),
    ]
    assert told["note"] == "without the columns of unsupported types: odd"
    assert told["plan"]["columns"].keys() == {"i", "emb"}
    assert (told["shards"]["num_shards"], told["shards"]["rows_per_shard"]) == (10, 100)
    assert 2 <= told["shards"]["requests_per_shard"] <= 4
    text = lance_stream("inspect", rich_table).check().stdout
    for words in ("980 rows", "first = 1", "branches: try", "unsupported", "numpy.ndarray"):
        assert words in text


def test_inspect_another_version(rich_table: str) -> None:
    told = lance_stream("inspect", rich_table, "--version", "first", "--json").json()
    assert (told["version"], told["latest_version"], told["num_rows"]) == (1, 3, 1000)
    assert lance_stream("inspect", rich_table, "--version", "try", "--json").json()["num_rows"]


def test_inspect_a_selection(rich_table: str) -> None:
    told = lance_stream(
        *("inspect", rich_table, "--columns", "i", "--filter", "i % 2 = 0", "--json", *LAYOUT)
    ).json()
    assert told["plan"]["num_rows"] == 490
    assert [column["name"] for column in told["columns"]] == ["i"]
    assert told["note"] is None
    empty = lance_stream("inspect", rich_table, "--columns", "i", "--filter", "i < 0", "--json")
    assert empty.json()["plan"] is None
    assert "no row of 980 is selected" in empty.json()["note"]


def test_inspect_an_index(table_5000: str, out: Path) -> None:
    lance_stream("index", table_5000, "--out", out, *SELECTION, *LAYOUT).check()
    told = lance_stream("inspect", out, "--json").json()
    assert told["kind"] == "index"
    assert told["fingerprint"] == ShardIndex.load(out).fingerprint
    assert told["shards"]["num_shards"] == told["num_shards"] == 15
    text = lance_stream("inspect", out).check().stdout
    assert f"Index of {table_5000} version 1" in text
    assert "filter='i % 3 = 1'" in text
    text = refusal(lance_stream("inspect", out, "--limit", 3, "--columns", "i"), 2)
    assert "is an index, which was made with its own options" in text
    assert "--limit" in text


def test_inspect_what_is_not_there(table_100: str, tmp_path: Path) -> None:
    text = refusal(lance_stream("inspect", tmp_path / "none.lance"))
    assert "there is no Lance table there" in text
    (tmp_path / "file").write_text("not an index")
    text = refusal(lance_stream("inspect", tmp_path / "file"))
    assert "is not a lance_stream shard index" in text
    with pytest.raises(IndexFormatError, match="not a lance_stream"):
        ShardIndex.load(tmp_path / "file")
    assert "there is no column 'x'" in refusal(
        lance_stream("inspect", table_100, "--columns", "x")
    )


LOADED = """
import json, sys
from lance_stream.cli.main import main
status = main(sys.argv[1:])
print(json.dumps(sorted({name.split(".")[0] for name in sys.modules})))
sys.exit(status)
"""


@pytest.mark.parametrize("name", ["inspect", "index", "warm", "verify", "export"])
def test_commands_load_neither_torch_nor_streaming(
    name: str, table_100: str, tmp_path: Path
) -> None:
    places = {"index": "--out", "export": "--out", "warm": "--local", "verify": "--local"}
    (tmp_path / "verify").mkdir()
    place = (places[name], tmp_path / name) if name in places else ()
    loaded = set(run_script(LOADED, name, table_100, *place, "--json").json())
    assert "lance" in loaded
    assert not loaded & {"torch", "streaming", "pandas", "ray", "rich", "tqdm"}
