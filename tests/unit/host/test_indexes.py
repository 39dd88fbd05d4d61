"""What a stream asks for, against an index that it is given; nothing is opened."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from lance_stream.errors import IndexFormatError, PlanError
from lance_stream.host.indexes import build_index
from lance_stream.planning.chosen import RowBits
from lance_stream.planning.index import ShardIndex
from lance_stream.planning.layout import Layout, shard_stops
from lance_stream.planning.rows import FragmentRows
from lance_stream.planning.selection import Selection
from lance_stream.planning.sizing import RowSize
from lance_stream.service.wanted import Wanted, load_index

URI = "/data/t.lance"


def make_index(
    *,
    uri: str = URI,
    version: int = 3,
    shard_rows: int = 100,
    layout: Layout = Layout(),  # noqa: B008 - frozen
    rows: int = 1000,
    target_bytes: int | None = None,
    **selection: Any,
) -> ShardIndex:
    fragments = FragmentRows.from_counts([(0, rows)])
    chosen, count = None, min(rows, selection.get("limit") or rows)
    chosen_selection = Selection(**selection)
    if chosen_selection.chooses_rows:
        bits = RowBits(rows)
        bits.add(np.arange(0, rows, 2))
        chosen = bits.chosen()
        count = chosen.count
    return ShardIndex(
        uri=uri,
        version=version,
        identity="0123456789abcdef0123456789abcdef",
        selection=chosen_selection,
        layout=layout,
        schema=pa.schema([("id", pa.int64())]),
        fragments=fragments,
        chosen=chosen,
        shard_stops=shard_stops(count, shard_rows),
        row_size=RowSize(8.0, 0.0, 1000),
        target_bytes=target_bytes,
    )


SCATTERED = {"layout": "scattered", "run_rows": 8, "layout_seed": 5}


@pytest.mark.parametrize(
    ("index", "given"),
    [
        ({}, {}),
        ({}, {"version": 3}),
        ({}, {"version": "a tag is looked up with the table"}),
        ({}, {"shard_rows": 100}),
        # The default is as good as not said.
        ({}, {"shard_bytes": "32mb"}),
        ({"target_bytes": 5}, {"shard_bytes": 1 << 25}),
        ({"target_bytes": 1 << 20}, {"shard_bytes": "1mb"}),
        # Sizes that an index of other rows would have alike.
        ({"rows": 50}, {"shard_rows": 100}),
        ({"rows": 50}, {"shard_rows": 70}),
        ({"layout": Layout("scattered", 8, 5)}, SCATTERED),
        # Runs are cut where shards meet.
        ({"layout": Layout("scattered", 8, 5)}, {**SCATTERED, "shard_rows": 100}),
        # Not said, so not compared.
        ({"layout": Layout("scattered", 8, 5)}, {"layout": "scattered"}),
        ({"filter": "a > 1"}, {}),
        ({"filter": "a > 1"}, {"filter": "a > 1"}),
        ({"limit": 150}, {"limit": 150}),
        ({"subset": (0.1, 0.3)}, {"subset": [0.1, 0.3]}),
        ({"subset": (0.1, 0.3), "subset_key": "k"}, {"subset": (0.1, 0.3), "subset_key": "k"}),
        ({"columns": (("id", "id"),)}, {"columns": ["id"]}),
        ({"columns": (("id", "id"),)}, {"columns": {"id": "id"}}),
        ({"with_row_id": True}, {"with_row_id": True}),
        ({"with_row_id": True}, {}),
        ({"uri": f"{URI}/tree/exp"}, {}),
        ({"uri": f"{URI}/tree/exp"}, {"version": "exp"}),
    ],
    ids=repr,
)
def test_an_index_of_what_is_asked_for_is_taken(
    index: dict[str, Any], given: dict[str, Any]
) -> None:
    Wanted.of(URI, **given).check_index(make_index(**index), "index='x'")


@pytest.mark.parametrize(
    ("index", "given", "says"),
    [
        ({"uri": "/data/u.lance"}, {}, "is an index of /data/u.lance, and the stream is of /data"),
        ({}, {"version": 4}, "made with version=3, and the stream is given version=4"),
        ({}, {"filter": "a > 1"}, "filter=None, and the stream is given filter='a > 1'"),
        ({"filter": "a > 2"}, {"filter": "a > 1"}, "filter='a > 2', and .* filter='a > 1'"),
        ({}, {"limit": 5}, "limit=None, and the stream is given limit=5"),
        ({"limit": 6}, {"limit": 5}, "limit=6, and the stream is given limit=5"),
        ({}, {"subset": (0, 0.5)}, r"subset=None, and .* subset=\[0.0, 0.5\]"),
        (
            {"subset": (0.0, 0.3)},
            {"subset": (0, 0.1 + 0.2)},
            r"subset=\[0.0, 0.3\], and .* subset=\[0.0, 0.30000000000000004\]",
        ),
        (
            {"subset": (0.0, 0.5), "subset_key": "a"},
            {"subset": (0, 0.5), "subset_key": "b"},
            "subset_key='a', and the stream is given subset_key='b'",
        ),
        ({}, {"columns": ["id"]}, r"columns=None, and .* columns=\[\['id', 'id'\]\]"),
        ({}, {"with_row_id": True}, "with_row_id=False, and .* with_row_id=True"),
        ({}, {"transform": "a:f"}, "transform=None, and the stream is given transform='a:f'"),
        ({}, {"layout": "scattered"}, "layout='contiguous', and .* layout='scattered'"),
        (
            {"layout": Layout("scattered", 8, 5)},
            {**SCATTERED, "run_rows": 9},
            "run_rows=8, and the stream is given run_rows=9",
        ),
        (
            {"layout": Layout("scattered", 8, 5)},
            {**SCATTERED, "layout_seed": 6},
            "layout_seed=5, and the stream is given layout_seed=6",
        ),
        ({}, {"shard_bytes": "1mb"}, "shard_bytes=None, and .* given shard_bytes=1048576"),
        ({"target_bytes": 5}, {"shard_bytes": 6}, "shard_bytes=5, and .* given shard_bytes=6"),
        ({}, {"shard_rows": 50}, "has 10 shards of up to 100 rows, and .* shard_rows=50"),
        (
            {"layout": Layout("scattered", 8, 5)},
            {**SCATTERED, "shard_rows": 50},
            "has 10 shards of up to 100 rows, and .* shard_rows=50",
        ),
        # Versions of a branch are numbered by themselves: 3 is one of the table's own.
        ({"uri": f"{URI}/tree/exp"}, {"version": 3}, "is an index of /data/t.lance/tree/exp, and"),
    ],
    ids=repr,
)
def test_another_index_is_refused_with_both_sides(
    index: dict[str, Any], given: dict[str, Any], says: str
) -> None:
    with pytest.raises(PlanError, match=f"index='x' .*{says}"):
        Wanted.of(URI, **given).check_index(make_index(**index), "index='x'")


def test_long_values_are_shown_by_their_ends() -> None:
    with pytest.raises(PlanError, match=r"filter='a in \(0,1,2.* \.\.\. .*9999\)'") as caught:
        Wanted.of(URI, filter=f"a in ({','.join(map(str, range(10_000)))})").check_index(
            make_index(filter="b" * 100_000), "the index"
        )
    assert len(str(caught.value)) < 1200


def test_an_index_of_a_split() -> None:
    wanted = Wanted.of("/data", split="train")
    for name in ("train", "train.lance"):
        wanted.check_index(make_index(uri=f"/data/{name}"), "the index")
    with pytest.raises(PlanError, match="is an index of /data, and the stream is of /data/train"):
        wanted.check_index(make_index(uri="/data"), "the index")


def test_the_rest_is_taken_from_the_index() -> None:
    index = make_index(filter="a > 1", with_row_id=True, layout=Layout("scattered", 8, 5))
    wanted = Wanted.of(URI, filter="a > 1", cache_format="mds").like(index)
    assert wanted.selection == index.selection
    assert wanted.layout == index.layout
    assert (wanted.uri, wanted.version, wanted.cache_format) == (URI, 3, "mds")
    split = Wanted.of("/data", split="train").like(make_index(uri="/data/train.lance"))
    assert (split.uri, split.split, split.version) == ("/data/train.lance", None, 3)
    # What a tag stands for is looked up.
    tagged = Wanted.of(URI, version="prod").like(index)
    assert (tagged.uri, tagged.version) == (URI, "prod")


def test_a_table_that_was_looked_up() -> None:
    wanted = Wanted.of("/data", split="train", version="exp", filter="a > 1")
    there = wanted.at("/data/train.lance/tree/exp", 4)
    assert (there.uri, there.split, there.version) == ("/data/train.lance/tree/exp", None, 4)
    assert there.selection == wanted.selection


def test_a_request_has_all_arguments() -> None:
    wanted = Wanted.of(
        "/data",
        split="train",
        version="v",
        columns={"x": "a + 1"},
        filter="a > 1",
        limit=5,
        subset=(0, 0.5),
        subset_key="k",
        shard_rows=7,
        layout="scattered",
        run_rows=3,
        layout_seed=9,
        cache_format="mds",
        with_row_id=True,
        transform="m:f",
        transform_version=2,
        storage_options={"secret": "x"},
    )
    request = wanted.request(timeout_s=3.0, attempts=2, exact=False, partial_path="/p")
    assert (request.uri, request.split, request.version) == ("/data", "train", "v")
    assert (request.columns, request.with_row_id) == ((("x", "a + 1"),), True)
    assert (request.filter, request.limit) == ("a > 1", 5)
    assert (request.subset, request.subset_key) == ((0.0, 0.5), "k")
    assert (request.layout, request.run_rows, request.layout_seed) == ("scattered", 3, 9)
    assert (request.shard_rows, request.cache_format) == (7, "mds")
    assert (request.transform, request.transform_version) == ("m:f", "2")
    assert (request.timeout_s, request.attempts, request.partial_path) == (3.0, 2, "/p")
    assert request.options.values == {"secret": "x"}
    assert "secret" not in str(wanted.as_json())
    assert "'x'" not in repr(wanted.options)


def test_row_ids_are_asked_for_once() -> None:
    with pytest.raises(PlanError, match="'_rowid', which with_row_id=True adds"):
        Wanted.of(URI, columns=["_rowid"], with_row_id=True)


# --- files ---


def test_an_index_at_hand_is_taken_as_it_is() -> None:
    index = make_index()
    assert load_index(index) == (index, "the index")


def test_an_index_file(tmp_path: Path) -> None:
    path = tmp_path / "an index.idx"
    make_index().save(path)
    for given in (path, str(path), path.as_uri().replace("%20", " ")):
        index, name = load_index(given)
        assert index.fingerprint == make_index().fingerprint
        assert name == f"index={str(given)!r}"


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("/nonexistent/x", "index='/nonexistent/x' cannot be read: FileNotFoundError"),
        ("nosuch://x", "index='nosuch://x' cannot be read: ValueError"),
        (
            "http://user:SECRET@127.0.0.1:9/x?token=SECRET",
            r"index='http://\*\*\*@127.0.0.1:9/x\?\*\*\*' cannot be read",
        ),
        (
            "simplecache::http://user:SECRET@127.0.0.1:9/x",
            r"index='simplecache::http://\*\*\*@127.0.0.1:9/x' cannot be read",
        ),
    ],
)
def test_an_index_that_cannot_be_read(url: str, shown: str) -> None:
    with pytest.raises(PlanError, match=shown) as caught:
        load_index(url)
    assert "SECRET" not in str(caught.value)


def test_a_damaged_file_is_named_without_its_query() -> None:
    import fsspec

    fsspec.filesystem("memory").pipe_file("/bad", b"no index")
    with pytest.raises(IndexFormatError, match="memory://bad is not a lance_stream shard index"):
        load_index("memory://bad")
    fsspec.filesystem("memory").pipe_file("/bad?key=SECRET", b"no index")
    with pytest.raises(IndexFormatError, match="memory://bad is not") as caught:
        load_index("memory://bad?key=SECRET")
    assert "SECRET" not in str(caught.value)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"exact": True, "shard_rows": 5}, "exact cuts by shard_bytes, contiguously"),
        ({"exact": True, "layout": "scattered"}, "exact cuts by shard_bytes, contiguously"),
        (
            {"partial_path": "/"},
            "partial_path='/' is a directory: name a file in it",
        ),
        (
            {"shard_rows": 5, "shard_bytes": "1mb"},
            "shard_rows=5 and shard_bytes='1mb' both say how large",
        ),
        (
            {"partial_path": "/nonexistent/x"},
            "partial_path='/nonexistent/x': there is no such dir",
        ),
        ({"limit": 0}, "limit=0"),
        ({"columns": []}, "columns="),
        ({"shard_bytes": "x"}, "shard_bytes="),
    ],
)
def test_what_build_index_refuses_before_it_asks(arguments: dict[str, Any], says: str) -> None:
    with pytest.raises(PlanError, match=says):
        build_index(URI, **arguments)
