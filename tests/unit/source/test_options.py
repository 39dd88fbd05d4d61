from __future__ import annotations

import pytest

from lance_stream.errors import CredentialsError, PlanError
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


@pytest.mark.parametrize("how", ["raises", "exits", "returns nothing"])
def test_a_function_that_fails_once_ends_nothing_while_its_options_are_good(
    monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    now, away = [1000.0], [False]
    monkeypatch.setattr(options.time, "time", lambda: now[0])
    calls = []

    def keys() -> tuple[dict[str, object], float] | None:
        calls.append(now[0])
        if away[0] and how == "raises":
            raise TimeoutError("503, try again")
        if away[0] and how == "exits":
            raise SystemExit(3)
        if away[0]:
            return None
        return {"key": now[0]}, now[0] + 100

    monkeypatch.setattr(options, "load_function", lambda *_: keys)
    storage = StorageOptions(None, "module:keys", ())
    assert storage.current() == ({"key": "1000.0"}, 1)
    away[0] = True
    for now[0] in (1040.0, 1049.9):
        assert storage.current() == ({"key": "1000.0"}, 1)
    # Not at each read, and again after a while.
    assert calls == [1000.0, 1040.0]
    now[0] = 1050.0
    assert storage.current() == ({"key": "1000.0"}, 1)
    assert calls[2:] == [1050.0]
    # Lapsed, or refused: there is nothing to go on with.
    now[0] = 1100.0
    wrong = {
        "raises": (CredentialsError, r"module:keys.*TimeoutError: 503, try again"),
        "exits": (CredentialsError, r"module:keys.*SystemExit: 3"),
        "returns nothing": (PlanError, r"module:keys.*TypeError"),
    }
    error, says = wrong[how]
    with pytest.raises(error, match=says):
        storage.current()
    away[0] = False
    assert storage.current() == ({"key": "1100.0"}, 2)
    away[0] = True
    storage.renew(2)
    with pytest.raises(error, match=says):
        storage.current()


@pytest.mark.parametrize(
    "returned",
    [None, {"key": "1"}, ({"key": "1"}, "soon"), ({"key": "1"}, float("nan")), ("key", None)],
)
def test_a_function_that_returns_something_else(
    monkeypatch: pytest.MonkeyPatch, returned: object
) -> None:
    monkeypatch.setattr(options, "load_function", lambda *_: lambda: returned)
    with pytest.raises(PlanError, match=r"module:keys.* must return \(options, expiry\)"):
        StorageOptions(None, "module:keys", ()).current()
