"""Functions that a user names as ``"package.module:function"``, called in the download process."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from typing import Any

from lance_stream.errors import PlanError
from lance_stream.source.pandas_later import admit_pandas

__all__ = ["load_function"]


def load_function(argument: str, name: str, search_path: tuple[str, ...]) -> Callable[..., Any]:
    """Import a function.

    Args:
        argument: Name of the argument that names it, for the error.
        name: ``"package.module:function"``.
        search_path: Folders where the trainer finds modules.

    Raises:
        PlanError: It cannot be imported, or is not a function.
    """
    module, _, attribute = name.partition(":")
    for folder in search_path:
        if folder not in sys.path:
            sys.path.append(folder)
    admit_pandas()
    try:
        function = getattr(importlib.import_module(module), attribute)
    except (Exception, SystemExit) as error:
        msg = (
            f"{argument}={name!r}: {type(error).__name__}: {error}; it must name a function "
            "'package.module:function' of a module that the download process can import"
        )
        raise PlanError(msg) from error
    if not callable(function):
        raise PlanError(f"{argument}={name!r} is a {type(function).__name__}, not a function")
    return function
