"""What all unit tests share: Python snippets in processes of their own, and how much is tried."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import settings

ROOT = Path(__file__).resolve().parents[2]

# Nearly the same examples in every run: a failure is seen by everybody.
settings.register_profile("unit", deadline=None, derandomize=True)
settings.load_profile("unit")


@pytest.fixture(scope="session")
def run_python() -> Callable[..., str]:
    """Runs a snippet with arguments in a fresh interpreter; gives what it printed."""

    def run(script: str, *arguments: str, timeout_s: float = 60.0) -> str:
        done = subprocess.run(
            [sys.executable, "-c", script, *arguments],
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=False,
        )
        assert done.returncode == 0, done.stderr[-4000:]
        return done.stdout

    return run
