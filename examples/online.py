"""Train while a simulation runs: it appends to a Lance table, the model sees each round of rows.

The producer measures ``y = w . x`` with noise; halfway through, ``w`` changes, and the loss shows
when the model has learnt that. Every round trains two epochs over the newest rows and those of the
round before. Run it with ``python`` where lance_stream is installed; it takes half a minute.
"""

import argparse
import subprocess
import sys
import tempfile

import torch
from rich.live import Live
from rich.table import Table
from torch.utils.data import DataLoader

from lance_stream import LanceStreamingDataset, follow

ROWS_PER_ROUND = 200
FEATURES = 8

# The simulation: a process of its own, which knows nothing of the trainer. It may crash and be
# started again, and may compact its table, while the trainer goes on.
SIMULATION = """
import sys, time, lance, numpy as np, pyarrow as pa
uri, rows, features = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
random, done = np.random.default_rng(0), 0
before, after = random.normal(size=(2, features))
while done < rows:
    x = random.normal(size=(50, features)).astype(np.float32)
    y = x @ (before if done < rows // 2 else after) + random.normal(scale=0.1, size=50)
    table = pa.table({
        "x": pa.FixedSizeListArray.from_arrays(x.ravel(), features),
        "y": pa.array(y, pa.float32()),
    })
    lance.write_dataset(table, uri, mode="append" if done else "create")
    done += 50
    if done % 500 == 0:
        lance.dataset(uri).optimize.compact_files(target_rows_per_fragment=500)
    time.sleep(0.05)
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=12)
    rounds = parser.parse_args().rounds
    model = torch.nn.Linear(FEATURES, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02)
    shown = Table("round", "rows", "version", "loss before", "loss after")
    with tempfile.TemporaryDirectory() as directory, Live(shown, auto_refresh=False) as live:
        uri = f"{directory}/measurements.lance"
        simulation = subprocess.Popen(
            [sys.executable, "-c", SIMULATION, uri, str(rounds * ROWS_PER_ROUND), str(FEATURES)]
        )
        # The table is not there yet: the first round waits for it.
        follower = follow(
            uri,
            rows_per_round=ROWS_PER_ROUND,
            window_rounds=2,
            poll_seconds=0.1,
            timeout=60,
        )
        for each in follower:
            dataset = LanceStreamingDataset(
                streams=[each.stream(f"{directory}/cache")],
                batch_size=20,
                shuffle=True,
                batched=True,
            )
            losses = []
            for _ in range(2):
                for batch in DataLoader(dataset, batch_size=None, num_workers=1):
                    predicted = model(batch["x"]).squeeze(1)
                    loss = torch.nn.functional.mse_loss(predicted, batch["y"])
                    optimizer.zero_grad()
                    loss.backward()
                    optimizer.step()
                    losses.append(loss.item())
            start, stop = each.rows
            shown.add_row(
                str(each.number),
                f"{start} to {stop}",
                str(each.version),
                f"{losses[0]:.4f}",
                f"{losses[-1]:.4f}",
            )
            live.refresh()
            # To go on after a crash: keep follower.state_dict() and dataset.state_dict() with the
            # weights, and give them to load_state_dict().
            if each.number == rounds - 1:
                break
        simulation.wait()


if __name__ == "__main__":
    main()
