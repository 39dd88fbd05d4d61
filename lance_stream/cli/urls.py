"""Options of fsspec filesystems, as they come from a command line. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

__all__ = ["filesystem_options"]


def filesystem_options(given: Mapping[str, Any]) -> dict[str, Any]:
    """Options of a filesystem: text, unless it is plainly JSON (true, false, {...}, [...])."""
    return {key: _value(text) for key, text in given.items()}


def _value(text: Any) -> Any:
    if isinstance(text, str):
        if text in ("true", "false"):
            return text == "true"
        if text[:1] in ("{", "["):
            try:
                return json.loads(text)
            except ValueError:
                return text
    return text
