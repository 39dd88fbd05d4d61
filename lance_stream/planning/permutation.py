"""A permutation of many numbers in no memory: any part of it is computed alone. Pure.

A four-round Feistel network over the smallest even number of bits that holds the numbers, walked
until it lands inside (Black and Rogaway, "Ciphers with arbitrary finite domains", 2002). The
rounds are ours and part of the index format: numpy's own shuffles may change between versions.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

__all__ = ["mixed", "permuted", "place_of"]

_ROUNDS = 4


def permuted(places: NDArray[np.int64], count: int, seed: int) -> NDArray[np.int64]:
    """What stands at some places of the permutation of ``range(count)`` for a seed.

    Args:
        places: int64 array, each in ``range(count)``.
        count: How many numbers are permuted, at least 1.
        seed: Any integer; its low 62 bits count.

    Returns:
        int64 array of the same shape.
    """
    half, keys = _half(count), _keys(seed)
    values = places.astype(np.uint64)
    values = _network(values, half, keys)
    outside = np.flatnonzero(values >= count)
    # The domain is at most four times the count, so few are left after each walk.
    while len(outside):
        values[outside] = _network(values[outside], half, keys)
        outside = outside[values[outside] >= count]
    return values.astype(np.int64)


def place_of(value: int, count: int, seed: int) -> int:
    """At which place of the permutation a number stands: the inverse of ``permuted``.

    Args:
        value: In ``range(count)``.
        count: As there.
        seed: As there.
    """
    half, keys = _half(count), _keys(seed)
    at = _back(np.array([value], np.uint64), half, keys)
    while at[0] >= count:
        at = _back(at, half, keys)
    return int(at[0])


def _half(count: int) -> int:
    """Half of the bits that hold the numbers."""
    return max(1, ((count - 1).bit_length() + 1) // 2)


def _keys(seed: int) -> NDArray[np.uint64]:
    """A number for each round."""
    return mixed(np.arange(_ROUNDS, dtype=np.uint64) + np.uint64((seed * _ROUNDS) & (2**64 - 1)))


def _network(
    values: NDArray[np.uint64], half: int, keys: NDArray[np.uint64]
) -> NDArray[np.uint64]:
    mask = np.uint64((1 << half) - 1)
    shift = np.uint64(half)
    left, right = values >> shift, values & mask
    for key in keys:
        left, right = right, left ^ (mixed(right ^ key) & mask)
    return (left << shift) | right


def _back(values: NDArray[np.uint64], half: int, keys: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """The inverse of ``_network``."""
    mask = np.uint64((1 << half) - 1)
    shift = np.uint64(half)
    left, right = values >> shift, values & mask
    for key in keys[::-1]:
        left, right = right ^ (mixed(left ^ key) & mask), left
    return (left << shift) | right


def mixed(values: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """The finalizer of SplitMix64 (Steele, Lea and Flood, 2014): spreads every bit."""
    values = values + np.uint64(0x9E3779B97F4A7C15)
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))
