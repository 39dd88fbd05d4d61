"""A small Lance table for the examples to train on: ``id, x, y``, a noisy linear function.

Your table is there already. This one is written by a process of its own, since a trainer needs no
lance: it never imports it, and so can fork DataLoader workers safely.
"""

import subprocess
import sys
from pathlib import Path

ROWS = 4_000
FEATURES = 16


def write_table(directory: str, rows: int = ROWS) -> str:
    """Write the table into the directory, if it has none yet; gives its path."""
    uri = f"{directory}/points.lance"
    if not Path(uri).exists():
        Path(directory).mkdir(parents=True, exist_ok=True)
        subprocess.run([sys.executable, __file__, uri, str(rows)], check=True)
    return uri


if __name__ == "__main__":
    import lance
    import numpy as np
    import pyarrow as pa

    uri, rows = sys.argv[1], int(sys.argv[2])
    random = np.random.default_rng(0)
    x = random.normal(size=(rows, FEATURES)).astype(np.float32)
    y = x @ np.linspace(-1, 1, FEATURES) + 1 + 0.1 * random.normal(size=rows)
    points = {
        "id": pa.array(range(rows), pa.int64()),
        "x": pa.FixedSizeListArray.from_arrays(pa.array(x.ravel()), FEATURES),
        "y": pa.array(y.astype(np.float32)),
    }
    lance.write_dataset(pa.table(points), uri, max_rows_per_file=1_000)
