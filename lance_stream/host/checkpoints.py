"""What a checkpoint says of the data, so that it is not gone on with on other data."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from typing import Any

from lance_stream.errors import StateMismatchError
from lance_stream.host.stream import LanceStream
from lance_stream.planning.fingerprint import digest
from lance_stream.source.location import possible_uris, redact

__all__ = ["KEY", "check", "describe", "forget", "is_state", "reopen", "reopened", "told"]

KEY = "lance_stream"
_FORMAT = 2
_FINGERPRINT_CHARS = 16
_MAX_TOLD = 3
# A state of fifty streams stays below 4 KB: what the uris of so many may take, each.
_MANY_STREAMS, _URI_BYTES = 50, 46
_BEGINNING_CHARS = 24


def describe(streams: Sequence[Any]) -> dict[str, Any]:
    """Uri, version and rows of each stream, compact, in JSON values.

    Returns:
        ``{"format", "uris", "streams"}``: the uris sorted, as ``start, middle, end`` of each, one
        after another, with ``start`` and ``end`` the characters that it shares with the uri before
        it; and a list of ``[number of the uri, version, fingerprint]``, None for a stream that is
        no ``LanceStream``. Where the uris would take too much, each is its beginning and a hash.
    """
    entries = _entries(streams)
    uris = sorted({entry[0] for entry in entries if entry is not None})
    numbers = {uri: number for number, uri in enumerate(uris)}
    packed = _packed(uris)
    if len(json.dumps(packed)) > _URI_BYTES * max(_MANY_STREAMS, len(uris)):
        packed = _packed([_shortened(uri) for uri in uris])
    found = [None if entry is None else [numbers[entry[0]], *entry[1:]] for entry in entries]
    return {"format": _FORMAT, "uris": packed, "streams": found}


def _entries(streams: Sequence[Any]) -> list[tuple[str, int, str] | None]:
    """Uri, version and fingerprint of each ``LanceStream``."""
    return [
        (
            stream.index.uri,
            stream.index.version,
            stream.index.rows_fingerprint[:_FINGERPRINT_CHARS],
        )
        if isinstance(stream, LanceStream)
        else None
        for stream in streams
    ]


def _shortened(uri: str) -> str:
    return f"{uri[:_BEGINNING_CHARS]}~{digest({'uri': uri}, 12)}"


def _is_uri(saved: str, uri: str) -> bool:
    """Whether a saved uri, which may be shortened, is that of a stream."""
    return saved in (uri, _shortened(uri))


def _is_same(old: tuple[str, int, str], new: tuple[str, int, str]) -> bool:
    return _is_uri(old[0], new[0]) and old[1:] == new[1:]


def _packed(uris: Sequence[str]) -> list[int | str]:
    packed: list[int | str] = []
    before = ""
    for uri in uris:
        start = len(os.path.commonprefix([before, uri]))  # noqa: RUF071 - of text
        rests = [before[start:][::-1], uri[start:][::-1]]
        end = len(os.path.commonprefix(rests))  # noqa: RUF071 - of text
        packed += [start, uri[start : len(uri) - end], end]
        before = uri
    return packed


def _unpacked(packed: Sequence[Any]) -> list[str]:
    uris: list[str] = []
    before = ""
    for start, middle, end in zip(packed[::3], packed[1::3], packed[2::3], strict=True):
        before = before[:start] + middle + before[len(before) - end :]
        uris.append(before)
    return uris


def is_state(value: Any) -> bool:
    """Whether this may be a state of ``state_dict``, of the stock class or ours."""
    return isinstance(value, Mapping) and {"epoch", "sample_in_epoch"} <= value.keys()


def told(state: dict[str, Any]) -> str:
    """Words for what a state that was given as ``resume=`` asks for."""
    asked = [_words(entry) for entry in _saved(state) or () if entry is not None]
    more = f" and {len(asked) - _MAX_TOLD} more" if len(asked) > _MAX_TOLD else ""
    return (
        f"resume= opens streams that name no version= at that of the checkpoint, which is of "
        f"{', '.join(asked[:_MAX_TOLD])}{more}. Rows of a version that is gone cannot be gone on "
        "with: take a checkpoint of a version that is there, or begin anew without resume="
    )


def check(streams: Sequence[Any], state: dict[str, Any]) -> None:
    """Refuse a state of other data.

    Raises:
        StateMismatchError: Names both sides.
    """
    saved = _saved(state)
    if saved is None:
        return
    if len(saved) != len(streams):
        msg = f"the checkpoint is of {len(saved)} streams, and the dataset has {len(streams)}"
        raise StateMismatchError(msg)
    for number, (old, new) in enumerate(zip(saved, _entries(streams), strict=True)):
        if old is None and new is None:
            continue
        if old and new and (_is_same(old, new) or _is_same_window(streams[number], old, new)):
            continue
        if old is None or new is None:
            kinds = ["a LanceStream" if side else "another stream" for side in (old, new)]
            msg = f"stream {number} was {kinds[0]} when the checkpoint was made, and is {kinds[1]}"
            raise StateMismatchError(msg)
        msg = (
            f"stream {number}: the checkpoint is of {_words(old)}, the dataset streams "
            f"{_words(new)}. "
        )
        if _is_uri(old[0], new[0]) and old[1] == new[1]:
            msg += (
                "The rows of a shard differ: filter, limit, subset, shard_rows, shard_bytes and "
            )
            msg += "layout must be those of the checkpoint (its index can be given as index=)"
        else:
            msg += f"Open that version with LanceStream({old[0]!r}, version={old[1]}), or give "
            msg += "the state as resume= to LanceStreamingDataset"
        raise StateMismatchError(msg)


def _is_same_window(stream: Any, old: tuple[str, int, str], new: tuple[str, int, str]) -> bool:
    """Whether these are the same rows of a round of ``follow``, in whatever version."""
    is_window = stream.index.window is not None
    return is_window and _is_uri(old[0], new[0]) and old[2] == new[2]


def reopen(streams: Sequence[Any], state: dict[str, Any]) -> None:
    """Have streams that name no version opened at the saved one, until ``forget``.

    Raises:
        StateMismatchError: The state is of another number of streams, or of another table.
    """
    saved = _saved(state)
    if saved is None:
        return
    if len(saved) != len(streams):
        msg = f"the checkpoint is of {len(saved)} streams, and {len(streams)} are given"
        raise StateMismatchError(msg)
    found: list[tuple[LanceStream, int]] = []
    for number, (stream, entry) in enumerate(zip(streams, saved, strict=True)):
        if not isinstance(stream, LanceStream) or entry is None or stream.names_version:
            continue
        if not any(_is_uri(entry[0], uri) for uri in stream.possible_uris):
            raise _other_table(number, entry, repr(stream))
        found.append((stream, entry[1]))
    for stream, version in found:
        stream.default_version(version)


def forget(streams: Sequence[Any]) -> None:
    """Have streams that name no version opened at the latest again."""
    for stream in streams:
        if isinstance(stream, LanceStream):
            stream.default_version(None)


def reopened(
    config: Mapping[str, Any],
    state: dict[str, Any],
    remote: str | None = None,
    split: str | None = None,
) -> dict[str, Any]:
    """Arguments of one ``LanceStream``, at the saved version where they name none.

    Args:
        config: The arguments.
        state: Of a checkpoint.
        remote: As given beside them.
        split: As given beside them.

    Raises:
        StateMismatchError: The state is of another number of streams, or of another table.
    """
    saved = _saved(state)
    if saved is None or config.get("version") is not None or config.get("index") is not None:
        return dict(config)
    if len(saved) != 1:
        msg = f"the checkpoint is of {len(saved)} streams, and one is given"
        raise StateMismatchError(msg)
    entry = saved[0]
    if entry is None:
        return dict(config)
    # Without a remote the stream says what is missing.
    if remote and not any(_is_uri(entry[0], uri) for uri in possible_uris(remote, split)):
        raise _other_table(0, entry, redact(f"{remote}/{split}" if split else str(remote)))
    return {**config, "version": entry[1]}


def _other_table(number: int, entry: tuple[str, int, str], given: str) -> StateMismatchError:
    # Before anything is opened: the other table need not have such a version.
    return StateMismatchError(
        f"stream {number}: the checkpoint that resume= names is of {_words(entry)}, and the "
        f"stream that is given is {given}: give that table, or begin anew without resume="
    )


def _saved(state: dict[str, Any]) -> list[tuple[str, int, str] | None] | None:
    """Uri, version and fingerprint of each stream; None if the state says nothing of them.

    Raises:
        StateMismatchError: The state was written by a newer lance_stream, or is damaged.
    """
    ours = state.get(KEY)
    if ours is None:
        return None
    try:
        if ours["format"] not in (1, _FORMAT):
            msg = f"the checkpoint has format {ours['format']}, this lance_stream reads {_FORMAT}"
            raise StateMismatchError(msg)
        if ours["format"] == 1:
            # Whose uris share the beginning of all.
            uris = [ours["base"] + ("" if one is None else one[0]) for one in ours["streams"]]
            numbers: list[int] = list(range(len(uris)))
        else:
            uris = _unpacked(ours["uris"])
            numbers = [0 if one is None else int(one[0]) for one in ours["streams"]]
        return [
            None if entry is None else (uris[number], int(entry[1]), str(entry[2]))
            for number, entry in zip(numbers, ours["streams"], strict=True)
        ]
    except (KeyError, TypeError, IndexError, ValueError) as error:
        if isinstance(error, StateMismatchError):
            raise
        msg = f"what the checkpoint says of the streams is damaged: {error!r}"
        raise StateMismatchError(msg) from error


def _words(entry: tuple[str, int, str]) -> str:
    return f"{entry[0]} version {entry[1]} (rows {entry[2]})"
