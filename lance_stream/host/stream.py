"""LanceStream: a Lance table as a stream of the stock StreamingDataset."""

from __future__ import annotations

import contextlib
import logging
import os
import secrets
import sys
import weakref
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from streaming.base.format import Reader
from streaming.base.hashing import is_hash
from streaming.base.stream import Stream
from streaming.base.world import World

from lance_stream.errors import PlanError
from lance_stream.host.arguments import (
    check_columns,
    check_options,
    check_outside,
    check_shard_rows,
    check_version,
)
from lance_stream.host.cache import CacheAddress, StreamCache
from lance_stream.host.directory import (
    DirectoryClaim,
    claim_default_directory,
    claim_directory,
    join_directory,
)
from lance_stream.host.ranks import Ranks
from lance_stream.host.reader import LanceReader
from lance_stream.host.watch import watch_caller
from lance_stream.planning.fingerprint import digest
from lance_stream.planning.index import ShardIndex
from lance_stream.planning.sizing import parse_bytes
from lance_stream.processes import is_alive, this_process
from lance_stream.service.client import Lease, plan
from lance_stream.service.messages import Plan
from lance_stream.service.runtime import Endpoint, new_endpoint
from lance_stream.shards.ledger import create_ledger
from lance_stream.shards.paths import (
    index_name,
    is_shard_name,
    new_temporary_name,
    shard_name,
    sweep_temporary_files,
)
from lance_stream.source.location import absolute_uri, is_object_store, redact

__all__ = ["LanceStream"]

logger = logging.getLogger(__name__)

_DEFAULT_RETRY = 2
_DEFAULT_TIMEOUT_S = 60.0


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
        shard_rows: Rows per shard. Default: by ``shard_bytes``.
        shard_bytes: Bytes of decoded rows per shard to aim at: an int, or text such as
            ``"32mb"`` (powers of 1024). The size of rows is sampled.
        storage_options: Options and credentials of the store, as for ``lance.dataset``; or
            ``"package.module:function"``, which is called in the download process and returns
            ``(options, expiry as unix seconds or None)``.
        with_row_id: Add ``_rowid`` to each sample, to find it again in the table.
        zero_copy: Arrays are read-only views of the cached file instead of copies. An array that
            is kept keeps its file's disk space.
        proportion: As in ``streaming.Stream``.
        repeat: As in ``streaming.Stream``.
        choose: As in ``streaming.Stream``.
        download_retry: Attempts after the first one, per shard. Default: the dataset's (2).
        download_timeout: Seconds that one attempt may take. Default: the dataset's (60).
        validate_hash: A hash name of the host. Content is checked by a checksum of our own
            whenever a file is opened, with or without it.
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
        shard_rows: int | None = None,
        shard_bytes: int | str = "32mb",
        storage_options: Mapping[str, str] | str | None = None,
        with_row_id: bool = False,
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
        uri = absolute_uri(remote)
        path = None if local is None else os.path.abspath(os.path.expanduser(os.fspath(local)))
        if path is not None and not is_object_store(uri):
            check_outside(path, uri, split)
        if validate_hash is not None and not is_hash(validate_hash):
            raise PlanError(f"validate_hash={validate_hash!r} is not a hash of mosaicml-streaming")
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
        self._version = check_version(version)
        self._columns = check_columns(columns)
        self._shard_rows = check_shard_rows(shard_rows)
        self._shard_bytes = parse_bytes(shard_bytes, "shard_bytes")
        self._options = check_options(storage_options, uri)
        self._with_row_id = bool(with_row_id)
        if with_row_id and any(name == "_rowid" for name, _ in self._columns or ()):
            raise PlanError("columns names '_rowid', which with_row_id=True adds: leave one out")
        self._zero_copy = bool(zero_copy)
        self._complained = False
        self._cache: StreamCache | None = None
        self._finalizer: weakref.finalize[..., LanceStream] | None = None

    def __repr__(self) -> str:
        parts = [repr(redact(self.uri))]
        if self.split:
            parts.append(f"split={self.split!r}")
        if self._cache is None:
            parts.append(f"version={self._version!r}")
        else:
            index = self._cache.index
            parts.append(f"version={index.version}")
            parts.append(f"rows={index.num_rows}, shards={index.num_shards}")
        return f"LanceStream({', '.join(parts)})"

    def __getstate__(self) -> dict[str, Any]:
        # The right to the directory and the hold on the process stay with the process that has
        # them.
        return {**self.__dict__, "_finalizer": None}

    @property
    def cache(self) -> StreamCache | None:
        """The stream's shards in the local cache; None before a dataset was built."""
        return self._cache

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

    def apply_default(self, default: dict[str, Any]) -> None:
        """Take the dataset's defaults for what was not given."""
        # Weights that the host derived for an earlier dataset are not given ones.
        for weight in ("proportion", "repeat", "choose"):
            if getattr(self, f"_{weight}") is None and hasattr(self, weight):
                delattr(self, weight)
        super().apply_default(default)
        self.safe_keep_zip = bool(self.keep_zip)
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
        _spare_only_copies(sys._getframe(1).f_locals.get("self"))
        if self._cache is not None:
            self._release()
        ranks = Ranks.of(world)
        ranks.require_equal(self._arguments())
        lead: dict[str, Any] = {}

        def resolve() -> dict[str, Any] | None:
            if ranks.rank:
                return None
            lead["index"] = self._plan(self._version)
            return {"version": lead["index"].version, "fingerprint": lead["index"].fingerprint}

        agreed = ranks.each(resolve)[0] or {}

        def settle() -> dict[str, Any] | None:
            if not ranks.is_local_leader:
                return None
            index = lead.get("index") or self._plan(agreed["version"])
            return self._settle(index, agreed["fingerprint"], shared=ranks.ranks_per_node > 1)

        settled = ranks.each(settle)[ranks.local_leader] or {}
        self._attach(settled, leads=ranks.is_local_leader)
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
        cache = self._built()
        directory, ledger = cache.address.directory, cache.ledger
        for name in sweep_temporary_files(directory, is_alive):
            logger.info("removed %s, left behind by a process that is gone", name)
        ours = shard_name(cache.fingerprint, 0).split(".")[0]
        with os.scandir(directory) as entries:
            for entry in entries:
                if not is_shard_name(entry.name):
                    continue
                fingerprint, number, _ = entry.name.split(".")
                if fingerprint == ours and int(number) < len(shards):
                    size = entry.stat().st_size
                    cache_usage_per_shard[int(number)] = size
                    ledger.charge(int(number), size)
                elif cache.limited:
                    # Shards of other data, which the cache limit would not count.
                    os.unlink(entry.path)

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
        return {
            "remote": self.uri,
            "split": self.split,
            "version": self._version,
            "columns": None if self._columns is None else [list(pair) for pair in self._columns],
            "with_row_id": self._with_row_id,
            "shard_rows": self._shard_rows,
            "shard_bytes": self._shard_bytes,
        }

    def _plan(self, version: int | str | None) -> ShardIndex:
        request = Plan(
            uri=self.uri,
            split=self.split or None,
            version=version,
            columns=self._columns,
            with_row_id=self._with_row_id,
            shard_rows=self._shard_rows,
            shard_bytes=self._shard_bytes,
            options=self._options,
            timeout_s=float(getattr(self, "download_timeout", None) or _DEFAULT_TIMEOUT_S),
            attempts=self._attempts(),
        )
        return plan(_endpoint(), request)

    def _attempts(self) -> int:
        retry = getattr(self, "download_retry", None)
        return 1 + (_DEFAULT_RETRY if retry is None else int(retry))

    def _settle(self, index: ShardIndex, fingerprint: str, *, shared: bool) -> dict[str, Any]:
        """On the first rank of a node: claim the directory, lay down index and ledger."""
        if index.fingerprint != fingerprint:
            msg = (
                f"{index.uri} version {index.version} is not the same table on this node as on "
                "rank 0"
            )
            raise PlanError(msg)
        if self._given_local is None:
            claim = claim_default_directory(fingerprint)
        else:
            claim = claim_directory(os.path.join(self._given_local, self.split))
        try:
            directory, token = claim.path, secrets.token_hex(6)
            _sweep_ledgers(directory)
            path = os.path.join(directory, index_name(fingerprint))
            if not os.path.exists(path):
                temporary = new_temporary_name(index_name(fingerprint), *this_process())
                temporary = os.path.join(directory, temporary)
                with open(temporary, "wb") as file:
                    file.write(index.to_bytes())
                os.rename(temporary, path)
            pid, started = this_process()
            ledger = os.path.join(directory, f".ledger-{pid}-{started}-{token}")
            create_ledger(ledger, index.num_shards)
            lease = Lease(_endpoint())
        except OSError as error:
            claim.close()
            msg = f"cannot use {claim.path} as a cache directory: {error}"
            raise PlanError(msg) from error
        # Other ranks may go on after this one: then the next claim of the directory sweeps it.
        own = None if shared else ledger
        self._finalizer = weakref.finalize(self, _let_go, claim, lease, own, os.getpid())
        return {
            "stream": digest({"ledger": ledger}, 24),
            "directory": directory,
            "index": path,
            "ledger": ledger,
            "endpoint": _endpoint().directory,
        }

    def _attach(self, settled: dict[str, Any], *, leads: bool) -> None:
        """Use what the first rank of the node settled."""
        if not leads:
            _join_endpoint(settled["endpoint"])
            claim, lease = join_directory(settled["directory"]), Lease(_endpoint())
            self._finalizer = weakref.finalize(self, _let_go, claim, lease, None, os.getpid())
        address = CacheAddress(
            stream=settled["stream"],
            directory=settled["directory"],
            index_path=settled["index"],
            ledger_path=settled["ledger"],
            endpoint=_endpoint(),
            options=self._options,
            timeout_s=float(getattr(self, "download_timeout", None) or _DEFAULT_TIMEOUT_S),
            attempts=self._attempts(),
            zero_copy=self._zero_copy,
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


def _spare_only_copies(dataset: object) -> None:
    """Refuse a cache limit under which the host would evict the only copy of another stream.

    Args:
        dataset: Who asks for shards: the dataset that is being built, if it is one.

    Raises:
        PlanError: Names the directory.
    """
    if not getattr(dataset, "cache_limit", None):
        return
    for stream in getattr(dataset, "streams", None) or ():
        ours = isinstance(stream, LanceStream)
        if not ours and getattr(stream, "remote", None) in (None, stream.local):
            msg = (
                f"cache_limit evicts shards of every stream, and {stream.local!r} has no other "
                "copy to fetch them from again: give that stream a remote=, or no cache_limit"
            )
            raise PlanError(msg)


def _let_go(claim: DirectoryClaim, lease: Lease, ledger: str | None, pid: int) -> None:
    """When the stream is gone from a process that had a part in its directory."""
    if os.getpid() != pid:
        return
    lease.close()
    if ledger is not None:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(ledger)
    claim.close()


def _sweep_ledgers(directory: str) -> None:
    """Remove ledgers of jobs that were killed; the directory is claimed, so none is alive."""
    for name in os.listdir(directory):
        if name.startswith(".ledger-"):
            parts = name.split("-")
            if len(parts) != 4 or not is_alive(int(parts[1]), int(parts[2])):
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(os.path.join(directory, name))


class _Process:
    """The endpoint that this process and its children use for all streams."""

    endpoint: Endpoint | None = None


def _endpoint() -> Endpoint:
    if _Process.endpoint is None:
        _Process.endpoint = new_endpoint()
    return _Process.endpoint


def _join_endpoint(directory: str) -> None:
    _Process.endpoint = Endpoint(directory)
