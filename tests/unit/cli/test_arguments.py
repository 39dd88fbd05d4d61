from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import click
import pytest

from lance_stream.cli.arguments import (
    cache_format_option,
    index_option,
    named_options,
    planning_options,
    store_options,
    stream_request,
)
from lance_stream.cli.main import main
from lance_stream.errors import PlanError
from lance_stream.offline.request import StreamRequest
from lance_stream.service.messages import Options, Plan


def parse(*arguments: str) -> dict[str, Any]:
    """The values of the options."""

    @click.command
    @planning_options
    @index_option
    @cache_format_option
    @store_options("out", "fsspec", "Options")
    def command(**values: Any) -> dict[str, Any]:
        return values

    # The decorators take and give anything.
    made: Any = command
    return made.main(list(arguments), standalone_mode=False)


def request(*arguments: str) -> StreamRequest:
    return stream_request("/data/t.lance", parse(*arguments))


def plan(*arguments: str) -> Plan:
    asked = request(*arguments)
    return asked.wanted.request(timeout_s=asked.timeout_s, attempts=asked.attempts)


def test_the_defaults() -> None:
    assert plan() == Plan(
        uri="/data/t.lance",
        split=None,
        version=None,
        columns=None,
        with_row_id=False,
        shard_rows=None,
        shard_bytes=32 << 20,
        options=Options(),
        timeout_s=60.0,
        attempts=3,
    )
    assert request().index is None
    assert not request().wanted.given


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (("--version", "17"), {"version": 17}),
        (("--version", "v3"), {"version": "v3"}),
        (("--split", "val"), {"split": "val"}),
        (("--columns", "a, b"), {"columns": (("a", "a"), ("b", "b"))}),
        (
            ("--columns", "a", "--columns", "n=concat(x, ',')", "--columns", "b=b == 1"),
            {"columns": (("a", "a"), ("n", "concat(x, ',')"), ("b", "b == 1"))},
        ),
        (("--with-row-id",), {"with_row_id": True}),
        (("--shard-rows", "7"), {"shard_rows": 7}),
        (("--shard-bytes", "1mb"), {"shard_bytes": 1 << 20}),
        (("--shard-bytes", "1000"), {"shard_bytes": 1000}),
        (("--download-timeout", "1.5"), {"timeout_s": 1.5}),
        (("--download-retry", "0"), {"attempts": 1}),
        (("--storage-option", "k=a=b"), {"options": Options(values={"k": "a=b"})}),
        (("--filter", "i > 3"), {"filter": "i > 3"}),
        (("--limit", "9"), {"limit": 9}),
        (("--subset", "0,.5", "--subset-key", "s"), {"subset": (0.0, 0.5), "subset_key": "s"}),
        (
            ("--layout", "scattered", "--run-rows", "8", "--layout-seed", "-3"),
            {"layout": "scattered", "run_rows": 8, "layout_seed": -3},
        ),
        (("--cache-format", "mds"), {"cache_format": "mds"}),
        (
            ("--transform", "m.n:f", "--transform-version", "2"),
            {"transform": "m.n:f", "transform_version": "2"},
        ),
    ],
)
def test_one_argument(arguments: tuple[str, ...], expected: dict[str, Any]) -> None:
    made = plan(*arguments)
    assert {name: getattr(made, name) for name in expected} == expected


def test_a_transform_is_looked_for_in_the_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    assert plan("--transform", "m:f").search_path[0] == str(tmp_path)
    assert plan().search_path == ()


def test_an_index() -> None:
    assert request("--index", "s3://b/x.arrow").index == "s3://b/x.arrow"


def test_a_function_makes_storage_options(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [*sys.path])
    options = plan("--storage-options-from", "pkg.tokens:make").options
    assert (options.values, options.function) == (None, "pkg.tokens:make")


@pytest.mark.parametrize("kind", ["storage", "out"])
def test_options_of_a_store(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "options.json"
    path.write_text(json.dumps({"region": "eu", "key": "from the file", "secret": "x"}))
    monkeypatch.setenv("THE_SECRET", "from=the environment")
    arguments = parse(
        *(f"--{kind}-options-from", str(path)),
        *(f"--{kind}-option", "key=given"),
        *(f"--{kind}-option-env", "secret=THE_SECRET"),
    )
    expected = {"region": "eu", "key": "given", "secret": "from=the environment"}
    assert named_options(arguments, kind) == expected


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--version", "0"), "--version=0 must be a positive number"),
        (("--columns", ""), "columns=.* must hold names"),
        (("--columns", "a,,b"), "columns=.* must hold names"),
        (("--columns", "=x"), "columns=.* must hold names"),
        (("--columns", "i", "--columns", "i=j"), "--columns names 'i' more than once"),
        (("--subset-key", "s"), "--subset-key is given without a subset"),
        (("--subset", "1,0"), r"--subset=\(1.0, 0.0\) must be"),
        (("--filter", " "), "--filter=' ' must be a predicate"),
        (("--columns", "_rowid", "--with-row-id"), "which --with-row-id adds"),
        (("--shard-bytes", "lots"), "--shard-bytes='lots' is not a size"),
        (("--storage-option", "secret"), "--storage-option must be KEY=VALUE$"),
        (("--storage-option", "=secret"), "--storage-option must be KEY=VALUE$"),
        (("--storage-option-env", "k=NOT_SET"), "NOT_SET is not in the environment"),
        (("--storage-options-from", "/no.json"), "--storage-options-from /no.json: .*No such"),
        (("--storage-options-from", "a:b", "--storage-option", "k=v"), "makes all options"),
        (("--transform", "x"), "--transform='x' must be text"),
        (
            ("--shard-rows", "5", "--shard-bytes", "1mb"),
            "--shard-rows=5 and --shard-bytes='1mb' both say",
        ),
        (("--filter", "i > 5; drop table x"), "--filter: there is text after a ';'"),
        (("--transform-version", "1"), "--transform-version is given without a transform"),
    ],
)
def test_wrong_values(arguments: tuple[str, ...], words: str) -> None:
    with pytest.raises(PlanError, match=words) as caught:
        plan(*arguments)
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize("text", ["[]", "not JSON: hidden", '"hidden"', "\xff"])
def test_a_file_without_options(tmp_path: Path, text: str) -> None:
    path = tmp_path / "options.json"
    path.write_text(text, encoding="latin-1")
    with pytest.raises(PlanError, match="--out-options-from") as caught:
        named_options(parse("--out-options-from", str(path)), "out")
    assert "hidden" not in str(caught.value)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--shard-rows", "0"), "'--shard-rows': 0 is not in the range x>=1"),
        (("--shard-rows", "many"), "'--shard-rows': 'many' is not a valid integer"),
        (("--workers", "-1"), "'--workers': -1 is not in the range x>=1"),
        (("--download-retry", "-1"), "'--download-retry': -1 is not in the range x>=0"),
        (("--download-timeout", "0"), "'--download-timeout': '0' must be a number of seconds"),
        (("--download-timeout", "inf"), "'--download-timeout': 'inf' must be a number"),
        (("--download-timeout", "x"), "'--download-timeout': 'x' must be a number of seconds"),
        (("--subset", "0.5"), "'--subset': '0.5' must be two numbers, as 0,0.9"),
        (("--layout", "round"), "'--layout': 'round' is not one of 'contiguous', 'scattered'"),
    ],
)
def test_what_the_parser_refuses(
    capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], words: str
) -> None:
    assert main(["export", "/data/t.lance", "--out", "/out", *arguments]) == 2
    assert f"lance-stream export: Invalid value for {words}" in capsys.readouterr().err
