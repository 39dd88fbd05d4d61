"""Plans and shards of random tables, against what Lance itself gives for the selection."""

from __future__ import annotations

import pytest

from tests.support.scripts import run_script

_SCRIPT = "from tests.support.planned_rows import main\nmain()\n"


def test_every_selected_row_once_and_exactly() -> None:
    """Fragments, deletions, updates, compaction; filter, subset, limit; layouts; every route."""
    assert run_script(_SCRIPT, 60, 1, timeout_s=110).json() == 60


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_every_selected_row_once_and_exactly_often() -> None:
    """As above, many more."""
    assert run_script(_SCRIPT, 750, 2, timeout_s=850).json() == 750
