"""MDS shard files as mosaicml-streaming itself reads them."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
from streaming.base.format.mds.reader import MDSReader

__all__ = ["mds_reader", "stock_samples"]


def mds_reader(path: str | Path) -> MDSReader:
    """The stock reader of a file, made of nothing but the configuration inside the file."""
    path = Path(path)
    content = path.read_bytes()
    num_samples, start = (int.from_bytes(content[at : at + 4], "little") for at in (0, 4))
    config = json.loads(content[4 * (num_samples + 2) : start])
    shard: dict[str, Any] = {
        **{name: value for name, value in config.items() if name != "lance_stream"},
        "raw_data": {"basename": path.name, "bytes": os.path.getsize(path), "hashes": {}},
        "zip_data": None,
        "samples": num_samples,
    }
    return MDSReader.from_json(str(path.parent), None, shard)


def stock_samples(path: str | Path) -> list[dict[str, Any]]:
    """Every sample of a file, as the stock reader gives it, but numbers as Python's own."""
    reader = mds_reader(path)
    return [
        {name: v.item() if isinstance(v, np.generic) else v for name, v in reader[i].items()}
        for i in range(reader.samples)
    ]
