"""What a stream is given that decides about its index, and an index that is given."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from lance_stream.errors import IndexFileError, IndexFormatError, PlanError
from lance_stream.planning.index import ShardIndex
from lance_stream.planning.layout import Layout, shard_stops
from lance_stream.planning.selection import Selection, shown
from lance_stream.planning.sizing import parse_bytes
from lance_stream.service.arguments import (
    check_bool,
    check_cache_format,
    check_columns,
    check_filter,
    check_layout,
    check_limit,
    check_options,
    check_shard_rows,
    check_subset,
    check_transform,
    check_version,
    search_path,
)
from lance_stream.service.messages import Options, Plan, Window
from lance_stream.source.location import absolute_uri, redact

__all__ = ["Wanted", "load_index"]

# What is given alike is as good as not given.
_DEFAULT_BYTES = 32 << 20


@dataclass(frozen=True, slots=True)
class Wanted:
    """The arguments of a stream that decide about its index.

    Attributes:
        uri: Absolute uri of the table.
        split: Table below it, or None.
        version: Number, tag, or None for the latest.
        selection: Rows and columns.
        layout: How rows are put into shards.
        shard_rows: Rows per shard, or None: by ``shard_bytes``.
        shard_bytes: Bytes of a shard to aim at.
        cache_format: Format of the shards.
        options: Of the store.
        given: Names of the arguments that differ from their defaults; those of which an index
            tells the value.
        window: Which part of the table, in a round of ``follow``.
    """

    uri: str
    split: str | None
    version: int | str | None
    selection: Selection
    layout: Layout
    shard_rows: int | None
    shard_bytes: int
    cache_format: str
    options: Options = field(repr=False)
    given: frozenset[str] = frozenset()
    window: Window | None = None

    @classmethod
    def of(
        cls,
        remote: str | os.PathLike[str],
        *,
        split: str | None = None,
        version: int | str | None = None,
        columns: Sequence[str] | Mapping[str, str] | None = None,
        filter: str | None = None,  # noqa: A002 - the public name
        limit: int | None = None,
        subset: Sequence[float] | None = None,
        subset_key: str | None = None,
        shard_rows: int | None = None,
        shard_bytes: int | str = "32mb",
        layout: str = "contiguous",
        run_rows: int = 64,
        layout_seed: int = 0,
        cache_format: str = "arrow",
        with_row_id: bool = False,
        transform: str | None = None,
        transform_version: str | int | None = None,
        storage_options: Mapping[str, str] | str | None = None,
    ) -> Wanted:
        """Check arguments as a user gives them.

        Raises:
            PlanError: One is wrong: names it.
        """
        uri = absolute_uri(remote)
        target_bytes = parse_bytes(shard_bytes, "shard_bytes")
        if check_shard_rows(shard_rows) is not None and target_bytes != _DEFAULT_BYTES:
            msg = (
                f"shard_rows={shard_rows} and shard_bytes={shard_bytes!r} both say how large a "
                "shard is: leave one out"
            )
            raise PlanError(msg)
        names = check_columns(columns)
        check_bool(with_row_id, "with_row_id")
        if with_row_id and any(name == "_rowid" for name, _ in names or ()):
            raise PlanError("columns names '_rowid', which with_row_id=True adds: leave one out")
        function, function_version = check_transform(transform, transform_version)
        part, key = check_subset(subset, subset_key)
        given = {
            "version": version is not None,
            "columns": columns is not None,
            "filter": filter is not None,
            "limit": limit is not None,
            "subset": subset is not None,
            "subset_key": subset_key is not None,
            "shard_bytes": target_bytes != _DEFAULT_BYTES,
            "layout": layout != "contiguous",
            "run_rows": run_rows != 64,
            "layout_seed": layout_seed != 0,
            "with_row_id": bool(with_row_id),
            "transform": transform is not None,
            "transform_version": transform_version is not None,
        }
        return cls(
            uri=uri,
            split=split or None,
            version=check_version(version),
            selection=Selection(
                columns=names,
                with_row_id=bool(with_row_id),
                filter=check_filter(filter),
                limit=check_limit(limit),
                subset=part,
                subset_key=key,
                transform=function,
                transform_version=function_version,
            ),
            layout=check_layout(layout, run_rows, layout_seed),
            shard_rows=check_shard_rows(shard_rows),
            shard_bytes=target_bytes,
            cache_format=check_cache_format(cache_format),
            options=check_options(storage_options, uri),
            given=frozenset(name for name, is_given in given.items() if is_given),
        )

    def as_json(self) -> dict[str, object]:
        """What all ranks must have been given alike; no secrets."""
        return {
            "remote": self.uri,
            "split": self.split,
            "version": self.version,
            **self.selection.as_json(),
            **_layout(self.layout),
            "shard_rows": self.shard_rows,
            "shard_bytes": self.shard_bytes,
            "cache_format": self.cache_format,
        }

    def like(self, index: ShardIndex) -> Wanted:
        """The same stream, with the rows and columns of an index."""
        wanted = replace(self, selection=index.selection, layout=index.layout)
        if isinstance(self.version, str):
            # Whether the tag still stands for the index's version is seen when it is looked up.
            return wanted
        return replace(wanted, uri=index.uri, split=None, version=index.version)

    def at(self, uri: str, version: int, window: Window | None = None) -> Wanted:
        """The same stream, of a table, version and part of it that were looked up."""
        return replace(self, uri=uri, split=None, version=version, window=window)

    def request(
        self,
        *,
        timeout_s: float,
        attempts: int,
        exact: bool = False,
        partial_path: str | None = None,
        identity: str | None = None,
    ) -> Plan:
        """The message that asks for the index."""
        selection, layout = self.selection, self.layout
        return Plan(
            uri=self.uri,
            split=self.split,
            version=self.version,
            columns=selection.columns,
            with_row_id=selection.with_row_id,
            shard_rows=self.shard_rows,
            shard_bytes=self.shard_bytes,
            options=self.options,
            timeout_s=timeout_s,
            attempts=attempts,
            transform=selection.transform,
            transform_version=selection.transform_version,
            search_path=() if selection.transform is None else search_path(),
            cache_format=self.cache_format,
            filter=selection.filter,
            limit=selection.limit,
            subset=selection.subset,
            subset_key=selection.subset_key,
            layout=layout.kind,
            run_rows=layout.run_rows,
            layout_seed=layout.seed,
            exact=exact,
            partial_path=partial_path,
            identity=identity,
            window=self.window,
        )

    def check_index(self, index: ShardIndex, name: str) -> None:
        """Refuse an index of something else than what was asked for.

        Args:
            index: One that was given.
            name: Where it came from, for the error.

        Raises:
            PlanError: Names both sides.
        """
        tables = [self.uri]
        if self.split:
            tables = [f"{self.uri}/{self.split}.lance", f"{self.uri}/{self.split}"]
        branches = tuple(f"{table}/tree/" for table in tables)
        # A branch counts its versions itself: a number is one of the table's own.
        is_branch = index.uri.startswith(branches) and not isinstance(self.version, int)
        if index.uri not in tables and not is_branch:
            msg = (
                f"{name} is an index of {redact(index.uri)}, and the stream is of "
                f"{redact(tables[0])}: give the uri that the index was made with"
            )
            raise PlanError(msg)
        asked = {**self.selection.as_json(), **_layout(self.layout), "version": self.version}
        asked["shard_bytes"] = self.shard_bytes
        has = {**index.selection.as_json(), **_layout(index.layout), "version": index.version}
        has["shard_bytes"] = index.target_bytes
        for argument in sorted(self.given):
            # A tag is looked up with the table.
            if argument == "version" and isinstance(self.version, str):
                continue
            if asked[argument] != has[argument]:
                theirs, ours = shown(repr(has[argument])), shown(repr(asked[argument]))
                msg = (
                    f"{name} was made with {argument}={theirs}, and the stream is given "
                    f"{argument}={ours}: leave it out, or make another index"
                )
                raise PlanError(msg)
        if self.shard_rows is not None:
            stops = shard_stops(index.num_rows, self.shard_rows)
            if not np.array_equal(stops, index.shard_stops):
                msg = (
                    f"{name} has {index.num_shards} shards of up to "
                    f"{int(np.diff(index.shard_stops, prepend=0).max())} rows, and the stream is "
                    f"given shard_rows={self.shard_rows}: leave it out, or make another index"
                )
                raise PlanError(msg)


def load_index(given: str | os.PathLike[str] | ShardIndex) -> tuple[ShardIndex, str]:
    """An index as a user gives it, and what to call it in errors.

    Raises:
        IndexFormatError: The file is not an index, or damaged, or newer.
        PlanError: It cannot be read.
    """
    if isinstance(given, ShardIndex):
        return given, "the index"
    url = os.fspath(given)
    clean = redact(url)
    name = f"index={clean!r}"
    try:
        return ShardIndex.load(url), name
    except IndexFormatError as error:
        raise IndexFormatError(str(error).replace(url, clean)) from error
    except IndexFileError as error:
        # Each store's client has errors of its own, which may quote the url in parts.
        cause = error.__cause__ or error
        msg = f"{name} cannot be read: {type(cause).__name__}: {redact(str(cause))}"
        raise PlanError(msg) from error


def _layout(layout: Layout) -> dict[str, object]:
    return {"layout": layout.kind, "run_rows": layout.run_rows, "layout_seed": layout.seed}
