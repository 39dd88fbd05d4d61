from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import pytest

from lance_stream.errors import PlanError
from lance_stream.service.arguments import (
    check_cache_format,
    check_hash,
    check_transform,
    search_path,
)


@pytest.mark.parametrize(
    ("transform", "version", "expected"),
    [
        (None, None, (None, None)),
        ("m:f", None, ("m:f", None)),
        ("a.b.c:f", "v1", ("a.b.c:f", "v1")),
        ("m:f", 1, ("m:f", "1")),
        ("m:f", 0, ("m:f", "0")),
        ("m:f", "", ("m:f", "")),
        ("__main__x:f", None, ("__main__x:f", None)),
    ],
)
def test_a_transform_is_a_name_and_the_text_of_a_version(
    transform: str | None, version: Any, expected: tuple[str | None, str | None]
) -> None:
    assert check_transform(transform, version) == expected


@pytest.mark.parametrize(
    ("transform", "version", "words"),
    [
        ("", None, "transform='' must be text, 'package.module:function': .*in another process"),
        ("module.function", None, "transform='module.function' must be text"),
        (":f", None, "transform=':f' must be text"),
        ("m:", None, "transform='m:' must be text"),
        ("m:f:g", None, "transform='m:f:g' must be text"),
        (len, None, "transform=<built-in function len> must be text"),
        (b"m:f", None, "transform=b'm:f' must be text"),
        ("__main__:f", None, "the download process cannot import __main__; use a module"),
        (None, 1, "transform_version is given without a transform"),
        (None, "", "transform_version is given without a transform"),
    ],
)
def test_other_transforms_are_refused(transform: Any, version: Any, words: str) -> None:
    with pytest.raises(PlanError, match=words):
        check_transform(transform, version)


def test_formats() -> None:
    assert [check_cache_format(name) for name in ("arrow", "mds")] == ["arrow", "mds"]
    for name in ("", "Arrow", "parquet", None):
        wrong: Any = name
        with pytest.raises(PlanError, match=f"cache_format={name!r} must be 'arrow' or 'mds'"):
            check_cache_format(wrong)


def test_hashes() -> None:
    for name in (None, "", "sha1", "md5", "xxh64", "xxh3_64", "xxh128"):
        check_hash(name)
    for name in ("nope", "SHA1", "shake_256", 5):
        wrong: Any = name
        with pytest.raises(PlanError, match=f"validate_hash={name!r} is not a hash of mosaicml"):
            check_hash(wrong)


def test_the_search_path_is_this_process_s_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", ["", "/one", "/two"])
    # The download process has another working directory.
    assert search_path() == (os.getcwd(), "/one", "/two")
