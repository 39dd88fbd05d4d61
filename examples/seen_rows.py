"""What the examples show after each epoch: that every row was trained on, and none twice.

Training does not need it. Ids are those of all ranks, gathered where ``torch.distributed`` is up.
"""

import math
import os
import sys
import time
from collections import Counter
from collections.abc import Iterable

import torch
from torch import distributed as dist


class SeenRows:
    """The ids of the rows that were trained on in an epoch.

    Args:
        rows: How many rows the table has; their ids are 0 to rows - 1.
        ids: What an earlier run, which this one goes on from, has seen of the epoch.
        may_repeat: How many rows an epoch may repeat to give every rank as many batches.
    """

    def __init__(self, rows: int, ids: Iterable[int] = (), *, may_repeat: int = 0) -> None:
        self.rows = rows
        self.may_repeat = may_repeat
        self.ids = list(ids) if os.environ.get("RANK", "0") == "0" else []
        self._loss = math.nan
        self.begin_epoch()

    def begin_epoch(self) -> None:
        self._started, self._before = time.perf_counter(), len(self.ids)

    def add(self, ids: torch.Tensor, loss: torch.Tensor) -> None:
        self.ids += ids.tolist()
        self._loss = loss.item()

    def of_all_ranks(self) -> list[int]:
        """The ids of this epoch; every rank has to call it."""
        if not dist.is_initialized():
            return list(self.ids)
        gathered: list[list[int]] = [[] for _ in range(dist.get_world_size())]
        dist.all_gather_object(gathered, self.ids)
        return [row for ids in gathered for row in ids]

    def end_epoch(self, epoch: int) -> None:
        """Print a line about the epoch; ends the program if its rows are not exact."""
        seconds = time.perf_counter() - self._started
        ranks = dist.get_world_size() if dist.is_initialized() else 1
        rate = ranks * (len(self.ids) - self._before) / seconds
        words = exactness(self.of_all_ranks(), self.rows, self.may_repeat)
        if os.environ.get("RANK", "0") == "0":
            print(f"epoch {epoch}: loss {self._loss:.4f}, {rate:,.0f} rows/s, {words}", flush=True)
        self.ids = []
        self.begin_epoch()


def exactness(ids: Iterable[int], rows: int, may_repeat: int = 0) -> str:
    """Words for the ids of one epoch; ends the program if they are not the rows."""
    seen = Counter(ids)
    missing, foreign = set(range(rows)) - set(seen), set(seen) - set(range(rows))
    repeated = sum(seen.values()) - len(seen)
    if missing or foreign or repeated > may_repeat:
        sys.exit(
            f"NOT EXACT: of {rows:,} rows {len(missing):,} are missing, {repeated:,} repeated, "
            f"{len(foreign):,} foreign"
        )
    if repeated:
        return f"{rows:,} rows, each seen, {repeated:,} repeated to fill up the last batches"
    return f"{rows:,} rows, each exactly once"
