from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lance_stream.planning.selection import Selection, shown

TEXT = st.text(min_size=1, max_size=20)
SELECTIONS = st.builds(
    Selection,
    columns=st.none() | st.lists(st.tuples(TEXT, TEXT), min_size=1, max_size=3).map(tuple),
    with_row_id=st.booleans(),
    filter=st.none() | TEXT,
    limit=st.none() | st.integers(1, 2**62),
    subset=st.none() | st.tuples(st.floats(0, 1), st.floats(0, 1)),
    subset_key=st.none() | TEXT,
    transform=st.none() | TEXT,
    transform_version=st.none() | TEXT,
)


@given(SELECTIONS)
def test_a_selection_survives_json(selection: Selection) -> None:
    assert Selection.from_json(json.loads(json.dumps(selection.as_json()))) == selection


@given(SELECTIONS)
def test_what_decides_about_rows_is_a_part_of_the_whole(selection: Selection) -> None:
    rows, whole = selection.rows_as_json(), selection.as_json()
    assert rows.items() <= whole.items()
    assert set(whole) - set(rows) == {"columns", "with_row_id", "transform", "transform_version"}


def test_the_bounds_of_a_subset_are_kept_exactly() -> None:
    for bound in (0.1 + 0.2, 0.3, 1 / 3, 5e-324, 1 - 2**-53):
        text = json.dumps(Selection(subset=(0.0, bound)).as_json())
        assert Selection.from_json(json.loads(text)).subset == (0.0, bound)


@pytest.mark.parametrize(
    ("arguments", "chooses"),
    [
        ({}, False),
        ({"limit": 3}, False),
        ({"columns": (("a", "b"),), "with_row_id": True}, False),
        ({"filter": "a > 1"}, True),
        ({"subset": (0.0, 1.0)}, True),
        ({"filter": "a > 1", "subset": (0.0, 0.5), "limit": 3}, True),
    ],
)
def test_rows_are_looked_at_only_for_a_filter_or_a_subset(
    arguments: dict[str, Any], chooses: bool
) -> None:
    assert Selection(**arguments).chooses_rows is chooses


def test_a_short_text_is_shown_as_it_is() -> None:
    assert shown("label = 3") == "label = 3"
    assert shown("x" * 400) == "x" * 400


@given(st.text(min_size=401, max_size=2000))
def test_a_long_text_is_shown_by_its_ends(text: str) -> None:
    found = shown(text)
    assert len(found) == 405
    assert found.startswith(text[:200])
    assert found.endswith(text[-200:])
