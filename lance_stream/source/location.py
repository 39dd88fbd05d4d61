"""Where a table is: uris made absolute, checked, and safe to print. Pure; no lance."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from urllib.parse import unquote, urlsplit

from lance_stream.errors import PlanError

__all__ = [
    "CONTAINER_SCHEMES",
    "OBJECT_STORE_SCHEMES",
    "absolute_uri",
    "is_object_store",
    "possible_uris",
    "redact",
]

# Those that Lance knows.
OBJECT_STORE_SCHEMES = frozenset(
    {"s3", "s3+ddb", "gs", "az", "abfss", "oss", "cos", "tos", "goosefs", "hf"}
)
# Of urls whose user is a container on Azure: ``abfss://container@account/path``.
CONTAINER_SCHEMES = frozenset({"abfs", "abfss"})
# Parts of a bounded length, or a long text without one takes the square of its length. A password
# may hold what ends a url elsewhere; also a slash, as keys of AWS do, which no port has before it.
_URL = re.compile(
    r"(?P<scheme>[a-zA-Z][a-zA-Z0-9+.-]{0,30})://"
    r"(?:(?P<user>[^\s/]{1,4000}|[^\s/@:]{0,200}:(?!\d{1,5}/)[^\s@]{1,4000})@)?"
    r"(?P<rest>[^\s'\"<>,)?]*)"
    r"(?P<query>\?(?:[^\s'\"<>]*[^\s'\"<>,).;])?)?"
)
_SCHEME = re.compile(r"([a-zA-Z][a-zA-Z0-9+.-]*)://")
# Values of storage options are secrets unless their name says otherwise.
_PUBLIC_OPTION = re.compile(
    r"(endpoint|region|allow_http|timeout|retry|retries|skip_signature|account_name|"
    r"bucket|virtual_hosted|concurrency|user_agent)",
    re.IGNORECASE,
)


def absolute_uri(uri: str | os.PathLike[str]) -> str:
    """Check a table's uri; make a local path absolute, since another process opens it.

    Raises:
        PlanError: Empty, in memory, with credentials in it, or of an unknown scheme.
    """
    text = os.fspath(uri)
    if not isinstance(text, str) or not text.strip():
        msg = f"remote={uri!r} is not the uri of a Lance table"
        raise PlanError(msg)
    match = _SCHEME.match(text)
    if not match:
        return os.path.abspath(os.path.expanduser(text))
    scheme = match.group(1).lower()
    if scheme == "file":
        return os.path.abspath(unquote(urlsplit(text).path))
    if scheme not in OBJECT_STORE_SCHEMES:
        known = ", ".join(sorted(OBJECT_STORE_SCHEMES | {"file"}))
        msg = f"remote={redact(text)!r}: scheme {scheme!r} is not supported; use a path or {known}"
        raise PlanError(msg)
    parts = urlsplit(text)
    if parts.password or parts.query:
        msg = (
            f"remote={redact(text)!r} carries credentials or a query: give them in "
            "storage_options, where they are kept out of logs and file names"
        )
        raise PlanError(msg)
    return text.rstrip("/")


def is_object_store(uri: str) -> bool:
    """Whether requests for the uri go over a network."""
    match = _SCHEME.match(uri)
    return bool(match) and match.group(1).lower() in OBJECT_STORE_SCHEMES if match else False


def possible_uris(remote: str | os.PathLike[str], split: str | None) -> tuple[str, ...]:
    """Absolute uris at which the table that ``remote`` and ``split`` name may be."""
    plain = absolute_uri(remote)
    if not split:
        return (plain,)
    plain = f"{plain}/{split.strip('/')}"
    return plain, f"{plain}.lance"


def redact(text: str, options: Mapping[str, str] | None = None) -> str:
    """Make text safe to print: no password or query of a uri, no value of a secret option.

    Args:
        text: A uri, or a message that may quote one.
        options: Storage options whose values must not appear.
    """
    for name, value in (options or {}).items():
        if len(value) > 3 and not _PUBLIC_OPTION.search(name):
            text = text.replace(value, "***")
    return _URL.sub(_without_secrets, text)


def _without_secrets(found: re.Match[str]) -> str:
    scheme, user, rest, query = found["scheme"], found["user"], found["rest"], found["query"]
    public = scheme.lower() in CONTAINER_SCHEMES and user and ":" not in user
    shown = f"{user}@" if public else "***@"
    return f"{scheme}://{shown if user else ''}{rest}{'?***' if query else ''}"
