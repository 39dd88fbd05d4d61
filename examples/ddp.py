"""DistributedDataParallel with gloo: each rank streams its own part of every epoch.

    python examples/ddp.py                      # writes a table, starts two ranks here
    torchrun --nproc-per-node 2 examples/ddp.py /data/points.lance

No DistributedSampler: the dataset knows its rank by the variables that torchrun sets, reads the
version that rank 0 found, and shares one download process and one cache with the other ranks of
the node. Every rank gets as many batches as the others, so that none waits in vain for gradients:
where rows do not divide evenly, a few are repeated to fill up the last batches.
"""

import argparse
import os
import subprocess
import sys
import tempfile

import torch
from seen_rows import SeenRows
from small_table import FEATURES, ROWS, write_table
from torch import distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader

from lance_stream import LanceStream, LanceStreamingDataset

EPOCHS = 2
BATCH_SIZE = 25  # of each rank


def train(uri: str, rows: int) -> None:
    """What every rank does."""
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = DistributedDataParallel(torch.nn.Linear(FEATURES, 1))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
    dataset = LanceStreamingDataset(
        streams=[LanceStream(uri)], batch_size=BATCH_SIZE, shuffle=True, batched=True
    )
    loader = DataLoader(dataset, batch_size=None, num_workers=2)

    even = rows % (BATCH_SIZE * dist.get_world_size()) == 0
    seen = SeenRows(rows, may_repeat=0 if even else BATCH_SIZE * dist.get_world_size())
    for epoch in range(EPOCHS):
        seen.begin_epoch()
        for batch in loader:
            loss = torch.nn.functional.mse_loss(model(batch["x"]).squeeze(1), batch["y"])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            seen.add(batch["id"], loss)
        print(f"rank {dist.get_rank()}: {len(seen.ids):,} rows", flush=True)
        seen.end_epoch(epoch)
    dist.destroy_process_group()


def launch(rows: int) -> None:
    """Write a table and start two ranks of this program, as torchrun does."""
    with tempfile.TemporaryDirectory() as directory:
        uri = write_table(directory, rows)
        torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
        torchrun += ["--local-addr", "127.0.0.1", "--nproc-per-node", "2"]
        environ = {
            "LANCE_STREAM_CACHE_DIR": f"{directory}/cache",  # gone with the table
            "GLOO_SOCKET_IFNAME": "lo",
            "OMP_NUM_THREADS": "1",
        }
        command = [*torchrun, __file__, uri, "--rows", str(rows)]
        subprocess.run(command, check=True, env={**os.environ, **environ})


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("uri", nargs="?", help="the table; default: one is written")
    parser.add_argument("--rows", type=int, default=ROWS, help="how many it has")
    arguments = parser.parse_args()
    if arguments.uri is None:
        launch(arguments.rows)
    else:
        train(arguments.uri, arguments.rows)


if __name__ == "__main__":
    main()
