"""What an exception of Lance means: its kind, whether trying again can help, clean words. Pure.

Lance's exception class follows the call that was made, not the cause (open gives ValueError,
take OSError, a scan pyarrow's ArrowInvalid), so the text decides. Texts end in paths of the Rust
sources, which are cut off before they can match anything. Measured with pylance 14.
"""

from __future__ import annotations

import errno
import re
from dataclasses import dataclass
from enum import Enum

__all__ = ["Failure", "FailureKind", "classify", "explain", "explain_shard"]


class FailureKind(Enum):
    """Why a call failed; the value is the name of the error class a user gets for it."""

    CREDENTIALS = "CredentialsError"
    NOT_FOUND = "DatasetNotFoundError"
    VERSION_NOT_FOUND = "VersionNotFoundError"
    UNAVAILABLE = "SourceUnavailableError"
    CACHE_FULL = "CacheFullError"
    BAD_REQUEST = "PlanError"
    BROKEN = "ShardUnavailableError"
    CACHE_UNUSABLE = "CacheUnusableError"
    TRANSFORM = "TransformError"
    UNSUPPORTED = "UnsupportedTypeError"


@dataclass(frozen=True, slots=True)
class Failure:
    """One failed attempt.

    Attributes:
        kind: Why.
        message: Words of the cause, on one line, without source paths.
        retryable: Whether trying again can help.
        detail: Further lines, such as a traceback.
        words: What happened and what to do, where that is known better than from the kind.
    """

    kind: FailureKind
    message: str
    retryable: bool
    detail: str = ""
    words: tuple[str, str] | None = None


# The patterns take the square of a text's length, and what Lance says may quote a long filter.
_MAX_TEXT = 4000
_RUST_SOURCE = re.compile(r",?\s*(?<!\S)(?=\S*/)\S*\.rs:\d+(:\d+)?")
_XML_CODE = re.compile(r"<Code>(.*?)</Code>", re.DOTALL)
_XML_MESSAGE = re.compile(r"<Message>(.*?)</Message>", re.DOTALL)
_XML = re.compile(r"<\?xml.*?</Error>|<Error>.*?</Error>", re.DOTALL)
# Paths, uris and names are the user's: words and numbers in them mean nothing.
_NAMES = re.compile(r"\S*/\S*|\"[^\"]*\"|'[^']*'|\b(?:named|column) \S+")

_STATUS = re.compile(
    r"status(?: code)?:? \(?(\d{3})\b|\b(\d{3}) (?=forbidden|unauthorized|not found|slow ?down"
    r"|service unavailable|too many requests|internal server|bad gateway|gateway time)",
    re.IGNORECASE,
)
_REFUSED = re.compile(r"Invalid user input|Schema error|Expression is not valid", re.IGNORECASE)
_CREDENTIALS = re.compile(
    r"AccessDenied|Access Denied|Invalid ?Access ?Key|SignatureDoesNotMatch|\bForbidden\b"
    r"|\bUnauthorized\b|ExpiredToken|InvalidToken|AuthenticationFailed|AuthorizationFailure"
    r"|InvalidSecurity|(no|missing|load|find|invalid) \w*\s*credential|CredentialsNotLoaded"
    r"|GCP credential error",
    re.IGNORECASE,
)
# Where a client without credentials looks for them.
_METADATA_ADDRESS = re.compile(r"169\.254\.169\.254|169\.254\.170\.2|metadata\.google")
_THROTTLED = re.compile(
    r"SlowDown|Slow Down|throttl|ServiceUnavailable|InternalError|TooManyRequests"
    r"|reduce your request rate|RequestTimeout",
    re.IGNORECASE,
)
_NETWORK = re.compile(
    r"timed? ?out|\btimeout\b|connection|connect error|reset by peer|broken pipe"
    r"|error sending request|error decoding response|request or response body"
    r"|incomplete message|unexpected eof|dns error|failed to lookup|bytes, expected|retries"
    r"|hyper\b|network",
    re.IGNORECASE,
)
_NO_BUCKET = re.compile(r"NoSuchBucket|ContainerNotFound|bucket.{0,40}does not exist", re.I)
_NO_VERSION = re.compile(r"_versions/\d+\.manifest|Ref not found|tag \S+ does not exist", re.I)
_NOT_FOUND = re.compile(r"not found|NoSuchKey|No such file|does not exist", re.IGNORECASE)


def classify(error: BaseException, *, while_opening: bool) -> Failure:
    """Tell what an exception means.

    Args:
        error: What was raised; a panic of Lance is a ``BaseException``.
        while_opening: Whether the table was being opened: a file that is missing then means
            that the table is not there, later that its version was cleaned up.
    """
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
        return Failure(FailureKind.CACHE_FULL, _words(error), retryable=False)
    message = _words(error)
    if not isinstance(error, Exception):
        return Failure(FailureKind.BROKEN, f"Lance panicked: {message}", retryable=False)
    said = _NAMES.sub(" ", message)
    status = _STATUS.search(said)
    number = int(status.group(1) or status.group(2)) if status else 0
    if _REFUSED.search(said) and not status:
        kind = FailureKind.BAD_REQUEST if while_opening else FailureKind.BROKEN
        return Failure(kind, message, retryable=False)
    if _NO_BUCKET.search(said):
        return Failure(FailureKind.NOT_FOUND, message, retryable=False)
    refused = number in (401, 403) or _CREDENTIALS.search(said)
    if refused or _METADATA_ADDRESS.search(message):
        return Failure(FailureKind.CREDENTIALS, message, retryable=False)
    if number in (429, 500, 502, 503, 504) or _THROTTLED.search(said):
        return Failure(FailureKind.UNAVAILABLE, message, retryable=True)
    missing = number == 404 or _NOT_FOUND.search(said)
    if missing and _NO_VERSION.search(message):
        return Failure(FailureKind.VERSION_NOT_FOUND, message, retryable=False)
    if number == 404 or _NOT_FOUND.search(said):
        kind = FailureKind.NOT_FOUND if while_opening else FailureKind.VERSION_NOT_FOUND
        return Failure(kind, message, retryable=False)
    if _NETWORK.search(said):
        return Failure(FailureKind.UNAVAILABLE, message, retryable=True)
    kind = FailureKind.BAD_REQUEST if while_opening else FailureKind.BROKEN
    return Failure(kind, message, retryable=False)


def _words(error: BaseException) -> str:
    """The cause in one readable line."""
    text = str(error) or type(error).__name__
    if len(text) > _MAX_TEXT:
        text = f"{text[: _MAX_TEXT // 2]} ... {text[-_MAX_TEXT // 2 :]}"
    code, said = _XML_CODE.search(text), _XML_MESSAGE.search(text)
    if code or said:
        parts = [match.group(1).strip() for match in (code, said) if match]
        text = _XML.sub(": ".join(parts), text)
    text = _RUST_SOURCE.sub("", text)
    return " ".join(text.split())[:800]


_ADVICE = {
    FailureKind.CREDENTIALS: (
        "the store refused access",
        (
            "check the credentials in storage_options or the environment; for keys that lapse, "
            "name a function as storage_options"
        ),
    ),
    FailureKind.NOT_FOUND: ("there is no Lance table there", "check the uri, bucket and split"),
    FailureKind.VERSION_NOT_FOUND: (
        "there is no such version or tag, or it was cleaned up",
        "choose another version=, or None for the latest",
    ),
    FailureKind.UNAVAILABLE: (
        "the store did not answer as it should",
        "check endpoint and network; download_timeout and download_retry say how long to try",
    ),
    FailureKind.CACHE_FULL: (
        "the cache directory has no room",
        "free space, set cache_limit, or put local= on a larger disk",
    ),
    FailureKind.BAD_REQUEST: ("Lance refused it", "check uri and arguments"),
    FailureKind.CACHE_UNUSABLE: (
        "the cache directory cannot be written",
        "it must stay in place while a dataset uses it: build the dataset again",
    ),
    FailureKind.TRANSFORM: (
        "the transform failed",
        "it gets a shard's rows as one RecordBatch and must return as many of fixed types",
    ),
    FailureKind.UNSUPPORTED: (
        "the rows do not fit into a shard of that format",
        "change these values, or leave their column out",
    ),
    FailureKind.BROKEN: ("the rows cannot be read", "check the table with Lance itself"),
}


# Of a version that was there when the stream was planned.
_GONE = (
    "the version was cleaned up, or the table deleted, while it was in use",
    (
        "shards that are cached go on working; to go on with the others build the dataset again "
        "on a version that is there; pin=True holds a version while it is trained on"
    ),
)


def explain_shard(failure: Failure, subject: str, cause: str, detail: str = "") -> tuple[str, str]:
    """The error that a failure at a shard is: name of the class, and one paragraph.

    Args:
        failure: Why it failed.
        subject: The shard, with its rows, table and version.
        cause: Words of the cause, without secrets.
        detail: Further lines, without secrets.
    """
    if failure.kind is FailureKind.VERSION_NOT_FOUND:
        words = failure.words or _GONE
        return "VersionGoneError", explain(failure.kind, subject, cause, detail, words)
    return failure.kind.value, explain(failure.kind, subject, cause, detail, failure.words)


def explain(
    kind: FailureKind,
    subject: str,
    cause: str,
    detail: str = "",
    words: tuple[str, str] | None = None,
) -> str:
    """One paragraph for a user: what was attempted, what happened, what to do.

    Args:
        kind: Why it failed.
        subject: What was attempted, with its identifiers.
        cause: Words of the cause.
        detail: Further lines, put after the paragraph.
        words: What happened and what to do; None: as the kind says.
    """
    happened, advice = words or _ADVICE[kind]
    return f"{subject}: {happened}: {cause}; {advice}" + (f"\n{detail}" if detail else "")
