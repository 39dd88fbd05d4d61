"""Advice that is worded for Python, as the options of the commands. Pure."""

from __future__ import annotations

import re

__all__ = ["as_options"]

_WORDS = (
    (r"columns=\{name: SQL expression\}", "--columns NAME=SQL"),
    (r"columns=\{\'?([^\'{}:]+)\'?: \"([^\"]*)\"\}", r"--columns '\1=\2'"),
    (r"columns=\[\.\.\.\]", "--columns A,B"),
    (r"cache_format=\"(\w+)\"", r"--cache-format \1"),
    (r"\bshard_rows=(\d+) or less", r"--shard-rows \1 or less"),
    (r"\bshard_rows or shard_bytes\b", "--shard-rows or --shard-bytes"),
    (
        r"build_index\(\.\.\., exact=True\) or lance-stream index --exact, and index=",
        "lance-stream index --exact, and --index",
    ),
    (r"lance-stream index --exact, and index=", "lance-stream index --exact, and --index"),
    (r"\braise download_timeout\b", "raise --download-timeout"),
    (r"download_timeout and download_retry say", "--download-timeout and --download-retry say"),
)


def as_options(text: str) -> str:
    """The text of an error, with what it advises as one would give it to a command."""
    for pattern, words in _WORDS:
        text = re.sub(pattern, words, text)
    return text
