"""Which selected rows make which shard. Pure.

- ``contiguous``: a shard is consecutive rows: cheapest to read.
- ``scattered``: a shard is made of runs of consecutive rows from all over the selection, so that
  a table that is sorted by something comes out mixed. The runs of a shard are in table order; its
  first and last may be parts of runs, so that its rows are as many as in the other layout.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lance_stream.errors import PlanError
from lance_stream.planning.permutation import permuted, place_of
from lance_stream.planning.rows import RowRange

__all__ = ["LAYOUTS", "Layout", "shard_stops"]

LAYOUTS = ("contiguous", "scattered")
# Far above any sensible plan: stops a typo (shard_rows=1 on a billion rows) early.
_MAX_SHARDS = 100_000_000


@dataclass(frozen=True, slots=True)
class Layout:
    """How rows are put into shards.

    Attributes:
        kind: ``"contiguous"`` or ``"scattered"``.
        run_rows: Rows of a run, in the scattered layout; where shards are shorter, ``fitted``.
        seed: Which scattered layout.
    """

    kind: str = "contiguous"
    run_rows: int = 64
    seed: int = 0

    def as_json(self) -> dict[str, Any]:
        """The layout as JSON values; what does not matter is left out."""
        if self.kind == "contiguous":
            return {"kind": self.kind}
        return {"kind": self.kind, "run_rows": self.run_rows, "seed": self.seed}

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> Layout:
        """The inverse of ``as_json``."""
        return cls(**{name: value[name] for name in ("kind", "run_rows", "seed") if name in value})

    def fitted(self, shard_rows: int) -> Layout:
        """The layout with runs that are no longer than a shard: a longer one would fill several.

        Args:
            shard_rows: Rows of a full shard.
        """
        if self.kind == "contiguous" or self.run_rows <= shard_rows:
            return self
        return replace(self, run_rows=shard_rows)

    def ranges(self, shard: RowRange, num_rows: int) -> list[RowRange]:
        """The selected rows of a shard, as ranges in ascending order that do not touch.

        Args:
            shard: Rows of the shard, counted through all shards; at least one.
            num_rows: Selected rows.
        """
        if self.kind == "contiguous":
            return [shard]
        num_runs = -(-num_rows // self.run_rows)
        lacking = num_runs * self.run_rows - num_rows
        # Rows are counted through the runs in their order by the permutation. Behind the short
        # run everything stands so much earlier.
        short_stop = (place_of(num_runs - 1, num_runs, self.seed) + 1) * self.run_rows - lacking

        def place(row: int) -> tuple[int, int]:
            return divmod(row + lacking if row >= short_stop else row, self.run_rows)

        (first, skipped), (last, kept) = place(shard.start), place(shard.stop - 1)
        runs = permuted(np.arange(first, last + 1), num_runs, self.seed)
        starts = runs * self.run_rows
        stops = np.minimum(starts + self.run_rows, num_rows)
        stops[-1] = starts[-1] + kept + 1
        starts[0] += skipped
        starts, stops = np.sort(starts), np.sort(stops)
        begins = np.flatnonzero(np.concatenate([[True], starts[1:] != stops[:-1]]))
        ends = np.concatenate([begins[1:], [len(runs)]]) - 1
        return [RowRange(int(starts[b]), int(stops[e])) for b, e in zip(begins, ends, strict=True)]


def shard_stops(num_rows: int, shard_rows: int) -> NDArray[np.int64]:
    """Cut selected rows into shards of equal length, in any layout; the last may be shorter.

    Shards ignore fragment borders: a fragment may give many shards and a shard may span many
    fragments.

    Args:
        num_rows: Selected rows, at least 1.
        shard_rows: Rows per shard, at least 1.

    Returns:
        int64 array (shards,): cumulative rows, so shard ``k`` has ``stops[k] - stops[k - 1]``.

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
