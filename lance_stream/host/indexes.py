"""The index of a table, made by the download process of this job, and of a stream."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Mapping, Sequence

import msgspec

from lance_stream.errors import PlanError, VersionNotFoundError
from lance_stream.host.settling import job_endpoint
from lance_stream.planning.index import ShardIndex
from lance_stream.service.client import plan
from lance_stream.service.directory import default_directories
from lance_stream.service.holds import Lease
from lance_stream.service.messages import Planning
from lance_stream.service.wanted import Wanted, load_index
from lance_stream.source.location import redact

__all__ = ["DEFAULT_RETRY", "DEFAULT_TIMEOUT_S", "absolute_index", "build_index", "obtain_index"]


# Of a stream that is given neither, nor its dataset.
DEFAULT_RETRY = 2
DEFAULT_TIMEOUT_S = 60.0


def build_index(
    uri: str | os.PathLike[str],
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
    exact: bool = False,
    partial_path: str | os.PathLike[str] | None = None,
    download_timeout: float = DEFAULT_TIMEOUT_S,
    download_retry: int = DEFAULT_RETRY,
    progress: Callable[[str, int, int], None] | None = None,
) -> ShardIndex:
    """Make the shard index of a table, to be saved and given to ``LanceStream(index=...)``.

    Without a filter or subset only the table's manifest and a few short runs of rows (for their
    size) are read. A filter reads its columns, a subset its key.

    Args:
        uri: As ``LanceStream``'s ``remote``; the arguments up to ``storage_options`` are those
            of ``LanceStream``.
        split: As there.
        version: As there.
        columns: As there.
        filter: As there.
        limit: As there.
        subset: As there.
        subset_key: As there.
        shard_rows: As there.
        shard_bytes: As there.
        layout: As there.
        run_rows: As there.
        layout_seed: As there.
        cache_format: As there: what the format cannot hold is refused.
        with_row_id: As there.
        transform: As there.
        transform_version: As there.
        storage_options: As there.
        exact: Cut by the exact bytes of every row, for tables whose rows differ much in size:
            reads the whole selection once. Contiguous layout only.
        partial_path: Local file that keeps the progress of a long scan, so that a run that was
            stopped is gone on with; removed when the index is made.
        download_timeout: Seconds without progress before an attempt is given up.
        download_retry: Further attempts, where the failure may pass.
        progress: Called with what is being done, how many rows of how many.

    Returns:
        The index.

    Raises:
        LanceStreamError: The table cannot be streamed so; says why.
    """
    wanted = Wanted.of(
        uri,
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
    if exact and (layout != "contiguous" or shard_rows is not None):
        raise PlanError("exact cuts by shard_bytes, contiguously: leave out layout and shard_rows")
    partial = None if partial_path is None else os.path.abspath(os.fspath(partial_path))
    if partial is not None and not os.path.isdir(os.path.dirname(partial)):
        raise PlanError(f"partial_path={partial!r}: there is no such directory")
    if partial is not None and os.path.isdir(partial):
        raise PlanError(f"partial_path={partial!r} is a directory: name a file in it")
    request = wanted.request(
        timeout_s=float(download_timeout),
        attempts=1 + int(download_retry),
        exact=exact,
        partial_path=partial,
    )

    def news(message: Planning) -> None:
        if progress is not None:
            progress(message.what, message.done, message.total)

    lease = Lease(job_endpoint())
    try:
        index = plan(job_endpoint(), request, news)
    finally:
        lease.close()
    if index is None:
        raise PlanError(f"no index of {redact(wanted.uri)} was made")
    if partial is not None:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(partial)
    return index


def absolute_index(
    index: str | os.PathLike[str] | ShardIndex | None,
) -> str | ShardIndex | None:
    """An index as given; a path stays right wherever the process goes."""
    if index is None or isinstance(index, ShardIndex):
        return index
    text = os.fspath(index)
    return text if "://" in text else os.path.abspath(os.path.expanduser(text))


def obtain_index(
    wanted: Wanted,
    given: str | ShardIndex | None,
    *,
    timeout_s: float,
    attempts: int,
    shared_cache: tuple[str, ...],
    local: str | None = None,
) -> ShardIndex:
    """The index of a stream: planned, or the given one if it is of the table.

    Args:
        wanted: What is streamed.
        given: An index, or where one is; None: the table is planned.
        timeout_s: Seconds without progress before an attempt is given up.
        attempts: At least 1.
        shared_cache: URLs, of which wrong ones are refused.
        local: Cache directory that was given, or None for the default ones.

    Raises:
        LanceStreamError: The table cannot be streamed so, or the index is of something else.
    """
    index, name = None, ""
    if given is not None:
        index, name = load_index(given)
        wanted.check_index(index, name)
        wanted = wanted.like(index)
    request = wanted.request(
        timeout_s=timeout_s,
        attempts=attempts,
        identity=None if index is None else index.identity,
    )
    known = ()
    if wanted.selection.transform is not None:
        known = default_directories() if local is None else (local,)
    request = msgspec.structs.replace(request, shared_cache=shared_cache, learn_from=known)
    try:
        made = plan(job_endpoint(), request) or index
    except VersionNotFoundError as error:
        if index is None:
            raise
        msg = f"{name} is of version {index.version} of {redact(index.uri)}: {error}"
        raise VersionNotFoundError(msg) from error
    if made is None:
        raise PlanError(f"no index of {redact(wanted.uri)} was made")
    return made
