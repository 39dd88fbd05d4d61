from __future__ import annotations

import datetime as dt
from typing import Any
from zoneinfo import ZoneInfo

import pyarrow as pa
import pytest
from hypothesis import given, settings

from lance_stream.errors import UnsupportedTypeError
from lance_stream.planning.types import (
    is_array_list,
    is_bfloat16,
    is_list,
    sample_schema,
    sample_table,
    sample_type,
    time_zone,
    type_name,
)
from tests.support.any_tables import any_tables
from tests.support.values import assert_same, bfloat16_field, expected_rows

WHERE = "s3://b/t.lance version 3"
TENSOR = pa.fixed_shape_tensor(pa.float32(), [2, 3])
BFLOAT16 = pa.field("c", pa.binary(2), metadata={"lance_stream:type": "bfloat16"})


class _OurExtension(pa.ExtensionType):
    def __init__(self) -> None:
        super().__init__(pa.int64(), "lance_stream.tests.ours")

    def __arrow_ext_serialize__(self) -> bytes:
        return b""

    @classmethod
    def __arrow_ext_deserialize__(cls, storage_type: Any, serialized: Any) -> _OurExtension:
        return cls()


class _BFloat16(pa.ExtensionType):
    """As Lance registers it, in the processes that import it."""

    def __init__(self) -> None:
        super().__init__(pa.binary(2), "lance.bfloat16")

    def __arrow_ext_serialize__(self) -> bytes:
        return b""

    @classmethod
    def __arrow_ext_deserialize__(cls, storage_type: Any, serialized: Any) -> _BFloat16:
        return cls()


def schema_of(kind: pa.DataType | pa.Field) -> pa.Schema:
    field = kind if isinstance(kind, pa.Field) else pa.field("c", kind)
    return pa.schema([field])


def plain(kind: pa.DataType | pa.Field) -> pa.Field:
    """The field in a shard."""
    (field,) = sample_schema(schema_of(kind), WHERE)
    return field


# --- what a sample can hold ---

INT_FIELD = pa.field("x", pa.int64())
# A type of a shard, and the Python type of its values.
HELD: list[tuple[pa.DataType | pa.Field, str]] = [
    *((kind, "int") for kind in (pa.int8(), pa.int64(), pa.uint8(), pa.uint64())),
    *((kind, "float") for kind in (pa.float16(), pa.float32(), pa.float64())),
    (pa.bool_(), "bool"),
    *((kind, "str") for kind in (pa.string(), pa.large_string())),
    *((kind, "bytes") for kind in (pa.binary(), pa.large_binary(), pa.binary(3), pa.binary(0))),
    *((kind, "datetime.date") for kind in (pa.date32(), pa.date64())),
    *((kind, "datetime.time") for kind in (pa.time32("s"), pa.time64("ns"))),
    *(
        (pa.timestamp(unit, zone), "datetime.datetime")
        for unit in ("s", "ns")
        for zone in (None, "UTC", "Europe/Berlin", "+05:30", "-01:00")
    ),
    *((pa.duration(unit), "datetime.timedelta") for unit in ("s", "ns")),
    *(
        (kind, "decimal.Decimal")
        for kind in (
            pa.decimal32(5, 2),
            pa.decimal64(5, 2),
            pa.decimal128(38, 10),
            pa.decimal256(76, -3),
        )
    ),
    (pa.null(), "None"),
    (pa.uuid(), "uuid.UUID"),
    (BFLOAT16, "torch.Tensor"),
    *(
        (kind, "numpy.ndarray")
        for kind in (
            pa.list_(pa.int64()),
            pa.large_list(pa.float16()),
            pa.list_(pa.bool_(), 3),
            pa.list_(pa.float32(), 0),
            pa.list_(pa.list_(pa.float32(), 2)),
            pa.large_list(pa.list_(pa.list_(pa.uint8(), 3), 2)),
            pa.list_(pa.list_(pa.list_(pa.uint8(), 3), 2), 4),
            TENSOR,
            pa.fixed_shape_tensor(pa.int8(), [2, 3, 4], permutation=[2, 0, 1]),
        )
    ),
    *(
        (kind, "list")
        for kind in (
            pa.list_(pa.string()),
            pa.list_(pa.date32(), 2),
            pa.large_list(pa.decimal128(5)),
            pa.list_(pa.null()),
            pa.list_(pa.list_(pa.int64())),
            pa.list_(pa.list_(pa.int64()), 2),
            pa.list_(pa.large_list(pa.int64())),
            pa.list_(pa.list_(pa.string(), 2), 2),
            pa.list_(pa.struct([INT_FIELD])),
            pa.list_(TENSOR),
            pa.list_(pa.uuid()),
            pa.list_(BFLOAT16),
            pa.list_(pa.map_(pa.string(), pa.int8())),
        )
    ),
    *(
        (kind, "dict")
        for kind in (
            pa.struct([]),
            pa.struct([INT_FIELD]),
            pa.struct([INT_FIELD, pa.field("y", pa.struct([INT_FIELD]))]),
            pa.map_(pa.string(), pa.int64()),
            pa.map_(pa.date32(), pa.list_(pa.float32())),
            pa.map_(pa.uuid(), pa.struct([INT_FIELD])),
            pa.map_(pa.binary(3), pa.map_(pa.int8(), pa.int8())),
        )
    ),
]


@pytest.mark.parametrize(("kind", "name"), HELD, ids=lambda value: str(value)[:60])
def test_a_type_that_a_sample_can_hold(kind: pa.DataType | pa.Field, name: str) -> None:
    field = kind if isinstance(kind, pa.Field) else pa.field("c", kind)
    assert sample_type(field) == name
    # A shard holds it as it is, without what others wrote beside it.
    (kept,) = sample_schema(schema_of(field), WHERE)
    assert kept.equals(field, check_metadata=True)
    marked = field.with_metadata({**(field.metadata or {}), "any": "thing"})
    assert sample_type(marked) == name
    assert plain(marked).equals(field, check_metadata=True)
    if name != "None":
        strict = field.with_nullable(False)
        assert plain(strict).equals(strict, check_metadata=True)


REFUSED = [
    pa.list_view(pa.int64()),
    pa.large_list_view(pa.int64()),
    pa.run_end_encoded(pa.int32(), pa.int64()),
    pa.dense_union([INT_FIELD]),
    pa.sparse_union([INT_FIELD]),
    pa.month_day_nano_interval(),
    pa.opaque(pa.binary(), "type", "vendor"),
    _OurExtension(),
    # Keys that no dict can have.
    pa.map_(pa.struct([INT_FIELD]), pa.int64()),
    pa.map_(pa.list_(pa.int64()), pa.int64()),
    pa.map_(pa.list_(pa.string()), pa.int64()),
    pa.map_(TENSOR, pa.int64()),
    pa.map_(BFLOAT16.with_name("key").with_nullable(False), pa.int64()),
    # Names that no dict can have twice.
    pa.struct([INT_FIELD, INT_FIELD]),
    # Inside of others.
    pa.list_(pa.list_view(pa.int64())),
    pa.list_(_OurExtension()),
    pa.list_(pa.month_day_nano_interval(), 2),
    pa.large_list(pa.dense_union([INT_FIELD])),
    pa.struct([INT_FIELD, pa.field("y", _OurExtension())]),
    pa.map_(pa.string(), _OurExtension()),
    pa.map_(_OurExtension(), pa.string()),
    pa.struct([pa.field("y", pa.list_(pa.struct([pa.field("z", _OurExtension())])))]),
    pa.dictionary(pa.int32(), pa.list_view(pa.int64())),
]


@pytest.mark.parametrize("kind", REFUSED, ids=lambda value: str(value)[:60])
def test_other_types_are_refused_by_column_and_type(kind: pa.DataType) -> None:
    schema = pa.schema([("good", pa.int64()), ("the column", kind)])
    with pytest.raises(UnsupportedTypeError) as raised:
        sample_schema(schema, WHERE)
    message = str(raised.value)
    assert message.startswith("s3://b/t.lance version 3: ")
    assert f"'the column' ({kind})" in message
    assert "good" not in message
    assert "columns=" in message


def test_every_refused_column_is_named_at_once() -> None:
    schema = pa.schema(
        [
            ("a", pa.struct([INT_FIELD, INT_FIELD])),
            ("b", pa.int64()),
            ("c", pa.month_day_nano_interval()),
        ]
    )
    words = r"'a' \(struct<x: int64, x: int64>\), 'c' \(month_day_nano_interval\)\. Choose"
    with pytest.raises(UnsupportedTypeError, match=words):
        sample_schema(schema, WHERE)


def test_a_time_zone_that_is_not_known_is_refused_when_the_stream_is_built() -> None:
    # Otherwise it is an error of every worker at its first shard.
    for kind in (
        pa.timestamp("us", "Mars/Olympus_Mons"),
        pa.list_(pa.timestamp("us", "Mars/Olympus_Mons")),
    ):
        with pytest.raises(UnsupportedTypeError, match=r"'c' \(.*tz=Mars/Olympus_Mons"):
            sample_schema(schema_of(kind), WHERE)


# --- the types of a shard ---

PLAIN: list[tuple[pa.DataType | pa.Field, pa.DataType | pa.Field]] = [
    (pa.string_view(), pa.string()),
    (pa.binary_view(), pa.binary()),
    (pa.dictionary(pa.int8(), pa.string()), pa.string()),
    (pa.dictionary(pa.int32(), pa.timestamp("us", "UTC")), pa.timestamp("us", "UTC")),
    (pa.dictionary(pa.int32(), pa.string_view()), pa.string()),
    (pa.json_(), pa.string()),
    (pa.json_(pa.large_string()), pa.large_string()),
    (pa.bool8(), pa.bool_()),
    (pa.list_(pa.dictionary(pa.int8(), pa.int64())), pa.list_(pa.int64())),
    (pa.list_(pa.bool8(), 2), pa.list_(pa.bool_(), 2)),
    (pa.list_(TENSOR), pa.list_(TENSOR)),
    (
        pa.struct([pa.field("a", pa.json_(), nullable=False), pa.field("b", pa.uuid())]),
        pa.struct([pa.field("a", pa.string(), nullable=False), pa.field("b", pa.uuid())]),
    ),
    (
        pa.map_(pa.dictionary(pa.int8(), pa.string()), pa.string_view(), keys_sorted=True),
        pa.map_(pa.string(), pa.string(), keys_sorted=True),
    ),
    (bfloat16_field("c"), BFLOAT16),
    (pa.field("c", _BFloat16()), BFLOAT16),
    (pa.list_(bfloat16_field("item")), pa.list_(BFLOAT16.with_name("item"))),
    (pa.list_(_BFloat16(), 4), pa.list_(BFLOAT16.with_name("item"), 4)),
    (
        pa.field("c", pa.large_binary(), metadata={"lance-encoding:blob": "true"}),
        pa.field("c", pa.large_binary()),
    ),
]


@pytest.mark.parametrize(("kind", "expected"), PLAIN, ids=lambda value: str(value)[:60])
def test_a_shard_holds_plain_types(
    kind: pa.DataType | pa.Field, expected: pa.DataType | pa.Field
) -> None:
    field = expected if isinstance(expected, pa.Field) else pa.field("c", expected)
    found = plain(kind)
    assert found.equals(field, check_metadata=True), found
    assert sample_type(found) is not None
    # Once plain, a schema stays as it is.
    assert plain(found).equals(found, check_metadata=True)


def test_metadata_of_the_table_is_left_behind() -> None:
    schema = pa.schema([pa.field("c", pa.int64(), metadata={"k": "v"})], metadata={"m": "n"})
    assert sample_schema(schema, WHERE).equals(schema_of(pa.int64()), check_metadata=True)


def test_order_and_nullability_are_kept() -> None:
    schema = pa.schema([pa.field("z", pa.json_(), nullable=False), pa.field("a", pa.int64())])
    assert str(sample_schema(schema, WHERE)) == "z: string not null\na: int64"


# --- words ---


def test_names_of_types() -> None:
    assert type_name(BFLOAT16) == "bfloat16"
    assert type_name(pa.field("c", pa.binary(2))) == "fixed_size_binary[2]"
    assert type_name(pa.field("c", pa.list_(pa.int64()))) == "list<item: int64>"


def test_bfloat16_is_not_any_two_bytes() -> None:
    assert is_bfloat16(BFLOAT16)
    assert not is_bfloat16(pa.field("c", pa.binary(2)))
    assert sample_type(pa.field("c", pa.binary(2))) == "bytes"
    assert not is_bfloat16(pa.field("c", pa.binary(2), metadata={"lance_stream:type": "other"}))


def test_kinds_of_lists() -> None:
    vector, matrix = pa.list_(pa.int8(), 2), pa.list_(pa.list_(pa.int8(), 2))
    words = pa.large_list(pa.string())
    lists = [vector, matrix, words, pa.list_(TENSOR), pa.list_(pa.list_(pa.int8()))]
    assert all(map(is_list, lists))
    found = [is_array_list(pa.field("c", kind)) for kind in lists]
    assert found == [True, True, False, False, False]
    for kind in (TENSOR, pa.int8(), pa.struct([]), pa.map_(pa.int8(), pa.int8())):
        assert not is_array_list(pa.field("c", kind))


def test_time_zones() -> None:
    assert time_zone(pa.timestamp("s", "Europe/Berlin")) == ZoneInfo("Europe/Berlin")
    offset = time_zone(pa.timestamp("ns", "-01:30"))
    assert offset is not None
    assert offset.utcoffset(None) == -dt.timedelta(hours=1, minutes=30)
    assert time_zone(pa.timestamp("us", "Nowhere")) is None


# --- rows ---


def test_rows_that_are_plain_are_the_same_object() -> None:
    table = pa.table({"a": [1, 2], "b": ["x", None]})
    assert sample_table(table, sample_schema(table.schema, WHERE)) is table


def test_a_dictionary_is_decoded_and_only_where_it_is_used() -> None:
    words = pa.DictionaryArray.from_arrays(
        pa.array([1, None, 1], pa.int32()), pa.array(["never used " * 100, "x"])
    )
    table = pa.table({"c": words})
    found = sample_table(table, sample_schema(table.schema, WHERE))
    assert found.to_pydict() == {"c": ["x", None, "x"]}
    assert found.schema == schema_of(pa.string())
    assert found.nbytes < 100


def test_rows_of_another_schema_are_refused() -> None:
    table = pa.table({"c": ["not a number"]})
    with pytest.raises(pa.ArrowInvalid, match="not a number"):
        sample_table(table, schema_of(pa.int64()))


@settings(max_examples=150)
@given(table=any_tables())
def test_no_value_is_altered(table: pa.Table) -> None:
    schema = sample_schema(table.schema, WHERE)
    found = sample_table(table, schema)
    assert found.schema.equals(schema, check_metadata=True)
    found.validate(full=True)
    assert all(sample_type(field) is not None for field in schema)
    for one, other in zip(expected_rows(found), expected_rows(table), strict=True):
        assert_same(one, other)
