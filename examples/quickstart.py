"""Stream a Lance table into PyTorch: write a small one, train two shuffled epochs on it.

Run it with ``make demo``, or with ``python`` where lance_stream is installed.
"""

import os
import subprocess
import sys
import tempfile
import time

from streaming import StreamingDataset
from torch.utils.data import DataLoader

from lance_stream import LanceStream

ROWS = 20_000

# Your table is there already. This one is written by a process of its own, since a trainer needs
# no lance: it never imports it, and so can fork DataLoader workers safely.
WRITE_TABLE = """
import sys, lance, numpy as np, pyarrow as pa
uri, rows = sys.argv[1], int(sys.argv[2])
vectors = np.random.default_rng(0).random((rows, 64), np.float32)
table = pa.table({
    "id": pa.array(range(rows)),
    "label": pa.array([i % 10 for i in range(rows)], pa.int32()),
    "caption": pa.array([f"picture number {i}" for i in range(rows)]),
    "vector": pa.FixedSizeListArray.from_arrays(vectors.ravel(), 64),
})
lance.write_dataset(table, uri, max_rows_per_file=5_000)
"""


def main() -> None:
    with tempfile.TemporaryDirectory() as directory:
        uri = f"{directory}/pictures.lance"
        subprocess.run([sys.executable, "-c", WRITE_TABLE, uri, str(ROWS)], check=True)

        # The lock files of StreamingDataset lie here; it never removes them, this demo does.
        tempfile.tempdir = directory

        # A path here; s3://, gs://, az:// work as well (see examples/s3.py). Without local=, the
        # cache is kept in a directory of yours and used again by the next run.
        stream = LanceStream(uri, local=f"{directory}/cache", shard_rows=1_000)
        dataset = StreamingDataset(streams=[stream], batch_size=64, shuffle=True)
        loader = DataLoader(dataset, batch_size=64, num_workers=2)
        print(f"{stream}\ncolumns: {', '.join(stream.schema.names)}")

        for epoch in range(2):
            started = time.perf_counter()
            ids = []
            for batch in loader:
                ids += batch["id"].tolist()  # train on batch["vector"], batch["label"] here
            seconds = time.perf_counter() - started
            if sorted(ids) != list(range(ROWS)):
                sys.exit(f"epoch {epoch} did not see every row exactly once")
            origin = "the cache" if epoch else "Lance, fetched meanwhile"
            print(f"epoch {epoch}: {len(ids):,} rows, each exactly once, shuffled: {ids[:4]} ...")
            print(f"         {len(ids) / seconds:,.0f} rows/s, shards from {origin}")

        report(stream, f"{directory}/cache")


def report(stream: LanceStream, cache: str) -> None:
    """Print what the download process did."""
    files = [entry for entry in os.scandir(cache) if entry.name.endswith(".arrow")]
    shards = [entry for entry in files if ".index." not in entry.name]
    num_bytes = sum(entry.stat().st_size for entry in shards)
    pid = stream.download_process_pid
    print(f"download process {pid}: fetched {len(shards)} of {stream.index.num_shards} shards")
    print(f"cache: {len(shards)} shard files, {num_bytes / 1e6:.1f} MB")
    print(f"lance in the trainer: {'imported' if 'lance' in sys.modules else 'not imported'}")


if __name__ == "__main__":
    main()
