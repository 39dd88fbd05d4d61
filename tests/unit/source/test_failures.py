from __future__ import annotations

import errno
import json
import re
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lance_stream import errors
from lance_stream.source.failures import Failure, FailureKind, classify, explain

K = FailureKind


class PanicException(BaseException):  # As pyo3 names it.
    """A panic of Rust code is no Exception."""


# Texts of pylance 14.0.2, each seen from the call named at its side; paths shortened.
_AT = ", /build/lance/rust/lance-io/src/object_store.rs:1576:42"
_RUSTC = ", /rustc/48a229ceaefd4985c50990b14116b6d856af0985/library/core/src/ops/function.rs:250:5"
_LIST = (
    "LanceError(IO): Generic S3 error: Error performing list request: Error performing GET "
    "http://127.0.0.1:33829/bucket?list-type=2&prefix=t.lance%2F_versions%2F in 3.661491ms - "
)
_STATUS = _LIST + "Server returned non-2xx status code: "
_READ = (
    "External error: LanceError(IO): Generic S3 error: Error performing GET "
    "http://127.0.0.1:33829/bucket/t.lance/data/1101.lance in 12.5ms - "
)


def _s3(status: str, code: str, message: str) -> str:
    return (
        f'{_STATUS}{status}: <?xml version="1.0" encoding="UTF-8"?>\n<Error><Code>{code}</Code>'
        f"<Message>{message}</Message><Resource>/bucket</Resource>"
        f"<RequestId>4403503D0404</RequestId></Error>{_AT}"
    )


OPENING: list[tuple[BaseException, FailureKind, bool]] = [
    (
        ValueError(
            "Dataset at path tmp/none.lance was not found: Not found: tmp/none.lance/_versions, "
            "/build/lance/rust/lance-table/src/io/commit.rs:653:26, "
            "/build/lance/rust/lance/src/dataset/builder.rs:921:29"
        ),
        K.NOT_FOUND,
        False,
    ),
    (
        ValueError(
            "Dataset at path tmp/t.lance/_versions/99.manifest was not found: Not found: "
            "tmp/t.lance/_versions/99.manifest, "
            "/build/lance/rust/lance-io/src/local.rs:273:40"
        ),
        K.VERSION_NOT_FOUND,
        False,
    ),
    (ValueError("Ref not found error: tag nope does not exist"), K.VERSION_NOT_FOUND, False),
    (
        ValueError(
            "Invalid user input: Schema error: No field named zz. Valid fields are a, _rowid, "
            "_rowaddr., /build/lance/rust/lance/src/dataset/scanner.rs:839:33"
        ),
        K.BAD_REQUEST,
        False,
    ),
    (
        ValueError(
            _s3(
                "403 Forbidden",
                "InvalidAccessKeyId",
                "The AWS Access Key Id you provided does not exist in our records.",
            )
        ),
        K.CREDENTIALS,
        False,
    ),
    (
        ValueError(
            _s3(
                "403 Forbidden",
                "SignatureDoesNotMatch",
                "The request signature we calculated does not match the signature you provided.",
            )
        ),
        K.CREDENTIALS,
        False,
    ),
    (ValueError(_s3("403 Forbidden", "AccessDenied", "Access Denied")), K.CREDENTIALS, False),
    (
        ValueError(_s3("400 Bad Request", "ExpiredToken", "The provided token has expired.")),
        K.CREDENTIALS,
        False,
    ),
    (ValueError(f"{_STATUS}403 Forbidden: {_AT}"), K.CREDENTIALS, False),
    (ValueError(f"{_STATUS}401 Unauthorized: {_AT}"), K.CREDENTIALS, False),
    (
        ValueError(
            "LanceError(IO): Generic MicrosoftAzure error: Invalid Access Key: Invalid last "
            f"symbol 0x57 ('W') at offset 85, decoded as 0b00010110.{_AT}"
        ),
        K.CREDENTIALS,
        False,
    ),
    (
        ValueError(
            "LanceError(IO): Generic GCS error: GCP credential error: Unable to open service "
            f"account file from /a.json: No such file or directory (os error 2){_AT}"
        ),
        K.CREDENTIALS,
        False,
    ),
    (
        ValueError(
            "LanceError(IO): Generic S3 error: Error getting credentials from instance metadata: "
            "Error performing PUT http://169.254.169.254/latest/api/token in 1.2s, after 2 "
            "retries, max_retries: 2, retry_timeout: 180s - HTTP error: error sending request"
            + _AT
        ),
        K.CREDENTIALS,
        False,
    ),
    (
        ValueError(_s3("404 Not Found", "NoSuchBucket", "The specified bucket does not exist")),
        K.NOT_FOUND,
        False,
    ),
    (
        ValueError(_s3("503 Service Unavailable", "SlowDown", "Please reduce your request rate.")),
        K.UNAVAILABLE,
        True,
    ),
    (
        ValueError(_s3("500 Internal Server Error", "InternalError", "We encountered an error.")),
        K.UNAVAILABLE,
        True,
    ),
    (ValueError(_s3("429 Too Many Requests", "TooManyRequests", "")), K.UNAVAILABLE, True),
    (ValueError(f"{_STATUS}502 Bad Gateway: <html></html>{_AT}"), K.UNAVAILABLE, True),
    (ValueError(f"{_LIST}HTTP error: error sending request{_AT}"), K.UNAVAILABLE, True),
    (
        ValueError(
            f"{_LIST}HTTP error: error sending request for url (http://h/b): client error "
            f"(Connect): tcp connect error: Connection refused (os error 111){_AT}"
        ),
        K.UNAVAILABLE,
        True,
    ),
    (
        ValueError(
            f"{_LIST}HTTP error: dns error: failed to lookup address information: "
            f"Name or service not known{_AT}"
        ),
        K.UNAVAILABLE,
        True,
    ),
]

READING: list[tuple[BaseException, FailureKind, bool]] = [
    (
        OSError(
            "External error: LanceError(IO): Generic N/A error: Not found: /tmp/t.lance/data/"
            "110100001010000110010101f8694546daa9ed5e2e7096e9d1.lance, /build/lance/"
            f"rust/lance-io/src/object_reader.rs:335:56{_RUSTC}"
        ),
        K.VERSION_NOT_FOUND,
        False,
    ),
    (
        OSError(f"{_READ}Server returned non-2xx status code: 404 Not Found: "
                f"<Error><Code>NoSuchKey</Code><Message>gone</Message></Error>{_AT}"),
        K.VERSION_NOT_FOUND,
        False,
    ),
    (OSError(f"{_READ}HTTP error: request or response body error{_AT}"), K.UNAVAILABLE, True),
    (OSError(f"{_READ}HTTP error: error decoding response body{_AT}"), K.UNAVAILABLE, True),
    (OSError(f"{_READ}operation timed out{_AT}"), K.UNAVAILABLE, True),
    (OSError(f"{_READ}Connection reset by peer (os error 104){_AT}"), K.UNAVAILABLE, True),
    (OSError(f"{_READ}Broken pipe (os error 32){_AT}"), K.UNAVAILABLE, True),
    (OSError(f"{_READ}connection closed before message completed{_AT}"), K.UNAVAILABLE, True),
    (
        OSError(
            f"External error: LanceError(IO): the object store returned 4096 bytes, expected "
            f"8192{_AT}"
        ),
        K.UNAVAILABLE,
        True,
    ),
    (
        OSError(
            "External error: LanceError(IO): Generic memory error: Invalid range 0..342 for "
            f"object of size 2 bytes{_RUSTC}"
        ),
        K.BROKEN,
        False,
    ),
    (
        ValueError(
            "External error: Invalid user input: file does not appear to be a Lance file "
            "(invalid magic: [76, 65, 78, 67]), "
            "/build/lance/rust/lance-file/src/reader.rs:797:24"
        ),
        K.BROKEN,
        False,
    ),
    (OSError(errno.ENOSPC, "No space left on device", "/cache/x"), K.CACHE_FULL, False),
    (OSError(errno.EDQUOT, "Disk quota exceeded", "/cache/x"), K.CACHE_FULL, False),
    (PanicException("index out of bounds: the len is 1 but the index is 1"), K.BROKEN, False),
    (PanicException("connection reset, 503 SlowDown"), K.BROKEN, False),
    (MemoryError(), K.BROKEN, False),
    (ZeroDivisionError("division by zero"), K.BROKEN, False),
]  # fmt: skip

TABLE = [(error, True, kind, again) for error, kind, again in OPENING] + [
    (error, False, kind, again) for error, kind, again in READING
]


@pytest.mark.parametrize(
    ("error", "while_opening", "kind", "retryable"),
    TABLE,
    ids=[f"{i}-{kind.name}" for i, (_, _, kind, _) in enumerate(TABLE)],
)
def test_what_an_exception_means(
    error: BaseException, while_opening: bool, kind: FailureKind, retryable: bool
) -> None:
    found = classify(error, while_opening=while_opening)
    assert (found.kind, found.retryable) == (kind, retryable)
    _check_words(found.message)


def _check_words(message: str) -> None:
    """One readable line, without paths of sources or markup."""
    assert message
    assert message == " ".join(message.split())
    assert len(message) <= 1000
    assert not re.search(r"\.rs:\d|/rust/|/rustc/|<\?xml|</Error>|RequestId", message), message


@pytest.mark.parametrize(
    ("error", "while_opening", "kind", "retryable"),
    [row for row in TABLE if row[2] not in (K.NOT_FOUND, K.VERSION_NOT_FOUND)],
)
def test_only_what_is_missing_depends_on_the_call(
    error: BaseException, while_opening: bool, kind: FailureKind, retryable: bool
) -> None:
    other = classify(error, while_opening=not while_opening)
    if kind in (K.BAD_REQUEST, K.BROKEN) and isinstance(error, Exception):
        assert other.kind in (K.BAD_REQUEST, K.BROKEN)
        assert not other.retryable
    else:
        assert (other.kind, other.retryable) == (kind, retryable)


def test_the_class_of_the_exception_does_not_matter() -> None:
    for error, while_opening, kind, _ in TABLE:
        if not isinstance(error, PanicException) and kind is not K.CACHE_FULL and str(error):
            for other in (OSError, ValueError, RuntimeError):
                assert classify(other(str(error)), while_opening=while_opening).kind is kind


def test_a_panic_says_that_it_is_one() -> None:
    found = classify(PanicException("boom"), while_opening=True)
    assert found == Failure(K.BROKEN, "Lance panicked: boom", retryable=False)


def test_words_of_a_store_are_its_code_and_message() -> None:
    text = _s3("403 Forbidden", "AccessDenied", "You\n  shall not\tpass")
    found = classify(ValueError(text), while_opening=True)
    assert found.message.endswith("403 Forbidden: AccessDenied: You shall not pass")


def test_an_exception_without_words_gives_its_name() -> None:
    assert classify(MemoryError(), while_opening=False).message == "MemoryError"
    assert classify(KeyError(), while_opening=False).message == "KeyError"


@given(st.text())
def test_any_words_have_a_meaning(text: str) -> None:
    for while_opening in (False, True):
        found = classify(RuntimeError(text), while_opening=while_opening)
        assert isinstance(found.kind, FailureKind)
        assert len(found.message) <= 1000
        assert "\n" not in found.message


# --- what only looks like a status ---

_MISSING = "Dataset at path {0} was not found: Not found: {0}/_versions" + _AT


_STATUSES = (401, 403, 404, 429, 500, 502, 503, 504)


@pytest.mark.parametrize("path", ["data/{}/none.lance", "data/run-{}.lance", "data/{}.lance"])
def test_a_number_in_a_path_is_not_a_status(path: str) -> None:
    for number in _STATUSES:
        error = ValueError(_MISSING.format(path.format(number)))
        found = classify(error, while_opening=True)
        assert (found.kind, found.retryable) == (K.NOT_FOUND, False), str(error)


def test_a_number_in_a_duration_is_not_a_status() -> None:
    # "in 403.661491ms": how long the request took, at the mercy of chance.
    denied = _s3("403 Forbidden", "AccessDenied", "Access Denied")
    missing = _READ + "Server returned non-2xx status code: 404 Not Found: " + _AT
    for number in _STATUSES:
        took = f"{number}.661491ms"
        refused = _LIST.replace("3.661491ms", took) + "HTTP error: error sending request" + _AT
        found = classify(ValueError(refused), while_opening=True)
        assert (found.kind, found.retryable) == (K.UNAVAILABLE, True), refused
        text = denied.replace("3.661491ms", took)
        assert classify(ValueError(text), while_opening=True).kind is K.CREDENTIALS, text
        text = missing.replace("12.5ms", took)
        assert classify(OSError(text), while_opening=False).kind is K.VERSION_NOT_FOUND, text


@pytest.mark.parametrize(
    "text",
    [
        "Invalid user input: offset {} is past the end of a column of 3 rows",
        "External error: Generic memory error: Invalid range 0..{} for object of size 2 bytes",
        "index out of range: the len is 3 but the index is {}",
    ],
)
def test_a_count_is_not_a_status(text: str) -> None:
    for number in _STATUSES:
        found = classify(OSError(text.format(number) + _AT), while_opening=False)
        assert (found.kind, found.retryable) == (K.BROKEN, False), text.format(number)


@pytest.mark.parametrize("port", [403, 503])
def test_a_port_is_not_a_status(port: int) -> None:
    text = _s3("404 Not Found", "NoSuchBucket", "The specified bucket does not exist")
    found = classify(ValueError(text.replace(":33829/", f":{port}/")), while_opening=True)
    assert found.kind is K.NOT_FOUND
    text = _LIST.replace(":33829/", f":{port}/") + "HTTP error: error sending request"
    assert classify(ValueError(text), while_opening=True).kind is K.UNAVAILABLE


@pytest.mark.parametrize("name", ["connection_id", "timeout", "retries", "network", "Forbidden"])
def test_a_name_of_the_users_is_not_a_cause(name: str) -> None:
    text = f"Invalid user input: Schema error: No field named {name}. Valid fields are a."
    found = classify(ValueError(text + _AT), while_opening=True)
    assert (found.kind, found.retryable) == (K.BAD_REQUEST, False)
    text = _MISSING.format(f"data/{name}/t.lance")
    assert classify(ValueError(text), while_opening=True).kind is K.NOT_FOUND


# --- the installed Lance ---

LANCE = """
import glob, json, os, sys
import lance
import pyarrow as pa
from lance_stream.source.failures import classify

root = sys.argv[1]
def make(name):
    return lance.write_dataset(pa.table({"a": list(range(1000))}), f"{root}/{name}")
table = make("t.lance")
gone = make("gone.lance")
for file in glob.glob(f"{root}/gone.lance/data/*"):
    os.unlink(file)
cut = make("cut.lance")
for file in glob.glob(f"{root}/cut.lance/data/*"):
    os.truncate(file, 2)
garbage = make("garbage.lance")
for file in glob.glob(f"{root}/garbage.lance/data/*"):
    size = os.path.getsize(file)
    with open(file, "wb") as out:
        out.write(b"x" * size)
store = {
    "endpoint": "http://127.0.0.1:1", "allow_http": "true", "region": "us-east-1",
    "aws_access_key_id": "AKIAEXAMPLE", "aws_secret_access_key": "sesame",
    "client_max_retries": "0", "lance_aimd_max_retries": "0", "connect_timeout": "1s",
}
calls = {
    "no table": (True, lambda: lance.dataset(f"{root}/none.lance")),
    "no table in 503": (True, lambda: lance.dataset(f"{root}/503/none.lance")),
    "no table in 403": (True, lambda: lance.dataset(f"{root}/403/none.lance")),
    "an empty folder": (True, lambda: lance.dataset(root)),
    "no version": (True, lambda: lance.dataset(f"{root}/t.lance", version=99)),
    "no tag": (True, lambda: lance.dataset(f"{root}/t.lance", version="nope")),
    "no column": (True, lambda: table.scanner(columns=["zz"]).to_table()),
    "no expression": (True, lambda: table.scanner(columns={"x": "a +"}).to_table()),
    "no data file": (False, lambda: gone.to_table()),
    "cut data file": (False, lambda: cut.to_table()),
    "garbage": (False, lambda: garbage.to_table()),
    "no server": (True, lambda: lance.dataset("s3://b/t", storage_options=store)),
}
said = {}
for name, (while_opening, call) in calls.items():
    try:
        call()
    except BaseException as error:
        found = classify(error, while_opening=while_opening)
        said[name] = [found.kind.name, found.retryable, found.message]
    else:
        said[name] = None
print(json.dumps(said))
"""

REAL = {
    "no table": ("NOT_FOUND", False),
    "no table in 503": ("NOT_FOUND", False),
    "no table in 403": ("NOT_FOUND", False),
    "an empty folder": ("NOT_FOUND", False),
    "no version": ("VERSION_NOT_FOUND", False),
    "no tag": ("VERSION_NOT_FOUND", False),
    "no column": ("BAD_REQUEST", False),
    "no expression": ("BAD_REQUEST", False),
    "no data file": ("VERSION_NOT_FOUND", False),
    "cut data file": ("BROKEN", False),
    "garbage": ("BROKEN", False),
    "no server": ("UNAVAILABLE", True),
}


@pytest.fixture(scope="module")
def real(
    tmp_path_factory: pytest.TempPathFactory, run_python: Callable[..., str]
) -> dict[str, tuple[str, bool, str]]:
    """What the installed Lance says, from a process of its own."""
    return json.loads(run_python(LANCE, str(tmp_path_factory.mktemp("lance"))))


@pytest.mark.parametrize("name", REAL)
def test_what_the_installed_lance_says(real: dict[str, tuple[str, bool, str]], name: str) -> None:
    kind, retryable, message = real[name]
    assert (kind, retryable) == REAL[name], message
    assert "sesame" not in message


def test_messages_of_the_installed_lance_are_clean(
    real: dict[str, tuple[str, bool, str]],
) -> None:
    for _, _, message in real.values():
        _check_words(message)


# --- explaining ---


@pytest.mark.parametrize("kind", FailureKind)
def test_an_explanation_says_what_happened_and_what_to_do(kind: FailureKind) -> None:
    text = explain(kind, "shard 3 of s3://b/t.lance version 4", "the cause")
    assert text.startswith("shard 3 of s3://b/t.lance version 4: ")
    before, advice = text.split(": the cause; ")
    assert len(advice.split()) >= 3
    assert len(before.split()) >= 8
    assert "\n" not in text


@pytest.mark.parametrize("kind", FailureKind)
def test_a_kind_names_an_error_class(kind: FailureKind) -> None:
    found = errors.error_from_name(kind.value, "words")
    assert type(found).__name__ == kind.value
    assert type(found) is not errors.LanceStreamError
