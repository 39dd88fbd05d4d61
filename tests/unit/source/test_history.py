from __future__ import annotations

import datetime as dt
from types import SimpleNamespace

from lance_stream.source.history import History, read_history


def test_what_is_told_of_a_table() -> None:
    first, second = dt.datetime(2024, 1, 2, 3, 4, 5, 678), dt.datetime(2024, 1, 3)  # noqa: DTZ001
    dataset = SimpleNamespace(
        versions=lambda: [
            {"version": 7, "timestamp": second},
            {"version": 2, "timestamp": first},
        ],
        tags=SimpleNamespace(list=lambda: {"b": {"version": 7}, "a": {"version": 2}}),
        branches=SimpleNamespace(list=lambda: {"try": {}, "also": {}}),
    )
    assert read_history(dataset) == History(
        (2, 7), "2024-01-03T00:00:00", {"a": 2, "b": 7}, ("also", "try")
    )
    assert list(read_history(dataset).tags) == ["a", "b"]
