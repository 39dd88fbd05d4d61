from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from lance_stream.errors import PlanError, StateMismatchError
from lance_stream.planning.rounds import FollowState, Rounds, selected
from lance_stream.planning.rows import RowRange
from lance_stream.planning.selection import Selection

ALL = Selection()
STATE = FollowState(
    "s3://b/t.lance",
    Rounds(10, 3, 5),
    4,
    {"version": 7},
    {25: "a", 35: "b"},
    (("i", "int64"),),
    {"i": (0,), "s": (1, 2)},
    selected(ALL),
)


def test_rounds_are_rows_in_order() -> None:
    rounds = Rounds(10, 3, 5)
    assert rounds.parts(0) == (RowRange(5, 15),)
    assert rounds.parts(1) == (RowRange(5, 15), RowRange(15, 25))
    assert rounds.parts(4) == (RowRange(25, 35), RowRange(35, 45), RowRange(45, 55))
    assert [rounds.needed(number) for number in range(3)] == [15, 25, 35]


@pytest.mark.parametrize("arguments", [(0,), (True,), (1.5,), (1, 0), (1, 1, -1), ("4",)])
def test_rounds_are_checked(arguments: Any) -> None:
    with pytest.raises(PlanError, match=r"=.* must be a whole number of at least [01]"):
        Rounds(*arguments)


def test_a_state_is_json() -> None:
    assert FollowState.from_json(json.loads(json.dumps(STATE.as_json()))) == STATE
    STATE.check("s3://b/t.lance", Rounds(10, 3, 5), ALL)


def test_a_state_of_old_knows_no_fields() -> None:
    old = STATE.as_json()
    del old["fields"]
    assert FollowState.from_json(old) == replace(STATE, fields={})


@pytest.mark.parametrize(
    ("selection", "says"),
    [
        (Selection(filter="x > 1"), "filter=None, and this one was given filter='x > 1'"),
        (Selection(columns=(("i", "i"),)), r"columns=None, and .* columns=\[\['i', 'i'\]\]"),
        (Selection(subset=(0.0, 0.5), subset_key="i"), r"subset=None, .* subset=\[0.0, 0.5\]"),
    ],
)
def test_a_state_of_other_rows_and_columns_is_refused(selection: Selection, says: str) -> None:
    with pytest.raises(StateMismatchError, match=says):
        STATE.check(STATE.uri, STATE.rounds, selection)
    old = STATE.as_json()
    del old["selection"]
    FollowState.from_json(old).check(STATE.uri, STATE.rounds, selection)


@pytest.mark.parametrize(
    ("uri", "rounds", "says"),
    [
        ("s3://b/u.lance", Rounds(10, 3, 5), "uri='s3://b/t.lance', and this one was given"),
        ("s3://b/t.lance", Rounds(11, 3, 5), "rows_per_round=10"),
        ("s3://b/t.lance", Rounds(10, 2, 5), "window_rounds=3"),
        ("s3://b/t.lance", Rounds(10, 3, 0), "start=5"),
    ],
)
def test_a_state_of_other_rounds_is_refused(uri: str, rounds: Rounds, says: str) -> None:
    with pytest.raises(StateMismatchError, match=says):
        STATE.check(uri, rounds, ALL)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"format": 2}, "format 2, this lance_stream reads 1"),
        ({"fields": [1]}, "not a state of follow"),
        ({"selection": {"filter": None}}, "not a state of follow"),
        ({"fields": {"i": ["a"]}}, "not a state of follow"),
        ({"parts": [1]}, "not a state of follow"),
        ({"rows_per_round": 0}, "not a state of follow"),
        ({"round": None}, "not a state of follow"),
    ],
)
def test_a_damaged_state_is_refused(changes: dict[str, Any], says: str) -> None:
    with pytest.raises(StateMismatchError, match=says):
        FollowState.from_json({**STATE.as_json(), **changes})
    with pytest.raises(StateMismatchError, match="not a state of follow"):
        FollowState.from_json({})
