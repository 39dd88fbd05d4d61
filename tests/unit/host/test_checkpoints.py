"""What a checkpoint says of the streams, without any table."""

from __future__ import annotations

from typing import Any

import pytest

from lance_stream.errors import StateMismatchError
from lance_stream.host import checkpoints

STATE = {
    "lance_stream": {
        "format": 1,
        "base": "s3://b/",
        "streams": [["t.lance", 3, "abc"], None],
    }
}


def test_other_streams_are_not_looked_at() -> None:
    """A stream that is none of ours has no entry."""
    assert checkpoints.describe([object(), object()]) == {
        "format": 1,
        "base": "",
        "streams": [None, None],
    }


def test_a_state_that_says_nothing_is_taken() -> None:
    """One of the stock class."""
    checkpoints.check([object()], {"epoch": 1})
    checkpoints.reopen([object()], {"epoch": 1})
    assert checkpoints.reopened({"columns": ["a"]}, {"epoch": 1}) == {"columns": ["a"]}


def test_the_number_and_kind_of_streams() -> None:
    """Both sides are named."""
    with pytest.raises(StateMismatchError, match="of 2 streams, and the dataset has 1"):
        checkpoints.check([object()], STATE)
    with pytest.raises(StateMismatchError, match="of 2 streams, and 1 are given"):
        checkpoints.reopen([object()], STATE)
    with pytest.raises(StateMismatchError, match="of 2 streams, and one is given"):
        checkpoints.reopened({}, STATE)
    with pytest.raises(StateMismatchError, match=r"stream 0 was a LanceStream .* is another"):
        checkpoints.check([object(), object()], STATE)


@pytest.mark.parametrize(
    ("entry", "says"),
    [
        ({"format": 2}, "format 2, this lance_stream reads 1"),
        ({}, "damaged"),
        ([], "damaged"),
        ("text", "damaged"),
        ({"format": 1, "base": "", "streams": [["t"]]}, "damaged"),
        ({"format": 1, "base": "", "streams": [["t", "x", "f"]]}, "damaged"),
        ({"format": 1, "base": None, "streams": [["t", 1, "f"]]}, "damaged"),
        ({"format": 1, "base": "", "streams": 5}, "damaged"),
    ],
)
def test_what_cannot_be_read(entry: Any, says: str) -> None:
    """Newer or damaged: an error of ours."""
    with pytest.raises(StateMismatchError, match=says):
        checkpoints.check([object()], {"lance_stream": entry})


def test_arguments_of_a_stream_by_name() -> None:
    """The saved version, unless a version or an index is given."""
    state = {"lance_stream": {**STATE["lance_stream"], "streams": [["t.lance", 3, "abc"]]}}
    assert checkpoints.reopened({}, state) == {"version": 3}
    assert checkpoints.reopened({"version": None}, state) == {"version": 3}
    assert checkpoints.reopened({"version": "v1"}, state) == {"version": "v1"}
    assert checkpoints.reopened({"index": "x"}, state) == {"index": "x"}
