from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from lance_stream import LanceStream
from lance_stream.errors import PlanError
from lance_stream.planning.layout import Layout
from lance_stream.service.arguments import (
    check_bool,
    check_columns,
    check_filter,
    check_layout,
    check_limit,
    check_shard_rows,
    check_subset,
    check_transform,
    check_version,
)


@pytest.mark.parametrize("version", [None, 1, 2**40, "v1", "3", "feature/x-1", "ü tag"])
def test_versions_that_are_taken(version: int | str | None) -> None:
    assert check_version(version) == version


@pytest.mark.parametrize("version", [0, -1, True, False, 1.0, "", b"v1", 2**63, (1,)])
def test_versions_that_are_refused(version: Any) -> None:
    with pytest.raises(PlanError, match=r"version=.* must be a positive number or the name"):
        check_version(version)


@pytest.mark.parametrize("predicate", [None, "a > 1", " a ", "`my col` = 'ü'", "x" * 8_000_000])
def test_filters_that_are_taken(predicate: str | None) -> None:
    assert check_filter(predicate) == predicate


@pytest.mark.parametrize(
    ("predicate", "says"),
    [
        ("", "must be a predicate in SQL"),
        (" \n", "must be a predicate in SQL"),
        (3, "must be a predicate in SQL"),
        (b"a > 1", "must be a predicate in SQL"),
        (True, "must be a predicate in SQL"),
        ("s = '\ud800'", "not valid Unicode"),
        # A message to the download process would be too long.
        ("ü" * (4 << 20) + "x", "8388609 bytes, and may have 8388608: mark the rows in a column"),
    ],
)
def test_filters_that_are_refused(predicate: Any, says: str) -> None:
    with pytest.raises(PlanError, match=f"^filter.*{says}") as caught:
        check_filter(predicate)
    assert len(str(caught.value)) < 300


@pytest.mark.parametrize(
    ("check", "name"),
    [(check_limit, "limit"), (check_shard_rows, "shard_rows")],
)
def test_numbers_of_rows(check: Any, name: str) -> None:
    for value in (None, 1, 10**12, 2**62):
        assert check(value) == value
    for value in (0, -1, True, 1.0, "10", 2**62 + 1, 2**64, 10**30, math.inf, math.nan):
        with pytest.raises(PlanError, match=f"{name}=.* must be a positive number of rows"):
            check(value)


@pytest.mark.parametrize(
    ("given", "taken"),
    [
        (None, None),
        ((0, 1), (0.0, 1.0)),
        ([0.1, 0.9], (0.1, 0.9)),
        ((0.1 + 0.2, 1), (0.30000000000000004, 1.0)),
        ((0, 5e-324), (0.0, 5e-324)),
        ((np.float64(0.25), np.float64(0.5)), (0.25, 0.5)),
        ((-0.0, 0.5), (0.0, 0.5)),
    ],
)
def test_subsets_that_are_taken(given: Any, taken: tuple[float, float] | None) -> None:
    found, key = check_subset(given, None)
    assert (found, key) == (taken, None)
    if found is not None:
        assert all(type(bound) is float for bound in found)
        # Minus zero would make another fingerprint.
        assert math.copysign(1, found[0]) == 1
        assert check_subset(given, "my col") == (taken, "my col")


@pytest.mark.parametrize(
    "given",
    [
        *((0.5, 0.5), (0.6, 0.5), (-0.1, 0.5), (0.5, 1.1), (0, math.nan), (math.nan, 1)),
        *((0.5,), (0, 0.5, 1), "01", 0.5, (False, True), ("0", "1"), {0, 1}, ((0, 1),)),
    ],
    ids=repr,
)
def test_subsets_that_are_refused(given: Any) -> None:
    with pytest.raises(PlanError, match=r"subset=.* must be \(lo, hi\) with 0 <= lo < hi <= 1"):
        check_subset(given, None)


@pytest.mark.parametrize("key", ["", 3, b"key", ["a"]])
def test_keys_that_are_refused(key: Any) -> None:
    with pytest.raises(PlanError, match=r"subset_key=.* must be the name of a column"):
        check_subset((0, 0.5), key)


def test_a_key_alone_is_refused() -> None:
    with pytest.raises(PlanError, match="subset_key is given without a subset"):
        check_subset(None, "key")


def test_layouts_that_are_taken() -> None:
    assert check_layout("contiguous", 64, 0) == Layout()
    assert check_layout("scattered", 1, -(2**63)) == Layout("scattered", 1, -(2**63))
    assert check_layout("scattered", 2**62, 2**63 - 1) == Layout("scattered", 2**62, 2**63 - 1)


@pytest.mark.parametrize(
    ("kind", "run_rows", "seed", "says"),
    [
        ("random", 64, 0, "layout='random' must be 'contiguous' or 'scattered'"),
        (None, 64, 0, "layout=None must be"),
        ("scattered", 0, 0, "run_rows=0 must be a positive number of rows"),
        ("scattered", 2**63, 0, "run_rows=9223372036854775808 must be"),
        ("scattered", 1.5, 0, "run_rows=1.5 must be"),
        ("scattered", True, 0, "run_rows=True must be"),
        ("scattered", 64, 2**63, "layout_seed=9223372036854775808 must be an integer of 64 bits"),
        ("scattered", 64, 0.5, "layout_seed=0.5 must be"),
        ("scattered", 64, False, "layout_seed=False must be"),
    ],
)
def test_layouts_that_are_refused(kind: Any, run_rows: Any, seed: Any, says: str) -> None:
    with pytest.raises(PlanError, match=says):
        check_layout(kind, run_rows, seed)


@pytest.mark.parametrize(
    ("columns", "pairs"),
    [
        (None, None),
        (["b", "a"], (("b", "b"), ("a", "a"))),
        (("my col",), (("my col", "my col"),)),
        ({"x": "a + 1", "Upper": "`Upper`"}, (("x", "a + 1"), ("Upper", "`Upper`"))),
        # Lance's own, by their own names.
        (["_rowaddr", "a"], (("_rowaddr", "_rowaddr"), ("a", "a"))),
        ({"address": "_rowaddr"}, (("address", "_rowaddr"),)),
    ],
)
def test_columns_that_are_taken(columns: Any, pairs: Any) -> None:
    assert check_columns(columns) == pairs


@pytest.mark.parametrize(
    ("columns", "says"),
    [
        ("a", "must be a list of names or a dict"),
        (3, "must be a list of names or a dict"),
        ([], "selects nothing"),
        ({}, "selects nothing"),
        (["a", ""], "as text"),
        (["a", 3], "as text"),
        ({"a": ""}, "as text"),
        (["a", "b", "a"], "'a' more than once"),
        ({"_rowaddr": "a"}, "'_rowaddr' is Lance's own name: call 'a' otherwise"),
        ({"_rowid": "a + 1"}, "'_rowid' is Lance's own name"),
    ],
)
def test_columns_that_are_refused(columns: Any, says: str) -> None:
    with pytest.raises(PlanError, match=f"columns.*{says}"):
        check_columns(columns)


def test_a_transform_is_named_as_text() -> None:
    assert check_transform(None, None) == (None, None)
    assert check_transform("a.b:f", 3) == ("a.b:f", "3")
    for bad in ("f", "a:b:c", ":f", "a:", 3, len):
        with pytest.raises(PlanError, match=r"transform=.* must be text"):
            check_transform(bad, None)  # type: ignore[arg-type]
    with pytest.raises(PlanError, match="cannot import __main__"):
        check_transform("__main__:f", None)
    with pytest.raises(PlanError, match="without a transform"):
        check_transform(None, 1)


@pytest.mark.parametrize("value", ["yes", "", 1, 0, None, [True]])
def test_what_is_neither_true_nor_false_is_refused(value: Any) -> None:
    with pytest.raises(PlanError, match=r"zero_copy=.* must be True or False"):
        check_bool(value, "zero_copy")


@pytest.mark.parametrize("value", [True, False])
def test_true_and_false_are_taken(value: bool) -> None:
    assert check_bool(value, "zero_copy") is value


@pytest.mark.parametrize("argument", ["zero_copy", "with_row_id"])
def test_a_stream_takes_nothing_else(argument: str) -> None:
    given: Any = {argument: "yes"}
    with pytest.raises(PlanError, match=f"{argument}='yes' must be True or False"):
        LanceStream("/t.lance", **given)


@pytest.mark.parametrize(
    "predicate",
    [
        *("a = 1;", "a = 1 ; ", "s = 'x; y'", "s = 'it''s; so'", '"a;b" = 1', "`a;b` = 1"),
        *("a = 1 -- b;c", "a /* b; c */ = 1"),
    ],
)
def test_semicolons_that_end_nothing(predicate: str) -> None:
    assert check_filter(predicate) == predicate
    assert check_columns({"n": predicate}) == (("n", predicate),)
    # A name, and no expression.
    assert check_columns(["a;b"]) == (("a;b", "a;b"),)


@pytest.mark.parametrize("predicate", ["id > 5; drop table x", "s = 'a;' ; b", "1=1;;"])
def test_text_after_the_end_of_a_statement(predicate: str) -> None:
    with pytest.raises(PlanError, match=r"filter: there is text after a ';', which ends a state"):
        check_filter(predicate)
    with pytest.raises(PlanError, match=r"columns: 'n': there is text after a ';'"):
        check_columns({"n": predicate})
