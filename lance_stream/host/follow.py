"""Train on a table while it grows: rounds of rows, each a stream of its own."""

from __future__ import annotations

import inspect
import json
import logging
import math
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from dataclasses import field as made
from numbers import Real
from typing import Any, Protocol

from streaming.base.world import World

from lance_stream.errors import (
    DatasetNotFoundError,
    LanceStreamError,
    NoNewDataError,
    PlanError,
    SourceUnavailableError,
    StateMismatchError,
    TableChangedError,
)
from lance_stream.host.indexes import DEFAULT_RETRY, DEFAULT_TIMEOUT_S
from lance_stream.host.ranks import Ranks
from lance_stream.host.settling import Place, job_endpoint, share_endpoint
from lance_stream.host.shared_names import release_with_datasets
from lance_stream.host.stream import LanceStream
from lance_stream.planning.fingerprint import digest
from lance_stream.planning.growth import Seen
from lance_stream.planning.rounds import FollowState, Rounds, selected
from lance_stream.planning.row_order import cut
from lance_stream.service.client import poll
from lance_stream.service.holds import Lease
from lance_stream.service.messages import Poll, Polled, Window
from lance_stream.source.location import redact

__all__ = ["Follower", "Round", "follow"]

logger = logging.getLogger(__name__)

_NEWS_EVERY_S = 30.0
_REFUSED = {
    "version": "rounds follow the latest version",
    "index": "each round has an index of its own",
    "limit": "rows_per_round says how many rows a round has",
}


_ARGUMENTS = frozenset(inspect.signature(LanceStream).parameters) - {"remote"}


class Stop(Protocol):
    """What ends a follower: a ``threading.Event``, or one of ``multiprocessing``."""

    def is_set(self) -> bool:
        """Whether to end."""
        ...

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until it is set, or for so many seconds."""
        ...


@dataclass(frozen=True, slots=True)
class Round:
    """Rows of a table that grows, to be trained on.

    Attributes:
        number: Counted from 0.
        rows: ``(start, stop)``: half-open, numbered in the order in which they were appended.
        version: Of the table, in which the rows are read.
    """

    number: int
    rows: tuple[int, int]
    version: int
    _uri: str = made(repr=False)
    _window: Window = made(repr=False)
    _arguments: dict[str, Any] = made(repr=False)

    def stream(self, local: str | os.PathLike[str] | None = None) -> LanceStream:
        """A stream of the rows of this round and of the others in its window.

        Shards of rows that an earlier window held too are the same files, if they are in the
        same directory; those of rows that are not in the window any more are removed from it.

        Args:
            local: Cache directory. Default: what was given to ``follow``, or a private directory
                of the user that all rounds share.
        """
        arguments = self._arguments if local is None else {**self._arguments, "local": local}
        stream = LanceStream(**arguments)
        stream.show(self._uri, self.version, self._window)
        return stream


class Follower(Iterator[Round]):
    """Gives the rounds of a table that grows, one after the other; made by ``follow``."""

    def __init__(
        self,
        uri: str | os.PathLike[str],
        rounds: Rounds,
        *,
        poll_seconds: float,
        timeout: float | None,
        stop: Stop | None,
        arguments: dict[str, Any],
    ) -> None:
        """Check the arguments; the table is looked at when the first round is asked for."""
        for name in arguments:
            if name not in _ARGUMENTS:
                raise TypeError(f"follow() got an unexpected keyword argument {name!r}")
        for name, why in _REFUSED.items():
            if arguments.get(name) is not None:
                raise PlanError(f"{name}={arguments[name]!r} cannot be given to follow(): {why}")
        if arguments.get("subset") is not None and arguments.get("subset_key") is None:
            msg = (
                "subset= goes by the addresses of rows, which a compaction changes: give follow() "
                "a subset_key="
            )
            raise PlanError(msg)
        if not _is_number(poll_seconds) or not 0 < poll_seconds < math.inf:
            msg = f"poll_seconds={poll_seconds!r} must be a number of seconds, more than 0"
            raise PlanError(msg)
        if timeout is not None and not (_is_number(timeout) and timeout >= 0):
            raise PlanError(f"timeout={timeout!r} must be a number of seconds, or None")
        if stop is not None and not all(
            callable(getattr(stop, name, None)) for name in ("is_set", "wait")
        ):
            raise PlanError(f"stop={stop!r} must be a threading.Event, or None")
        stream = LanceStream(uri, **arguments)
        self._wanted = stream.wanted
        self._rounds = rounds
        self._poll_seconds = float(poll_seconds)
        self._timeout_s = timeout
        self._stop = stop
        self._arguments = {**arguments, "remote": uri}
        self._request_timeout_s = float(arguments.get("download_timeout") or DEFAULT_TIMEOUT_S)
        retry = arguments.get("download_retry")
        # A store that does not answer is asked again for so long.
        attempts = 1 + (DEFAULT_RETRY if retry is None else int(retry))
        self._patience_s = self._request_timeout_s * attempts
        self._name = redact(f"{self._wanted.uri}/{stream.split}" if stream.split else stream.uri)
        self._state = FollowState(
            self._name, rounds, 0, None, {}, None, selection=selected(self._wanted.selection)
        )
        self._in_progress = False
        self._lease: Lease | None = None
        self._place: Place | None = None
        release_with_datasets()

    def __repr__(self) -> str:
        return f"Follower({self._name!r}, {self._rounds}, round {self._state.number})"

    def __next__(self) -> Round:
        """The next round, as soon as all of its rows are there.

        Raises:
            StopIteration: ``stop`` was set.
            NoNewDataError: Nothing was appended for ``timeout`` seconds.
            TableChangedError: The table was changed otherwise than by appending.
            LanceStreamError: The table cannot be had.
        """
        if self._in_progress:
            self._state = replace(self._state, number=self._state.number + 1)
            self._in_progress = False
        if self._lease is None:
            self._meet()
            self._lease = Lease(job_endpoint())
        found = self._wait(self._state.number)
        self._in_progress = True
        return self._round(found)

    def state_dict(self) -> dict[str, Any]:
        """Where this follower is, as JSON values: the round in progress, if there is one.

        Keep it together with the state of the dataset that streams that round.
        """
        return self._state.as_json()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a state: the next round is the one that was in progress.

        Raises:
            StateMismatchError: It is a state of other rounds, or of other rows and columns.
        """
        loaded = FollowState.from_json(state)
        loaded.check(self._name, self._rounds, self._wanted.selection)
        if loaded.seen is not None:
            try:
                Seen.from_json(loaded.seen)
            except (KeyError, TypeError, ValueError) as error:
                raise StateMismatchError(f"the state is damaged: {error!r}") from error
        self._state = replace(loaded, selection=selected(self._wanted.selection))
        self._in_progress = False

    def close(self) -> None:
        """Let go of the download process and the cache; streams of rounds keep their own hold."""
        if self._place is not None:
            self._place.close()
            self._place = None
        if self._lease is not None:
            self._lease.close()
            self._lease = None

    def __del__(self) -> None:
        if getattr(self, "_lease", None) is not None:
            self.close()

    def _meet(self) -> None:
        """Once, if ranks are there: see that they follow alike, and share a download process."""
        ranks = Ranks.of(World.detect())
        if ranks.num_ranks > 1:
            state = self._state
            ranks.require_equal(
                {
                    **self._wanted.as_json(),
                    "rounds": repr(self._rounds),
                    "round": state.number,
                }
            )
            share_endpoint(ranks)

    def _wait(self, number: int) -> Polled:
        """Look until the rows of a round are there."""
        needed, parts = self._rounds.needed(number), self._rounds.parts(number)
        asked = tuple((part.start, part.stop) for part in parts)
        quiet_since, told_at = time.monotonic(), None
        rows: int | None = None
        failing_since = None
        while not (self._stop is not None and self._stop.is_set()):
            try:
                found, failing_since = self._look(asked), None
            except (SourceUnavailableError, ConnectionError) as error:
                failing_since = failing_since or time.monotonic()
                if time.monotonic() - failing_since >= self._patience_s:
                    raise _told(error, self._name) from error
                logger.warning("%s; looking again in %g s", error, self._poll_seconds)
                self._pause(self._poll_seconds)
                continue
            now = time.monotonic()
            has = -1 if found is None else Seen.from_json(json.loads(found.seen)).rows
            if found is not None and has >= needed:
                return found
            # Not what was there at the first look: nobody knows since when.
            if rows is not None and has > rows:
                quiet_since = now
            rows = has
            lacks = _lacks(self._name, number, needed, has)
            waited = now - quiet_since
            if self._timeout_s is not None and waited >= self._timeout_s:
                msg = (
                    f"{lacks}, and nothing was appended for {waited:.1f} s "
                    f"(timeout={self._timeout_s:g}): see whether the producer still runs"
                )
                raise NoNewDataError(msg)
            if told_at is None or now - told_at >= _NEWS_EVERY_S:
                told_at = now
                logger.warning("%s: waiting for more", lacks)
            left = self._poll_seconds
            if self._timeout_s is not None:
                left = min(left, max(0.0, self._timeout_s - waited) + 0.001)
            self._pause(left)
        raise StopIteration

    def _look(self, parts: tuple[tuple[int, int], ...]) -> Polled | None:
        """Look at the table once; None if there is none yet."""
        state = self._state
        columns = self._wanted.selection.columns
        if columns is None and state.columns is not None:
            columns = tuple((name, name) for name, _ in state.columns)
        kinds = {
            name: kind
            for (name, kind), (_, sql) in zip(state.columns or (), columns or (), strict=False)
            if name == sql
        }
        selection = self._wanted.selection
        request = Poll(
            uri=self._wanted.uri,
            split=self._wanted.split,
            columns=columns,
            seen="" if state.seen is None else json.dumps(state.seen),
            parts=parts,
            options=self._wanted.options,
            timeout_s=self._request_timeout_s,
            fields=tuple((name, kinds.get(name, ""), ids) for name, ids in state.fields.items()),
            texts=tuple(text for text in (selection.filter, selection.subset_key) if text),
        )
        self._renew_lease()
        try:
            found = poll(job_endpoint(), request)
        except DatasetNotFoundError as error:
            if state.seen is None:
                return None
            msg = (
                f"{self._name} was there in version {state.seen['version']}, and is gone: {error}"
            )
            raise TableChangedError(msg) from error
        self._check_columns(found)
        self._keep(found, parts)
        return found

    def _renew_lease(self) -> None:
        """One process serves all looks, also after one was killed."""
        if self._lease is not None:
            self._lease.renew()

    def _check_columns(self, found: Polled) -> None:
        """Refuse a table whose selected columns are not what they were."""
        selected = self._wanted.selection.columns
        now = dict(found.columns)
        version = json.loads(found.seen)["version"]
        if self._state.columns is None:
            missing = [name for name, _ in selected or () if name not in now]
            if missing:
                names = ", ".join(name for name, _ in found.table_columns)
                msg = f"columns: there is no column {missing[0]!r}; the table has {names}"
                raise PlanError(msg)
            return
        before = (self._state.seen or {}).get("version")
        for name, kind in self._state.columns:
            if now.get(name) != kind:
                what = "was dropped" if name not in now else f"is {now[name]}"
                msg = (
                    f"{self._name}: column {name!r} was {kind} up to version {before}, and {what} "
                    f"in version {version}: follow() streams the same columns throughout. "
                    "Give columns= without it, and start without the state"
                )
                raise TableChangedError(msg)

    def _keep(self, found: Polled, parts: tuple[tuple[int, int], ...]) -> None:
        """Take note of what was seen."""
        state = self._state
        known = state.identities
        if found.parts:
            # What a part was called when it was first seen, whatever moved it since; row ids may
            # be addresses, which change with that.
            keep = {} if self._wanted.selection.with_row_id else known
            known = {
                start: keep.get(start, identity)
                for (start, _), identity in zip(parts, found.parts, strict=True)
            }
        self._state = replace(
            state,
            seen=json.loads(found.seen),
            identities=known,
            columns=state.columns or found.columns,
            fields=state.fields or dict(found.fields),
        )

    def _round(self, found: Polled) -> Round:
        state, number = self._state, self._state.number
        seen = Seen.from_json(json.loads(found.seen))
        parts = self._rounds.parts(number)
        rows = parts[0].start, parts[-1].stop
        arguments = dict(self._arguments)
        if self._wanted.selection.columns is None:
            arguments["columns"] = [name for name, _ in state.columns or ()]
        family = {
            **self._wanted.as_json(),
            "columns": state.columns,
            "rounds": repr(self._rounds),
            "validate_hash": arguments.get("validate_hash"),
        }
        if self._place is None or self._place.family != digest(family):
            self._place = Place(digest(family))
        window = Window(
            family=digest(family),
            identity=found.identity,
            parts=tuple((p.start, p.stop, state.identities[p.start]) for p in parts),
            ranges=tuple((part.start, part.stop) for part in cut(seen.order, *rows)),
        )
        return Round(number, rows, seen.version, found.uri, window, arguments)

    def _pause(self, seconds: float) -> None:
        # What was killed in a look may have been started again by it, and held by nobody.
        self._renew_lease()
        if self._stop is None:
            time.sleep(seconds)
        else:
            self._stop.wait(seconds)


def follow(
    uri: str | os.PathLike[str],
    *,
    rows_per_round: int,
    window_rounds: int = 1,
    start: int = 0,
    poll_seconds: float = 1.0,
    timeout: float | None = None,
    stop: Stop | None = None,
    **arguments: Any,
) -> Follower:
    """Follow a table that grows: a ``Round`` for every ``rows_per_round`` rows, for ever.

    Round ``r`` is the rows ``start + r * rows_per_round`` up to ``start + (r + 1) *
    rows_per_round``, numbered in the order in which they were appended: the same rows on every
    rank and after every restart, without communication. Producers may append, compact, and add or
    drop columns that are not selected; anything else ends the follower with an error.

    Args:
        uri: The table; it need not be there yet.
        rows_per_round: New rows of a round, at least 1.
        window_rounds: A round streams its own new rows and those of the rounds before it, so many
            rounds in all.
        start: First row of round 0.
        poll_seconds: Seconds between two looks at a table that has too few rows. A look takes
            one request to the store, or two.
        timeout: Seconds without any new row after which ``NoNewDataError`` is raised. Default:
            never.
        stop: A ``threading.Event``; when it is set, iteration ends.
        **arguments: As for ``LanceStream``, but ``version``, ``index`` and ``limit``. Without
            ``columns``, those that the table has when it is seen first.

    Returns:
        An iterator with ``state_dict`` and ``load_state_dict``.

    Raises:
        PlanError: An argument is wrong: names it.
        TypeError: There is no such argument.
    """
    return Follower(
        uri,
        Rounds(rows_per_round, window_rounds, start),
        poll_seconds=poll_seconds,
        timeout=timeout,
        stop=stop,
        arguments=arguments,
    )


def _is_number(value: object) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool)


def _lacks(name: str, number: int, needed: int, has: int) -> str:
    if has < 0:
        return f"there is no table at {name} yet, round {number} needs {needed} rows"
    return f"{name} has {has} rows, round {number} needs {needed}"


def _told(error: Exception, name: str) -> LanceStreamError:
    if isinstance(error, LanceStreamError):
        return error
    return SourceUnavailableError(f"the download process ended while it looked at {name}: {error}")
