"""LanceStream: a Lance table as a stream of the stock StreamingDataset."""

from __future__ import annotations

import logging
import os
import sys
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from streaming.base.format import Reader
from streaming.base.stream import Stream
from streaming.base.world import World

from lance_stream.errors import PlanError
from lance_stream.host.agreeing import agree
from lance_stream.host.cache import CacheAddress, StreamCache
from lance_stream.host.indexes import (
    DEFAULT_RETRY,
    DEFAULT_TIMEOUT_S,
    absolute_index,
    obtain_index,
)
from lance_stream.host.local import check_only_copies, find_shards
from lance_stream.host.places import marked
from lance_stream.host.ranks import Ranks, order_of
from lance_stream.host.reader import LanceReader
from lance_stream.host.settling import Hold, job_endpoint, join, remove_let_go
from lance_stream.host.shared_names import release_dead
from lance_stream.host.starting import start_safely
from lance_stream.host.watch import watch_caller
from lance_stream.planning.index import ShardIndex
from lance_stream.processes import this_process
from lance_stream.service.arguments import check_bool, check_hash, check_outside
from lance_stream.service.holds import PinnedVersion
from lance_stream.service.messages import Pin, Window
from lance_stream.service.wanted import Wanted
from lance_stream.source.location import is_object_store, possible_uris, redact
from lance_stream.tiers.tier_url import checked_urls

__all__ = ["LanceStream"]

logger = logging.getLogger(__name__)


class LanceStream(Stream):
    """A Lance table at one version, as a stream of ``streaming.StreamingDataset``.

    ``StreamingDataset(streams=[LanceStream("s3://bucket/train.lance")], batch_size=32)``

    Samples are dicts in column order; the README has the value of each column type. Neither this
    process nor DataLoader workers import ``lance``: a download process, one per node, reads the
    table and puts shards, runs of consecutive rows, into a local cache as Arrow IPC files.

    Args:
        remote: URI of the table: a path, ``file://``, ``s3://``, ``gs://``, ``az://``,
            ``abfss://``, ``hf://``.
        local: Cache directory, used by one job at a time. Default: a private directory of the
            user, chosen by what is cached, and found again by the next run.
        split: Stream the table ``remote/split.lance``, or ``remote/split`` if there is none.
        version: A version number or the name of a tag. Default: the latest, looked up once by
            rank 0 when the dataset is built.
        columns: Column names in the wanted order, or ``{name: SQL expression}``. Only these are
            read. Default: all.
        filter: SQL predicate; the rows that match are streamed, in table order. Its columns need
            not be in ``columns``. Scalar indices of the table are used.
        limit: The first so many rows of the selection.
        subset: ``(lo, hi)`` within [0, 1]: the rows whose place by hash lies in [lo, hi).
            Subsets that meet share no row and leave none out: train and validation from one
            table.
        subset_key: Column that is hashed for ``subset``: rows with equal values stay together,
            and a row stays where it is when others are appended or it is moved. Default: the
            row's address, which an update or a compaction changes.
        pin: Hold the version with a tag while training, so that a cleanup of old versions cannot
            remove it. Where tags cannot be written, a warning says so.
        index: A ``ShardIndex``, or path or URL of one (``build_index``, ``lance-stream index``):
            nothing is planned. One of another table, version or selection is refused.
        shard_rows: Rows per shard, instead of ``shard_bytes``.
        shard_bytes: Bytes of decoded rows per shard to aim at: an int, or text such as
            ``"32mb"`` (powers of 1024). The size of rows is sampled.
        layout: ``"contiguous"``: a shard is consecutive rows. ``"scattered"``: it is made of runs
            of rows from all over the selection, so that a sorted table shuffles well, at the
            price of more requests.
        run_rows: Rows of a run, in the scattered layout.
        layout_seed: Which scattered layout.
        storage_options: Options and credentials of the store, as for ``lance.dataset``; or
            ``"package.module:function"``, which is called in the download process and returns
            ``(options, expiry as unix seconds or None)``.
        cache_format: Format of the shard files: ``"arrow"``, or ``"mds"``, which the stock
            ``MDSReader`` reads as well. MDS has no nulls, no nesting and no temporal types: such
            columns are refused, and columns that may hold nulls are read once to see whether
            they do.
        shared_cache: URL of a cache that nodes share, or a list of them from fast to slow:
            ``redis://``, ``rediss://``, ``memcached://``, a path, or any URL of fsspec. A shard is
            looked for there before Lance is asked, and put there after.
        with_row_id: Add ``_rowid`` to each sample, to find it again in the table.
        transform: ``"package.module:function"`` from one ``pyarrow.RecordBatch`` to another of as
            many rows, called once per shard in the download process; its result is cached. To
            learn its columns and the size of rows, building a dataset calls it up to twice on
            512 rows or fewer, unless the cache directory has an index of the same rows.
        transform_version: Part of what names the cache: change it when the function changes.
        zero_copy: Arrays are read-only views of the cached file instead of copies. An array that
            is kept keeps its file's disk space. Lists of bool, and arrays from MDS shards, are
            copies all the same, but read-only.
        proportion: As in ``streaming.Stream``.
        repeat: As in ``streaming.Stream``.
        choose: As in ``streaming.Stream``.
        download_retry: Attempts after the first one, per shard. Default: the dataset's (2).
        download_timeout: Seconds that one attempt may take. Default: the dataset's (60).
        validate_hash: Name of a hash, as for the host: cached files carry this hash of their
            content, checked when a process first opens one. Default: XXH3-128. A file that does
            not match is dropped and fetched again.
        keep_zip: Accepted; shard files are not compressed.

    Attributes:
        uri: Absolute uri of the table. (``remote``, which the host looks at, is None once a
            dataset was built.)

    Raises:
        PlanError: An argument is wrong: names it. What only the table can tell (a column, a
            version, a type, credentials) is an error when the dataset is built.
    """

    def __init__(
        self,
        remote: str | os.PathLike[str] | None = None,
        *,
        local: str | os.PathLike[str] | None = None,
        split: str | None = None,
        version: int | str | None = None,
        columns: Sequence[str] | Mapping[str, str] | None = None,
        filter: str | None = None,  # noqa: A002 - the public name
        limit: int | None = None,
        subset: Sequence[float] | None = None,
        subset_key: str | None = None,
        index: str | os.PathLike[str] | ShardIndex | None = None,
        shard_rows: int | None = None,
        shard_bytes: int | str = "32mb",
        layout: str = "contiguous",
        run_rows: int = 64,
        layout_seed: int = 0,
        cache_format: str = "arrow",
        with_row_id: bool = False,
        pin: bool = False,
        storage_options: Mapping[str, str] | str | None = None,
        shared_cache: str | os.PathLike[str] | Sequence[str | os.PathLike[str]] | None = None,
        transform: str | None = None,
        transform_version: str | int | None = None,
        zero_copy: bool = False,
        proportion: float | None = None,
        repeat: float | None = None,
        choose: int | None = None,
        download_retry: int | None = None,
        download_timeout: float | None = None,
        validate_hash: str | None = None,
        keep_zip: bool | None = None,
    ) -> None:
        if remote is None:
            raise PlanError("remote must be the uri of a Lance table")
        wanted = Wanted.of(
            remote,
            split=split,
            version=version,
            columns=columns,
            filter=filter,
            limit=limit,
            subset=subset,
            subset_key=subset_key,
            shard_rows=shard_rows,
            shard_bytes=shard_bytes,
            layout=layout,
            run_rows=run_rows,
            layout_seed=layout_seed,
            cache_format=cache_format,
            with_row_id=with_row_id,
            transform=transform,
            transform_version=transform_version,
            storage_options=storage_options,
        )
        uri = wanted.uri
        path = None if local is None else os.path.abspath(os.path.expanduser(os.fspath(local)))
        if path is not None and not is_object_store(uri):
            check_outside(path, uri, split)
        check_hash(validate_hash)
        # The base class refuses schemes that it has no downloader for, and makes a directory in
        # the temporary folder if it gets no ``local``: neither is for us.
        super().__init__(
            remote=None,
            local=path or uri,
            split=split,
            proportion=proportion,
            repeat=repeat,
            choose=choose,
            download_retry=download_retry,
            download_timeout=download_timeout,
            validate_hash=validate_hash,
            keep_zip=keep_zip,
        )
        self.uri = uri
        self.remote = uri
        self._given_local = path
        self.safe_keep_zip = bool(keep_zip)
        self._wanted = wanted
        self._given_version = wanted.version
        self._given_index = absolute_index(index)
        self._pin = check_bool(pin, "pin")
        self._shared_cache = () if shared_cache is None else checked_urls(shared_cache)
        self._pinned: PinnedVersion | None = None
        self._zero_copy = check_bool(zero_copy, "zero_copy")
        self._complained = False
        self._cache: StreamCache | None = None
        self._finalizer: weakref.finalize[..., LanceStream] | None = None
        start_safely(LanceStream)

    def __repr__(self) -> str:
        parts = [repr(redact(self.uri))]
        if self.split:
            parts.append(f"split={self.split!r}")
        if self._cache is None:
            parts.append(f"version={self._wanted.version!r}")
        else:
            index = self._cache.index
            parts.append(f"version={index.version}")
            parts.append(f"rows={index.num_rows}, shards={index.num_shards}")
        return f"LanceStream({', '.join(parts)})"

    def __getstate__(self) -> dict[str, Any]:
        # The right to the directory and the hold on the process stay with the process that has
        # them.
        state = {**self.__dict__, "_finalizer": None, "_pinned": None}
        if self._cache is not None:
            # It lies in the cache directory, and may be large.
            state["_given_index"] = None
        return state

    @property
    def wanted(self) -> Wanted:
        """The arguments that decide about the index."""
        return self._wanted

    @property
    def cache(self) -> StreamCache | None:
        """The stream's shards in the local cache; None before a dataset was built."""
        return self._cache

    @property
    def stats_directory(self) -> str:
        """Where the processes of this node keep what ``lance_stream.stats`` reads."""
        return self._built().address.stats_directory

    @property
    def stats_label(self) -> str:
        """What tells the stream from others of its table, in metrics."""
        return self._built().label

    @property
    def download_process_pid(self) -> int | None:
        """Pid of this job's download process on this node; None while there is none."""
        return self._built().address.endpoint.pid()

    @property
    def index(self) -> ShardIndex:
        """The shard index, once a dataset was built on the stream.

        Raises:
            PlanError: No dataset was built yet.
        """
        return self._built().index

    @property
    def version(self) -> int:
        """The version that is streamed, once a dataset was built on the stream."""
        return self._built().index.version

    @property
    def schema(self) -> pa.Schema:
        """Arrow schema of a sample, once a dataset was built on the stream."""
        return self._built().index.schema

    @property
    def fingerprint(self) -> str:
        """Names what is cached, in hex, once a dataset was built on the stream."""
        return self._built().fingerprint

    def show(self, uri: str, version: int, window: Window) -> None:
        """Stream a part of a table that grows; before a dataset is built on the stream."""
        self._wanted = self._wanted.at(uri, version, window)
        self._given_version = version
        self.uri = self.remote = uri
        self.split = ""

    @property
    def names_version(self) -> bool:
        """Whether it was given what it is to open: a version, or an index of one."""
        return self._given_version is not None or self._given_index is not None

    @property
    def possible_uris(self) -> tuple[str, ...]:
        """Where the table that was given may be."""
        return possible_uris(self._wanted.uri, self._wanted.split)

    def default_version(self, version: int | None) -> None:
        """Open this version, where none was given, until told otherwise; None: the latest."""
        if not self.names_version:
            self._wanted = replace(self._wanted, version=version)

    def apply_default(self, default: dict[str, Any]) -> None:
        """Take the dataset's defaults for what was not given."""
        # Weights that the host derived for an earlier dataset are not given ones.
        for weight in ("proportion", "repeat", "choose"):
            if getattr(self, f"_{weight}") is None and hasattr(self, weight):
                delattr(self, weight)
        super().apply_default(default)
        self.safe_keep_zip = bool(self.keep_zip)
        check_hash(self.validate_hash)
        if self._given_local is None and default.get("local"):
            self._given_local = os.path.abspath(default["local"])
            check_outside(self._given_local, self.uri, self.split)

    def get_shards(self, world: World, allow_unsafe_types: bool) -> list[Reader]:
        """Plan the table, agree with the other ranks, and make a reader for each shard.

        Args:
            world: The host's view of nodes, ranks and workers.
            allow_unsafe_types: Not needed: nothing here unpickles.

        Returns:
            One light reader per virtual shard.

        Raises:
            LanceStreamError: The table cannot be streamed; says why, on every rank.
        """
        del allow_unsafe_types
        dataset = sys._getframe(1).f_locals.get("self")
        check_only_copies(dataset, LanceStream)
        # A stream that was unpickled was not made here.
        start_safely(LanceStream)
        if self._cache is not None:
            self._release()
        ranks = Ranks.of(world)
        ranks.require_equal({**self._arguments(), **order_of(dataset)})
        if self._wanted.window is not None:
            release_dead(ranks)
            remove_let_go(ranks)
        local = self._local_directory()
        with marked(ranks, local) as mark:
            settled, hold = agree(
                ranks,
                self._wanted,
                self._make_index,
                self._hold_version,
                algorithm=self.validate_hash or None,
                local=local,
                mark=mark,
            )
        self._attach(settled, hold or join(settled))
        cache = self._built()
        rows = np.diff(cache.index.shard_stops, prepend=0).tolist()
        return [LanceReader(cache, shard, samples) for shard, samples in enumerate(rows)]

    def prepare_shard(self, shard: Reader) -> int:
        """Ask for a shard; never waits and never raises, since the host would lose the error.

        The reader waits, and raises in the training loop.

        Returns:
            Change of the cache usage in bytes.
        """
        if not isinstance(shard, LanceReader):
            raise TypeError(f"{shard!r} is not a shard of a LanceStream")
        watch_caller(sys._getframe(1))
        try:
            return self._built().prepare(shard.shard)
        except Exception:
            # The reader does the same and more, and raises where it is seen.
            if not self._complained:
                self._complained = True
                logger.exception("could not ask for shard %d of %s", shard.shard, self)
            return 0

    def set_up_local(self, shards: list[Reader], cache_usage_per_shard: NDArray[np.int64]) -> None:
        """Find which shards are in the cache; remove what dead jobs left behind.

        Args:
            shards: This stream's shards.
            cache_usage_per_shard: int64 array (shards,), filled with bytes; 0: not there.
        """
        del shards
        find_shards(self._built(), cache_usage_per_shard)

    def get_index_size(self) -> int:
        """Bytes of the index and the ledger in the cache directory."""
        address = self._built().address
        return sum(os.stat(path).st_size for path in (address.index_path, address.ledger_path))

    def _built(self) -> StreamCache:
        if self._cache is None:
            msg = f"{self!r}: known once a StreamingDataset was built on the stream"
            raise PlanError(msg)
        return self._cache

    def _arguments(self) -> dict[str, Any]:
        """What all ranks must have been given alike; no secrets."""
        given = {name: getattr(self, f"_{name}") for name in ("proportion", "repeat", "choose")}
        # JSON knows no number of numpy.
        weights = {name: None if one is None else float(one) for name, one in given.items()}
        arguments = {**self._wanted.as_json(), **weights, "validate_hash": self.validate_hash}
        window = self._wanted.window
        if window is not None:
            # The rows; which version a rank has seen last is its own affair.
            rows = [window.parts[0][0], window.parts[-1][1]]
            arguments = {**arguments, "version": None, "family": window.family, "rows": rows}
        return arguments

    def _make_index(self, wanted: Wanted) -> ShardIndex:
        """Have the table planned, or take the index that was given if it is of the table."""
        return obtain_index(
            wanted,
            self._given_index,
            timeout_s=self._timeout_s(),
            attempts=self._attempts(),
            shared_cache=self._shared_cache,
            local=self._local_directory(),
        )

    def _local_directory(self) -> str | None:
        """The cache directory that was given; None for a default one."""
        return self._given_local and os.path.join(self._given_local, self.split)

    def _hold_version(self, index: ShardIndex) -> None:
        """On rank 0: pin the version that was agreed on."""
        if not self._pin:
            return
        pid, started = this_process()
        request = Pin(
            uri=index.uri,
            version=index.version,
            options=self._wanted.options,
            timeout_s=self._timeout_s(),
            pid=pid,
            started=started,
        )
        self._pinned = PinnedVersion(job_endpoint(), request)
        weakref.finalize(self, self._pinned.close)

    def _timeout_s(self) -> float:
        return float(getattr(self, "download_timeout", None) or DEFAULT_TIMEOUT_S)

    def _attempts(self) -> int:
        retry = getattr(self, "download_retry", None)
        return 1 + (DEFAULT_RETRY if retry is None else int(retry))

    def _attach(self, settled: dict[str, Any], hold: Hold) -> None:
        """Use what the first rank of the node settled."""
        self._finalizer = weakref.finalize(self, hold.let_go)
        address = CacheAddress(
            stream=settled["stream"],
            directory=settled["directory"],
            index_path=settled["index"],
            ledger_path=settled["ledger"],
            stats_directory=settled["stats"],
            endpoint=job_endpoint(),
            options=self._wanted.options,
            timeout_s=self._timeout_s(),
            attempts=self._attempts(),
            zero_copy=self._zero_copy,
            cache_format=self._wanted.cache_format,
            algorithm=self.validate_hash or None,
            shared_cache=self._shared_cache,
        )
        self._cache = StreamCache(address)
        # The host would refuse a directory that a killed job has used, by shared memory which
        # that job left behind. The claim on the directory is the better check, so the host is
        # given no remote to make its own for.
        self.remote = None
        # The host joins these two.
        self.local = settled["directory"]
        suffix = os.sep + self.split if self.split else ""
        if suffix and self.local.endswith(suffix):
            self.local = self.local[: -len(suffix)]
        elif self.split:
            self.split = ""

    def _release(self) -> None:
        """Give up an earlier dataset's hold on the stream."""
        if self._cache is not None:
            self._cache.close()
            self._cache = None
        if self._finalizer is not None:
            self._finalizer()
            self._finalizer = None
        if self._pinned is not None:
            self._pinned.close()
            self._pinned = None
