"""What it costs to look at a table that grows on an S3 server, counted by the proxy."""

from __future__ import annotations

from typing import Any

import pytest

from lance_stream import LanceStreamingDataset, follow
from tests.support.fault_proxy import FaultProxy
from tests.support.faults import Fault
from tests.support.forked import run_forked
from tests.support.object_store import S3Server
from tests.support.producer import Producer
from tests.support.streams import ORDER

MANY = 30


def test_a_look_takes_two_requests_whatever_the_number_of_versions(
    s3_server: S3Server, s3_bucket: str, fault_proxy: FaultProxy, options: dict[str, str]
) -> None:
    uri = f"s3://{s3_bucket}/follow/polls.lance"

    def run() -> dict[str, Any]:
        follower = follow(uri, rows_per_round=10, storage_options=options)

        def look() -> list[str]:
            fault_proxy.log()
            follower._look(())
            return [f"{r.method} {r.path}" for r in fault_proxy.log()]

        with Producer(uri, options=s3_server.storage_options()) as producer:
            producer.append(10)
            next(follower)
            said = {"same": look()}
            producer.append(1)
            said["one"] = look()
            producer.append(1, times=MANY)
            said["many"] = look()
            follower.state_dict()
            # A follower that has just been started, and knows version 1 by its state.
            late = follow(uri, rows_per_round=10, storage_options=options)
            late.load_state_dict(follower.state_dict())
            follower = late
            follower._lease = None
            producer.append(1, times=MANY)
            said["late"] = look()
            producer.compact(5)
            said["compacted"] = look()
            producer.append(5)
            said["after"] = look()
        return said

    said = run_forked(run, timeout_s=110)
    counts = {what: len(requests) for what, requests in said.items()}
    print(counts, said["many"])  # noqa: T201
    assert counts["same"] <= 1, said["same"]
    for what in ("one", "many", "late", "after"):
        assert counts[what] <= 2, said[what]
    # Two versions, each with its manifest and what made it.
    assert counts["compacted"] <= 8, said["compacted"]


def test_a_store_that_fails_for_a_while_is_asked_again(
    s3_server: S3Server, s3_bucket: str, fault_proxy: FaultProxy, options: dict[str, str]
) -> None:
    uri = f"s3://{s3_bucket}/follow/faults.lance"

    def run() -> list[int]:
        with Producer(uri, options=s3_server.storage_options()) as producer:
            producer.append(10)
            follower = follow(
                uri, rows_per_round=10, storage_options=options, poll_seconds=0.1, timeout=60
            )
            next(follower)
            producer.append(10)
            fault_proxy.set(Fault(fail_next=12))
            each = next(follower)
            data = LanceStreamingDataset(streams=[each.stream()], batch_size=5, **ORDER)
            return [int(row["i"]) for row in data]

    assert run_forked(run, timeout_s=100) == list(range(10, 20))


@pytest.mark.parametrize("what", ["key", "bucket"])
def test_wrong_credentials_and_buckets_are_told_at_once(
    s3_bucket: str, options: dict[str, str], what: str
) -> None:
    """A table may be missing for now; that the store refuses us does not pass."""
    from lance_stream.errors import CredentialsError, NoNewDataError

    wrong = {**options, "secret_access_key": "wr0ng"} if what == "key" else options
    bucket = s3_bucket if what == "key" else "no-such-bucket"
    error = CredentialsError if what == "key" else NoNewDataError

    def run() -> None:
        follower = follow(
            f"s3://{bucket}/none.lance", rows_per_round=1, timeout=0, storage_options=wrong
        )
        with pytest.raises(error):
            next(follower)

    run_forked(run)
