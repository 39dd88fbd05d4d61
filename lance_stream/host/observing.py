"""Stats, counters and progress of a running job, for the training code."""

from __future__ import annotations

import contextlib
import os
import threading
from dataclasses import replace

from streaming import StreamingDataset

from lance_stream.errors import PlanError
from lance_stream.host.settling import job_endpoint
from lance_stream.host.stream import LanceStream
from lance_stream.telemetry.board import Reading, read_boards
from lance_stream.telemetry.counters import Counters
from lance_stream.telemetry.shared_counts import read_shared
from lance_stream.telemetry.stats import StreamStats, add_up

__all__ = ["Counter", "Progress", "counter", "progress", "stats"]

_REFRESH_S = 0.25
_2_63 = 1 << 63


def stats(dataset_or_stream: StreamingDataset | LanceStream) -> StreamStats:
    """What workers and the download process of this node did so far; reads a few small files.

    Args:
        dataset_or_stream: A dataset, for the sum over its ``LanceStream``s, or one of those.

    Raises:
        PlanError: There is no ``LanceStream``, or no dataset was built on it yet.
    """
    if isinstance(dataset_or_stream, LanceStream):
        streams, epoch = [dataset_or_stream], -1
    else:
        _check_dataset("stats", dataset_or_stream)
        streams = [s for s in dataset_or_stream.streams if isinstance(s, LanceStream)]
        epoch = int(dataset_or_stream.next_epoch) - 1
    if not streams:
        raise PlanError(f"{dataset_or_stream!r} has no LanceStream to give stats of")
    boards: list[tuple[Reading, float]] = []
    shards = 0
    for stream in streams:
        index = stream.index
        shards += index.num_shards
        mean = index.row_size.mean_bytes
        boards += [(reading, mean) for reading in read_boards(stream.stats_directory)]
    found = add_up(
        ",".join(dict.fromkeys(stream.index.uri for stream in streams)),
        shards,
        boards,
        read_boards(job_endpoint().counters_directory),
    )
    return replace(
        found.in_epoch(epoch),
        stream=",".join(stream.stats_label for stream in streams),
        shared_caches=read_shared(job_endpoint().shared_path),
    )


def _check_dataset(function: str, given: object) -> None:
    if not isinstance(given, StreamingDataset):
        msg = f"{function}() takes a StreamingDataset with a LanceStream, not {given!r:.200}"
        raise PlanError(msg)


class Counter:
    """A number that every process of the job can add to; the trainer reads the node's sum."""

    def __init__(self, name: str) -> None:
        """Name it; counters of one name are one counter."""
        self.name = name

    def __repr__(self) -> str:
        return f"Counter({self.name!r})"

    def add(self, n: int = 1) -> None:
        """Add to it.

        Args:
            n: How much, within 64 bits; may be negative.

        Raises:
            PlanError: It is no whole number within 64 bits.
            ValueError: There are more than 256 counters in this process.
        """
        if (not isinstance(n, int) and not hasattr(n, "__index__")) or not -_2_63 <= n < _2_63:
            raise PlanError(f"counter({self.name!r}).add({n!r}): not a whole number in 64 bits")
        _COUNTERS.add(job_endpoint().counters_directory, self.name, n)


def counter(name: str) -> Counter:
    """A counter: ``counter("tokens").add(n)`` in workers, ``stats(...).counters["tokens"]``.

    Args:
        name: Of the counter.

    Raises:
        PlanError: It is no text, or no Unicode.
    """
    if not isinstance(name, str) or not name or not name.isprintable():
        raise PlanError(f"counter({name!r}): the name must be text that can be printed")
    return Counter(name)


class Progress:
    """A progress bar over the rows that all workers of this node read; see ``progress``."""

    def __init__(self, dataset: StreamingDataset, total: int | None, *, shown: bool) -> None:
        """Draw the bar."""
        from tqdm import tqdm  # noqa: PLC0415 - only for who wants a bar

        self._dataset = dataset
        self._before = stats(dataset).rows
        self._bar = tqdm(total=total, unit="row", unit_scale=True, disable=not shown)
        self._ended = threading.Event()
        self._thread = threading.Thread(
            target=self._refresh, name="lance_stream progress", daemon=True
        )
        self._thread.start()

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def rows(self) -> int:
        """Rows read on this node since the bar was made."""
        return stats(self._dataset).rows - self._before

    def close(self) -> None:
        """Show the last state and leave the bar."""
        self._ended.set()
        self._thread.join(timeout=5.0)
        self._update()
        self._bar.close()

    def _refresh(self) -> None:
        while not self._ended.wait(_REFRESH_S):
            self._update()

    def _update(self) -> None:
        # The dataset may be gone before its bar.
        with contextlib.suppress(PlanError, OSError):
            self._bar.update(self.rows - self._bar.n)


def progress(dataset: StreamingDataset, total: int | None = None) -> Progress:
    """A tqdm bar over the rows of this node, drawn by its first rank; needs no synchronisation.

    ``with lance_stream.progress(dataset): ...``, or ``close()`` it at the end.

    Args:
        dataset: Whose rows.
        total: Rows to expect. Default: those of an epoch on this node.

    Raises:
        PlanError: The dataset has no ``LanceStream``.
    """
    _check_dataset("progress", dataset)
    world = dataset._unique_rank_world
    if total is None:
        samples = StreamingDataset.__len__(dataset)
        total = samples * world.ranks_per_node
    return Progress(dataset, total, shown=world.is_local_leader)


_COUNTERS = Counters()
os.register_at_fork(after_in_child=_COUNTERS.after_fork)
