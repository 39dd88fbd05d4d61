"""Write the files of an export that are missing, in parallel; publish the index; check."""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Callable, Mapping
from typing import Any

from lance_stream.errors import PlanError
from lance_stream.export.compression import pieces_hash
from lance_stream.export.destination import Destination
from lance_stream.export.plan import ExportPlan, finished_shards, require_ours, stored_hash
from lance_stream.offline.parallel import in_parallel
from lance_stream.planning.checksum import is_hash

__all__ = ["Progress", "fill"]

logger = logging.getLogger(__name__)

Entry = dict[str, Any]
"""What the index says of a shard."""

Progress = Callable[[int, int], None]
"""Called with rows that are finished since the last call, and with all rows."""


def fill(
    destination: Destination,
    plan: ExportPlan,
    run: Callable[[int], Entry],
    workers: int,
    stop: threading.Event,
    progress: Progress,
) -> tuple[dict[int, Entry], int]:
    """Bring the place to what the plan says, from whatever an earlier run left there.

    Args:
        destination: The place; it is claimed, and released by whoever made it.
        plan: Which files there are to be.
        run: Writes the file of a shard, gives what the index says of it.
        workers: Shards at a time.
        stop: Set when this ends early.
        progress: Told of finished rows.

    Returns:
        What the index says of each shard, and how many were there before.

    Raises:
        PlanError: The place holds something else, or is changed by somebody else.
        CacheInUseError: Another export holds the place.
        BaseException: Whatever ``run`` or the place raises.
    """
    # Before anything is made there.
    require_ours(destination.look(), plan, destination.name)
    destination.claim()
    found = destination.look()
    has_index = require_ours(found, plan, destination.name)
    if found.state is None:
        destination.begin(plan.identity())
    records = destination.records()
    entries = finished_shards(plan, records, found)
    _drop_damaged(destination, plan, entries, records, workers, stop)
    kept, num_rows = len(entries), plan.index.num_rows
    progress(sum(entry["samples"] for entry in entries.values()), num_rows)
    todo = [shard for shard in range(plan.index.num_shards) if shard not in entries]
    # Closed at once if anything is raised here: its threads must end before the place is released.
    with contextlib.closing(in_parallel(run, todo, workers, stop)) as results:
        for shard, entry in results:
            entries[shard] = entry
            progress(entry["samples"], num_rows)
    if todo or not has_index:
        text = plan.index_text(entries)
        _require_files(destination, plan, entries)
        destination.publish_index(text)
    destination.clean_up()
    _require_complete(destination, plan)
    return entries, kept


def _drop_damaged(
    destination: Destination,
    plan: ExportPlan,
    entries: dict[int, Entry],
    records: Mapping[int, Any],
    workers: int,
    stop: threading.Event,
) -> None:
    """Forget finished shards whose files are not what they were, as far as a hash is known."""
    known = {shard: stored_hash(entry, records.get(shard)) for shard, entry in entries.items()}

    def is_right(shard: int) -> bool:
        name, digest = known[shard] or ("", "")
        try:
            pieces = destination.pieces(plan.stored_name(shard))
            return pieces_hash(pieces, name) == digest
        except FileNotFoundError:
            return False

    todo = [shard for shard, one in known.items() if one is not None and is_hash(one[0])]
    with contextlib.closing(in_parallel(is_right, todo, workers, stop)) as results:
        for shard, right in results:
            if not right:
                name = plan.stored_name(shard)
                logger.warning("%s: %s is damaged; writing it again", destination.name, name)
                del entries[shard]


def _require_files(destination: Destination, plan: ExportPlan, entries: Mapping[int, Any]) -> None:
    """Raise PlanError unless every file is there in its size: then an index may say so."""
    sizes = destination.look().sizes
    for shard, entry in entries.items():
        name, expected = plan.stored_name(shard), plan.stored_bytes(entry)
        if sizes.get(name) != expected:
            msg = (
                f"{destination.name}: {name} should have {expected} bytes but has "
                f"{sizes.get(name, 'gone')}: something else writes there; run the same command "
                "again"
            )
            raise PlanError(msg)


def _require_complete(destination: Destination, plan: ExportPlan) -> None:
    """Raise PlanError unless the published index has every row of the plan."""
    found = destination.look()
    shards = (found.index or {}).get("shards", [])
    samples = sum(entry["samples"] for entry in shards)
    if (len(shards), samples) != (plan.index.num_shards, plan.index.num_rows):
        msg = (
            f"{destination.name}: index.json has {samples} rows in {len(shards)} shards, but the "
            f"table has {plan.index.num_rows} in {plan.index.num_shards}: something else writes "
            "there"
        )
        raise PlanError(msg)
