"""The files of an export: names, what the index says of each, which are finished. Pure.

An export is a directory of ``shard.<number>.mds`` files and an ``index.json`` that lists them.
``index.json`` has one key more than ``MDSWriter`` gives it, ``lance_stream``, which says what was
exported; the stock reader ignores it.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from lance_stream.errors import PlanError, UnsupportedTypeError
from lance_stream.planning.index import ShardIndex
from lance_stream.shards.mds_columns import mds_columns, mds_unsupported
from lance_stream.shards.mds_limits import check_mds_sizes

__all__ = [
    "CHECK_KEY",
    "INDEX_NAME",
    "STATE_NAME",
    "ExportPlan",
    "FileFacts",
    "Found",
    "finished_shards",
    "make_plan",
    "require_ours",
    "stored_hash",
]

INDEX_NAME = "index.json"
# What an unfinished export needs to be continued; gone when it is complete.
STATE_NAME = ".lance_stream_export"
_KEY = "lance_stream"
# Raised when an older export could not be continued.
_EXPORT_FORMAT = 1
# Of a record: hash of the stored file, by its name.
CHECK_KEY = "check"
# Not somebody's data: the root of a file system.
_NO_DATA = frozenset({"lost+found"})


@dataclass(frozen=True, slots=True)
class FileFacts:
    """What the index says of one file: its bytes, and the hex digest of each hash."""

    num_bytes: int
    hashes: Mapping[str, str]

    def as_json(self, name: str) -> dict[str, Any]:
        """As ``MDSWriter`` writes it."""
        return {"basename": name, "bytes": self.num_bytes, "hashes": dict(self.hashes)}


@dataclass(frozen=True, slots=True)
class Found:
    """What lies where the export is to go.

    Attributes:
        sizes: Bytes of each file, without those of the export's state.
        state: The identity of an unfinished export, if there is one.
        index: The ``index.json``, if there is one; empty if it is not readable.
    """

    sizes: Mapping[str, int]
    state: Mapping[str, Any] | None
    index: Mapping[str, Any] | None


@dataclass(frozen=True, slots=True)
class ExportPlan:
    """What an export consists of.

    Attributes:
        index: Which rows make which shard.
        compression: Name and level, as ``MDSWriter`` takes it, or None.
        extension: Of the name of a compressed file; empty without compression.
        hashes: Names of hashes of each file, sorted.
    """

    index: ShardIndex
    compression: str | None
    extension: str
    hashes: tuple[str, ...]

    def identity(self) -> dict[str, Any]:
        """What must be the same for two exports to be one, as JSON values."""
        columns = mds_columns(self.index.schema)
        return {
            "format": _EXPORT_FORMAT,
            "uri": self.index.uri,
            "version": self.index.version,
            "fingerprint": self.index.fingerprint,
            "rows": self.index.num_rows,
            "shards": self.index.num_shards,
            "columns": {column.name: column.encoding for column in columns},
            "compression": self.compression,
            "hashes": list(self.hashes),
        }

    def raw_name(self, shard: int) -> str:
        """Name of the shard's file without compression."""
        return f"shard.{shard:05}.mds"

    def stored_name(self, shard: int) -> str:
        """Name of the file that is stored."""
        name = self.raw_name(shard)
        return f"{name}.{self.extension}" if self.extension else name

    def config(self) -> dict[str, Any]:
        """What the configuration inside of each shard says of it."""
        return {"compression": self.compression, "hashes": list(self.hashes)}

    def entry(self, shard: int, raw: FileFacts, zipped: FileFacts | None) -> dict[str, Any]:
        """What the index says of a shard."""
        columns = mds_columns(self.index.schema)
        return {
            "version": 2,
            "format": "mds",
            "size_limit": None,
            **self.config(),
            "column_names": [column.name for column in columns],
            "column_encodings": [column.encoding for column in columns],
            "column_sizes": [column.size for column in columns],
            "samples": len(self.index.shard_rows(shard)),
            "raw_data": raw.as_json(self.raw_name(shard)),
            "zip_data": zipped.as_json(self.stored_name(shard)) if zipped else None,
        }

    def stored_bytes(self, entry: Mapping[str, Any]) -> int:
        """Bytes of the file that an entry is about."""
        return (entry["zip_data"] or entry["raw_data"])["bytes"]

    def index_text(self, entries: Mapping[int, Mapping[str, Any]]) -> str:
        """The ``index.json`` of all shards.

        Raises:
            PlanError: They are not all of the shards, or not all of the rows.
        """
        shards = [entries[shard] for shard in sorted(entries)]
        samples = sum(entry["samples"] for entry in shards)
        if len(shards) != self.index.num_shards or samples != self.index.num_rows:
            msg = (
                f"the export has {samples} rows in {len(shards)} shards, but the table has "
                f"{self.index.num_rows} in {self.index.num_shards}: run the same command again"
            )
            raise PlanError(msg)
        value = {"version": 2, "shards": shards, _KEY: self.identity()}
        return json.dumps(value, sort_keys=True)


def make_plan(
    index: ShardIndex, compression: str | None, extension: str, hashes: Collection[str]
) -> ExportPlan:
    """Plan the export of an index.

    Args:
        index: Which rows make which shard.
        compression: As ``MDSWriter`` takes it, or None.
        extension: Of the name of a file that is compressed in this way.
        hashes: Names of hashes.

    Raises:
        UnsupportedTypeError: MDS cannot hold a column: names all such.
        PlanError: A shard would be too large.
    """
    where = f"{index.uri} version {index.version}"
    bad = mds_unsupported(index.schema)
    if bad:
        msg = (
            f"{where}: columns of a type that MDS cannot hold: {', '.join(bad)}. Cast them with "
            "--columns NAME=SQL, or choose the other columns with --columns"
        )
        raise UnsupportedTypeError(msg)
    largest = int(np.diff(index.shard_stops, prepend=0).max())
    check_mds_sizes(index.schema, index.row_size, largest, where)
    return ExportPlan(index, compression, extension, tuple(sorted(set(hashes))))


def require_ours(found: Found, plan: ExportPlan, where: str) -> bool:
    """Refuse to write into anything but an empty place or an export of the same plan.

    Returns:
        Whether there is an ``index.json`` of the plan.

    Raises:
        PlanError: What is there is something else.
    """
    theirs: Any = found.state
    if theirs is None and found.index is not None:
        theirs = found.index.get(_KEY)
        if not isinstance(theirs, Mapping):
            msg = f"{where} holds a dataset that lance-stream did not export: choose another --out"
            raise PlanError(msg)
    if theirs is None:
        names = sorted(set(found.sizes) - _NO_DATA)
        if names:
            shown = ", ".join(names[:3]) + (", ..." if len(names) > 3 else "")
            msg = f"{where} is not empty, and not an export ({shown}): choose another --out"
            raise PlanError(msg)
        return False
    differences = _differences(theirs, plan.identity())
    if differences:
        state = "part of another export" if found.state is not None else "another export"
        advice = "choose another --out, or remove it first"
        if found.state is not None and set(differences) <= {"version", "fingerprint", *_COUNTS}:
            advice = f"add --version {theirs.get('version')} to complete it, or {advice}"
        told = [key for key in differences if key != "fingerprint"] or differences
        words = "; ".join(f"{k} {theirs.get(k)} there, {plan.identity()[k]} here" for k in told)
        msg = f"{where} holds {state} ({words}): {advice}"
        raise PlanError(msg)
    return found.index is not None and found.index.get(_KEY) == plan.identity()


_COUNTS = ("rows", "shards")


def _differences(theirs: Mapping[str, Any], ours: Mapping[str, Any]) -> list[str]:
    return [key for key in ours if theirs.get(key) != ours[key]]


def finished_shards(
    plan: ExportPlan, records: Mapping[int, Any], found: Found
) -> dict[int, dict[str, Any]]:
    """The shards that need not be written again.

    Args:
        plan: Which shards there are.
        records: What was recorded of each when it was finished; may be damaged.
        found: The files that are there; an index of the plan tells of its shards as well.

    Returns:
        What the index says of each finished shard.
    """
    told = dict(enumerate((found.index or {}).get("shards", ())))
    told.update({shard: _without_check(record) for shard, record in records.items()})
    return {shard: told[shard] for shard in sorted(told) if _is_finished(plan, shard, told, found)}


def _without_check(record: Any) -> Any:
    if not isinstance(record, Mapping):
        return record
    return {key: value for key, value in record.items() if key != CHECK_KEY}


def stored_hash(entry: Mapping[str, Any], record: Any) -> tuple[str, str] | None:
    """Name and hex digest of a hash of the stored file, as far as one is known.

    Args:
        entry: What the index says of the shard.
        record: What was recorded of it when it was finished, or None.
    """
    known: Any = record.get(CHECK_KEY) if isinstance(record, Mapping) else None
    if not known:
        known = (entry["zip_data"] or entry["raw_data"])["hashes"]
    if not isinstance(known, Mapping):
        return None
    return next(((str(name), str(digest)) for name, digest in known.items()), None)


def _is_finished(plan: ExportPlan, shard: int, told: Mapping[int, Any], found: Found) -> bool:
    if not 0 <= shard < plan.index.num_shards:
        return False
    try:
        entry = told[shard]
        raw = _facts(entry["raw_data"])
        zipped = _facts(entry["zip_data"]) if plan.compression else None
        same = entry == plan.entry(shard, raw, zipped)
    except (AttributeError, KeyError, TypeError, ValueError):
        return False
    return same and found.sizes.get(plan.stored_name(shard)) == (zipped or raw).num_bytes


def _facts(value: Mapping[str, Any]) -> FileFacts:
    return FileFacts(value["bytes"], value["hashes"])
