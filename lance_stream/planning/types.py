"""Which Arrow types a sample can hold, and the form in which a shard holds them. Pure.

Shards hold plain types only, so that the reader's side needs no more of Lance than its values:
dictionaries are decoded (a shard carries no values that its rows do not use), blobs are bytes,
Lance's JSON is its text, views are the types that they view. Two things stay marked: tensors and
UUIDs by Arrow's own extension types, bfloat16 by metadata, since Arrow has no such type.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Sequence

import pyarrow as pa
from pyarrow import types as pat

from lance_stream.errors import UnsupportedTypeError

__all__ = [
    "describe_schema",
    "is_array_list",
    "is_bfloat16",
    "is_list",
    "sample_schema",
    "sample_table",
    "sample_type",
    "time_zone",
    "type_name",
]

BFLOAT16 = "lance.bfloat16"
_KIND = b"lance_stream:type"
_BFLOAT16_METADATA = {_KIND: b"bfloat16"}
_EXTENSION_NAME = b"ARROW:extension:name"


def sample_schema(schema: pa.Schema, where: str) -> pa.Schema:
    """The schema of a shard for a selection of that schema.

    Args:
        schema: As the table, or a transform, gives it.
        where: Table and version, for the error.

    Returns:
        The same columns in plain types, without metadata but ours.

    Raises:
        UnsupportedTypeError: Names every column that a sample cannot hold, and its type.
    """
    fields, bad = [], []
    for field in schema:
        plain = _plain_field(field)
        if plain is None or sample_type(plain) is None:
            bad.append(f"{field.name!r} ({type_name(field)})")
        else:
            fields.append(plain)
    if bad:
        msg = (
            f"{where}: columns of a type that is not supported: {', '.join(bad)}. "
            "Choose the other columns with columns=[...], or cast these with "
            "columns={name: SQL expression}"
        )
        raise UnsupportedTypeError(msg)
    return pa.schema(fields)


def sample_table(table: pa.Table, schema: pa.Schema) -> pa.Table:
    """Rows in the plain types of a shard.

    Args:
        table: Rows as the table gives them.
        schema: What ``sample_schema`` made of their schema.

    Raises:
        pa.ArrowException: The rows are of another schema.
    """
    if table.schema.equals(schema, check_metadata=True):
        return table
    columns = [
        _plain_column(column, field.type)
        for column, field in zip(table.columns, schema, strict=True)
    ]
    return pa.Table.from_arrays(columns, schema=schema)


def sample_type(field: pa.Field) -> str | None:
    """Name of the Python type that a field of a shard becomes in a sample; None if none does."""
    kind = field.type
    if is_bfloat16(field):
        return "torch.Tensor"
    if isinstance(kind, pa.FixedShapeTensorType):
        return "numpy.ndarray" if _is_array_leaf(kind.value_type) else None
    if isinstance(kind, pa.UuidType):
        return "uuid.UUID"
    if isinstance(kind, pa.BaseExtensionType):
        return None
    if is_array_list(field):
        return "numpy.ndarray"
    if is_list(kind):
        return "list" if sample_type(kind.value_field) else None
    if pat.is_map(kind):
        return "dict" if _is_key(kind.key_field) and sample_type(kind.item_field) else None
    if pat.is_struct(kind):
        names = [child.name for child in kind]
        held = len(set(names)) == len(names) and all(sample_type(child) for child in kind)
        return "dict" if held else None
    if pat.is_timestamp(kind) and kind.tz is not None and time_zone(kind) is None:
        return None
    for matches, name in _SCALARS:
        if matches(kind):
            return name
    return None


_SCALARS: Sequence[tuple[Callable[[pa.DataType], bool], str]] = (
    (pat.is_boolean, "bool"),
    (pat.is_integer, "int"),
    (pat.is_floating, "float"),
    (lambda t: pat.is_string(t) or pat.is_large_string(t), "str"),
    (lambda t: pat.is_binary(t) or pat.is_large_binary(t), "bytes"),
    (pat.is_fixed_size_binary, "bytes"),
    (pat.is_date, "datetime.date"),
    (pat.is_time, "datetime.time"),
    (pat.is_timestamp, "datetime.datetime"),
    (pat.is_duration, "datetime.timedelta"),
    (pat.is_decimal, "decimal.Decimal"),
    (pat.is_null, "None"),
)


def is_bfloat16(field: pa.Field) -> bool:
    """Whether a field of a shard holds bfloat16 numbers, two bytes each."""
    return (field.metadata or {}).get(_KIND) == b"bfloat16"


def is_list(kind: pa.DataType) -> bool:
    """Whether values are lists, of whatever."""
    return pat.is_list(kind) or pat.is_large_list(kind) or pat.is_fixed_size_list(kind)


def is_array_list(field: pa.Field) -> bool:
    """Whether a field's values are regular arrays: a list of [fixed lists of] numbers or bools."""
    kind = field.type
    if isinstance(kind, pa.BaseExtensionType) or not is_list(kind):
        return False
    kind = kind.value_type
    while not isinstance(kind, pa.BaseExtensionType) and pat.is_fixed_size_list(kind):
        kind = kind.value_type
    return _is_array_leaf(kind)


def time_zone(kind: pa.TimestampType) -> dt.tzinfo | None:
    """The zone of a type; None if this machine does not know it."""
    try:
        return pa.scalar(0, pa.timestamp("us", kind.tz)).as_py().tzinfo
    except (ValueError, KeyError, OSError, pa.ArrowException):
        return None


def describe_schema(schema: pa.Schema) -> str:
    """Columns, types and which may be null, in words."""
    return ", ".join(
        f"{field.name}: {type_name(field)}{'' if field.nullable else ' not null'}"
        for field in schema
    )


def type_name(field: pa.Field) -> str:
    """A field's type in words."""
    return "bfloat16" if is_bfloat16(field) else str(field.type)


def _is_array_leaf(kind: pa.DataType) -> bool:
    if isinstance(kind, pa.BaseExtensionType):
        return False
    return pat.is_integer(kind) or pat.is_floating(kind) or pat.is_boolean(kind)


def _is_key(field: pa.Field) -> bool:
    """Whether values can be keys of a dict."""
    name = sample_type(field)
    return name is not None and name not in ("numpy.ndarray", "torch.Tensor", "list", "dict")


def _plain_field(field: pa.Field) -> pa.Field | None:
    """The field in the types of a shard; None if there is none for it."""
    metadata = field.metadata or {}
    kind = field.type
    named = getattr(kind, "extension_name", None) or metadata.get(_EXTENSION_NAME, b"").decode()
    if named == BFLOAT16 or is_bfloat16(field):
        return pa.field(field.name, pa.binary(2), field.nullable, _BFLOAT16_METADATA)
    plain = _plain_type(kind)
    return None if plain is None else pa.field(field.name, plain, field.nullable)


def _plain_type(kind: pa.DataType) -> pa.DataType | None:
    if isinstance(kind, pa.BaseExtensionType):
        return _plain_extension(kind)
    if pat.is_dictionary(kind):
        return _plain_type(kind.value_type)
    if is_list(kind) or pat.is_map(kind) or pat.is_struct(kind):
        return _plain_nested(kind)
    for matches, plain in _VIEWS:
        if matches(kind):
            return plain
    return kind


_VIEWS: Sequence[tuple[Callable[[pa.DataType], bool], pa.DataType]] = (
    (pat.is_string_view, pa.string()),
    (pat.is_binary_view, pa.binary()),
)


def _plain_extension(kind: pa.BaseExtensionType) -> pa.DataType | None:
    if isinstance(kind, pa.FixedShapeTensorType | pa.UuidType):
        return kind
    if isinstance(kind, pa.JsonType):
        return _plain_type(kind.storage_type)
    if isinstance(kind, pa.Bool8Type):
        return pa.bool_()
    return None


def _plain_nested(kind: pa.DataType) -> pa.DataType | None:
    fields = [_plain_field(kind.field(i)) for i in range(kind.num_fields)]
    known = [field for field in fields if field is not None]
    if len(known) < len(fields):
        return None
    if pat.is_struct(kind):
        return pa.struct(known)
    if pat.is_map(kind):
        entry = _plain_nested(kind.field(0).type)
        if entry is None:
            return None
        return pa.map_(entry.field(0), entry.field(1), keys_sorted=kind.keys_sorted)
    if pat.is_fixed_size_list(kind):
        return pa.list_(known[0], kind.list_size)
    return pa.large_list(known[0]) if pat.is_large_list(kind) else pa.list_(known[0])


def _plain_column(column: pa.ChunkedArray, kind: pa.DataType) -> pa.ChunkedArray:
    if column.type == kind:
        return column
    if isinstance(column.type, pa.BaseExtensionType):
        # pyarrow casts no extension type but to its storage.
        storage = [chunk.storage for chunk in column.chunks]
        column = pa.chunked_array(storage, column.type.storage_type)
    if column.type == kind:
        return column
    return pa.chunked_array([part for chunk in column.chunks for part in _cast(chunk, kind)], kind)


def _cast(array: pa.Array, kind: pa.DataType) -> list[pa.Array]:
    """An array in another type: in parts, where it has more bytes there than fit into one."""
    try:
        return [array.cast(kind)]
    except (pa.ArrowInvalid, pa.ArrowCapacityError):
        # Dictionaries and views may hold one value many times.
        if len(array) < 2 or not _may_overflow(array.type):
            raise
    half = len(array) // 2
    return [*_cast(array.slice(0, half), kind), *_cast(array.slice(half), kind)]


def _may_overflow(kind: pa.DataType) -> bool:
    """Whether values may be more bytes in another type than they are in this one."""
    if pat.is_dictionary(kind) or pat.is_string_view(kind) or pat.is_binary_view(kind):
        return True
    return any(_may_overflow(kind.field(i).type) for i in range(kind.num_fields))
