"""LanceStreamingDataset: a faster and sturdier way through the epochs of the stock class.

The stock class runs three threads that do something for every sample, look at shared state every
7 ms, and trust a state that a dead process left behind. Here one loop in the caller's thread
works by parts of thousands of samples: it asks ahead for the shards that come, takes the longest
part whose shards are there, and gives out its samples without further bookkeeping. The order of
samples, the shared state and its lock, and checkpoints are the stock class's own.
"""

from __future__ import annotations

import logging
import math
import operator
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, TypeAlias

import numpy as np
from streaming import Stream
from streaming.base.dataset import _ShardState
from torch.utils.data import get_worker_info

from lance_stream.errors import PlanError, ShardUnavailableError, VersionNotFoundError
from lance_stream.host import checkpoints
from lance_stream.host.ahead import Ahead
from lance_stream.host.cache import StreamCache
from lance_stream.host.collate import collate
from lance_stream.host.course import Course, Part, first_uses
from lance_stream.host.gather import PackedBatch, ShardColumns, gathered, tensors
from lance_stream.host.keeping import POLICIES, Kept
from lance_stream.host.reader import LanceReader
from lance_stream.host.resuming import ResumableDataset
from lance_stream.host.stream import LanceStream
from lance_stream.host.watch import watch
from lance_stream.planning.types import is_bfloat16
from lance_stream.shards.arrow_file import ArrowShard
from lance_stream.shards.shard_file import OpenShard
from lance_stream.telemetry.stats import EPOCHS, ROWS

__all__ = ["LanceStreamingDataset"]

logger = logging.getLogger(__name__)

# Samples that are looked at, and given out, at a time.
_PART_SAMPLES = 4096
# Shards that one part may be of: each is a mapping.
_PART_SHARDS = 512
# Of a part in batches: what is gathered at a time.
_GATHER_BYTES = 32 << 20
# What a row of another stream is taken for.
_OTHER_ROW_BYTES = 64.0 * 1024
_DEFAULT_PREDOWNLOAD = 8192
_RETRIES = 8

# What gives the sample of a row of a shard; and its file, if it is ours.
_Opened: TypeAlias = "tuple[Callable[[int], Any], OpenShard | None]"

_call: Callable[..., Any] = getattr(operator, "call", None) or (
    lambda function, row: function(row)
)


class LanceStreamingDataset(ResumableDataset):
    """A ``StreamingDataset`` for ``LanceStream``s, and for other streams beside them.

    Takes the arguments of ``streaming.StreamingDataset`` and gives the same samples in the same
    order. ``predownload`` is by default large enough not to hold back a fast loop.

    Args:
        batched: Give out whole batches, ``{column: torch.Tensor or list}`` of ``batch_size``
            samples (the last one of a worker may have fewer), for ``DataLoader(dataset,
            batch_size=None)`` or ``StreamingDataLoader``. Tensors have the dtype of the column.
            A column is a list where values are text, bytes, nested, ragged or null.
        prefetch_shards: How many shards each node asks for ahead of use. Default: those of the
            next ``predownload`` samples of each worker.
        cache_policy: Which shards a cache with a ``cache_limit`` below the data keeps: "lru", the
            host's, those that were used last; or "epoch", those that the rest of the epoch needs,
            which reads less in every epoch but the first (docs/dataset.md).
        resume: A state of ``state_dict``: streams that name no version are opened at the saved
            one, and the state is loaded.
        **arguments: As for ``streaming.StreamingDataset``.

    Raises:
        StateMismatchError: ``resume`` is a state of other data.
        LanceStreamError: A stream cannot be had; says why, on every rank.
    """

    def __init__(
        self,
        *,
        streams: Sequence[Stream] | None = None,
        batch_size: int | None = None,
        predownload: int | None = None,
        batched: bool = False,
        prefetch_shards: int | None = None,
        cache_policy: str = "lru",
        resume: dict[str, Any] | None = None,
        **arguments: Any,
    ) -> None:
        if batched and batch_size is None:
            raise PlanError("batched=True needs a batch_size")
        _check_number("batch_size", batch_size, 1)
        _check_number("predownload", predownload, 0)
        _check_number("prefetch_shards", prefetch_shards, 0)
        if batched and self._has_own_samples():
            msg = (
                f"batched=True gathers whole columns and never asks {type(self).__name__} for a "
                "sample, so its own __getitem__ or get_item would be left out: change the batches "
                "in the loop, or use transform= or columns= of the stream, or batched=False"
            )
            raise PlanError(msg)
        if cache_policy not in POLICIES:
            raise PlanError(f"cache_policy={cache_policy!r} must be one of {', '.join(POLICIES)}")
        if resume is not None and not checkpoints.is_state(resume):
            msg = f"resume={resume!r:.200} must be what state_dict() of a dataset gave"
            raise PlanError(msg)
        if resume is not None and streams is None and arguments.get("stream_name") == "lance":
            config = arguments.get("stream_config") or {}
            place = arguments.get("remote"), arguments.get("split")
            arguments["stream_config"] = checkpoints.reopened(config, resume, *place)
        if predownload is None:
            predownload = max(_DEFAULT_PREDOWNLOAD, 8 * (batch_size or 0))
        self.batched = batched
        self.prefetch_shards = prefetch_shards
        self.cache_policy = cache_policy
        self._kept: Kept | None = None
        self._max_open = _PART_SHARDS
        # Of the watch too. Reentrant: a generator may be closed wherever garbage is collected.
        self._counting = threading.RLock()
        self._columns: weakref.WeakKeyDictionary[ArrowShard, ShardColumns] = (
            weakref.WeakKeyDictionary()
        )
        try:
            if resume is not None and streams is not None:
                checkpoints.reopen(streams, resume)
            super().__init__(
                streams=streams, batch_size=batch_size, predownload=predownload, **arguments
            )
        except VersionNotFoundError as error:
            if resume is None:
                raise
            # Nobody gave this version.
            raise VersionNotFoundError(f"{error}. {checkpoints.told(resume)}") from error
        finally:
            # The streams may be given to another dataset, with another state or none.
            checkpoints.forget(streams or ())
        self._shard_stops = np.cumsum(self.samples_per_shard)
        self._by_columns = batched and self._have_same_columns()
        if resume is not None:
            self.load_state_dict(resume)

    def __getstate__(self) -> dict[str, Any]:
        # What an epoch in progress has open stays where it is.
        return {
            **super().__getstate__(),
            "_course": None,
            "_kept": None,
            "_columns": None,
            "_counting": None,
        }

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self._columns = weakref.WeakKeyDictionary()
        self._counting = threading.RLock()

    def after_fork(self) -> None:
        """In a forked child: an epoch in progress is the parent's."""
        super().after_fork()
        if self._course is not None:
            # Should a copy of its generator be closed here, what it gave out is not ours to count.
            self._course.end()
            self._course.uncounted()
        self._course = self._kept = None
        self._counting = threading.RLock()

    def __len__(self) -> int:
        """Samples per rank and epoch; batches, if ``batched``."""
        if not self.batched:
            return super().__len__()
        return math.ceil(super().__len__() / int(self.batch_size or 1))

    def __iter__(self) -> Iterator[Any]:
        """The samples, or batches, of this rank or worker in the next epoch.

        An epoch that is in progress in this process ends.
        """
        if get_worker_info() is not None and self._course is not None:
            # ``StatefulDataLoader`` asks workers that live on for the state before they begin.
            self._course.end()
            self._course = self._begun = None
        return self._epoch()

    def _epoch(self, is_finalizing: Callable[[], bool] = sys.is_finalizing) -> Iterator[Any]:
        if self._course is not None:
            self._course.end()
        self._unique_worker_world = self._unique_rank_world.detect_workers()
        self._parallel_worker_world = self._parallel_rank_world.detect_workers()
        epoch, ids, skip = self._begin_epoch()
        course = self._course = Course(ids, self._shard_stops, skip)
        self._kept = None
        if self.cache_limit and self.cache_policy == "epoch":
            self._kept = Kept(course, self._shard_access_times.numpy())
        for cache in self._caches():
            cache.begin_board().numbers[EPOCHS] = epoch + 1
        ahead = Ahead(self, course, int(self.predownload or 1), self._max_ahead())
        watch(self)
        try:
            if self.batched:
                yield from self._batches(course, ahead)
            else:
                yield from self._samples(course, ahead)
            self._over = not course.ended
        finally:
            course.end()
            ahead.close()
            # A generator that is kept to the end of the program is closed when modules are gone.
            if not is_finalizing():
                self.note_progress(course)

    def _samples(self, course: Course, ahead: Ahead) -> Iterator[Any]:
        while not course.is_over:
            part, opened = self._next_part(course, ahead, _PART_SAMPLES, 1)
            if self._has_own_samples():
                starts = self._shard_stops - self.samples_per_shard
                numbers = (starts[part.shards] + part.rows).tolist()
                yield from map(lambda number, _: self[number], numbers, course.give_out(part))
                continue
            functions = {shard: function for shard, (function, _) in opened.items()}
            decoders = map(functions.__getitem__, part.shards.tolist())
            yield from map(_call, decoders, course.give_out(part))

    def _batches(self, course: Course, ahead: Ahead) -> Iterator[Any]:
        size = int(self.batch_size or 1)
        pack = tensors if get_worker_info() is None else PackedBatch
        row_bytes = max(
            (s.index.row_size.mean_bytes for s in self._lance_streams()), default=_OTHER_ROW_BYTES
        )
        row_bytes = max(1.0, row_bytes)
        samples = size * max(1, min(_PART_SAMPLES, int(_GATHER_BYTES / row_bytes)) // size)
        while not course.is_over:
            part, opened = self._next_part(course, ahead, samples, size)
            if self._by_columns:
                batches = map(pack, gathered(part, self._columns_of(opened), size))
            else:
                batches = _collated(part, opened, size)
            for batch, start in zip(batches, range(0, len(part), size), strict=True):
                if course.ended:
                    return
                course.done += min(size, len(part) - start)
                yield batch

    def _next_part(
        self, course: Course, ahead: Ahead, samples: int, multiple: int
    ) -> tuple[Part, dict[int, _Opened]]:
        """The longest part whose shards are there, waiting for those of its first samples.

        Args:
            course: Where we are.
            ahead: To ask for more, before anything is waited for.
            samples: Most samples of the part.
            multiple: The part has so many samples, or a multiple, except at the end.

        Returns:
            The part, and each of its shards.
        """
        ahead.ask()
        part = course.peek(samples)
        opened: dict[int, _Opened] = {}
        for at in first_uses(part.shards).tolist():
            shard = int(part.shards[at])
            full = len(opened) >= self._max_open
            if at >= multiple and (full or not self._is_present(shard)):
                part = part[: at - at % multiple]
                break
            opened[shard] = self._open(shard)
        used = list(opened)
        ahead.used(used)
        if self._kept is not None:
            self._kept.renew(course.done)
        elif self.cache_limit:
            now = time.time_ns()
            for shard in used:
                self._shard_access_times[shard] = now
        return part, opened

    def _open(self, shard_id: int) -> _Opened:
        """What gives the sample of a row of a shard, and its file; waits for the shard."""
        reader = self.shards[shard_id]
        if not isinstance(reader, LanceReader):
            if not self._is_present(shard_id):
                self.prepare_shard(shard_id)
            return partial(self._other_sample, shard_id), None
        cache, shard = reader.cache, reader.shard
        if cache.limited:
            cache.drop_evicted()
        for _ in range(_RETRIES):
            function, file = cache.views.get(shard), cache.files.get(shard)
            # The watch may unmap it at any moment.
            if function is not None and file is not None:
                return function, file
            if self._shard_states[shard_id] != _ShardState.LOCAL:
                # So that the cache counts it; what brings it is that somebody waits.
                self.prepare_shard(shard_id, False)
            try:
                cache.open(shard)
            except FileNotFoundError:
                # It is mapped, but was charged for an estimate: that is corrected.
                self.prepare_shard(shard_id, False)
        msg = f"{reader!r}: evicted {_RETRIES} times before it was read; raise cache_limit"
        raise ShardUnavailableError(msg)

    def _other_sample(self, shard_id: int, row: int) -> Any:
        """A sample of a stream that is not ours."""
        for _ in range(_RETRIES):
            try:
                return self.shards[shard_id][row]
            except FileNotFoundError:
                self.prepare_shard(shard_id)
        msg = f"shard {shard_id}: evicted {_RETRIES} times before it was read; raise cache_limit"
        raise ShardUnavailableError(msg)

    def _columns_of(self, opened: dict[int, _Opened]) -> dict[int, ShardColumns]:
        """The columns of shards that are Arrow files."""
        found: dict[int, ShardColumns] = {}
        for shard_id, (_, file) in opened.items():
            if not isinstance(file, ArrowShard):
                raise TypeError(f"shard {shard_id} is no Arrow file, but {file!r}")
            columns = self._columns.get(file)
            if columns is None:
                columns = self._columns[file] = ShardColumns(file.batches)
            found[shard_id] = columns
        return found

    @classmethod
    def _has_own_samples(cls) -> bool:
        """Whether a subclass makes its samples by itself, as it may in the stock class."""
        ours = LanceStreamingDataset
        return cls.__getitem__ is not ours.__getitem__ or cls.get_item is not ours.get_item

    def _have_same_columns(self) -> bool:
        """Whether every shard is an Arrow file of the same columns.

        Asked of the streams and not of the shards of a part: what a batch looks like must not
        depend on which shards happen to be there.
        """
        ours, caches = self._lance_streams(), self._caches()
        if not len(ours) == len(caches) == self.num_streams:
            return False
        first = _column_types(ours[0])
        return all(cache.address.cache_format == "arrow" for cache in caches) and all(
            _column_types(stream) == first for stream in ours
        )

    def _lance_streams(self) -> list[LanceStream]:
        return [stream for stream in self.streams if isinstance(stream, LanceStream)]

    def _caches(self) -> list[StreamCache]:
        return [stream.cache for stream in self._lance_streams() if stream.cache is not None]

    def note_progress(self, course: Course | None = None) -> None:
        """Count what was given out since the last time; called now and then by the watch."""
        course = course or self._course
        # Rows that a subclass reads by itself are counted where it reads them.
        if course is None or self._has_own_samples():
            return
        with self._counting:
            shards = course.uncounted()
            if not len(shards):
                return
            rows = np.bincount(self.stream_per_shard[shards], minlength=self.num_streams)
            for stream, count in zip(self.streams, rows.tolist(), strict=True):
                if count and isinstance(stream, LanceStream) and stream.cache is not None:
                    stream.cache.begin_board().numbers[ROWS] += count

    def access_time(self, shard_id: int) -> int:
        """As in the stock class, or by what this epoch still needs."""
        kept = self._kept
        return super().access_time(shard_id) if kept is None else kept.time_of(shard_id)

    def _max_ahead(self) -> int | None:
        """Shards that one worker may ask for ahead of use; None: no bound."""
        workers = max(1, self._unique_worker_world.workers_per_node)
        bounds = []
        if self.prefetch_shards is not None:
            bounds.append(-(-self.prefetch_shards // workers))
        self._max_open = _PART_SHARDS
        if self.cache_limit:
            # Half of the cache for what is read, half for what comes.
            held = int(self.cache_limit) // max(1, int(self.max_shard_size_across_all_streams))
            bounds.append(held // (2 * workers))
            self._max_open = min(_PART_SHARDS, max(1, held // (2 * workers)))
        return min(bounds) if bounds else None


def _check_number(name: str, value: Any, least: int) -> None:
    if value is None:
        return
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or value < least:
        raise PlanError(f"{name}={value!r} must be a whole number, at least {least}, or None")


def _column_types(stream: LanceStream) -> list[tuple[str, str, bool]]:
    return [(field.name, str(field.type), is_bfloat16(field)) for field in stream.schema]


def _collated(part: Part, opened: dict[int, _Opened], batch_size: int) -> Iterator[Any]:
    """Batches by way of samples, where shards are not all of one kind."""
    functions = {shard: function for shard, (function, _) in opened.items()}
    shards, rows = part.shards.tolist(), part.rows.tolist()
    for at in range(0, len(part), batch_size):
        chosen = zip(shards[at : at + batch_size], rows[at : at + batch_size], strict=True)
        yield collate([functions[shard](row) for shard, row in chosen])
