"""What a checkpoint says of the streams, without any table."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any
from uuid import uuid4

import pytest
from hypothesis import given
from hypothesis import strategies as st

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
        "format": 2,
        "uris": [],
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
        ({"format": 3}, "format 3, this lance_stream reads 2"),
        ({"format": 2, "uris": [0, "t", 0], "streams": [[1, 1, "f"]]}, "damaged"),
        ({"format": 2, "uris": [0, "t"], "streams": [[0, 1, "f"]]}, "damaged"),
        ({"format": 2, "uris": [0, 5, 0], "streams": [[0, 1, "f"]]}, "damaged"),
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


@given(st.lists(st.text("ab/", max_size=8)))
def test_uris_are_packed(uris: list[str]) -> None:
    """Whatever they share."""
    assert checkpoints._unpacked(checkpoints._packed(uris)) == uris


@pytest.mark.parametrize("elsewhere", [1, 25])
def test_tables_at_two_places_are_small(elsewhere: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fifty, in any order, take less than 4 KB, and are read as they were."""
    monkeypatch.setattr(checkpoints, "LanceStream", SimpleNamespace)
    root = "s3://bucket/pretraining-corpora/tokenized-v3/{}-common-crawl-2024-filtered/train.lance"
    uris = [root.format(number) for number in range(50)]
    for number in range(elsewhere):
        uris[2 * number] = f"/data/somewhere/else/altogether/{number}-mine/train.lance"
    streams = [
        SimpleNamespace(
            index=SimpleNamespace(uri=uri, version=1234, rows_fingerprint="0123456789abcdef01")
        )
        for uri in uris
    ]
    state = json.loads(json.dumps({"lance_stream": checkpoints.describe(streams)}))
    assert len(json.dumps(state)) < 3500
    assert checkpoints._saved(state) == [(uri, 1234, "0123456789abcdef") for uri in uris]


def test_tables_named_at_random_are_small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Their uris are shortened, and known again; another one is not."""
    monkeypatch.setattr(checkpoints, "LanceStream", SimpleNamespace)
    uris = [f"s3://bucket/corpora/{uuid4()}/{uuid4()}.lance" for _ in range(50)]

    def streams(uris: list[str]) -> list[Any]:
        return [
            SimpleNamespace(
                index=SimpleNamespace(
                    uri=uri, version=1234, rows_fingerprint="f" * 32, window=None
                )
            )
            for uri in uris
        ]

    state = json.loads(json.dumps({"lance_stream": checkpoints.describe(streams(uris))}))
    assert len(json.dumps(state)) < 3500
    checkpoints.check(streams(uris), state)
    other = f"s3://bucket/corpora/{uuid4()}/{uuid4()}.lance"
    with pytest.raises(StateMismatchError, match=r"stream 7: .* of s3://bucket/corpora/.*~"):
        checkpoints.check(streams([*uris[:7], other, *uris[8:]]), state)


def test_states_of_the_first_format_are_read() -> None:
    """As they were written before."""
    assert checkpoints._saved(STATE) == [("s3://b/t.lance", 3, "abc"), None]
