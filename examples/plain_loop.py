"""A plain PyTorch loop whose checkpoints are taken in the middle of an epoch.

    python examples/plain_loop.py                    # stops in mid-epoch, and goes on
    python examples/plain_loop.py --directory DIR    # end it in any way, and start it again

A checkpoint has the model, the optimizer and the state of the loader: epoch, how many of its
samples were trained on, and which version of the table they are of. A run that goes on from it
trains on exactly the rest of that epoch, in the same order.
"""

import argparse
import os
import tempfile

import torch
from seen_rows import SeenRows
from small_table import FEATURES, ROWS, write_table
from streaming import StreamingDataLoader

from lance_stream import LanceStream, LanceStreamingDataset

EPOCHS = 3
BATCH_SIZE = 50
SAVE_EVERY = 15  # steps


def train(directory: str, *, stop_at_step: int | None = None) -> None:
    """Train, going on from the directory's checkpoint if there is one."""
    path = f"{directory}/checkpoint.pt"
    saved = torch.load(path) if os.path.exists(path) else None

    torch.manual_seed(0)
    model = torch.nn.Linear(FEATURES, 1)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
    # resume= opens the version that the checkpoint is of, also when the table has grown since.
    dataset = LanceStreamingDataset(
        streams=[LanceStream(f"{directory}/points.lance", local=f"{directory}/cache")],
        batch_size=BATCH_SIZE,
        shuffle=True,
        batched=True,
        resume=saved["loader"] if saved else None,
    )
    loader = StreamingDataLoader(dataset, batch_size=None, num_workers=2)

    step, first_epoch, seen = 0, 0, SeenRows(ROWS)
    if saved:
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        step, first_epoch = saved["step"], saved["loader"]["epoch"]
        seen = SeenRows(ROWS, saved["seen"])
        print(f"goes on at step {step}, {len(seen.ids):,} rows into epoch {first_epoch}")

    for epoch in range(first_epoch, EPOCHS):
        seen.begin_epoch()
        for batch in loader:
            loss = torch.nn.functional.mse_loss(model(batch["x"]).squeeze(1), batch["y"])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            seen.add(batch["id"], loss)
            step += 1
            if step % SAVE_EVERY == 0:
                state = {
                    "model": model.state_dict(),
                    "optimizer": optimizer.state_dict(),
                    "loader": loader.state_dict(),  # counts what this loop was given
                    "step": step,
                    "seen": seen.ids,
                }
                torch.save(state, f"{path}.new")
                os.replace(f"{path}.new", path)  # a run that dies here leaves the old one whole
                print(f"step {step}: loss {loss.item():.4f}, saved", flush=True)
            if step == stop_at_step:
                print(f"stops at step {step}, {len(seen.ids):,} rows into epoch {epoch}")
                return
        seen.end_epoch(epoch)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--directory", help="keep table, cache and checkpoint here")
    directory = parser.parse_args().directory
    if directory:
        write_table(directory)
        train(directory)
        return
    with tempfile.TemporaryDirectory() as directory:
        write_table(directory)
        train(directory, stop_at_step=110)
        train(directory)


if __name__ == "__main__":
    main()
