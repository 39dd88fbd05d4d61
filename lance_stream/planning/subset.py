"""Put every row at a place in [0, 1) by the hash of a value, so that subsets are stable. Pure.

Equal values have equal places, in every version of the table and of this library. Integers of any
width (also dates, times and booleans, by what Arrow stores) hash as 64-bit numbers by SplitMix64,
floats as doubles likewise, text and bytes (also UUIDs) by XXH3-64 of their bytes, decimals as the
text of their value, dictionaries as what they encode. Null has a place too.
"""

from __future__ import annotations

from decimal import Decimal

import numpy as np
import pyarrow as pa
import xxhash
from numpy.typing import NDArray
from pyarrow import types as pat

from lance_stream.planning.permutation import mixed

__all__ = ["in_subset", "is_hashable", "places"]

_NULL = np.uint64(0xD1B54A32D192ED03)


def is_hashable(kind: pa.DataType) -> bool:
    """Whether values of a type have a place."""
    if isinstance(kind, pa.BaseExtensionType):
        return isinstance(kind, pa.UuidType)
    if pat.is_dictionary(kind):
        return is_hashable(kind.value_type)
    if pat.is_decimal(kind):
        return True
    return _is_integral(kind) or pat.is_floating(kind) or _is_text(kind)


def in_subset(at: NDArray[np.float64], subset: tuple[float, float]) -> NDArray[np.bool_]:
    """Which places lie in ``[lo, hi)``. Places are below 1, so that ``hi`` = 1 takes the rest."""
    low, high = subset
    return (at >= low) & (at < high)


def places(column: pa.Array) -> NDArray[np.float64]:
    """The place of each value.

    Args:
        column: Values of a type for which ``is_hashable`` holds.

    Returns:
        float64 array (values,), in [0, 1).
    """
    if isinstance(column, pa.ExtensionArray):
        column = column.storage
    if isinstance(column, pa.DictionaryArray):
        column = column.dictionary_decode()
    hashes = _hashes(column)
    if column.null_count:
        hashes[column.is_null().to_numpy(zero_copy_only=False)] = _NULL
    # The upper 53 bits: what a double holds exactly.
    return (hashes >> np.uint64(11)).astype(np.float64) * 2.0**-53


def _hashes(column: pa.Array) -> NDArray[np.uint64]:
    kind = column.type
    if pat.is_decimal(kind):
        # As text without what its scale adds: 1.50 in one scale is 1.5 in another.
        return _hashes(pa.array([_plain(value) for value in column.to_pylist()], pa.string()))
    if _is_text(kind):
        values = column.cast(pa.large_binary()) if not pat.is_fixed_size_binary(kind) else column
        digest = xxhash.xxh3_64_intdigest
        return np.fromiter(
            (digest(v if v is not None else b"") for v in values.to_pylist()),
            np.uint64,
            len(column),
        )
    if pat.is_floating(kind):
        plain = column.cast(pa.float64()).fill_null(0.0).to_numpy(zero_copy_only=False)
        # Minus zero equals zero, and every NaN is one value.
        plain = np.where(plain == 0.0, 0.0, plain)
        return mixed(np.where(np.isnan(plain), np.nan, plain).view(np.uint64))
    if pat.is_boolean(kind):
        column = column.cast(pa.uint8())
    elif not pat.is_integer(kind):
        column = column.view(pa.int32() if kind.bit_width == 32 else pa.int64())
    wide = pa.uint64() if column.type == pa.uint64() else pa.int64()
    numbers = column.cast(wide).fill_null(0).to_numpy(zero_copy_only=False)
    return mixed(numbers.view(np.uint64))


def _plain(value: Decimal | None) -> str | None:
    """A decimal as text, the same for equal values."""
    if value is None:
        return None
    text = format(value, "f")
    return text.rstrip("0").rstrip(".") if "." in text else text


def _is_text(kind: pa.DataType) -> bool:
    return (
        pat.is_string(kind)
        or pat.is_large_string(kind)
        or pat.is_string_view(kind)
        or pat.is_binary_view(kind)
        or pat.is_binary(kind)
        or pat.is_large_binary(kind)
        or pat.is_fixed_size_binary(kind)
    )


def _is_integral(kind: pa.DataType) -> bool:
    temporal = pat.is_temporal(kind) and not pat.is_interval(kind)
    return pat.is_integer(kind) or pat.is_boolean(kind) or temporal
