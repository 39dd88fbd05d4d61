"""The README's commands and snippets are true: each is run here."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.scripts import run_script
from tests.support.tables import write_table

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()
SNIPPETS = re.findall(r"```python\n(.*?)```", README, re.DOTALL)


def test_quick_start_runs(tmp_path: Path) -> None:
    """The quick start, as printed, on a table with such columns."""
    write_table(str(tmp_path / "train.lance"), 100, 25)
    snippet = SNIPPETS[0].replace('["image", "label"]', '["v", "i"]')
    snippet = snippet.replace('"image"', '"v"').replace('"label"', '"i"')
    assert len([line for line in SNIPPETS[0].splitlines() if line]) <= 10
    script = tmp_path / "train.py"
    script.write_text(snippet + "    print(images.shape, labels.shape)\n")
    result = run_script(script, cwd=tmp_path).check()
    assert "torch.Size([4, 8])" in result.stdout


def test_s3_snippet_is_valid() -> None:
    """Every argument of the S3 example is one that LanceStream takes."""
    run_script(SNIPPETS[1]).check()


def test_selection_snippet_is_valid() -> None:
    """Every argument of the example of selections is one that LanceStream takes."""
    run_script(SNIPPETS[2]).check()


def test_index_snippet_runs(tmp_path: Path) -> None:
    """An index made, saved and loaded, as printed, on a table with such a column."""
    write_table(str(tmp_path / "train.lance"), 100, 25)
    script = tmp_path / "index.py"
    script.write_text(SNIPPETS[3].replace("label <", "i <"))
    result = run_script(script, cwd=tmp_path).check()
    assert result.stdout.startswith("50 3 (RowRange(start=0, stop=20),)")


def test_batched_snippet_runs(tmp_path: Path) -> None:
    """LanceStreamingDataset, as printed, on a table with such columns."""
    write_table(str(tmp_path / "train.lance"), 100, 25)
    snippet = SNIPPETS[4].replace('"image"', '"v"').replace('"label"', '"i"')
    script = tmp_path / "train.py"
    script.write_text(snippet + "        print(images.shape, labels.dtype)\n")
    result = run_script(script, cwd=tmp_path).check()
    assert "torch.Size([64, 8]) torch.int64" in result.stdout


def test_online_snippet_is_valid(tmp_path: Path) -> None:
    """To the error that ends it, on a table that has no round yet (docs/online.md runs rounds)."""
    write_table(str(tmp_path / "measurements.lance"), 100, 25)
    script = tmp_path / "train.py"
    script.write_text(SNIPPETS[5].replace("timeout=600", "timeout=0"))
    result = run_script(script, cwd=tmp_path)
    assert "has 100 rows, round 0 needs 10000" in result.stderr


@pytest.mark.parametrize("link", sorted(set(re.findall(r"\]\(([^)#:]+)\)", README))))
def test_links_lead_somewhere(link: str) -> None:
    """Every relative link of the README is a file."""
    assert (ROOT / link).exists()


def test_demo_runs() -> None:
    """What ``make demo`` runs: two exact epochs, and what the download process did."""
    demo = re.search(r"demo: .*\n\t\$\(BIN\)/python (\S+)", (ROOT / "Makefile").read_text())
    assert demo is not None
    done = subprocess.run(
        [sys.executable, demo.group(1)], cwd=ROOT, capture_output=True, text=True, timeout=110
    )
    assert done.returncode == 0, done.stderr
    assert "epoch 1: 20,000 rows, each exactly once" in done.stdout
    assert "fetched 20 of 20 shards" in done.stdout


@pytest.mark.parametrize("target", ["demo", "test", "test-slow", "lint", "typecheck", "bench"])
def test_make_targets_exist(target: str) -> None:
    """Every target that the documents name is in the Makefile."""
    text = README + (ROOT / "CONTRIBUTING.md").read_text()
    assert re.search(rf"make (\w+ )?{target}", text)
    done = subprocess.run(["make", "-n", target], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
