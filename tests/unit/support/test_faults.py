from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.support.faults import ArmedFault, Fault


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"action": "explode"}, "action 'explode' is none of"),
        ({"cut_bytes": 1, "cut_fraction": 0.5}, "exclude each other"),
        ({"fail_rate": 1.5}, r"fail_rate 1.5 is not in \[0, 1\]"),
        ({"action_rate": -0.1}, r"action_rate -0.1 is not in \[0, 1\]"),
        ({"cut_fraction": 2.0}, r"cut_fraction 2.0 is not in \[0, 1\]"),
        ({"latency_ms": -1}, "latency_ms -1 is negative"),
        ({"action_next": -1}, "action_next -1 is negative"),
        ({"bandwidth_bytes_per_s": 0}, "bandwidth_bytes_per_s 0 is not positive"),
    ],
)
def test_what_could_never_happen_is_refused(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Fault(**fields)


def test_a_fault_concerns_whole_methods_and_any_part_of_the_path() -> None:
    fault = Fault(method="GET|HEAD", path=r"/data/.*\.lance$")
    assert fault.matches("HEAD", "/b/t.lance/data/1.lance")
    assert not fault.matches("GETX", "/b/t.lance/data/1.lance")
    assert not fault.matches("GET", "/b/t.lance/_versions/1.manifest")
    assert Fault().matches("PUT", "/anything")


def test_a_cut_is_inside_the_body() -> None:
    assert Fault().cut_at(10) == 5
    assert Fault(cut_fraction=0).cut_at(10) == 0
    assert Fault(cut_fraction=1).cut_at(10) == 9
    assert Fault(cut_bytes=3).cut_at(10) == 3
    assert Fault(cut_bytes=99).cut_at(10) == 9


def test_counts_run_out() -> None:
    armed = ArmedFault(Fault(fail_next=2, action="reset", action_next=1))
    assert [armed.fails() for _ in range(4)] == [True, True, False, False]
    assert [armed.acts() for _ in range(3)] == [True, False, False]


def test_rates_are_drawn_from_the_seed() -> None:
    def draws(seed: int) -> list[tuple[bool, bool]]:
        armed = ArmedFault(Fault(fail_rate=0.5, action="reset", action_rate=0.25, seed=seed))
        return [(armed.fails(), armed.acts()) for _ in range(400)]

    first = draws(1)
    assert first == draws(1)
    assert first != draws(2)
    assert 150 < sum(fails for fails, _ in first) < 250
    assert 60 < sum(acts for _, acts in first) < 140


def test_a_fault_survives_the_wire(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    fault = Fault(method="GET", action="corrupt", cut_bytes=7, on_match_touch=Path("seen"))
    assert Fault(**json.loads(json.dumps(fault.to_json()))) == Fault(
        method="GET", action="corrupt", cut_bytes=7, on_match_touch=str(tmp_path / "seen")
    )
