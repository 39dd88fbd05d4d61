"""Urls of shared caches: checked, options read, credentials kept out of sight. Pure."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote, unquote, urlsplit

from lance_stream.errors import PlanError
from lance_stream.planning.sizing import parse_bytes
from lance_stream.source.location import CONTAINER_SCHEMES, redact

__all__ = ["TierUrl", "checked_urls", "parse_duration"]

_SCHEME = re.compile(r"([a-zA-Z][a-zA-Z0-9+.-]*)://")
_DURATION = re.compile(r"([0-9]{1,12}(?:\.[0-9]{1,6})?)\s*([a-z]*)", re.IGNORECASE)
_SECONDS = {"": 1.0, "ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0, "w": 604800.0}
_MAX_DURATION_S = 100 * 365 * 86400.0
_PREFIX = re.compile(r"[A-Za-z0-9._-]+(?:/[A-Za-z0-9._-]+)*")
_MAX_PREFIX_CHARS = 120
_DEFAULT_TIMEOUT_S = 10.0
_SERVER_TIMEOUT_S = 5.0
_SERVERS = frozenset({"redis", "rediss", "memcached"})
# Values of options are secrets unless their name says otherwise.
_PUBLIC_OPTION = re.compile(
    r"(endpoint|region|profile|project|account_name|timeout|anon|requester_pays|^db$|^use_|ssl_)",
    re.IGNORECASE,
)
_CHAINED = re.compile(r"^[a-zA-Z0-9+.-]+::|::[a-zA-Z0-9+.-]+://")
_LOCATION = re.compile(r"(?:[^:@\[\]]*|[^:@]+@[^:@]+|\[[0-9a-fA-F:.]+\])(?::[0-9]*)?")


@dataclass(frozen=True, slots=True, repr=False)
class TierUrl:
    """A url of a shared cache, taken apart. Its ``repr`` shows no credentials.

    Attributes:
        text: The url without its query, credentials in it.
        scheme: In lower case; ``file`` for a path.
        username: Decoded, or None.
        password: Decoded, or None.
        host: Or an empty text.
        port: Or None.
        path: Decoded; what follows the host.
        ttl_s: Seconds that a value is kept; None: as long as there is room.
        max_bytes: Bytes of all values; None: no limit.
        max_shards: Number of values; None: no limit.
        prefix: First part of the names of all values; None: the tier's own choice.
        timeout_s: Longest time that one call may take.
        max_value_bytes: Largest value that may be put; None: what the server says.
        extra: All other options, by name, decoded.
    """

    text: str
    scheme: str
    username: str | None = None
    password: str | None = None
    host: str = ""
    port: int | None = None
    path: str = ""
    ttl_s: float | None = None
    max_bytes: int | None = None
    max_shards: int | None = None
    prefix: str | None = None
    timeout_s: float = _DEFAULT_TIMEOUT_S
    max_value_bytes: int | None = None
    extra: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def parse(cls, url: str | os.PathLike[str]) -> TierUrl:
        """Take a url apart; a path is made absolute.

        Raises:
            PlanError: It is none, or has an option that is wrong. Shows no credentials.
        """
        text = os.fspath(url) if isinstance(url, str | os.PathLike) else None
        if not isinstance(text, str) or not text.strip():
            raise PlanError("shared_cache must be a url or a path, or a list of them")
        text = text.strip()
        base, _, query = text.partition("?")
        match = _SCHEME.match(base)
        if _CHAINED.search(text):
            raise PlanError("shared_cache: chained urls (a::b://c) are not supported")
        if match is None:
            path = os.path.abspath(os.path.expanduser(base))
            return cls(_file_url(path), "file", path=path, **_options(path, query))
        scheme = match.group(1).lower()
        base = scheme + base[len(scheme) :]
        shown = _shown(base, scheme)
        if "#" in text:
            raise PlanError(f"shared_cache={shown!r} has a '#': write it as %23")
        if "@" in query:
            raise PlanError(f"shared_cache={shown!r} has an '@' in its options: write it as %40")
        try:
            parts = urlsplit(base)
            port = parts.port
        except ValueError:
            msg = f"shared_cache={shown!r} is not a url; write special characters as %XX"
            raise PlanError(msg) from None
        path = unquote(parts.path)
        options = _options(shown, query)
        options.setdefault(
            "timeout_s", _SERVER_TIMEOUT_S if scheme in _SERVERS else _DEFAULT_TIMEOUT_S
        )
        if scheme == "file":
            if parts.netloc not in ("", "localhost") or not path.startswith("/"):
                msg = f"shared_cache={shown!r}: write file:///absolute/path, or just the path"
                raise PlanError(msg)
            path = os.path.abspath(path)
            base = _file_url(path)
        return cls(
            base,
            scheme,
            None if parts.username is None else unquote(parts.username),
            None if parts.password is None else unquote(parts.password),
            parts.hostname or "",
            port,
            path,
            **options,
        )

    @property
    def shown(self) -> str:
        """The url without credentials and options, for messages."""
        return self.path if self.scheme == "file" else _shown(self.text, self.scheme)

    @property
    def secrets(self) -> list[str]:
        """What must never be printed, the longest first."""
        hidden = [v for name, v in self.extra.items() if not _PUBLIC_OPTION.search(name)]
        if self.password is not None:
            hidden += [self.password, urlsplit(self.text).password or ""]
        return sorted({v for v in hidden if len(v) > 3}, key=len, reverse=True)

    def redact(self, text: str) -> str:
        """Make a message safe to print."""
        for secret in self.secrets:
            text = text.replace(secret, "***")
        return redact(text)

    def require_options(self, known: Iterable[str]) -> None:
        """Check the names of the other options.

        Raises:
            PlanError: One is not known.
        """
        names = sorted(known)
        for name in self.extra:
            if name not in names and name.partition(".")[0] not in names:
                own = f", {', '.join(names)}" if names else ""
                msg = (
                    f"shared_cache={self.shown!r}: unknown option {name!r}; there are "
                    f"{', '.join(_COMMON)}{own}"
                )
                raise PlanError(msg)

    def __repr__(self) -> str:
        return f"TierUrl({self.shown!r})"


def checked_urls(
    value: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
) -> tuple[str, ...]:
    """Check the argument ``shared_cache``, without a look at any server or library.

    Args:
        value: A url or a path, or a list of them from fast to slow.

    Returns:
        The urls, at least one; paths made absolute, since another process uses them.

    Raises:
        PlanError: One is wrong, or there are none.
    """
    several = [value] if isinstance(value, str | os.PathLike) else list(value)
    if not several:
        raise PlanError("shared_cache=[] names no cache; leave it out to use none")
    urls = []
    for item in several:
        parsed = TierUrl.parse(item)
        text = os.fspath(item).strip()
        _, mark, query = text.partition("?")
        urls.append(parsed.text + mark + query)
    return tuple(urls)


def parse_duration(value: str, argument: str) -> float:
    """Read a time such as ``"3600"``, ``"90s"``, ``"1.5h"`` or ``"7d"``.

    Args:
        value: Number and unit: ms, s (the default), m, h, d or w.
        argument: Name of the argument, for the error.

    Returns:
        Seconds, at least a millisecond.

    Raises:
        PlanError: Not a time.
    """
    match = _DURATION.fullmatch(value.strip())
    seconds = -1.0
    if match and match.group(2).lower() in _SECONDS:
        seconds = float(match.group(1)) * _SECONDS[match.group(2).lower()]
    if not (math.isfinite(seconds) and 0.001 <= seconds <= _MAX_DURATION_S):
        msg = f"{argument}={value[:40]!r} is not a time: give seconds, or text such as '1h'"
        raise PlanError(msg)
    return seconds


def _count(value: str, argument: str) -> int:
    if not re.fullmatch(r"[0-9]{1,12}", value) or int(value) < 1:
        raise PlanError(f"{argument}={value[:40]!r} is not a number of shards: at least 1")
    return int(value)


def _prefix(value: str, argument: str) -> str:
    text = value.strip("/")
    climbs = any(set(part) == {"."} for part in text.split("/"))
    if not _PREFIX.fullmatch(text) or climbs or len(text) > _MAX_PREFIX_CHARS:
        msg = (
            f"{argument}={value[:40]!r}: up to {_MAX_PREFIX_CHARS} letters, digits, '.', '_', "
            "'-', and '/' between them"
        )
        raise PlanError(msg)
    return text


_COMMON = {
    "ttl": ("ttl_s", parse_duration),
    "max_bytes": ("max_bytes", parse_bytes),
    "max_shards": ("max_shards", _count),
    "prefix": ("prefix", _prefix),
    "timeout": ("timeout_s", parse_duration),
    "max_value_bytes": ("max_value_bytes", parse_bytes),
}


def _options(shown: str, query: str) -> dict[str, Any]:
    """The options of a query, by the attributes that they become."""
    found: dict[str, str] = {}
    for item in filter(None, query.split("&")):
        name, equals, value = item.partition("=")
        # Not "+" for a space: base64 secrets hold it.
        name, value = unquote(name), unquote(value)
        if not name or not equals or not value:
            msg = f"shared_cache={shown!r}: an option is not of the form name=value"
            raise PlanError(msg)
        if name in found:
            raise PlanError(f"shared_cache={shown!r}: option {name!r} is given twice")
        found[name] = value
    options: dict[str, Any] = {}
    for name, (attribute, parse) in _COMMON.items():
        if name in found:
            options[attribute] = parse(found.pop(name), f"shared_cache={shown!r}: {name}")
    options["extra"] = found
    return options


def _shown(base: str, scheme: str) -> str:
    """A url without its user and password."""
    head, slashes, rest = base.partition("://")
    rest = rest.partition("?")[0].partition("#")[0]
    location, slash, path = rest.partition("/")
    user, at, host = location.rpartition("@")
    if "@" in path and (at or ":" in location or scheme in _SERVERS):
        # A password with a character that was not written as %XX.
        location, path = "***", path.rpartition("@")[2]
    elif at and not (scheme in CONTAINER_SCHEMES and ":" not in user):
        location = f"***@{host}"
    elif not _LOCATION.fullmatch(location):
        location = "***"
    return f"{head}{slashes}{location}{slash}{path}"


def _file_url(path: str) -> str:
    return f"file://{quote(path)}"
