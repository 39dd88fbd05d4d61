"""What trainers and the download process say to each other: small, typed, without pickle.

A connection carries frames: a 4-byte big-endian length and one MessagePack value, a tagged struct
below. Rows never cross it. Credentials cross it, and are kept out of every ``repr``.
"""

from __future__ import annotations

import socket
import struct
from typing import ClassVar

import msgspec

__all__ = [
    "MAX_FRAME_BYTES",
    "PROTOCOL",
    "Done",
    "Dropped",
    "Failed",
    "Fetch",
    "Forget",
    "FromClient",
    "FromServer",
    "Hello",
    "Options",
    "Pin",
    "Pinned",
    "Plan",
    "PlanFailed",
    "Planned",
    "Planning",
    "Poll",
    "Polled",
    "Register",
    "Retry",
    "Warned",
    "Window",
    "decode_client",
    "decode_server",
    "encode",
    "frame",
    "receive_frame",
]

# Raised when messages change, which a test sees to. Nothing compares it: each job has a process of
# its own, of the same installation.
PROTOCOL = 5
# Storage options and paths are small; anything larger is not one of ours.
MAX_FRAME_BYTES = 16 << 20
_LENGTH = struct.Struct(">I")


class Options(msgspec.Struct, frozen=True):
    """Storage options as given: a mapping, or the name of a function that makes them."""

    values: dict[str, str] | None = None
    function: str | None = None
    search_path: tuple[str, ...] = ()

    def __repr__(self) -> str:
        return f"Options({'function' if self.function else sorted(self.values or ())})"


def _without_urls(message: Plan | Register) -> str:
    """A message in words, without the urls of shared caches, which may hold passwords."""
    fields = {
        name: getattr(message, name)
        for name in message.__struct_fields__
        if name != "shared_cache"
    }
    given = ", ".join(f"{name}={value!r}" for name, value in fields.items())
    return f"{type(message).__name__}({given}, shared_cache=({len(message.shared_cache)} urls))"


class Hello(msgspec.Struct, frozen=True, tag=True):
    """First message of a connection: who asks."""

    pid: int


class Window(msgspec.Struct, frozen=True):
    """Which part of a table that grows is streamed.

    Attributes:
        family: Hex: names what the windows over one table have in common.
        identity: Of the table at its version.
        parts: First and last row (half-open) in order of appending, and the part's identity.
        ranges: Where the rows of all parts are in the table, in order of appending.
    """

    family: str
    identity: str
    parts: tuple[tuple[int, int, str], ...]
    ranges: tuple[tuple[int, int], ...]


class Plan(msgspec.Struct, frozen=True, tag=True):
    """Make the shard index of a table. Answered by ``Planned`` or ``PlanFailed``."""

    uri: str
    split: str | None
    version: int | str | None
    columns: tuple[tuple[str, str], ...] | None
    with_row_id: bool
    shard_rows: int | None
    shard_bytes: int
    options: Options
    timeout_s: float
    attempts: int
    transform: str | None = None
    transform_version: str | None = None
    search_path: tuple[str, ...] = ()
    cache_format: str = "arrow"
    filter: str | None = None
    limit: int | None = None
    subset: tuple[float, float] | None = None
    subset_key: str | None = None
    layout: str = "contiguous"
    run_rows: int = 64
    layout_seed: int = 0
    exact: bool = False
    partial_path: str | None = None
    # Of an index that is there: only look whether the version is the one it was made of.
    identity: str | None = None
    # Looked at for wrong urls only.
    shared_cache: tuple[str, ...] = ()
    window: Window | None = None
    # Cache directories, where an earlier index tells what a transform gives.
    learn_from: tuple[str, ...] = ()

    def __repr__(self) -> str:
        return _without_urls(self)


class Planning(msgspec.Struct, frozen=True, tag=True):
    """Planning takes longer, and goes on: it reads the table."""

    what: str = ""
    done: int = 0
    total: int = 0


class Planned(msgspec.Struct, frozen=True, tag=True):
    """The index lies in this file; whoever asked takes it away. Empty: nothing was made."""

    path: str


class PlanFailed(msgspec.Struct, frozen=True, tag=True):
    """A ``Plan`` or ``Poll`` could not be answered: name of the error class, and its text."""

    error: str
    message: str


class Poll(msgspec.Struct, frozen=True, tag=True):
    """Look whether a table has grown. Answered by ``Polled`` or ``PlanFailed``.

    Attributes:
        columns: As in ``Plan``.
        seen: What was kept of the version that was looked at last, as JSON; empty: none was.
        parts: First and last row (half-open), in order of appending, of what is to be named.
        fields: Name, type (empty: unknown) and numbers of the fields of each column that must
            stay; none: they are to be told.
        texts: SQL that decides about rows.
    """

    uri: str
    split: str | None
    columns: tuple[tuple[str, str], ...] | None
    seen: str
    parts: tuple[tuple[int, int], ...]
    options: Options
    timeout_s: float
    fields: tuple[tuple[str, str, tuple[int, ...]], ...] = ()
    texts: tuple[str, ...] = ()
    # The latest.
    version: None = None


class Polled(msgspec.Struct, frozen=True, tag=True):
    """A table's latest version, which has only been appended to since the one that was seen.

    Attributes:
        uri: Where it is.
        seen: What to keep of it, as JSON.
        identity: Names its content.
        parts: Identity of each part that was asked for; none if not all of their rows are there.
        table_columns: Name and type of each column of the table.
        columns: Name and type of each selected column.
        fields: Name and numbers of the fields of each column that must stay.
    """

    uri: str
    seen: str
    identity: str
    parts: tuple[str, ...]
    table_columns: tuple[tuple[str, str], ...]
    columns: tuple[tuple[str, str], ...]
    fields: tuple[tuple[str, tuple[int, ...]], ...] = ()


class Pin(msgspec.Struct, frozen=True, tag=True):
    """Hold a version with a tag as long as this connection lasts. Answered by ``Pinned``."""

    uri: str
    version: int
    options: Options
    timeout_s: float
    pid: int
    started: int


class Pinned(msgspec.Struct, frozen=True, tag=True):
    """The tag is there; or, with an empty name, why it cannot be."""

    name: str
    message: str = ""


class Register(msgspec.Struct, frozen=True, tag=True):
    """Announce a stream: what later ``Fetch`` messages of this connection mean by its key."""

    stream: str
    uri: str
    version: int
    index_path: str
    directory: str
    ledger_path: str
    options: Options
    timeout_s: float
    attempts: int
    cache_format: str = "arrow"
    algorithm: str | None = None
    search_path: tuple[str, ...] = ()
    stats_directory: str = ""
    shared_cache: tuple[str, ...] = ()

    def __repr__(self) -> str:
        return _without_urls(self)


class Forget(msgspec.Struct, frozen=True, tag=True):
    """The stream is not used by this connection any more."""

    stream: str


class Fetch(msgspec.Struct, frozen=True, tag=True):
    """Bring a shard into the cache. ``demand``: somebody waits for it now."""

    stream: str
    shard: int
    demand: bool


class Done(msgspec.Struct, frozen=True, tag=True):
    """The shard's file is in the cache."""

    stream: str
    shard: int
    num_bytes: int


class Dropped(msgspec.Struct, frozen=True, tag=True):
    """The shard was evicted before it was fetched, and nobody waits for it."""

    stream: str
    shard: int


class Retry(msgspec.Struct, frozen=True, tag=True):
    """An attempt at the shard failed and another follows; for the log of who waits."""

    stream: str
    shard: int
    message: str


class Failed(msgspec.Struct, frozen=True, tag=True):
    """The shard could not be fetched: name of the error class, and the cause in words."""

    stream: str
    shard: int
    error: str
    message: str


class Warned(msgspec.Struct, frozen=True, tag=True):
    """Something that concerns the whole job, for the log of one process of it."""

    message: str


FromClient = Hello | Plan | Poll | Pin | Register | Forget | Fetch
FromServer = (
    Planning | Planned | Polled | Pinned | PlanFailed | Done | Dropped | Retry | Failed | Warned
)


class _Codec:
    encoder: ClassVar[msgspec.msgpack.Encoder] = msgspec.msgpack.Encoder()
    client: ClassVar[msgspec.msgpack.Decoder[FromClient]] = msgspec.msgpack.Decoder(FromClient)
    server: ClassVar[msgspec.msgpack.Decoder[FromServer]] = msgspec.msgpack.Decoder(FromServer)


def encode(message: FromClient | FromServer) -> bytes:
    """A message as one frame."""
    return frame(_Codec.encoder.encode(message))


def frame(payload: bytes) -> bytes:
    """Put the length in front."""
    return _LENGTH.pack(len(payload)) + payload


def decode_client(payload: bytes) -> FromClient:
    """Read what a client sent.

    Raises:
        msgspec.DecodeError: Not one of the messages.
    """
    return _Codec.client.decode(payload)


def decode_server(payload: bytes) -> FromServer:
    """Read what the download process sent.

    Raises:
        msgspec.DecodeError: Not one of the messages.
    """
    return _Codec.server.decode(payload)


def receive_frame(connection: socket.socket) -> bytes | None:
    """Read one frame from a blocking socket; None when the other side is gone.

    Raises:
        TimeoutError: The socket's own timeout passed.
        ConnectionError: The frame is cut short or too long.
    """
    head = _receive(connection, _LENGTH.size)
    if head is None:
        return None
    (length,) = _LENGTH.unpack(head)
    if length > MAX_FRAME_BYTES:
        msg = f"a frame of {length} bytes: not from lance_stream"
        raise ConnectionError(msg)
    payload = _receive(connection, length)
    if payload is None:
        msg = "the connection closed inside a message"
        raise ConnectionError(msg)
    return payload


def _receive(connection: socket.socket, length: int) -> bytes | None:
    data = bytearray()
    while len(data) < length:
        part = connection.recv(length - len(data))
        if not part:
            return None
        data += part
    return bytes(data)
