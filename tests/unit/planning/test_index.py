from __future__ import annotations

import dataclasses
import json
import random
import re
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from lance_stream.errors import IndexFormatError
from lance_stream.planning.checksum import Checksum, footer
from lance_stream.planning.chosen import ChosenRows, RowBits
from lance_stream.planning.index import INDEX_FORMAT, ShardIndex, ShardInfo
from lance_stream.planning.layout import Layout, shard_stops
from lance_stream.planning.rows import FragmentRows, RowRange
from lance_stream.planning.selection import Selection
from lance_stream.planning.sizing import RowSize

SCHEMA = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False),
        pa.field("embedding", pa.list_(pa.float32(), 4)),
        pa.field("at", pa.timestamp("us", "Europe/Berlin")),
    ]
)

CONTIGUOUS = Layout()
COLUMNS = (("id", "id"), ("embedding", "embedding"), ("at", "at"))


def make_index(**changes: Any) -> ShardIndex:
    fragments = FragmentRows.from_counts([(0, 600), (1, 1), (7, 399)])
    values: dict[str, Any] = {
        "uri": "s3://bucket/t.lance",
        "version": 17,
        "identity": "0123456789abcdef0123456789abcdef",
        "selection": Selection(COLUMNS),
        "layout": CONTIGUOUS,
        "schema": SCHEMA,
        "fragments": fragments,
        "chosen": None,
        "shard_stops": shard_stops(fragments.num_rows, 300),
        "row_size": RowSize(32.5, 1.25, 4096),
    }
    return ShardIndex(**{**values, **changes})


def chosen_rows(rows: Iterable[int]) -> ChosenRows:
    bits = RowBits(1000)
    bits.add(np.array(list(rows), np.int64))
    return bits.chosen()


def parts(index: ShardIndex) -> dict[str, Any]:
    """All that an index holds, to compare."""
    return {
        "uri": index.uri,
        "version": index.version,
        "identity": index.identity,
        "selection": index.selection,
        "layout": index.layout,
        "chosen": None if index.chosen is None else index.chosen.bits.tolist(),
        "schema": index.schema.serialize().to_pybytes(),
        "fragments": (index.fragments.ids.tolist(), index.fragments.stops.tolist()),
        "shard_stops": index.shard_stops.tolist(),
        "row_size": index.row_size,
        "target_bytes": index.target_bytes,
        "exact_bytes": None if index.exact_bytes is None else index.exact_bytes.tolist(),
    }


def test_golden_fingerprint() -> None:
    # Who depends on this: the names of the shard files in users' caches, and the state that
    # their checkpoints compare. Where it changes, INDEX_FORMAT must change with it.
    assert INDEX_FORMAT == 2
    assert make_index().fingerprint == "2dbcf4ec6515d48468ab92dec9d6f422"


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"selection": Selection()},
        {"selection": Selection(None, True)},
        {"selection": Selection((("ü ß", "a || '\"'"),), True)},
        {"selection": Selection(transform="my.module:function")},
        {
            "selection": Selection(
                None, True, transform="my.module:function", transform_version="ü 2"
            )
        },
        {"selection": Selection(filter="id > 3", limit=5, subset=(0.1, 0.9), subset_key="ü")},
        {"layout": Layout("scattered", 16, -7)},
        {"chosen": chosen_rows(range(1000))},
        {"uri": "/data/ä b/t.lance"},
        {"version": 2**40},
        {"row_size": RowSize(0.1, 1e-30, 0)},
        {"schema": pa.schema([])},
        {
            "schema": pa.schema(
                [pa.field("a", pa.binary(), metadata={"k": "v"})], metadata={"m": "n"}
            )
        },
        {"shard_stops": np.array([1000], np.int64)},
        {"target_bytes": 1 << 40},
        {"exact_bytes": np.array([1, 2, 3, 2**40], np.int64)},
    ],
)
def test_an_index_survives_its_file(tmp_path: Path, changes: dict[str, Any]) -> None:
    index = make_index(**changes)
    path = tmp_path / "an.index"
    path.write_bytes(index.to_bytes())
    loaded = ShardIndex.load(path)
    assert parts(loaded) == parts(index)
    assert loaded.fingerprint == index.fingerprint
    assert loaded.schema.equals(index.schema, check_metadata=True)
    assert ShardIndex.load(str(path)).describe() == index.describe()


def test_equal_indexes_make_equal_files() -> None:
    assert make_index().to_bytes() == make_index().to_bytes()


def test_repr_is_short() -> None:
    said = "ShardIndex('s3://bucket/t.lance', version=17, rows=1000, shards=4)"
    assert repr(make_index()) == said


def test_bytes_that_were_measured_are_told() -> None:
    index = make_index(exact_bytes=np.array([100, 2000, 30, 4], np.int64))
    assert [shard.estimated_bytes for shard in index.shards] == [4196, 6096, 4126, 4100]
    assert index.describe()["estimated_bytes"] == 2134
    # The shard files are the same ones.
    assert index.fingerprint == make_index().fingerprint


def test_shards_are_a_sequence() -> None:
    index = make_index()
    assert index.num_rows == 1000
    assert index.num_shards == len(index.shards) == 4
    expected = [
        ShardInfo(300, index.row_size.shard_bytes(300), (RowRange(0, 300),)),
        ShardInfo(300, index.row_size.shard_bytes(300), (RowRange(300, 600),)),
        ShardInfo(300, index.row_size.shard_bytes(300), (RowRange(600, 900),)),
        ShardInfo(100, index.row_size.shard_bytes(100), (RowRange(900, 1000),)),
    ]
    assert list(index.shards) == expected
    assert [index.shards[i] for i in range(4)] == expected
    assert [index.shards[i] for i in range(-4, 0)] == expected
    for at in (
        slice(None),
        slice(1, 3),
        slice(-2, None),
        slice(None, None, -1),
        slice(3, 1),
        slice(0, 99, 2),
    ):
        assert index.shards[at] == expected[at]
    assert index.shards.index(expected[2]) == 2
    assert expected[3] in index.shards
    assert list(reversed(index.shards)) == expected[::-1]


@pytest.mark.parametrize("at", [4, 5, -5, -6, 10**12])
def test_a_shard_that_is_not_there_is_an_index_error(at: int) -> None:
    index = make_index()
    with pytest.raises(IndexError, match="is not in an index of 4 shards"):
        index.shards[at]


@pytest.mark.parametrize("shard", [-1, 4])
def test_shard_rows_takes_no_other_shard(shard: int) -> None:
    with pytest.raises(IndexError, match=f"shard {shard} is not in an index of 4 shards"):
        make_index().shard_rows(shard)


def test_describe_is_json() -> None:
    described = make_index().describe()
    assert json.loads(json.dumps(described)) == described
    assert described == {
        "uri": "s3://bucket/t.lance",
        "version": 17,
        "fingerprint": make_index().fingerprint,
        "num_rows": 1000,
        "num_shards": 4,
        "num_fragments": 3,
        "table_rows": 1000,
        "selection": Selection(COLUMNS).as_json(),
        "layout": {"kind": "contiguous"},
        "columns": {
            "id": "int64",
            "embedding": "fixed_size_list<item: float>[4]",
            "at": "timestamp[us, tz=Europe/Berlin]",
        },
        "estimated_bytes": 32_500,
        "estimated_shard_bytes": make_index().row_size.shard_bytes(300),
    }


@pytest.mark.parametrize(
    "changes",
    [
        {"version": 18},
        {"uri": "s3://bucket/u.lance"},
        {"identity": "f" * 32},
        {"selection": Selection()},
        {"selection": Selection((("id", "id + 1"), ("embedding", "embedding"), ("at", "at")))},
        {"selection": Selection((("embedding", "embedding"), ("id", "id"), ("at", "at")))},
        {"selection": Selection(COLUMNS, with_row_id=True)},
        {"selection": Selection(COLUMNS, transform="m:f")},
        {"selection": Selection(COLUMNS, transform="m:f", transform_version="1")},
        {"selection": Selection(COLUMNS, transform="m:f", transform_version="2")},
        {"selection": Selection(COLUMNS, transform="m:g", transform_version="1")},
        {"schema": SCHEMA.set(0, pa.field("id", pa.int32()))},
        {"schema": SCHEMA.set(0, pa.field("id", pa.int64()))},
        {"shard_stops": shard_stops(1000, 299)},
        {"shard_stops": np.array([1000], np.int64)},
        {"selection": Selection(COLUMNS, filter="id > 3")},
        {"selection": Selection(COLUMNS, limit=1000)},
        {"selection": Selection(COLUMNS, subset=(0, 1))},
        {"selection": Selection(COLUMNS, subset=(0, 1), subset_key="id")},
        {"layout": Layout("scattered")},
        {"layout": Layout("scattered", 32)},
        {"layout": Layout("scattered", 32, 1)},
        {"chosen": chosen_rows(range(999))},
    ],
)
def test_other_shard_files_have_another_fingerprint(changes: dict[str, Any]) -> None:
    assert re.fullmatch("[0-9a-f]{32}", make_index().fingerprint)
    assert make_index(**changes).fingerprint != make_index().fingerprint


def test_every_other_selection_has_another_fingerprint() -> None:
    selections = [
        Selection(columns, with_row_id, transform=transform, transform_version=version)
        for columns in (None, COLUMNS)
        for with_row_id in (False, True)
        for transform, version in ((None, None), ("m:f", None), ("m:f", "1"), ("m:g", "1"))
    ]
    found = {make_index(selection=selection).fingerprint for selection in selections}
    assert len(found) == len(selections)


def test_bfloat16_is_not_two_bytes() -> None:
    plain = pa.field("b", pa.binary(2))
    number = plain.with_metadata({"lance_stream:type": "bfloat16"})
    found = {make_index(schema=pa.schema([field])).fingerprint for field in (plain, number)}
    assert len(found) == 2


def test_the_same_shard_files_have_the_same_fingerprint() -> None:
    # Sizes are sampled: they may differ between two plans of the same shards.
    assert make_index(row_size=RowSize(1.0, 2.0, 3)).fingerprint == make_index().fingerprint
    strided = np.repeat(make_index().shard_stops, 2)[::2]
    assert make_index(shard_stops=strided).fingerprint == make_index().fingerprint


def test_every_truncation_is_noticed() -> None:
    data = make_index().to_bytes()
    for length in range(len(data)):
        with pytest.raises(IndexFormatError, match=r"cut\.index"):
            ShardIndex.from_bytes(data[:length], "cut.index")


def test_no_flipped_byte_makes_another_index() -> None:
    index = make_index()
    data, expected = index.to_bytes(), parts(index)
    chosen = random.Random(5)
    wrong: list[str] = []
    for at in range(len(data)):
        for mask in (0xFF, 1 << chosen.randrange(8)):
            flipped = bytearray(data)
            flipped[at] ^= mask
            try:
                found = parts(ShardIndex.from_bytes(bytes(flipped), "flipped.index"))
            except IndexFormatError as error:
                if "flipped.index" not in str(error):
                    wrong.append(f"byte {at} ^ {mask:#x}: {error} names no file")
            except Exception as error:  # noqa: BLE001 - any other is the failure looked for
                wrong.append(f"byte {at} ^ {mask:#x}: {error!r}")
            else:
                if found != expected:
                    changed = [name for name in found if found[name] != expected[name]]
                    wrong.append(f"byte {at} ^ {mask:#x}: reads back with another {changed}")
    assert not wrong, f"{len(wrong)} of {2 * len(data)}: " + "; ".join(wrong[:10])


def _arrow_file(table: pa.Table, header: Any = None, *, sealed: bool = False) -> bytes:
    """An Arrow file, with an index header if given, and with a valid checksum if wanted."""
    if header is not None:
        text = header if isinstance(header, str) else json.dumps(header)
        table = table.replace_schema_metadata({"lance_stream.index": text})
    sink = pa.BufferOutputStream()
    name = (table.schema.metadata or {}).get(b"lance_stream.index", b"")
    check = Checksum(name)
    metadata = {b"lance_stream.check": check.placeholder()} if sealed else None
    with pa.ipc.new_file(sink, table.schema, metadata=metadata) as writer:
        writer.write_table(table)
    content = bytearray(sink.getvalue())
    if sealed:
        view = memoryview(content)
        at = check.locate(view, *footer(view))
        digits = check.compute(view, at)
        content[at : at + len(digits)] = digits
    return bytes(content)


NUMBERS, LISTS = pa.table({"a": [1, 2]}), pa.table({"a": [[1]]})


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"x",
        b"{}",
        b"\0" * 1000,
        b"ARROW1\0\0ARROW1",
        _arrow_file(NUMBERS),
        _arrow_file(NUMBERS.slice(0, 0)),
        *(
            _arrow_file(table, header, sealed=True)
            for table in (NUMBERS, NUMBERS.slice(0, 0), LISTS)
            for header in (None, {}, [], 3, "null", "", "{", {"format": INDEX_FORMAT})
        ),
    ],
)
def test_other_files_are_refused(data: bytes) -> None:
    with pytest.raises(IndexFormatError, match=r"some\.file"):
        ShardIndex.from_bytes(data, "some.file")


def _with_header(index: ShardIndex, **changes: Any) -> bytes:
    """An intact file of an index whose header says something else; ... leaves a key out."""
    with pa.ipc.open_file(index.to_bytes()) as reader:
        table = reader.read_all()
    header = json.loads(table.schema.metadata[b"lance_stream.index"])
    header.update(changes)
    return _arrow_file(table, {k: v for k, v in header.items() if v is not ...}, sealed=True)


def test_an_index_may_be_written_again_with_its_own_header() -> None:
    # Otherwise the tests below would show nothing.
    again = ShardIndex.from_bytes(_with_header(make_index()), "same.index")
    assert parts(again) == parts(make_index())


@pytest.mark.parametrize("format_", [INDEX_FORMAT + 1, 0, "1", None])
def test_another_format_says_what_to_do(format_: Any) -> None:
    message = rf"new.index has index format {format_}, this lance_stream reads {INDEX_FORMAT}: "
    with pytest.raises(IndexFormatError, match=message + ".*make the index again"):
        ShardIndex.from_bytes(_with_header(make_index(), format=format_), "new.index")


@pytest.mark.parametrize(
    "changes",
    [
        {"uri": ...},
        {"row_size": ...},
        {"row_size": [1.0]},
        {"selection": 5},
        {"selection": {}},
        {"selection": {"columns": [["a"]], "with_row_id": False}},
        {"selection": {"columns": None, "with_row_id": False}},
    ],
)
def test_a_header_that_lacks_something_is_damage(changes: dict[str, Any]) -> None:
    with pytest.raises(IndexFormatError, match=r"some\.index"):
        ShardIndex.from_bytes(_with_header(make_index(), **changes), "some.index")


def test_a_missing_file_is_an_os_error(tmp_path: Path) -> None:
    with pytest.raises(OSError, match=r"none\.index cannot be read: there is no such file"):
        ShardIndex.load(tmp_path / "none.index")


def test_a_million_shards_are_cheap(tmp_path: Path) -> None:
    num_fragments = 100_000
    fragments = FragmentRows.from_counts([(i, 1000) for i in range(num_fragments)])
    index = make_index(fragments=fragments, shard_stops=shard_stops(fragments.num_rows, 100))
    path = tmp_path / "large.index"
    path.write_bytes(index.to_bytes())
    assert path.stat().st_size < 100_000_000
    started = time.monotonic()
    loaded = ShardIndex.load(path)
    assert loaded.num_shards == 1_000_000
    assert loaded.fingerprint == index.fingerprint
    assert loaded.shards[-1].row_ranges == (RowRange(99_999_900, 100_000_000),)
    (rows,) = loaded.shards[567_891].row_ranges
    assert loaded.fragments.span(rows).fragment_ids == (56_789,)
    assert time.monotonic() - started < 3.0


def test_an_index_is_immutable() -> None:
    index = make_index()
    with pytest.raises(dataclasses.FrozenInstanceError, match="version"):
        index.version = 3  # type: ignore[misc]
