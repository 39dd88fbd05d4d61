from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Callable, Iterator
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lance_stream.planning.fingerprint import digest
from lance_stream.service import messages as m

OPTIONS = m.Options(
    values={"aws_access_key_id": "AKIAEXAMPLE", "aws_secret_access_key": "sesame"},
)
FUNCTION = m.Options(function="my.module:token", search_path=("/home/me", "/opt/x"))
PLAN = m.Plan(
    uri="s3://bucket/t.lance",
    split="train",
    version="tag",
    columns=(("a", "a"), ("b", "x + 1")),
    with_row_id=True,
    shard_rows=None,
    shard_bytes=1 << 25,
    options=OPTIONS,
    timeout_s=60.0,
    attempts=3,
    transform="my.module:function",
    transform_version="2",
    search_path=("/home/me",),
    cache_format="mds",
)
REGISTER = m.Register(
    stream="abc",
    uri="s3://bucket/t.lance",
    version=17,
    index_path="/cache/x.index.arrow",
    directory="/cache",
    ledger_path="/cache/.ledger",
    options=OPTIONS,
    timeout_s=0.5,
    attempts=1,
    cache_format="mds",
    algorithm="sha1",
    search_path=("/home/me", "/opt/x"),
)
FROM_CLIENT: list[m.FromClient] = [
    m.Hello(4711),
    PLAN,
    m.Plan("/t", None, 3, None, False, 100, 1, FUNCTION, 1.0, 1),
    m.Plan("/t", None, None, (), False, 100, 1, m.Options(), 1.0, 1),
    m.Plan(
        *("/t", None, 3, None, False, 100, 1, OPTIONS, 1.0, 1),
        window=m.Window("abc", "def", ((0, 5, "i"), (5, 10, "j")), ((0, 7), (9, 12))),
    ),
    m.Poll("/t", "train", None, "", ((0, 2**40),), OPTIONS, 1.0),
    m.Poll("/t", None, (("a", "a"),), "{}", (), FUNCTION, 1.0, (("a", "", (0, 1)),), ("a > 1",)),
    m.Pin("/t", 3, m.Options(), 1.0, 4711, 99),
    REGISTER,
    m.Register("abc", "/t", 1, "/c/i", "/c", "/c/l", m.Options(), 1.0, 1),
    m.Forget("abc"),
    m.Fetch("abc", 0, True),
    m.Fetch("abc", 2**40, False),
]
FROM_SERVER: list[m.FromServer] = [
    m.Planning(),
    m.Planned("/run/plans/1"),
    m.Polled("/t", "{}", "abc", ("i", "j"), (("a", "int64"), ("b", "x")), (("a", "int64"),)),
    m.Polled("/t", "{}", "abc", (), (), (), (("a", (0, 1)),)),
    m.Pinned("lance_stream.pin.1.2.3"),
    m.Pinned("", "read-only"),
    m.PlanFailed("PlanError", "columns: there is no column 'ä'"),
    m.Done("abc", 3, 2**40),
    m.Dropped("abc", 3),
    m.Retry("abc", 3, "503"),
    m.Warned("a shared cache fails"),
    m.Failed("abc", 3, "ShardUnavailableError", "why"),
]


def _payload(message: m.FromClient | m.FromServer) -> bytes:
    data = m.encode(message)
    assert struct.unpack(">I", data[:4]) == (len(data) - 4,)
    return data[4:]


@pytest.mark.parametrize("message", FROM_CLIENT, ids=lambda message: type(message).__name__)
def test_a_client_is_understood(message: m.FromClient) -> None:
    found = m.decode_client(_payload(message))
    assert found == message
    assert type(found) is type(message)


@pytest.mark.parametrize("message", FROM_SERVER, ids=lambda message: type(message).__name__)
def test_the_server_is_understood(message: m.FromServer) -> None:
    found = m.decode_server(_payload(message))
    assert found == message
    assert type(found) is type(message)


def test_every_message_is_tested() -> None:
    tested = {type(message) for message in (*FROM_CLIENT, *FROM_SERVER)}
    assert tested == {*m.FromClient.__args__, *m.FromServer.__args__}


def test_the_protocol_is_raised_with_the_messages() -> None:
    # Who depends on this: the two sides of a connection, where another version is installed
    # while a download process runs. Where the digest changes, PROTOCOL must change with it.
    messages = (m.Options, m.Window, *m.FromClient.__args__, *m.FromServer.__args__)
    fields = {cls.__name__: cls.__struct_fields__ for cls in messages}
    assert (m.PROTOCOL, digest(fields, 8)) == (5, "c26f7a29")


def test_messages_are_immutable() -> None:
    for message in (*FROM_CLIENT, *FROM_SERVER, OPTIONS):
        name = (*message.__struct_fields__, "other")[0]
        with pytest.raises(AttributeError, match="immutable"):
            setattr(message, name, None)


@pytest.mark.parametrize("message", FROM_SERVER, ids=lambda message: type(message).__name__)
def test_each_side_takes_only_what_is_for_it(message: m.FromServer) -> None:
    with pytest.raises(msgspec.DecodeError, match="Invalid value"):
        m.decode_client(_payload(message))
    with pytest.raises(msgspec.DecodeError, match="Invalid value"):
        m.decode_server(_payload(REGISTER))


# --- secrets ---


@pytest.mark.parametrize("message", [OPTIONS, REGISTER, PLAN, [REGISTER], {"x": PLAN}])
def test_no_repr_shows_a_secret(message: Any) -> None:
    for text in (repr(message), str(message), f"{message}", f"{message!r}"):
        assert "sesame" not in text
        assert "AKIAEXAMPLE" not in text
        assert "aws_secret_access_key" in text


def test_the_repr_of_options_made_by_a_function() -> None:
    assert repr(FUNCTION) == "Options(function)"
    assert repr(m.Options()) == "Options([])"


@given(st.dictionaries(st.sampled_from(["token", "key"]), st.text("!§$%&0123456789", min_size=6)))
def test_no_value_is_in_a_repr(values: dict[str, str]) -> None:
    message = msgspec.structs.replace(REGISTER, options=m.Options(values=values))
    assert not any(value in repr(message) for value in values.values())


def test_errors_of_decoding_do_not_quote_the_message() -> None:
    raw = msgspec.msgpack.decode(_payload(REGISTER))
    raw["options"]["values"] = {"key": ["sesame"]}
    with pytest.raises(msgspec.DecodeError, match=r"\$\.options\.values") as raised:
        m.decode_client(msgspec.msgpack.encode(raw))
    assert "sesame" not in str(raised.value)


# --- garbage ---


@pytest.mark.parametrize("decode", [m.decode_client, m.decode_server])
@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"\xc1",
        b"x",
        b"\x80",
        b"\x93\x01\x02",
        b"\xff" * 100,
        msgspec.msgpack.encode({"type": "Unheard"}),
        msgspec.msgpack.encode({"type": "Fetch"}),
        msgspec.msgpack.encode({"type": "Fetch", "stream": "s", "shard": "0", "demand": True}),
        msgspec.msgpack.encode({"type": "Fetch", "stream": "s", "shard": 0.5, "demand": True}),
        msgspec.msgpack.encode({"type": "Done", "stream": None, "shard": 0, "num_bytes": 1}),
        msgspec.msgpack.encode(["Hello", 1]),
        m.encode(m.Hello(1)),
    ],
)
def test_garbage_is_a_decode_error(decode: Callable[[bytes], Any], payload: bytes) -> None:
    with pytest.raises(msgspec.DecodeError, match=r"."):
        decode(payload)


@given(st.binary(max_size=200))
def test_no_bytes_give_another_error(payload: bytes) -> None:
    for decode in (m.decode_client, m.decode_server):
        try:
            decode(payload)
        except msgspec.DecodeError:
            pass


def test_no_cut_or_flipped_message_gives_another_error() -> None:
    for message, decode in [(x, m.decode_client) for x in FROM_CLIENT] + [
        (x, m.decode_server) for x in FROM_SERVER
    ]:
        payload = _payload(message)
        for at in range(len(payload)):
            with pytest.raises(msgspec.DecodeError, match=r"."):
                decode(payload[:at])
            flipped = bytearray(payload)
            flipped[at] ^= 0x55
            try:
                decode(bytes(flipped))
            except msgspec.DecodeError:
                pass


# --- frames ---


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    here, there = socket.socketpair()
    here.settimeout(20)
    there.settimeout(20)
    with here, there:
        yield here, there


Pair = tuple[socket.socket, socket.socket]


def test_frames_come_one_by_one(pair: Pair) -> None:
    here, there = pair
    here.sendall(m.frame(b"first") + m.frame(b"") + m.encode(m.Hello(5)))
    here.close()
    assert m.receive_frame(there) == b"first"
    assert m.receive_frame(there) == b""
    assert m.decode_client(m.receive_frame(there) or b"") == m.Hello(5)
    assert m.receive_frame(there) is None
    assert m.receive_frame(there) is None


def test_a_frame_may_come_in_pieces(pair: Pair) -> None:
    here, there = pair

    def send() -> None:
        for byte in m.frame(b"in pieces"):
            here.send(bytes([byte]))

    thread = threading.Thread(target=send)
    thread.start()
    assert m.receive_frame(there) == b"in pieces"
    thread.join(20)


def test_a_large_frame(pair: Pair) -> None:
    here, there = pair
    payload = bytes(range(256)) * (m.MAX_FRAME_BYTES // 256)
    thread = threading.Thread(target=here.sendall, args=(m.frame(payload),))
    thread.start()
    assert m.receive_frame(there) == payload
    thread.join(20)


def test_a_closed_connection_is_none(pair: Pair) -> None:
    here, there = pair
    here.close()
    assert m.receive_frame(there) is None


def test_a_connection_cut_inside_the_length_is_closed(pair: Pair) -> None:
    here, there = pair
    here.sendall(b"\0\0")
    here.close()
    assert m.receive_frame(there) is None


@pytest.mark.parametrize("sent", [0, 1, 9])
def test_a_connection_cut_inside_a_message_is_an_error(pair: Pair, sent: int) -> None:
    here, there = pair
    here.sendall(m.frame(b"0123456789")[: 4 + sent])
    here.close()
    with pytest.raises(ConnectionError, match="closed inside a message"):
        m.receive_frame(there)


@pytest.mark.parametrize("length", [m.MAX_FRAME_BYTES + 1, 2**32 - 1, 0x47455420])
def test_a_frame_that_is_too_long_is_refused_before_it_is_read(pair: Pair, length: int) -> None:
    here, there = pair
    here.sendall(struct.pack(">I", length) + b"x")
    with pytest.raises(ConnectionError, match=f"a frame of {length} bytes: not from lance_stream"):
        m.receive_frame(there)


def test_the_timeout_of_the_socket_is_heeded(pair: Pair) -> None:
    _, there = pair
    there.settimeout(0.05)
    with pytest.raises(TimeoutError, match="timed out"):
        m.receive_frame(there)
