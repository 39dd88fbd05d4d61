"""The server with a table reader of ours, in a process of its own: it imports lance."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

SCRIPT = """
import asyncio, json, sys, threading, time
from lance_stream.errors import UnsupportedTypeError
from lance_stream.service import messages as m
from lance_stream.service.runtime import Endpoint
from lance_stream.service.server import Limits, Server

TIMEOUT_S = 0.6

class Planner:
    '''Plans tables whose names say how long that takes, and whether it tells.'''

    class shared:
        close = staticmethod(lambda timeout_s: None)
        open = staticmethod(lambda urls: None)
        counts = staticmethod(lambda: [])

    forget = staticmethod(lambda source: None)

    def pin(self, request, is_alive):
        raise OSError("not asked for")

    def plan(self, request, news):
        for _ in range(0 if request.uri == "leaves" else 10):
            # Longer than the server leaves between two words.
            time.sleep(0.25)
            if request.uri != "silent":
                news("reading", _, 10)
            if request.uri == "hangs later" and _ == 5:
                time.sleep(30)
        raise UnsupportedTypeError(f"{request.uri} was read to its end")

async def ask(path, uri):
    reader, writer = await asyncio.open_unix_connection(path)
    plan = m.Plan(uri, None, None, None, False, 1, 1, m.Options(), TIMEOUT_S, 1)
    writer.write(m.encode(plan))
    started, names = time.monotonic(), []
    while not names or names[-1] == "Planning":
        length = int.from_bytes(await reader.readexactly(4), "big")
        answer = m.decode_server(await reader.readexactly(length))
        names.append(type(answer).__name__)
    seconds = time.monotonic() - started
    writer.close()
    return [names, answer.error, answer.message, seconds]

async def warned(server):
    for number in range(20):
        await asyncio.to_thread(server._warn_from_thread, f"outage {number}")
    reader, writer = await asyncio.open_unix_connection(server._endpoint.socket_path)
    server._sources["s"] = "of an earlier client"
    writer.write(m.encode(m.Register("s", "u", 1, "", "", "", m.Options(), 1, 1)))
    texts = []
    while len(texts) < 17:
        length = int.from_bytes(await reader.readexactly(4), "big")
        texts.append(m.decode_server(await reader.readexactly(length)).message)
        if len(texts) == 16:
            # And one that it hears at once.
            await asyncio.to_thread(server._warn_from_thread, "outage 20")
    writer.close()
    return texts

async def main(endpoint, uri):
    server = Server(endpoint, Limits(), Planner())
    if uri == "leaves":
        server._pins.release = lambda client: {}["nothing is known of it"]
    task = asyncio.create_task(server.run())
    await asyncio.sleep(0.1)
    result = await (warned(server) if uri == "warned" else ask(endpoint.socket_path, uri))
    # It ends by itself once its only client is gone.
    await asyncio.wait_for(task, 20)
    print(json.dumps(result), flush=True)

import os
os.makedirs(f"{sys.argv[1]}/running", exist_ok=True)
endpoint = Endpoint(sys.argv[1])
os.makedirs(endpoint.running_directory, exist_ok=True)
os.makedirs(endpoint.plans_directory, exist_ok=True)
asyncio.run(main(endpoint, sys.argv[2]))
os._exit(0)  # a thread may hang
"""


@pytest.fixture
def ask(run_python: Callable[..., str], tmp_path: Path) -> Callable[[str], list]:
    def run(uri: str) -> list:
        return json.loads(run_python(SCRIPT, str(tmp_path), uri))

    return run


def test_planning_may_go_on_as_long_as_it_tells(ask: Callable[[str], list]) -> None:
    names, error, message, seconds = ask("tells")
    assert names == ["Planning"] * 10 + ["PlanFailed"]
    assert (error, message) == ("UnsupportedTypeError", "tells was read to its end")
    assert seconds > 1.9  # more than three times what it may take without a word


@pytest.mark.parametrize(("uri", "news"), [("silent", 0), ("hangs later", 6)])
def test_planning_that_tells_nothing_is_given_up(
    ask: Callable[[str], list], uri: str, news: int
) -> None:
    names, error, message, seconds = ask(uri)
    assert names == ["Planning"] * news + ["PlanFailed"]
    assert error == "SourceUnavailableError"
    assert f"{uri} got no answer within download_timeout=0.6 s" in message
    assert seconds < 5


def test_a_warning_waits_for_who_can_log_it(ask: Callable[[str], list]) -> None:
    """Not all of them: a process may be without clients for long."""
    assert ask("warned") == [f"outage {number}" for number in range(4, 21)]


def test_a_client_leaves_what_cannot_be_cleared(ask: Callable[[str], list]) -> None:
    """A fault in clearing up is logged; the process ends with its last client all the same."""
    _, error, _, _ = ask("leaves")
    assert error == "UnsupportedTypeError"
