"""What an attempt tells of its bytes, and when it gives way."""

from __future__ import annotations

import pytest

from lance_stream.service.attempt import Attempt, PostponedError


def test_it_tells_of_bytes_that_nobody_expected() -> None:
    told: list[int] = []

    def grew(num_bytes: int) -> None:
        told.append(num_bytes)
        attempt.answer()

    attempt = Attempt(100, grew=grew)
    for num_bytes in (50, 200, 201, 5000):
        attempt.read(num_bytes, more=True)
    assert told == [201, 5000]


def test_it_gives_way_before_it_reads_more() -> None:
    def grew(_num_bytes: int) -> None:
        attempt.give_way()
        attempt.answer()

    attempt = Attempt(100, grew=grew)
    attempt.read(50, more=True)
    with pytest.raises(PostponedError):
        attempt.read(500, more=True)


def test_what_is_there_whole_goes_on() -> None:
    """Writing it frees the memory soonest."""
    attempt = Attempt(100)
    attempt.give_way()
    attempt.read(5000, more=False)


def test_what_it_does_is_known_until_that_ends() -> None:
    told: list[str] = []
    attempt = Attempt(begins=told.append)
    attempt.begin("transform='m:f'")
    assert attempt.doing == "transform='m:f'"
    attempt.begin("")
    assert attempt.doing == ""
    assert told == ["transform='m:f'", ""]
