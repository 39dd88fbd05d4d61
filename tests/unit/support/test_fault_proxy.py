"""Each fault, seen by lance through the proxy or, where bytes count, by an S3 client."""

from __future__ import annotations

import socket
import time
from pathlib import Path
from typing import Any

import pytest
from botocore.exceptions import (
    ClientError,
    ConnectionClosedError,
    EndpointConnectionError,
    ResponseStreamingError,
)

from tests.support.fault_proxy import Action, Fault, FaultProxy, FaultProxyError, RequestRecord
from tests.support.object_store import S3Server
from tests.support.scripts import run_script, start_script
from tests.unit.support.conftest import OBJECT, OBJECT_KEY
from tests.unit.support.lance_read import NO_RETRIES, read_table

DATA = r"/data/"


@pytest.fixture
def options(s3_server: S3Server, fault_proxy: FaultProxy) -> dict[str, str]:
    """For lance, through the proxy."""
    return s3_server.storage_options(fault_proxy.endpoint)


@pytest.fixture
def client(s3_server: S3Server, fault_proxy: FaultProxy, object_path: str) -> Any:
    """An S3 client through the proxy; the object is there."""
    return s3_server.client(fault_proxy.endpoint)


def get_object(client: Any, bucket: str, **arguments: str) -> bytes:
    body: bytes = client.get_object(Bucket=bucket, Key=OBJECT_KEY, **arguments)["Body"].read()
    return body


def faults(records: list[RequestRecord]) -> list[str | None]:
    return [record.fault for record in records]


def data_requests(records: list[RequestRecord]) -> list[RequestRecord]:
    return [record for record in records if DATA in record.path]


# Without faults


def test_a_read_passes_unharmed_and_is_told_exactly(
    fault_proxy: FaultProxy, options: dict[str, str], table_uri: str
) -> None:
    before_s = time.monotonic()
    assert read_table(table_uri, options).good
    stats = fault_proxy.stats()
    records = fault_proxy.log()
    assert [record.method for record in records] == ["GET"] * len(records)
    assert all(record.path.startswith("/tests") for record in records)
    assert all(before_s < record.started_s < time.monotonic() for record in records)
    assert all(record.ms is not None and 0 < record.ms < 5000 for record in records)
    assert {(record.fault, record.error) for record in records} == {(None, None)}
    ranged = data_requests(records)
    assert ranged
    for record in ranged:
        start, _, end = str(record.range).removeprefix("bytes=").partition("-")
        assert (record.status, record.bytes) == (206, int(end) + 1 - int(start))
    assert stats.requests == len(records)
    assert stats.in_flight == 0
    assert 1 <= stats.max_in_flight <= len(records)
    assert 1 <= stats.connections <= len(records)
    assert fault_proxy.log() == []


def test_signed_writes_reads_and_heads_pass(client: Any, s3_bucket: str) -> None:
    body = OBJECT * 3
    client.put_object(Bucket=s3_bucket, Key="support/copy", Body=body)
    assert client.head_object(Bucket=s3_bucket, Key="support/copy")["ContentLength"] == len(body)
    answer = client.get_object(Bucket=s3_bucket, Key="support/copy")
    assert answer["Body"].read() == body


def test_an_error_of_the_server_is_passed_on(
    fault_proxy: FaultProxy, client: Any, s3_bucket: str
) -> None:
    with pytest.raises(ClientError, match="NoSuchKey"):
        client.get_object(Bucket=s3_bucket, Key="support/none")
    assert [(record.status, record.fault) for record in fault_proxy.log()] == [(404, None)]


# Latency and pace


def test_latency_is_added_to_every_request(
    fault_proxy: FaultProxy, options: dict[str, str], table_uri: str
) -> None:
    fault_proxy.set(Fault(latency_ms=100))
    assert read_table(table_uri, options).good
    records = fault_proxy.log()
    assert min(record.ms or 0 for record in records) >= 100
    assert faults(records) == [None] * len(records)


def test_bandwidth_paces_a_body(fault_proxy: FaultProxy, client: Any, s3_bucket: str) -> None:
    fault_proxy.set(Fault(bandwidth_bytes_per_s=2 * len(OBJECT)))
    started_s = time.monotonic()
    assert get_object(client, s3_bucket) == OBJECT
    assert 0.45 < time.monotonic() - started_s < 2


# Error answers


def test_brief_throttling_is_absorbed(
    fault_proxy: FaultProxy, options: dict[str, str], table_uri: str
) -> None:
    fault_proxy.set(Fault(path=DATA, fail_next=2))
    assert read_table(table_uri, options).good
    records = data_requests(fault_proxy.log())
    assert [record.status for record in records][:3] == [503, 503, 206]
    assert faults(records)[:3] == ["fail", "fail", None]


def test_throttling_without_end_is_an_error(
    fault_proxy: FaultProxy, options: dict[str, str], table_uri: str
) -> None:
    fault_proxy.set(Fault(path=DATA, fail_rate=1))
    outcome = read_table(table_uri, options | NO_RETRIES)
    assert outcome.error_kind == "OSError"
    assert "503" in str(outcome.error)
    assert "SlowDown" in str(outcome.error)
    assert set(faults(data_requests(fault_proxy.log()))) == {"fail"}


def test_an_error_answer_is_what_was_asked_for(
    fault_proxy: FaultProxy, client: Any, s3_bucket: str
) -> None:
    fault_proxy.set(Fault(fail_next=2, fail_status=429, fail_code="Busy", retry_after=7))
    with pytest.raises(ClientError, match="Busy") as caught:
        get_object(client, s3_bucket)
    metadata = caught.value.response["ResponseMetadata"]
    assert metadata["HTTPStatusCode"] == 429
    assert metadata["HTTPHeaders"]["retry-after"] == "7"
    with pytest.raises(ClientError, match="429"):
        client.head_object(Bucket=s3_bucket, Key=OBJECT_KEY)
    assert get_object(client, s3_bucket) == OBJECT
    assert fault_proxy.stats().connections == 1  # error answers keep the connection


def test_a_rate_fails_the_same_requests_for_the_same_seed(
    fault_proxy: FaultProxy, client: Any, s3_bucket: str
) -> None:
    def pattern() -> list[str | None]:
        fault_proxy.set(Fault(fail_rate=0.5, seed=3))
        for _ in range(30):
            try:
                get_object(client, s3_bucket, Range="bytes=0-9")
            except ClientError:
                continue
        return faults(fault_proxy.log())

    first = pattern()
    assert set(first) == {"fail", None}
    assert first == pattern()


# Actions


ACTIONS: tuple[Action, ...] = (
    "hang",
    "reset",
    "resp_reset",
    "body_reset",
    "body_close",
    "body_hang",
)


@pytest.mark.parametrize("action", ACTIONS)
def test_one_broken_request_is_absorbed_by_the_next(
    fault_proxy: FaultProxy, options: dict[str, str], table_uri: str, action: Action
) -> None:
    fault_proxy.set(Fault(path=DATA, action=action, action_next=1))
    assert read_table(table_uri, options | {"timeout": "300ms"}).good
    records = data_requests(fault_proxy.log())
    assert records[0].fault == action
    assert faults(records[1:]) == [None] * (len(records) - 1)


@pytest.mark.parametrize("action", ["reset", "resp_reset", "body_reset", "body_close"])
def test_broken_requests_without_end_are_an_error(
    fault_proxy: FaultProxy, options: dict[str, str], table_uri: str, action: Action
) -> None:
    fault_proxy.set(Fault(path=DATA, action=action, cut_fraction=0.25))
    outcome = read_table(table_uri, options | NO_RETRIES)
    assert outcome.error_kind == "OSError"
    records = data_requests(fault_proxy.log())
    assert set(faults(records)) == {action}
    first = records[0]
    if action.startswith("body"):
        assert first.status == 206
        assert first.bytes == 65_536 // 4  # lance's first request of a file is 64 KiB
    else:
        assert (first.status, first.bytes) == (None, 0)


@pytest.mark.parametrize("action", ["hang", "body_hang"])
def test_a_hang_lasts_until_the_client_gives_up(
    fault_proxy: FaultProxy, options: dict[str, str], table_uri: str, action: Action
) -> None:
    fault_proxy.set(Fault(path=DATA, action=action))
    outcome = read_table(table_uri, options | NO_RETRIES | {"timeout": "200ms"})
    assert outcome.error_kind == "OSError"
    records = data_requests(fault_proxy.log())
    assert set(faults(records)) == {action}
    assert all(150 < (record.ms or 0) < 2000 for record in records)
    assert fault_proxy.stats().in_flight == 0


def test_a_hang_ends_by_itself(fault_proxy: FaultProxy, client: Any, s3_bucket: str) -> None:
    fault_proxy.set(Fault(action="hang", hang_s=0.3))
    started_s = time.monotonic()
    with pytest.raises(ConnectionClosedError, match="Connection was closed"):
        get_object(client, s3_bucket)
    assert 0.3 <= time.monotonic() - started_s < 5


def test_an_inverted_byte_is_read_by_lance_without_a_word(
    fault_proxy: FaultProxy, options: dict[str, str], table_uri: str
) -> None:
    fault_proxy.set(Fault(path=DATA, action="corrupt"))
    outcome = read_table(table_uri, options)
    assert outcome.error is None
    assert outcome.rows == 2000
    assert len(outcome.wrong_rows) >= 1
    assert "corrupt" in faults(fault_proxy.log())
    fault_proxy.clear()
    assert read_table(table_uri, options).good


def test_exactly_the_byte_at_the_cut_is_inverted(
    fault_proxy: FaultProxy, client: Any, s3_bucket: str
) -> None:
    cases: list[tuple[Fault, int]] = [
        (Fault(action="corrupt"), len(OBJECT) // 2),
        (Fault(action="corrupt", cut_fraction=0.1), len(OBJECT) // 10),
        (Fault(action="corrupt", cut_bytes=0), 0),
        (Fault(action="corrupt", cut_bytes=300_001), 300_001),
        (Fault(action="corrupt", cut_bytes=1 << 40), len(OBJECT) - 1),
    ]
    for fault, position in cases:
        fault_proxy.set(fault)
        expected = bytearray(OBJECT)
        expected[position] ^= 0xFF
        assert get_object(client, s3_bucket) == bytes(expected), fault


@pytest.mark.parametrize(
    ("action", "message"),
    [("body_reset", "Connection reset by peer"), ("body_close", "IncompleteRead")],
)
def test_a_cut_body_stops_at_the_cut(
    fault_proxy: FaultProxy, client: Any, s3_bucket: str, action: Action, message: str
) -> None:
    fault_proxy.set(Fault(action=action, cut_bytes=1000))
    with pytest.raises(ResponseStreamingError, match=message):
        get_object(client, s3_bucket)
    [record] = fault_proxy.log()
    assert (record.status, record.bytes, record.fault) == (200, 1000, action)


def test_a_response_reset_comes_after_the_work_is_done(
    s3_server: S3Server, fault_proxy: FaultProxy, client: Any, s3_bucket: str
) -> None:
    fault_proxy.set(Fault(method="PUT", action="resp_reset"))
    with pytest.raises(ConnectionClosedError, match="Connection was closed"):
        client.put_object(Bucket=s3_bucket, Key="support/lost-answer", Body=b"arrived")
    answer = s3_server.client().get_object(Bucket=s3_bucket, Key="support/lost-answer")
    assert answer["Body"].read() == b"arrived"


@pytest.mark.parametrize("action", ["reset", "hang"])
def test_a_refused_request_never_reaches_the_server(
    s3_server: S3Server, fault_proxy: FaultProxy, client: Any, s3_bucket: str, action: Action
) -> None:
    fault_proxy.set(Fault(method="PUT", action=action, hang_s=0.1))
    with pytest.raises(ConnectionClosedError, match="Connection was closed"):
        client.put_object(Bucket=s3_bucket, Key="support/never", Body=b"no")
    with pytest.raises(ClientError, match="404"):
        s3_server.client().head_object(Bucket=s3_bucket, Key="support/never")


def test_an_action_with_a_rate_is_done_to_some(
    fault_proxy: FaultProxy, client: Any, s3_bucket: str
) -> None:
    fault_proxy.set(Fault(action="corrupt", action_rate=0.5, seed=1))
    for _ in range(30):
        get_object(client, s3_bucket, Range="bytes=0-9")
    assert 5 < faults(fault_proxy.log()).count("corrupt") < 25


def test_answers_without_a_body_do_not_use_up_a_body_action(
    fault_proxy: FaultProxy, client: Any, s3_bucket: str
) -> None:
    fault_proxy.set(Fault(action="body_reset", action_next=1))
    client.head_object(Bucket=s3_bucket, Key=OBJECT_KEY)
    with pytest.raises(ClientError, match="NoSuchKey"):
        client.get_object(Bucket=s3_bucket, Key="support/none")
    with pytest.raises(ResponseStreamingError, match="Connection reset by peer"):
        get_object(client, s3_bucket)
    assert get_object(client, s3_bucket) == OBJECT
    assert faults(fault_proxy.log()) == [None, None, "body_reset", None]


# Which requests


def test_only_matching_requests_are_harmed_and_the_first_match_wins(
    fault_proxy: FaultProxy, client: Any, s3_bucket: str
) -> None:
    fault_proxy.set(
        Fault(method="PUT", fail_rate=1, fail_code="NoWrites"),
        Fault(path="/support/object", fail_next=1, fail_code="First"),
        Fault(path="/support/", fail_rate=1, fail_code="Second"),
    )
    with pytest.raises(ClientError, match="NoWrites"):
        client.put_object(Bucket=s3_bucket, Key=OBJECT_KEY, Body=b"")
    with pytest.raises(ClientError, match="First"):
        get_object(client, s3_bucket)
    assert get_object(client, s3_bucket) == OBJECT  # used up, and still the first that matches
    with pytest.raises(ClientError, match="Second"):
        client.get_object(Bucket=s3_bucket, Key="support/other")
    client.list_objects_v2(Bucket=s3_bucket)


def test_a_new_fault_does_not_free_a_hung_request_but_spares_the_next(
    fault_proxy: FaultProxy, options: dict[str, str], table_uri: str
) -> None:
    fault_proxy.set(Fault(path=DATA, action="hang"))
    source = f"""
        from tests.unit.support.lance_read import read_table
        print(read_table({table_uri!r}, {options | {"timeout": "500ms"}!r}).good)
    """
    with start_script(source) as script:
        deadline_s = time.monotonic() + 20
        while not data_requests(records := fault_proxy.log()):
            assert time.monotonic() < deadline_s
            time.sleep(0.01)
        fault_proxy.clear()
        assert data_requests(records)[0].ms is None  # still in flight
        assert fault_proxy.stats().in_flight == 1
        assert script.wait(30).check().stdout == "True\n"


def test_a_match_is_told_by_a_file_while_the_request_waits(
    fault_proxy: FaultProxy, options: dict[str, str], table_uri: str, tmp_path: Path
) -> None:
    seen = tmp_path / "seen"
    fault_proxy.set(Fault(path=DATA, latency_ms=300, on_match_touch=seen))
    source = f"""
        from tests.unit.support.lance_read import read_table
        print(read_table({table_uri!r}, {options!r}).good)
    """
    with start_script(source) as script:
        deadline_s = time.monotonic() + 20
        while not seen.exists():
            assert time.monotonic() < deadline_s
            time.sleep(0.005)
        assert fault_proxy.stats().in_flight == 1
        assert script.wait(30).check().stdout == "True\n"
    lines = seen.read_text().splitlines()
    paths = [f"{record.method} {record.path}" for record in data_requests(fault_proxy.log())]
    assert lines == paths


# The proxy itself


def test_stats_can_be_started_anew(fault_proxy: FaultProxy, client: Any, s3_bucket: str) -> None:
    get_object(client, s3_bucket)
    assert fault_proxy.stats().requests == 1
    fault_proxy.reset_stats()
    stats = fault_proxy.stats()
    assert (stats.requests, stats.connections, stats.max_in_flight) == (0, 0, 0)
    assert len(fault_proxy.log()) == 1


def test_another_process_can_command_the_proxy(fault_proxy: FaultProxy) -> None:
    source = """
        import sys, urllib.request, urllib.error
        from tests.support.fault_proxy import Fault, ProxyControl
        control = ProxyControl(int(sys.argv[1]))
        control.set(Fault(fail_next=1, fail_status=418))
        try:
            urllib.request.urlopen(sys.argv[2], timeout=10)
        except urllib.error.HTTPError as error:
            print(error.code, len(control.log()))
    """
    result = run_script(source, fault_proxy.control_port, fault_proxy.endpoint)
    assert result.check().stdout == "418 1\n"


def test_a_stopped_proxy_refuses_and_can_come_back_on_its_port(
    s3_server: S3Server, client: Any, fault_proxy: FaultProxy, s3_bucket: str
) -> None:
    assert get_object(client, s3_bucket) == OBJECT
    fault_proxy.stop()
    with pytest.raises(EndpointConnectionError, match="Could not connect"):
        s3_server.client(fault_proxy.endpoint).list_buckets()
    with pytest.raises(
        FaultProxyError, match=r"'stats' from the proxy's control port.*ended with"
    ):
        fault_proxy.stats()
    with FaultProxy.start(s3_server.port, port=fault_proxy.port) as again:
        assert again.endpoint == fault_proxy.endpoint
        assert get_object(client, s3_bucket) == OBJECT


def test_a_port_that_is_taken_is_an_error_with_its_reason(s3_server: S3Server) -> None:
    with pytest.raises(AssertionError, match="address already in use"):
        FaultProxy.start(s3_server.port, port=s3_server.port)


def test_a_missing_server_is_an_error_in_the_log_and_no_fault() -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))  # bound and not listening: refused for certain
        with FaultProxy.start(unused.getsockname()[1]) as proxy:
            with socket.create_connection(("127.0.0.1", proxy.port), timeout=5) as connection:
                connection.sendall(b"GET /x HTTP/1.1\r\nHost: h\r\n\r\n")
                with pytest.raises(ConnectionResetError, match="reset"):
                    connection.recv(1)
            [record] = proxy.log()
            assert (record.status, record.fault) == (None, None)
            assert "Connect" in str(record.error)


def test_a_busy_test_does_not_slow_the_proxy(
    fault_proxy: FaultProxy, options: dict[str, str], table_uri: str
) -> None:
    source = f"""
        from tests.unit.support.lance_read import read_table
        print(read_table({table_uri!r}, {options!r}).good)
    """
    with start_script(source) as script:
        while script.poll() is None:
            sum(range(100_000))  # holds the GIL
        assert script.wait(1).check().stdout == "True\n"
    assert max(record.ms or 0 for record in fault_proxy.log()) < 500
