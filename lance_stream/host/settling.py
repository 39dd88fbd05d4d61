"""Settle a stream on this node: its directory, index and ledger, and who holds them."""

from __future__ import annotations

import os
import secrets
import weakref
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from lance_stream.errors import LanceStreamError, PlanError
from lance_stream.host.places import own_directory
from lance_stream.host.ranks import Ranks
from lance_stream.planning.fingerprint import digest
from lance_stream.planning.index import ShardIndex
from lance_stream.service.cache_files import (
    lay_down_index,
    ledger_path,
    remove,
    sweep_ledgers,
    sweep_left_behind,
)
from lance_stream.service.directory import (
    DirectoryClaim,
    claim_default_directory,
    claim_directory,
    join_directory,
)
from lance_stream.service.holds import Lease
from lance_stream.service.runtime import Endpoint, new_endpoint
from lance_stream.shards.ledger import create_ledger
from lance_stream.shards.names import ShardNames

__all__ = [
    "Hold",
    "Place",
    "adopt_endpoint",
    "job_endpoint",
    "join",
    "remove_let_go",
    "settle",
    "share_endpoint",
]


@dataclass(frozen=True, slots=True)
class Hold:
    """A process's part in a settled stream: its directory, and the download process."""

    claim: DirectoryClaim
    lease: Lease
    files: tuple[str, str]
    shared: bool
    pid: int

    def let_go(self) -> None:
        """When the stream is gone from the process. Nothing in a forked child."""
        if os.getpid() != self.pid:
            return
        # Other ranks may go on after this one: the last removes what they share.
        _LET_GO.setdefault(self.claim.path, set()).update(self.files)
        _close(self.claim)
        if not self.shared:
            _remove_let_go(self.files)
        self.lease.close()


# Files of streams that this process has no more, by directory; other ranks may still have them.
_LET_GO: dict[str, set[str]] = {}
# A child has none of them.
os.register_at_fork(after_in_child=_LET_GO.clear)


def _close(claim: DirectoryClaim) -> None:
    if claim.close():
        _remove_let_go(_LET_GO.get(claim.path, ()))


def _remove_let_go(files: Iterable[str]) -> None:
    gone = set(files)
    for path in gone:
        remove(path)
    # A copy: streams may be collected, and so be let go of, at any moment.
    for directory, left in list(_LET_GO.items()):
        left.difference_update(gone)
        if not left:
            _LET_GO.pop(directory, None)


def remove_let_go(ranks: Ranks) -> None:
    """On every rank at once: remove what belongs to streams that no rank of the node has left."""
    if ranks.num_ranks == 1:
        return
    files = sorted(path for files in list(_LET_GO.values()) for path in list(files))
    said = ranks.each(lambda: {"let_go": files})
    node = said[ranks.local_leader : ranks.local_leader + ranks.ranks_per_node]
    _remove_let_go(set.intersection(*({*(theirs or {})["let_go"]} for theirs in node)))


class Place:
    """The cache directory of a family of windows, held also where none of them has a dataset.

    Another job could take it, and the rows that the next window shares with the last would have
    to be read again.
    """

    def __init__(self, family: str) -> None:
        """Hold nothing yet: the first dataset of the family settles where it is."""
        self.family = family
        self._claims: list[DirectoryClaim] = []
        # Also at the end of the process, after the datasets, which are younger.
        self.close = weakref.finalize(self, _close_all, self._claims)
        _PLACES.add(self)

    @staticmethod
    def hold(family: str, directory: str) -> None:
        """Hold a directory for a family, if anybody follows it in this process."""
        for place in list(_PLACES):
            held = [claim.path for claim in place._claims]
            if place.family == family and place.close.alive and held != [directory]:
                _close_all(place._claims)
                place._claims.append(join_directory(directory))


_PLACES: weakref.WeakSet[Place] = weakref.WeakSet()


def _close_all(claims: list[DirectoryClaim]) -> None:
    while claims:
        _close(claims.pop())


class _Job:
    """The endpoint that this process and its children use for all streams."""

    endpoint: Endpoint | None = None


def job_endpoint() -> Endpoint:
    """Where the download process of this job is found on this node."""
    if _Job.endpoint is None:
        _Job.endpoint = new_endpoint()
    return _Job.endpoint


def adopt_endpoint(endpoint: Endpoint) -> None:
    """In a spawned worker: the job is that of what was unpickled."""
    if _Job.endpoint is None:
        _Job.endpoint = endpoint


def share_endpoint(ranks: Ranks) -> None:
    """On every rank at once: have the ranks of a node use one download process."""
    said = ranks.each(
        lambda: {"endpoint": job_endpoint().directory} if ranks.is_local_leader else None
    )
    _Job.endpoint = Endpoint((said[ranks.local_leader] or {})["endpoint"])


def settle(
    index: ShardIndex, names: ShardNames, local: str | None, *, node: int, shared: bool
) -> tuple[dict[str, Any], Hold]:
    """On the first rank of a node: claim the directory, lay down index and ledger.

    Args:
        index: Of the stream.
        names: Of its shards.
        local: Cache directory, or None for one of the user's own.
        node: Number of this node if it shares that directory with an earlier one; or 0.
        shared: Whether other ranks use them too.

    Returns:
        What the other ranks of the node need, in JSON values; and this rank's hold.

    Raises:
        CacheInUseError: Another job has the directory.
        PlanError: It cannot be used.
    """
    if local is not None:
        claim = claim_directory(own_directory(local, node) if node else local)
    elif index.window is not None:
        # Also one that we hold: that of the window which this one takes the place of.
        claim = claim_default_directory(index.window.family, first_slot=node, again=True)
    else:
        claim = claim_default_directory(names.fingerprint, first_slot=node)
    lease, ledger = None, None
    try:
        directory, token = claim.path, secrets.token_hex(6)
        sweep_ledgers(directory)
        sweep_left_behind(directory, names.is_left_behind)
        path = lay_down_index(directory, index)
        ledger = ledger_path(directory, token, index.fingerprint)
        create_ledger(ledger, index.num_shards)
        # Before the boards: the directory of an endpoint goes with the last hold on its process.
        lease = Lease(job_endpoint())
        boards = job_endpoint().boards_directory(digest({"ledger": ledger}, 24))
        os.makedirs(boards, 0o700)
        family = "" if index.window is None else index.window.family
        Place.hold(family, directory)
    except BaseException as error:
        if ledger is not None:
            remove(ledger)
        if lease is not None:
            lease.close()
        claim.close()
        if not isinstance(error, OSError) or isinstance(error, LanceStreamError):
            raise
        msg = f"cannot use {claim.path} as a cache directory: {error}"
        raise PlanError(msg) from error
    settled = {
        "family": family,
        "stream": digest({"ledger": ledger}, 24),
        "directory": directory,
        "index": path,
        "ledger": ledger,
        "stats": boards,
        "endpoint": job_endpoint().directory,
    }
    return settled, Hold(claim, lease, (ledger, boards), shared, os.getpid())


def join(settled: dict[str, Any]) -> Hold:
    """On the other ranks of the node: take part in what the first one settled."""
    _Job.endpoint = Endpoint(settled["endpoint"])
    claim = join_directory(settled["directory"])
    Place.hold(settled["family"], settled["directory"])
    files = (settled["ledger"], settled["stats"])
    return Hold(claim, Lease(job_endpoint()), files, shared=True, pid=os.getpid())
