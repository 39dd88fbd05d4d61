"""Other loaders over the same rows, for comparison; they are in the extra ``bench``.

    litdata   StreamingDataset(shuffle=True) over chunks of 8 MB made by ``optimize``
    hf        ``datasets``, map-style, in a DataLoader that shuffles; samples are Python values
    lance     ``lance.torch.data.LanceDataset`` over batches in a random order: no shuffle of rows
    lancedb   ``lancedb.streaming.StreamingDataset(shuffle=True)``, by row

Every one keeps its rows where the page cache has them. Importing this module imports no peer.
"""

from __future__ import annotations

import importlib.metadata
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import shapes

__all__ = ["PEERS", "loader", "lancedb_dataset", "versions", "write"]

PEERS = ("litdata", "hf", "lance", "lancedb")
_PACKAGES = ("litdata", "datasets", "pylance", "lancedb")
_CHUNK_BYTES = "8MB"


def versions() -> str:
    """Versions of the peers."""
    return ", ".join(f"{name} {importlib.metadata.version(name)}" for name in _PACKAGES)


def write(directory: str, name: str, peer: str) -> None:
    """Task: the rows in the peer's own format; nothing to do for those that read the table."""
    shape = shapes.SHAPES[name]
    out = f"{directory}/{name}.{peer}"
    if peer == "litdata" and not Path(out, "index.json").exists():
        import litdata  # pyright: ignore[reportMissingImports]

        litdata.optimize(
            fn=_Rows(name),
            inputs=list(range(0, shape.rows, shapes.CHUNK_ROWS)),
            output_dir=out,
            chunk_bytes=_CHUNK_BYTES,
            num_workers=1,
        )
    if peer == "hf" and not Path(out).exists():
        import datasets  # pyright: ignore[reportMissingImports]

        table = pa.concat_tables(shapes.chunks(shape))
        datasets.Dataset(datasets.table.InMemoryTable(table)).save_to_disk(out)


class _Rows:
    """The samples of a chunk; a class, since ``optimize`` pickles it."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __call__(self, start: int) -> Iterator[dict[str, Any]]:
        yield from shapes.samples(shapes.chunk(shapes.SHAPES[self.name], start))


def loader(directory: str, name: str, peer: str, batch_size: int) -> tuple[Any, int]:
    """What is iterated for one shuffled epoch after another, and how many samples an item is."""
    if peer == "litdata":
        import litdata  # pyright: ignore[reportMissingImports]

        return litdata.StreamingDataset(f"{directory}/{name}.litdata", shuffle=True), 1
    if peer == "hf":
        import datasets  # pyright: ignore[reportMissingImports]
        from torch.utils.data import DataLoader

        rows = datasets.load_from_disk(f"{directory}/{name}.hf")
        return DataLoader(rows, batch_size, shuffle=True, collate_fn=list), batch_size
    if peer == "lance":
        return _LanceBatches(f"{directory}/{name}.lance", batch_size), batch_size
    return _LanceDbEpochs(f"{directory}/{name}.lance"), 1


def lancedb_dataset(uri: str, options: dict[str, str] | None = None, **arguments: Any) -> Any:
    """LanceDB's loader over a table, shuffled by row."""
    import lancedb  # pyright: ignore[reportMissingImports]
    from lancedb.streaming import StreamingDataset  # pyright: ignore[reportMissingImports]

    folder, _, table = uri.rpartition("/")
    database = lancedb.connect(folder, storage_options=options)
    return StreamingDataset(
        database.open_table(table.removesuffix(".lance")), shuffle=True, **arguments
    )


class _LanceDbEpochs:
    """LanceDB's loader, whose object is of one epoch: at its end it gives nothing more."""

    def __init__(self, uri: str) -> None:
        self._uri = uri
        self._epoch = 0

    def __iter__(self) -> Iterator[Any]:
        self._epoch += 1
        return iter(lancedb_dataset(self._uri, epoch=self._epoch))


class _LanceBatches:
    """Tensors of batches whose order is random; the rows inside are neighbours in the table."""

    def __init__(self, uri: str, batch_size: int) -> None:
        import lance

        self._table = lance.dataset(uri)
        self._batch_size = batch_size
        self._epoch = 0

    def __iter__(self) -> Iterator[Any]:
        from lance.sampler import ShardedBatchSampler
        from lance.torch.data import LanceDataset

        self._epoch += 1
        sampler = ShardedBatchSampler(0, 1, randomize=True, seed=self._epoch)
        batches = LanceDataset(
            self._table, batch_size=self._batch_size, sampler=sampler, to_tensor_fn=_tensors
        )
        return iter(batches)


def _tensors(batch: pa.RecordBatch, **_: Any) -> dict[str, Any]:
    """Numbers as tensors, everything else as lists: what ``batched`` gives."""
    import torch

    found: dict[str, Any] = {}
    for name, column in zip(batch.schema.names, batch.columns, strict=True):
        if pa.types.is_fixed_size_list(column.type):
            values = column.flatten().to_numpy()
            found[name] = torch.from_numpy(np.array(values).reshape(len(column), -1))
        elif pa.types.is_primitive(column.type):
            found[name] = torch.from_numpy(np.array(column.to_numpy()))
        else:
            found[name] = column.to_pylist()
    return found
