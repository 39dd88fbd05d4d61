from __future__ import annotations

import pytest

from lance_stream.errors import DownloadProcessError
from lance_stream.service.environment import METRICS_PORT, check_environment, number
from lance_stream.service.launcher import connect
from lance_stream.service.runtime import new_endpoint


@pytest.mark.parametrize(("text", "port"), [("", 0), ("0", 0), (" 9105 ", 9105), ("65535", 65535)])
def test_a_number(monkeypatch: pytest.MonkeyPatch, text: str, port: int) -> None:
    monkeypatch.setenv(METRICS_PORT, text)
    assert number(METRICS_PORT, 0) == port
    check_environment()


@pytest.mark.parametrize("text", ["abc", "-1", "70000", "1.5", "\u0663"])
def test_nothing_is_started_with_what_is_none(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setenv(METRICS_PORT, text)
    with pytest.raises(DownloadProcessError, match=f"{METRICS_PORT}=.* from 0 to 65535"):
        connect(new_endpoint())


@pytest.mark.parametrize("name", ["LANCE_STREAM_MAX_FETCHES", "LANCE_STREAM_MAX_FETCH_BYTES"])
def test_with_none_at_a_time_nothing_would_ever_come(
    monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setenv(name, "0")
    with pytest.raises(DownloadProcessError, match=f"{name}='0', which must be .* from 1"):
        check_environment()
