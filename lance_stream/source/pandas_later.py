"""Keep pandas out of the download process until code of users may want it.

Where it is installed, pyarrow imports it as soon as ``pyarrow.dataset`` is imported, which lance
does: half a second at the start of every job, and 50 MB.
"""

from __future__ import annotations

import contextlib
import importlib.abc
import importlib.machinery
import sys
import threading
from collections.abc import Sequence
from types import ModuleType

__all__ = ["admit_pandas", "put_off_pandas"]


class _NotYet(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds a pandas that cannot be imported, which its users take for one that is not there."""

    def find_spec(
        self,
        fullname: str,
        path: Sequence[str] | None,  # noqa: ARG002
        target: ModuleType | None = None,  # noqa: ARG002
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname != "pandas":
            return None
        return importlib.machinery.ModuleSpec(fullname, self)

    def exec_module(self, module: ModuleType) -> None:
        raise ImportError(f"{module.__name__} is for code of users, and none is here yet")


_FINDER = _NotYet()
_ADMITTING = threading.Lock()


def put_off_pandas() -> None:
    """Have ``import pandas`` fail; call this before lance is imported."""
    if "pandas" not in sys.modules and _FINDER not in sys.meta_path:
        sys.meta_path.insert(0, _FINDER)


def admit_pandas() -> None:
    """Have ``import pandas`` work again, and pyarrow look for it, if it was put off.

    When this returns, in any thread, pyarrow has looked: until then it takes a ``pandas.Series``
    for any sequence, whose NaN is no null.
    """
    with _ADMITTING:
        if _FINDER not in sys.meta_path:
            return
        sys.meta_path.remove(_FINDER)
        pyarrow = sys.modules.get("pyarrow")
        # None there, or one that pyarrow cannot use: whoever needs it is told by his own import.
        with contextlib.suppress(Exception):
            if pyarrow is not None:
                pyarrow.nulls(0).to_pandas()
