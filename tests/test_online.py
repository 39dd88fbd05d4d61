"""docs/online.md and examples/online.py are true: what they show is run here."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.support.scripts import run_script
from tests.support.tables import write_table

ROOT = Path(__file__).parent.parent
DOC = (ROOT / "docs/online.md").read_text()
SNIPPETS = re.findall(r"```python\n(.*?)```", DOC, re.DOTALL)

_AROUND_STATES = """
from lance_stream import LanceStreamingDataset, follow

follower = follow("measurements.lance", rows_per_round=100)
for each in follower:
    dataset = LanceStreamingDataset(streams=[each.stream()], batch_size=20, shuffle=True)
    samples = 40
    if each.number == 1:
        whole = [int(row["i"]) for row in dataset]
        break
dataset = LanceStreamingDataset(streams=[each.stream()], batch_size=20, shuffle=True)
iterator = iter(dataset)
head = [int(next(iterator)["i"]) for _ in range(samples)]
{snippet}
assert each.number == 1
assert head + [int(row["i"]) for row in dataset] == whole, (head, whole)
print("the same")
"""


def test_the_first_snippet_runs(tmp_path: Path) -> None:
    """To the error that ends it, on a table of 250 rows."""
    write_table(str(tmp_path / "measurements.lance"), 250, 60)
    script = tmp_path / "train.py"
    script.write_text(SNIPPETS[0])
    result = run_script(script, cwd=tmp_path)
    assert result.stdout.splitlines() == ["0 (0, 100) 1", "1 (0, 200) 1"]
    assert "NoNewDataError" in result.stderr.splitlines()[-1]
    assert "has 250 rows, round 2 needs 300" in result.stderr


@pytest.mark.slow
def test_the_second_snippet_goes_on(tmp_path: Path) -> None:
    """In the middle of the second round."""
    write_table(str(tmp_path / "measurements.lance"), 250, 60)
    script = tmp_path / "train.py"
    script.write_text(_AROUND_STATES.replace("{snippet}", SNIPPETS[1]))
    assert "the same" in run_script(script, cwd=tmp_path).check().stdout


@pytest.mark.parametrize("rounds", [4, pytest.param(12, marks=pytest.mark.slow)])
def test_the_example_learns(rounds: int) -> None:
    """A line for each round; what the simulation does halfway is seen in the loss."""
    result = run_script(ROOT / "examples/online.py", "--rounds", rounds, timeout_s=110).check()
    lines = re.findall(r"(\d+) +│ (\d+) to (\d+) +│ (\d+) +│ ([\d.]+) +│ ([\d.]+)", result.stdout)
    numbers = [[int(value) for value in line[:3]] for line in lines]
    assert numbers == [[n, max(0, n - 1) * 200, n * 200 + 200] for n in range(rounds)]
    versions = [int(line[3]) for line in lines]
    assert versions == sorted(versions)
    before, after = ([float(line[at]) for line in lines] for at in (4, 5))
    assert after[0] < before[0]
    if rounds == 12:
        assert after[5] < 0.1 < max(before[6:8])
        assert after[11] < 0.1
