"""One stream's shards in the local cache: what its readers on this node share.

The life of a shard here, with the stock class:

1. A background thread of the host *prepares* it: ``prepare`` charges an estimate to the ledger,
   asks the download process, and returns at once. The host marks it LOCAL. Never waiting there
   means that a worker that is ended cannot leave it half prepared, that shards are fetched
   concurrently, and that no failure is lost in a thread.
2. The training loop reads a sample: ``open`` waits for the file, in the loop's own thread, so that
   errors are raised there, and maps it.
3. If the file's size is not what was charged, the reader raises ``FileNotFoundError`` once. The
   host then prepares the shard again, which now only corrects the charge.
4. The host *evicts* it: ``release`` removes the file and returns what was charged.
"""

from __future__ import annotations

import logging
import os
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable
from typing import Any

from torch.utils.data import get_worker_info

from lance_stream.errors import (
    CredentialsError,
    ShardCorruptError,
    ShardCredentialsError,
    ShardUnavailableError,
)
from lance_stream.host.settling import adopt_endpoint
from lance_stream.planning.index import ShardIndex
from lance_stream.processes import is_alive, this_process
from lance_stream.service.arguments import search_path
from lance_stream.service.client import ShardClient, client_for
from lance_stream.service.messages import Options, Register
from lance_stream.service.runtime import Endpoint
from lance_stream.shards.ledger import Ledger
from lance_stream.shards.names import ShardNames
from lance_stream.shards.regular import read_regular
from lance_stream.shards.shard_file import OpenShard, open_shard, overhead_row_bytes
from lance_stream.telemetry.board import Board, take_over
from lance_stream.telemetry.stats import (
    DAMAGED,
    FAILED,
    WAITED_NS,
    WORKER_NAMES,
    stream_label,
)

__all__ = ["CacheAddress", "StreamCache"]

logger = logging.getLogger(__name__)

# Mappings of a process; a shuffled epoch reads another shard with almost every sample.
_MAX_MAPPED = 1024
# With a cache limit, charges are corrected soon after shards arrive, but not at every sample.
_CORRECT_EVERY_S = 0.02
_MAX_CORRUPT = 2
_RESIDENCE_S = 0.03
_MAX_EVICTED = 100


class CacheAddress:
    """What every process needs to find a stream's shards. Picklable, nothing open."""

    def __init__(
        self,
        *,
        stream: str,
        directory: str,
        index_path: str,
        ledger_path: str,
        stats_directory: str,
        endpoint: Endpoint,
        options: Options,
        timeout_s: float,
        attempts: int,
        zero_copy: bool,
        cache_format: str,
        algorithm: str | None,
        shared_cache: tuple[str, ...],
    ) -> None:
        """Take the parts; ``stream`` is the key that messages use."""
        self.stream = stream
        self.directory = directory
        self.index_path = index_path
        self.ledger_path = ledger_path
        self.stats_directory = stats_directory
        self.endpoint = endpoint
        self.options = options
        self.timeout_s = timeout_s
        self.attempts = attempts
        self.zero_copy = zero_copy
        self.cache_format = cache_format
        self.algorithm = algorithm
        self.shared_cache = shared_cache


class StreamCache:
    """One stream's shards, as seen by one process. Pickles by its address."""

    def __init__(self, address: CacheAddress, index: ShardIndex | None = None) -> None:
        """Attach to a stream's cache; opens files on first use.

        Args:
            address: Where everything is.
            index: The index, if it is at hand.
        """
        self.address = address
        # The host asks for the largest size of a shard exactly when it has a cache limit.
        self.limited = False
        self.views: dict[int, Callable[[int], dict[str, Any]]] = {}
        # The files behind them, for reading whole columns.
        self.files: dict[int, OpenShard] = {}
        self._lock = threading.Lock()
        self.arrivals: deque[int] = deque()
        # What readers told the host of shards that are there: asked for at every sample.
        self.settled: dict[int, list[Any]] = {}
        self._releases: dict[int, int] = {}
        self._verified: dict[int, tuple[int, ...]] = {}
        self._index = index
        self._names: ShardNames | None = None
        self._label = ""
        self._overhead: int | None = None
        self._ledger: Ledger | None = None
        self._client: ShardClient | None = None
        self.board: Board | None = None
        self._evictions_seen = 0
        self._correct_after = 0.0
        _ALL.add(self)

    def __getstate__(self) -> dict[str, Any]:
        return {"address": self.address, "limited": self.limited}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(state["address"])  # type: ignore[misc]
        adopt_endpoint(self.address.endpoint)
        self.limited = state["limited"]

    @property
    def index(self) -> ShardIndex:
        """The shard index, loaded on first use."""
        if self._index is None:
            path = self.address.index_path
            self._index = ShardIndex.from_bytes(read_regular(path), path)
        return self._index

    @property
    def fingerprint(self) -> str:
        """Names what is cached; without a window, part of the name of each file."""
        return self.names.fingerprint

    @property
    def label(self) -> str:
        """What tells the stream from others of its table, in metrics."""
        if not self._label:
            self._label = stream_label(self.index.fingerprint, self.address.directory)
        return self._label

    @property
    def names(self) -> ShardNames:
        """What the files of the shards are called."""
        if self._names is None:
            address = self.address
            self._names = ShardNames(self.index, address.cache_format, address.algorithm)
        return self._names

    @property
    def _overhead_row_bytes(self) -> int:
        if self._overhead is None:
            self._overhead = overhead_row_bytes(self.address.cache_format, self.index.schema)
        return self._overhead

    @property
    def ledger(self) -> Ledger:
        """The ledger, mapped on first use in each process."""
        if self._ledger is None:
            try:
                self._ledger = Ledger(self.address.ledger_path)
            except FileNotFoundError as error:
                # Not to be taken for a shard that was evicted.
                msg = (
                    f"{self.address.ledger_path} is gone: the dataset was closed where it was "
                    "built, or its cache directory removed; build it again"
                )
                raise ShardUnavailableError(msg) from error
        return self._ledger

    @property
    def client(self) -> ShardClient:
        """This process's client, which knows the stream."""
        if self._client is None:
            address, index = self.address, self.index
            client = client_for(address.endpoint)
            register = Register(
                stream=address.stream,
                uri=index.uri,
                version=index.version,
                index_path=address.index_path,
                directory=address.directory,
                ledger_path=address.ledger_path,
                options=address.options,
                timeout_s=address.timeout_s,
                attempts=address.attempts,
                cache_format=address.cache_format,
                algorithm=address.algorithm,
                stats_directory=address.stats_directory,
                shared_cache=address.shared_cache,
                search_path=() if index.selection.transform is None else search_path(),
            )
            client.add_stream(register, self.arrivals.append)
            weakref.finalize(self, _leave, client, address.stream, os.getpid())
            self._client = client
        return self._client

    def begin_board(self) -> Board:
        """The board of this process, where it counts what it reads; begun on first use."""
        if self.board is None:
            worker = get_worker_info()
            labels = {
                "role": "worker",
                "pid": os.getpid(),
                "rank": int(rank) if (rank := os.environ.get("RANK", "")).isdecimal() else 0,
                "worker": -1 if worker is None else worker.id,
            }
            directory = self.address.stats_directory
            role = f"rank{labels['rank']}worker{labels['worker'] + 1}"
            name = take_over(directory, role, this_process(), is_alive)
            self.board = Board(directory, name, labels, WORKER_NAMES)
        return self.board

    def name(self, shard: int) -> str:
        """File name of a shard."""
        return self.names.name(shard)

    def path(self, shard: int) -> str:
        """Path of a shard's file."""
        return f"{self.address.directory}/{self.name(shard)}"

    def estimated_bytes(self, shard: int) -> int:
        """Bytes to expect of a shard's file; errs high."""
        index = self.index
        rows = len(index.shard_rows(shard))
        return index.shard_bytes(shard) + rows * self._overhead_row_bytes

    def subject(self, shard: int) -> str:
        """The shard in words."""
        index = self.index
        rows = index.describe_rows(shard)
        return f"shard {shard} ({rows}) of {index.uri} version {index.version}"

    def prepare(self, shard: int) -> int:
        """Ask for a shard, or correct its charge if it is there; never waits for it.

        Returns:
            Change of the cache usage in bytes, this shard's and that of others that arrived.
        """
        change = self._correct_arrivals()
        try:
            size = os.stat(self.path(shard)).st_size
        except FileNotFoundError:
            change += self.ledger.charge(shard, self.estimated_bytes(shard))
            self.client.request(self.address.stream, shard)
            return change
        return change + self.ledger.charge(shard, size)

    def make_room(self, shard: int) -> int:
        """The host is about to evict until a shard fits: how many bytes it may take.

        The host's ready thread looks every 7 ms whether a shard it waits for is LOCAL. One that
        is prepared and evicted again between two looks is waited for for ever, so evictions are
        spaced when the cache holds only a few shards. Called under the host's cache lock.
        """
        self.limited = True
        pause_s = self.ledger.pause_before_eviction_s(time.monotonic_ns(), _RESIDENCE_S)
        if pause_s:
            time.sleep(pause_s)
        self.ledger.note_prepared(time.monotonic_ns())
        return self.estimated_bytes(shard)

    def is_settled(self, shard: int) -> bool:
        """Whether the file is there and its size is what was charged."""
        if self.arrivals and self.limited:
            return False
        try:
            return os.stat(self.path(shard)).st_size == self.ledger.charged(shard)
        except FileNotFoundError:
            return False

    def release(self, shard: int) -> int:
        """Evict a shard; returns the bytes that were charged for it."""
        # Mappings of it in other processes are dropped before their next sample.
        self.limited = True
        with self._lock:
            if shard in self.views:
                self._unmap(shard)
        return self.ledger.release(shard, self.path(shard))

    def check_limited(self) -> None:
        """With a cache limit, before each sample: drop evicted mappings, ask for corrections.

        Raises:
            FileNotFoundError: The host must prepare again, which corrects the charges.
        """
        self.drop_evicted()
        if self.arrivals and time.monotonic() > self._correct_after:
            msg = "shards arrived whose charge must be corrected"
            raise FileNotFoundError(msg)

    def drop_evicted(self) -> None:
        """Unmap shards that were evicted, by whichever process: their files still take up disk."""
        evictions = self.ledger.evictions
        if evictions == self._evictions_seen:
            return
        with self._lock:
            self._evictions_seen = evictions
            for shard, releases in list(self._releases.items()):
                if self.ledger.releases(shard) != releases:
                    self._unmap(shard)

    def open(self, shard: int) -> Callable[[int], dict[str, Any]]:
        """Map a shard, waiting for it if it is not there.

        Returns:
            What gives the sample of a row.

        Raises:
            LanceStreamError: The shard cannot be had.
            FileNotFoundError: It is mapped now, but the host must prepare it again, which
                corrects its charge.
        """
        releases = self.ledger.releases(shard)
        file = self._map(shard)
        sample = file.samples(zero_copy=self.address.zero_copy)
        with self._lock:
            while len(self.views) >= _MAX_MAPPED:
                self._unmap(next(iter(self.views)))
            self.views[shard] = sample
            self.files[shard] = file
            self._releases[shard] = releases
        if self.ledger.charged(shard) != file.num_bytes:
            msg = f"the charge of shard {shard} must be corrected"
            raise FileNotFoundError(msg)
        return sample

    def is_present(self, shard: int) -> bool:
        """Whether a shard can be read without waiting."""
        return shard in self.views or os.path.exists(self.path(shard))

    def _map(self, shard: int) -> OpenShard:
        address, expected = self.address, self.names.header(shard)
        path, corrupt, evicted = self.path(shard), 0, 0
        while True:
            try:
                file = open_shard(
                    address.cache_format,
                    path,
                    expected,
                    self.index.schema,
                    verified=self._verified.get(shard),
                )
            except FileNotFoundError:
                pass
            except OSError as error:
                msg = (
                    f"{self.subject(shard)}: cannot read {path}: {error}; the cache directory "
                    "must stay readable while a dataset uses it"
                )
                raise ShardUnavailableError(msg) from error
            except ShardCorruptError as error:
                corrupt += 1
                again = corrupt < _MAX_CORRUPT
                self.begin_board().numbers[DAMAGED if again else FAILED] += 1
                if not again:
                    msg = f"{self.subject(shard)}: fetched again and damaged again: {error}"
                    raise ShardUnavailableError(msg) from error
                logger.warning("%s; fetching it again", error)
                _unlink(path)
            else:
                self._verified[shard] = file.inode
                return file
            evicted += 1
            if evicted > _MAX_EVICTED:
                msg = (
                    f"{self.subject(shard)}: evicted {evicted} times before it could be read; "
                    "raise cache_limit"
                )
                raise ShardUnavailableError(msg)
            self._wait(shard)

    def _wait(self, shard: int) -> None:
        """Wait for the file; failures of the source become the shard's."""
        numbers, started = self.begin_board().numbers, time.monotonic_ns()
        try:
            self.client.wait(self.address.stream, shard, self.subject(shard))
        except ShardUnavailableError:
            raise
        except Exception as error:
            msg = (
                f"{error}"
                if self.subject(shard) in str(error)
                else (f"{self.subject(shard)}: {error}")
            )
            refused = isinstance(error, CredentialsError)
            raise (ShardCredentialsError if refused else ShardUnavailableError)(msg) from error
        finally:
            numbers[WAITED_NS] += time.monotonic_ns() - started

    def _correct_arrivals(self) -> int:
        change = 0
        while self.arrivals:
            shard = self.arrivals.popleft()
            change += self.ledger.correct(shard, self.path(shard))
        self._correct_after = time.monotonic() + _CORRECT_EVERY_S
        return change

    def _unmap(self, shard: int) -> None:
        """Forget a mapping; the caller holds the lock."""
        del self.views[shard], self.files[shard], self._releases[shard]

    def close(self) -> None:
        """Give up the stream in this process."""
        self.views.clear()
        self.files.clear()
        if self._client is not None:
            self._client.remove_stream(self.address.stream)
            self._client = None

    def after_fork(self) -> None:
        """In a forked child: neither the client nor the ledger's lock is ours."""
        self._lock = threading.Lock()
        self._client = None
        self._ledger = None
        self.board = None


# Every cache of this process, to be told of a fork.
_ALL: weakref.WeakSet[StreamCache] = weakref.WeakSet()


def _after_fork_in_child() -> None:
    for cache in list(_ALL):
        cache.after_fork()


os.register_at_fork(after_in_child=_after_fork_in_child)


def _leave(client: ShardClient, stream: str, pid: int) -> None:
    """When a cache is gone: the download process need not live for it."""
    # A forked child has a copy of the client whose lock may be held for ever.
    if os.getpid() == pid:
        client.remove_stream(stream)


def _unlink(path: str) -> None:
    try:
        os.unlink(path)
    except FileNotFoundError:
        pass
