from __future__ import annotations

import pytest

from lance_stream.source import options
from lance_stream.source.options import StorageOptions


@pytest.mark.parametrize(
    ("life_s", "after_s"),
    [(3600, 3540), (61, 1), (60, 30), (4, 2), (0, 0), (-10, -5)],
)
def test_options_are_renewed_a_minute_before_they_lapse_or_halfway(
    life_s: float, after_s: float
) -> None:
    assert options._renewal(1000.0, 1000.0 + life_s) == 1000.0 + after_s


def test_options_are_made_once_until_they_are_due(monkeypatch: pytest.MonkeyPatch) -> None:
    now, made = [1000.0], []
    monkeypatch.setattr(options.time, "time", lambda: now[0])

    def keys() -> tuple[dict[str, object], float]:
        made.append(now[0])
        return {"key": len(made)}, now[0] + 100

    monkeypatch.setattr(options, "load_function", lambda *_: keys)
    storage = StorageOptions(None, "module:keys", ())
    assert storage.current() == ({"key": "1"}, 1)
    now[0] = 1039.9
    assert storage.current() == ({"key": "1"}, 1)
    now[0] = 1040.0
    assert storage.current() == ({"key": "2"}, 2)
    assert made == [1000.0, 1040.0]


def test_fixed_options_are_never_made_anew() -> None:
    storage = StorageOptions({"key": "1"}, None, ())
    assert storage.current() == ({"key": "1"}, 0)
    assert not storage.renew(0)
    assert storage.current() == ({"key": "1"}, 0)
