"""A table on the S3 server, and the options to reach it through the fault proxy."""

from __future__ import annotations

import pytest

from tests.support.fault_proxy import FaultProxy
from tests.support.object_store import S3Server
from tests.support.tables import write_table


@pytest.fixture(scope="session")
def s3_table(s3_server: S3Server, s3_bucket: str) -> str:
    """The table T(100, 25), version 1, for tests that only read."""
    uri = f"s3://{s3_bucket}/stores/t100.lance"
    write_table(uri, 100, 25, storage_options=s3_server.storage_options())
    return uri


@pytest.fixture
def options(s3_server: S3Server, fault_proxy: FaultProxy) -> dict[str, str]:
    """Storage options for the way through the proxy."""
    return s3_server.storage_options(fault_proxy.endpoint)
