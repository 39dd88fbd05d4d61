"""``lance-stream export``: complete or not there, whatever moment it is killed at."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import random
import re
import shutil
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from tests.support.forked import run_forked
from tests.support.mounts import as_root, mounted
from tests.support.scripts import RunningScript, ScriptResult, run_script, start_script
from tests.support.streams import wait_until
from tests.support.tables import assert_row, write_table

COMMAND = "import sys\nfrom lance_stream.cli.main import main\nsys.exit(main())\n"
STATE = ".lance_stream_export"


def export(uri: str, out: Path | str, *more: object, **options: Any) -> ScriptResult:
    """Run the command to its end."""
    return run_script(COMMAND, "export", uri, "--out", out, *more, **options)


def start_export(uri: str, out: Path, *more: object) -> RunningScript:
    """Run the command in the background."""
    return start_script(COMMAND, "export", uri, "--out", out, *more)


def refusal(result: ScriptResult, status: int = 1) -> str:
    """What a failed command said: one line, no traceback, nothing on stdout."""
    assert result.returncode == status, result.stderr
    assert result.stdout == ""
    assert result.stderr.startswith("lance-stream export: "), result.stderr
    assert result.stderr.count("\n") == 1
    assert "Traceback" not in result.stderr
    return result.stderr


def names(folder: Path) -> list[str]:
    return sorted(os.listdir(folder))


def shard_names(count: int, ending: str = "") -> list[str]:
    return ["index.json", *(f"shard.{number:05}.mds{ending}" for number in range(count))]


def records(folder: Path) -> list[str]:
    state = folder / STATE
    listed = os.listdir(state) if state.is_dir() else []
    return sorted(name for name in listed if re.fullmatch(r"\d{8}\.json", name))


def read_all(local: Path, remote: Path | None = None, **options: Any) -> list[int]:
    """Every row that the stock dataset gives, compared with the table's; their numbers."""

    def run() -> list[int]:
        from streaming import StreamingDataset

        data = StreamingDataset(
            local=str(local), remote=remote and str(remote), batch_size=10, **options
        )
        found = []
        for sample in data:
            row = {"i": int(sample["i"]), "s": sample["s"], "v": sample["v"]}
            assert_row(row, row["i"])
            found.append(row["i"])
        assert len(data) == len(found)
        return found

    return run_forked(run)


@pytest.fixture(scope="module")
def table_8000(tables: Path) -> str:
    """The table T(8000, 3000)."""
    uri = str(tables / "t8000.lance")
    write_table(uri, 8000, 3000)
    return uri


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return tmp_path / "out"


# --- what is written ---


@pytest.fixture(scope="module")
def plain(table_5000: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An export of 8 shards."""
    out = tmp_path_factory.mktemp("plain") / "out"
    export(table_5000, out, "--shard-rows", 700).check()
    return out


COMPRESSED = ("--shard-rows", 700, "--compression", "zstd", "--hashes", "xxh64,sha1", "--json")


@pytest.fixture(scope="module")
def compressed(table_5000: str, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The same, compressed and hashed, and what was printed."""
    out = tmp_path_factory.mktemp("compressed") / "out"
    return out, export(table_5000, out, *COMPRESSED).json()


def test_the_stock_dataset_reads_it(plain: Path, tmp_path: Path) -> None:
    assert names(plain) == shard_names(8)
    assert read_all(plain) == list(range(5000))
    assert read_all(tmp_path / "copy", plain) == list(range(5000))


@pytest.mark.parametrize("algorithm", ["sha1", "xxh64"])
def test_the_stock_dataset_reads_it_compressed(
    compressed: Any, tmp_path: Path, algorithm: str
) -> None:
    out, _ = compressed
    assert names(out) == shard_names(8, ".zstd")
    assert read_all(tmp_path / "copy", out, validate_hash=algorithm) == list(range(5000))


@pytest.mark.slow
def test_the_stock_dataset_reads_it_compressed_in_place(compressed: Any, tmp_path: Path) -> None:
    # Where it also puts what it decompresses.
    out = tmp_path / "copy"
    shutil.copytree(compressed[0], out)
    assert read_all(out, validate_hash="sha1") == list(range(5000))


def test_the_summary(table_5000: str, compressed: Any) -> None:
    out, summary = compressed
    expected = {"out": str(out), "uri": table_5000, "version": 1, "rows": 5000, "shards": 8}
    assert {key: summary[key] for key in expected} == expected
    stored = sum((out / name).stat().st_size for name in shard_names(8, ".zstd")[1:])
    assert (summary["kept_shards"], summary["bytes"]) == (0, stored)
    assert re.fullmatch("[0-9a-f]{32}", summary["fingerprint"])


def test_the_files_are_those_of_the_stock_writer(
    table_5000: str, compressed: Any, tmp_path: Path
) -> None:
    stock = tmp_path / "stock"

    def write() -> None:
        from streaming import MDSWriter

        from tests.support.tables import expected_row

        columns = {"i": "int64", "s": "str", "v": "ndarray:float32:8"}
        options = {"compression": "zstd", "hashes": ["sha1", "xxh64"], "size_limit": None}
        with MDSWriter(out=str(stock), columns=columns, **options) as writer:
            for i in range(700):
                writer.write(expected_row(i))

    run_forked(write)
    index = json.loads((compressed[0] / "index.json").read_text())
    told = index.pop("lance_stream")
    theirs = json.loads((stock / "index.json").read_text())
    assert set(index) == set(theirs)
    assert index["shards"][0] == theirs["shards"][0]
    name = "shard.00000.mds.zstd"
    assert (compressed[0] / name).read_bytes() == (stock / name).read_bytes()
    assert [shard["samples"] for shard in index["shards"]] == [700] * 7 + [100]
    assert (told["uri"], told["version"], told["rows"]) == (table_5000, 1, 5000)


TYPES = """
import decimal, sys
import lance, numpy as np, pyarrow as pa

n, uri = 50, sys.argv[1]
numbers = {
    name: pa.array(np.arange(n).astype(name))
    for name in ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64",
                 "float16", "float32", "float64")
}
numbers["uint64"] = pa.array([2**63 + 5 + i for i in range(n)], pa.uint64())
flat = pa.array(np.arange(n * 6), pa.int32())
fixed = pa.FixedSizeListArray.from_arrays(flat, 6)
table = pa.table({
    **numbers,
    "flag": pa.array([i % 3 == 0 for i in range(n)]),
    "text": pa.array([chr(i) + "\\u00fcn\\u00ef" * (i % 4) for i in range(n)]),
    "blob": pa.array([bytes([i]) * i for i in range(n)]),
    "key": pa.array([bytes([i]) * 4 for i in range(n)], pa.binary(4)),
    "price": pa.array([decimal.Decimal(i) / 100 - 1 for i in range(n)], pa.decimal128(9, 4)),
    "list": pa.array([[float(k) for k in range(i % 5)] for i in range(n)]),
    "tensor": pa.ExtensionArray.from_storage(
        pa.fixed_shape_tensor(pa.int32(), [2, 3], permutation=[1, 0]), fixed),
})
lance.write_dataset(table, uri, max_rows_per_file=20)
read = lance.dataset(uri).to_table()
with pa.ipc.new_file(sys.argv[2], read.schema) as writer:
    writer.write_table(read)
"""


def test_every_type_is_lances_own_value(tmp_path: Path, out: Path) -> None:
    uri, copy = str(tmp_path / "types.lance"), tmp_path / "copy.arrow"
    run_script(TYPES, uri, copy).check()
    export(uri, out, "--shard-rows", 15).check()

    def compare() -> int:
        from streaming import StreamingDataset

        rows = pa.ipc.open_file(str(copy)).read_all().to_pylist()
        data = StreamingDataset(local=str(out), batch_size=1)
        assert len(data) == len(rows)
        for number, row in enumerate(rows):
            sample = data[number]
            assert list(sample) == sorted(row)
            for name, value in row.items():
                assert_same(sample[name], value, name)
            assert sample["list"].shape == (number % 5,)
            assert sample["tensor"].shape == (3, 2)
        return len(rows)

    def assert_same(found: Any, value: Any, name: str) -> None:
        if isinstance(found, np.ndarray):
            assert found.dtype == {"list": np.float64, "tensor": np.int32}[name], name
            # The tensor's type says that its axes are swapped.
            stored = found.T if name == "tensor" else found
            assert stored.ravel().tolist() == value, name
        elif isinstance(found, np.generic):
            assert found.dtype.name == name
            assert found == value
        else:
            assert type(found) is type(value)
            assert repr(found) == repr(value)

    assert run_forked(compare) == 50


def test_columns_and_expressions(table_100: str, out: Path) -> None:
    arguments = ("--columns", "s,i", "--columns", "twice=i * 2", "--with-row-id")
    export(table_100, out, *arguments).check()

    def run() -> list[Any]:
        from streaming import StreamingDataset

        data = StreamingDataset(local=str(out), batch_size=1)
        return [
            {k: v if isinstance(v, str) else int(v) for k, v in data[n].items()} for n in (0, 99)
        ]

    first, last = run_forked(run)
    assert first == {"_rowid": 0, "i": 0, "s": "row 0 ", "twice": 0}
    assert (last["i"], last["twice"]) == (99, 198)


SCATTERED = ("--shard-rows", 128, "--layout", "scattered", "--run-rows", 16)


def test_a_selection_and_an_index(table_5000: str, tmp_path: Path, out: Path) -> None:
    selection = ("--filter", "i % 3 = 1", "--subset", "0,0.5", "--subset-key", "i", *SCATTERED)
    summary = export(table_5000, out, *selection, "--json").json()
    found = read_all(out)
    assert summary["rows"] == len(found)
    assert 700 < len(found) < 950
    assert set(found) <= set(range(1, 5000, 3))
    # Runs of rows from all over the table.
    assert found != sorted(found)
    index, again = tmp_path / "t.index", tmp_path / "again"
    run_script(COMMAND, "index", table_5000, "--out", index, *selection).check()
    indexed = export(table_5000, again, "--index", index, "--json").json()
    assert indexed["fingerprint"] == summary["fingerprint"]
    for name in names(out):
        assert (again / name).read_bytes() == (out / name).read_bytes()
    text = refusal(export(table_5000, tmp_path / "x", "--index", index, "--limit", 7))
    assert "was made with limit=None, and the stream is given limit=7" in text


def test_again_is_nothing_to_do(table_100: str, out: Path) -> None:
    export(table_100, out, "--shard-rows", 10).check()
    before = {name: (out / name).stat().st_mtime_ns for name in names(out)}
    summary = export(table_100, out, "--shard-rows", 10, "--json").json()
    assert summary["kept_shards"] == summary["shards"] == 10
    assert {name: (out / name).stat().st_mtime_ns for name in names(out)} == before


def test_what_is_damaged_is_written_again(table_100: str, out: Path) -> None:
    export(table_100, out, "--shard-rows", 10).check()
    before = {name: (out / name).read_bytes() for name in names(out)}
    (out / "shard.00003.mds").unlink()
    with (out / "shard.00005.mds").open("r+b") as file:
        file.truncate(100)
    assert export(table_100, out, "--shard-rows", 10, "--json").json()["kept_shards"] == 8
    assert {name: (out / name).read_bytes() for name in names(out)} == before


# --- killed, interrupted, at the same time ---


@pytest.mark.parametrize("kills", [4, pytest.param(20, marks=pytest.mark.slow)])
def test_killed_at_random_moments(table_8000: str, tmp_path: Path, out: Path, kills: int) -> None:
    # tests/unit/export/test_filling.py goes through the moments one by one; these are real.
    arguments = ("--shard-rows", 40, "--workers", 2)
    whole_s = export(table_8000, tmp_path / "whole", *arguments).check().seconds
    chosen, killed = random.Random(5), 0
    for _ in range(kills):
        script = start_export(table_8000, out, *arguments)
        time.sleep(chosen.uniform(0.1, 1) * whole_s)
        killed += script.poll() is None
        script.kill_group()
        script.wait(10)
        if (out / "index.json").exists():
            assert set(shard_names(200)) <= set(names(out))
        for record in records(out):
            entry = json.loads((out / STATE / record).read_bytes())
            raw = entry["raw_data"]
            assert (out / raw["basename"]).stat().st_size == raw["bytes"]
        if out.exists() and names(out) == shard_names(200):
            # Complete: begin again, so that there is something to kill.
            shutil.rmtree(out)
    assert killed >= kills // 3
    export(table_8000, out, *arguments).check()
    assert names(out) == shard_names(200)
    for name in names(out):
        assert (out / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()
    assert read_all(out) == list(range(8000))


class Held:
    """An export that is stopped in the middle of its work."""

    def __init__(self, uri: str, out: Path, *more: object) -> None:
        self.script = start_export(uri, out, *more)
        wait_until(lambda: len(records(out)) > 5 or self.script.poll(), 20, "some shards")
        assert self.script.poll() is None, self.script.stderr()
        self.script.kill_group(signal.SIGSTOP)
        assert not (out / "index.json").exists()


@pytest.fixture
def held(table_8000: str, out: Path) -> Iterator[RunningScript]:
    """An export of 400 shards that is stopped (not ended) in the middle."""
    with Held(table_8000, out, "--shard-rows", 20).script as script:
        yield script


def test_two_at_once(table_8000: str, out: Path, held: RunningScript) -> None:
    second = export(table_8000, out, "--shard-rows", 20)
    assert re.search(rf"another export to {out} is running, with pid {held.pid}:", refusal(second))
    held.kill_group(signal.SIGCONT)
    held.wait(30).check()
    assert names(out) == shard_names(400)


def test_interrupted(table_8000: str, out: Path, held: RunningScript) -> None:
    held.kill_group(signal.SIGINT)
    held.kill_group(signal.SIGCONT)
    result = held.wait(10)
    assert refusal(result, 130) == "lance-stream export: interrupted\n"
    kept = len(records(out))
    assert kept > 5
    assert not [name for name in names(out) if name.startswith(".tmp-")]
    assert not (out / "index.json").exists()
    assert export(table_8000, out, "--shard-rows", 20, "--json").json()["kept_shards"] == kept
    assert names(out) == shard_names(400)


def test_terminated(out: Path, held: RunningScript) -> None:
    """As by a job scheduler: cleaned up like after Ctrl-C, with a status of its own."""
    held.kill_group(signal.SIGTERM)
    held.kill_group(signal.SIGCONT)
    assert refusal(held.wait(10), 143) == "lance-stream export: terminated\n"
    assert len(records(out)) > 5
    assert not [name for name in names(out) if name.startswith(".tmp-")]
    assert not (out / "index.json").exists()


def test_interrupted_before_it_began(table_8000: str, out: Path) -> None:
    script = start_export(table_8000, out)
    time.sleep(0.25)
    script.kill_group(signal.SIGINT)
    assert script.wait(10).returncode in (130, -signal.SIGINT, 1)
    assert not out.exists() or names(out) == shard_names(1)


def test_what_a_killed_export_left_is_continued_only_by_the_same(
    table_8000: str, out: Path, held: RunningScript
) -> None:
    held.kill_group()
    held.wait(10)
    before = names(out)
    text = refusal(export(table_8000, out, "--shard-rows", 40))
    assert f"{out} holds part of another export (shards 400 there, 200 here)" in text
    text = refusal(export(table_8000, out, "--shard-rows", 20, "--hashes", "sha1"))
    assert "(hashes [] there, ['sha1'] here)" in text
    text = refusal(export(table_8000, out, "--shard-rows", 20, "--columns", "i"))
    assert "columns {'i': 'int64', 's': 'str'" in text
    assert names(out) == before


@pytest.mark.slow
def test_a_table_that_grew_meanwhile(tmp_path: Path, out: Path) -> None:
    uri = str(tmp_path / "grows.lance")
    write_table(uri, 2000, 1000)
    with Held(uri, out, "--shard-rows", 5).script as script:
        script.kill_group()
    write_table(uri, 10, 10, first_row=2000, mode="append")
    text = refusal(export(uri, out, "--shard-rows", 5))
    assert "version 1 there, 2 here" in text
    assert "add --version 1 to complete it" in text
    assert export(uri, out, "--shard-rows", 5, "--version", 1, "--json").json()["rows"] == 2000
    assert read_all(out) == list(range(2000))


# --- what is refused ---


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--version", "99"), "there is no such version or tag"),
        (("--columns", "x=i +"), "Expression is not valid: i +"),
        (("--hashes", "sha1,md6"), "hashes='md6' is not a hash"),
        (("--out-option", "k=v"), "--out-option is for a URL"),
        (("--split", "nope"), "there is no Lance table there"),
    ],
)
def test_wrong_arguments(
    table_100: str, out: Path, arguments: tuple[str, ...], words: str
) -> None:
    assert words in refusal(export(table_100, out, *arguments))
    assert not out.exists()


def test_wrong_places(table_100: str, tmp_path: Path) -> None:
    text = refusal(export(str(tmp_path / "none.lance"), tmp_path / "out"))
    assert "there is no Lance table there" in text
    text = refusal(export(table_100, Path(table_100) / "out"))
    assert f"lies inside the table {table_100}" in text
    text = refusal(export(table_100, "nonsense://bucket/x"))
    assert "--out nonsense://bucket/x: Protocol not known: nonsense" in text
    text = refusal(export(table_100, "s3://key:hidden@bucket/x"))
    assert "carries credentials" in text
    assert "hidden" not in text
    (tmp_path / "file").write_text("x")
    text = refusal(export(table_100, tmp_path / "file"))
    assert "cannot be written" in text


def test_a_folder_of_somebody_else(table_100: str, out: Path) -> None:
    out.mkdir()
    (out / "thesis.txt").write_text("x")
    text = refusal(export(table_100, out))
    assert f"{out} is not empty, and not an export (thesis.txt): choose another --out" in text
    assert names(out) == ["thesis.txt"]
    (out / "index.json").write_text('{"version": 2, "shards": []}')
    text = refusal(export(table_100, out))
    assert f"{out} holds a dataset that lance-stream did not export" in text
    (out / "index.json").write_text("not JSON")
    assert "did not export" in refusal(export(table_100, out))
    assert names(out) == ["index.json", "thesis.txt"]


def test_an_empty_folder_stays_if_nothing_was_done(tmp_path: Path, out: Path) -> None:
    uri = str(tmp_path / "null.lance")
    out.mkdir()
    run_script(
        """
        import sys, lance, pyarrow as pa
        lance.write_dataset(pa.table({"x": [1, 2, None, 4], "d": pa.array([1] * 4, pa.date32())}),
                            sys.argv[1])
        """,
        uri,
    ).check()
    text = refusal(export(uri, out))
    assert "version 1: columns of a type that MDS cannot hold: 'd' (date32[day])" in text
    assert "--columns NAME=SQL" in text
    text = refusal(export(uri, out, "--columns", "x", "--shard-rows", 2))
    assert re.search(
        r"shard 1 \(rows \[2, 4\) of .*\): column 'x' \(int64\) holds a null at row 0", text
    )
    # What is finished stays, and other arguments are another export.
    assert names(out) in ([], [STATE, "shard.00000.mds"])
    out = out.parent / "other"
    out.mkdir()
    assert "holds a null at row 2" in refusal(export(uri, out, "--columns", "x"))
    assert names(out) == []
    export(uri, out, "--columns", "x=coalesce(x, 0)").check()
    assert "holds another export (columns" in refusal(
        export(uri, out, "--columns", "y=coalesce(x, 1)")
    )


@as_root
def test_a_full_disk(table_8000: str, out: Path) -> None:
    out.mkdir()
    with mounted(out, "size=300k"):
        text = refusal(export(table_8000, out, "--shard-rows", 400))
        assert f"{out}: no space left in {out}: No space left on device; free some" in text
        assert not (out / "index.json").exists()
        assert not [name for name in names(out) if name.startswith(".tmp-")]
        subprocess.run(["mount", "-o", "remount,size=10m", str(out)], check=True)
        assert export(table_8000, out, "--shard-rows", 400, "--json").json()["kept_shards"] > 0
        assert read_all(out) == list(range(8000))


@as_root
def test_a_folder_that_may_not_be_written(table_100: str, tmp_path: Path) -> None:
    folder = tmp_path / "closed"
    folder.mkdir()
    with mounted(folder, "ro,size=100k"):
        text = refusal(export(table_100, folder / "out"))
    assert "cannot be written" in text
    assert "Read-only file system" in text


# --- what is printed ---


def test_a_progress_bar_only_on_a_terminal(table_100: str, tmp_path: Path) -> None:
    result = export(table_100, tmp_path / "a").check()
    assert result.stderr == ""
    assert re.fullmatch(
        r"100 rows of \S+t100\.lance version 1 are in \S+a: 1 shards, [\d,]+ bytes, \d\.\d s\n",
        result.stdout,
    )
    assert "100%" in export(table_100, tmp_path / "b", "--progress").check().stderr
    assert "100%" in _on_a_terminal(table_100, tmp_path / "c")
    assert _on_a_terminal(table_100, tmp_path / "d", "--no-progress") == ""


def _on_a_terminal(uri: str, out: Path, *more: str) -> str:
    """What the command writes to a stderr that is a terminal."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
    command = [sys.executable, "-m", "lance_stream.cli", "export", uri, "--out", str(out), *more]
    done = subprocess.run(command, stdout=subprocess.DEVNULL, stderr=theirs, timeout=60)
    os.close(theirs)
    written = b""
    try:
        while part := os.read(ours, 1 << 16):
            written += part
    except OSError:
        pass  # The other side is closed.
    os.close(ours)
    assert done.returncode == 0
    return written.decode()


def test_a_flipped_bit_is_found_by_its_hash(table_100: str, out: Path) -> None:
    arguments = ("--shard-rows", 10, "--hashes", "sha1", "--compression", "zstd", "--json")
    export(table_100, out, *arguments).check()
    path = out / "shard.00003.mds.zstd"
    right = path.read_bytes()
    path.write_bytes(right[:-1] + bytes([right[-1] ^ 1]))
    result = export(table_100, out, *arguments)
    assert result.json()["kept_shards"] == 9
    assert path.read_bytes() == right


def test_a_place_that_would_be_lost(table_100: str) -> None:
    words = refusal(export(table_100, "memory://out"))
    assert "--out memory://out would be lost when this process ends" in words


def test_a_local_url_is_a_directory(table_100: str, out: Path) -> None:
    """That is made, like one that is given by its path."""
    export(table_100, f"local://{out}", "--shard-rows", 50).check()
    assert names(out) == shard_names(2)


def test_nulls_are_told_with_the_option_that_replaces_them(
    tmp_path: Path, lance_process: Any
) -> None:
    table = pa.table({"i": pa.array([1, None])})
    uri = lance_process.write(table)
    words = refusal(export(uri, tmp_path / "out"))
    assert "--columns 'i=coalesce(i, ...)'" in words
    assert "columns={" not in words
    columns = "i=coalesce(i, cast(7 as bigint))"
    export(uri, tmp_path / "out", "--columns", columns).check()
