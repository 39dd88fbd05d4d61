"""Advice for Python users, as it is told by the commands."""

from __future__ import annotations

import pytest

from lance_stream.cli.wording import as_options
from lance_stream.errors import UnsupportedTypeError
from lance_stream.shards.mds_limits import check_mds_nulls


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("cast these with columns={name: SQL expression}", "cast these with --columns NAME=SQL"),
        (
            "with columns={'a b': \"coalesce(a b, ...)\"}",
            "with --columns 'a b=coalesce(a b, ...)'",
        ),
        (
            'with columns={name: "coalesce(name, ...)"}',
            "with --columns 'name=coalesce(name, ...)'",
        ),
        ("the others with columns=[...]", "the others with --columns A,B"),
        ('use cache_format="arrow"', "use --cache-format arrow"),
        ("choose shard_rows=9 or less", "choose --shard-rows 9 or less"),
        ("shards with shard_rows or shard_bytes", "shards with --shard-rows or --shard-bytes"),
        ("longer: raise download_timeout", "longer: raise --download-timeout"),
        # What was given is told as it was given.
        ("columns={'b': 'repeat(s, 3)'}: fails", "columns={'b': 'repeat(s, 3)'}: fails"),
    ],
)
def test_advice(text: str, expected: str) -> None:
    assert as_options(text) == expected


def test_the_words_of_an_error() -> None:
    import pyarrow as pa

    with pytest.raises(UnsupportedTypeError) as caught:
        check_mds_nulls(pa.record_batch({"x": [None, 1]}), "t")
    text = as_options(str(caught.value))
    assert "columns=" not in text
    assert "cache_format" not in text
