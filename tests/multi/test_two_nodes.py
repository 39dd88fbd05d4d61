"""The program of docs/nodes.md, which checks what it prints; and that the document shows it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.multi.two_nodes import main
from tests.support.mounts import as_root
from tests.support.scripts import REPO_ROOT

pytestmark = [as_root, pytest.mark.slow, pytest.mark.timeout(580)]


def shape(text: str) -> list[str]:
    """Lines in which every number is the same, and any blanks are one."""
    return [re.sub(r"[\s\d]*\d", " 0", line).rstrip() for line in text.strip().splitlines()]


@pytest.mark.parametrize("kind", ["stock", "lance"])
def test_two_nodes(tmp_path: Path, capsys: pytest.CaptureFixture[str], kind: str) -> None:
    """Exact over nodes, one version, one download process each, replication, elastic resume."""
    main(tmp_path, kind)
    printed = capsys.readouterr().out
    text = (REPO_ROOT / "docs" / "nodes.md").read_text()
    (shown,) = re.findall(r"```text\n(.*?)```", text, re.DOTALL)
    assert shape(shown) == shape(printed.replace("lance dataset", "stock dataset"))
