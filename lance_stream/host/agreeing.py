"""All ranks of a job come to one version and one plan; the first of each node settles it there."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from lance_stream.errors import PlanError
from lance_stream.host.places import Mark
from lance_stream.host.ranks import Ranks
from lance_stream.host.settling import Hold, settle
from lance_stream.planning.index import ShardIndex
from lance_stream.service.messages import Window
from lance_stream.service.wanted import Wanted
from lance_stream.shards.names import ShardNames
from lance_stream.source.location import redact

__all__ = ["agree"]


def agree(
    ranks: Ranks,
    wanted: Wanted,
    make_index: Callable[[Wanted], ShardIndex],
    planned: Callable[[ShardIndex], None],
    *,
    algorithm: str | None,
    local: str | None,
    mark: Mark | None,
) -> tuple[dict[str, Any], Hold | None]:
    """Plan on rank 0, then on each node.

    Args:
        ranks: All of them call this.
        wanted: What the stream was given.
        make_index: Has a table planned.
        planned: Told of the index on rank 0, before others hear of it.
        algorithm: Of the hash in shard files; None: the default.
        local: Cache directory that was given.
        mark: By which nodes see that they share it.

    Returns:
        What this rank's node settled; and the hold on it, on the rank that did.

    Raises:
        LanceStreamError: What failed on any rank, on all of them.
    """
    lead: dict[str, ShardIndex] = {}
    held: list[Hold] = []

    def resolve() -> dict[str, Any] | None:
        marked = {"mark": mark and mark.name}
        if ranks.rank:
            return marked
        index = lead["index"] = make_index(wanted)
        planned(index)
        return {
            # A branch has a uri and versions of its own.
            "at": {"uri": index.uri, "version": index.version},
            "window": wanted.window and msgspec.to_builtins(wanted.window),
            "fingerprint": index.fingerprint,
            "identity": index.identity,
            **marked,
        }

    said = ranks.each(resolve)
    agreed = said[0] or {}

    def settle_here() -> dict[str, Any] | None:
        if not ranks.is_local_leader:
            return None
        if "index" in lead:
            index = lead["index"]
        else:
            # Another rank may have seen another version last: that of rank 0 counts.
            window = agreed["window"] and msgspec.convert(agreed["window"], Window)
            index = make_index(wanted.at(**agreed["at"], window=window))
        if [index.fingerprint, index.identity] != [agreed["fingerprint"], agreed["identity"]]:
            msg = (
                f"{redact(index.uri)} version {index.version} is not the same table on this "
                "node as on rank 0, or its filter gives other rows each time"
            )
            raise PlanError(msg)
        names = ShardNames(index, wanted.cache_format, algorithm)
        earlier = [one["mark"] for one in said[: ranks.rank] if one and one["mark"]]
        settled, hold = settle(
            index,
            names,
            local,
            node=ranks.node if mark is not None and mark.sees(earlier) else 0,
            shared=ranks.ranks_per_node > 1,
        )
        held.append(hold)
        return settled

    try:
        settled = ranks.each(settle_here)[ranks.local_leader] or {}
    except BaseException:
        # What was settled here is of no use where another node failed.
        for hold in held:
            hold.let_go()
        raise
    return settled, held[0] if held else None
