"""What several of these tests read: one small table, one plain object."""

from __future__ import annotations

import pytest

from tests.support.object_store import S3Server
from tests.support.tables import write_table

OBJECT_KEY = "support/object"
OBJECT = bytes(range(256)) * 4096  # 1 MiB


@pytest.fixture(scope="session")
def table_uri(s3_server: S3Server, s3_bucket: str) -> str:
    """T(2000, 2000) on the server."""
    uri = f"s3://{s3_bucket}/support/t.lance"
    write_table(uri, 2000, 2000, storage_options=s3_server.storage_options())
    return uri


@pytest.fixture(scope="session")
def object_path(s3_server: S3Server, s3_bucket: str) -> str:
    """The HTTP path of an object with the bytes `OBJECT`."""
    s3_server.client().put_object(Bucket=s3_bucket, Key=OBJECT_KEY, Body=OBJECT)
    return f"/{s3_bucket}/{OBJECT_KEY}"
