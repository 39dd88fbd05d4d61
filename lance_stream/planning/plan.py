"""Cut the rows of a table into virtual shards. Pure."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from lance_stream.errors import PlanError

__all__ = ["contiguous_shard_stops"]

# Far above any sensible plan: stops a typo (shard_rows=1 on a billion rows) early.
_MAX_SHARDS = 100_000_000


def contiguous_shard_stops(num_rows: int, shard_rows: int) -> NDArray[np.int64]:
    """Cut rows in table order into shards of equal length; the last one may be shorter.

    Shards ignore fragment borders: a fragment may give many shards and a shard may span many
    fragments.

    Args:
        num_rows: Rows of the selection, at least 1.
        shard_rows: Rows per shard, at least 1.

    Returns:
        int64 array (shards,): cumulative rows, so shard ``k`` is ``stops[k - 1]`` to
        ``stops[k]``.

    Raises:
        PlanError: The plan would have more shards than is sensible.
    """
    num_shards = -(-num_rows // shard_rows)
    if num_shards > _MAX_SHARDS:
        msg = (
            f"shard_rows={shard_rows} over {num_rows} rows would make {num_shards} shards; "
            f"at most {_MAX_SHARDS} are supported: choose larger shards"
        )
        raise PlanError(msg)
    stops = np.arange(1, num_shards + 1, dtype=np.int64) * shard_rows
    stops[-1] = num_rows
    return stops
