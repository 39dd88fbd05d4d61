"""Which rows make which round, and what a follower's state says. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from dataclasses import field as made
from typing import Any

from lance_stream.errors import PlanError, StateMismatchError
from lance_stream.planning.rows import RowRange
from lance_stream.planning.selection import Selection

__all__ = ["FollowState", "Rounds", "selected"]

_FORMAT = 1
# Other columns, or columns in other expressions, have other numbers.
_WATCHED = ("columns", "filter", "subset", "subset_key")


@dataclass(frozen=True, slots=True)
class Rounds:
    """How the rows of a table that grows are cut into rounds.

    Attributes:
        rows_per_round: Rows that are new in each round.
        window_rounds: A round streams the rows of so many rounds, its own the last of them.
        start: The first row of round 0, in order of appending.
    """

    rows_per_round: int
    window_rounds: int = 1
    start: int = 0

    def __post_init__(self) -> None:
        """Check.

        Raises:
            PlanError: Names the argument.
        """
        for name, least in (("rows_per_round", 1), ("window_rounds", 1), ("start", 0)):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < least:
                msg = f"{name}={value!r} must be a whole number of at least {least}"
                raise PlanError(msg)

    def parts(self, number: int) -> tuple[RowRange, ...]:
        """The rounds in the window of a round, each as its rows in order of appending."""
        first = max(0, number + 1 - self.window_rounds)
        return tuple(self._rows(each) for each in range(first, number + 1))

    def needed(self, number: int) -> int:
        """How many rows the table must have for a round."""
        return self._rows(number).stop

    def _rows(self, number: int) -> RowRange:
        first = self.start + number * self.rows_per_round
        return RowRange(first, first + self.rows_per_round)


@dataclass(frozen=True, slots=True)
class FollowState:
    """Where a follower is.

    Attributes:
        uri: The table, as it was given, without credentials.
        rounds: How rows are cut into rounds.
        number: The round that comes next, or that is in progress.
        seen: What was kept of the version that was looked at last, as JSON values, or None.
        identities: Of the parts of the window, by their first row.
        columns: Name and type of each selected column; None while the table was not seen.
        fields: Numbers of the fields of each column that rounds go by, filters included; none
            while the table was not seen, and in the states of old.
        selection: Which rows and columns were asked for (see ``selected``); None in the states of
            old.
    """

    uri: str
    rounds: Rounds
    number: int
    seen: dict[str, Any] | None
    identities: dict[int, str]
    columns: tuple[tuple[str, str], ...] | None
    fields: dict[str, tuple[int, ...]] = made(default_factory=dict)
    selection: dict[str, Any] | None = None

    def as_json(self) -> dict[str, Any]:
        """The state as JSON values."""
        return {
            "format": _FORMAT,
            "uri": self.uri,
            "rows_per_round": self.rounds.rows_per_round,
            "window_rounds": self.rounds.window_rounds,
            "start": self.rounds.start,
            "round": self.number,
            "seen": self.seen,
            "parts": [[start, identity] for start, identity in sorted(self.identities.items())],
            "columns": None if self.columns is None else [list(pair) for pair in self.columns],
            "fields": {name: list(ids) for name, ids in self.fields.items()},
            "selection": self.selection,
        }

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> FollowState:
        """The inverse of ``as_json``.

        Raises:
            StateMismatchError: It is no such state, or of a newer lance_stream.
        """
        try:
            if value["format"] != _FORMAT:
                msg = f"the state has format {value['format']}, this lance_stream reads {_FORMAT}"
                raise StateMismatchError(msg)
            columns, fields = value["columns"], value.get("fields", {})
            return cls(
                uri=str(value["uri"]),
                rounds=Rounds(value["rows_per_round"], value["window_rounds"], value["start"]),
                number=int(value["round"]),
                seen=value["seen"],
                identities={int(start): str(identity) for start, identity in value["parts"]},
                columns=None if columns is None else tuple((str(n), str(t)) for n, t in columns),
                fields={str(n): tuple(map(int, ids)) for n, ids in fields.items()},
                selection=_selection(value.get("selection")),
            )
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            if isinstance(error, StateMismatchError):
                raise
            msg = f"this is not a state of follow(), or it is damaged: {error!r}"
            raise StateMismatchError(msg) from error

    def check(self, uri: str, rounds: Rounds, selection: Selection) -> None:
        """Refuse to go on with other rounds, or with other rows and columns in them.

        Raises:
            StateMismatchError: Names the argument and both values.
        """
        pairs = {
            "uri": (self.uri, uri),
            "rows_per_round": (self.rounds.rows_per_round, rounds.rows_per_round),
            "window_rounds": (self.rounds.window_rounds, rounds.window_rounds),
            "start": (self.rounds.start, rounds.start),
        }
        if self.selection is not None:
            given_now = selected(selection)
            pairs |= {name: (self.selection[name], given_now[name]) for name in given_now}
        for name, (saved, given) in pairs.items():
            if saved != given:
                msg = (
                    f"the state is of a follower with {name}={saved!r}, and this one was given "
                    f"{name}={given!r}: give what it was, or start without the state"
                )
                raise StateMismatchError(msg)


def selected(selection: Selection) -> dict[str, Any]:
    """What of a selection decides which columns a follower has to watch, as JSON values."""
    return {name: selection.as_json()[name] for name in _WATCHED}


def _selection(value: Any) -> dict[str, Any] | None:
    return None if value is None else {name: value[name] for name in _WATCHED}
