"""PyTorch Lightning: fit, a checkpoint in the middle of an epoch, and fit again from there.

    python examples/lightning_trainer.py                    # stops in mid-epoch, and goes on
    torchrun --nproc-per-node 2 examples/lightning_trainer.py --directory DIR

Lightning keeps the state of a loader that has one in its checkpoints, and loads it again with
``ckpt_path``: the rest of the epoch is trained on, and nothing twice. It warns that the dataset
"has __len__ defined", for datasets that do not divide their rows among workers; this one does.

Start several ranks with torchrun. Those that Lightning starts by itself (``devices=2`` under plain
``python``) are not told RANK and LOCAL_WORLD_SIZE, which streaming reads: each would take itself
for rank 0.
"""

import argparse
import os
import tempfile
from typing import Any

import lightning.pytorch as lightning
import torch
from epoch_loader import EpochLoader
from lightning.pytorch.callbacks import ModelCheckpoint
from seen_rows import SeenRows
from small_table import FEATURES, ROWS, write_table

from lance_stream import LanceStream, LanceStreamingDataset

EPOCHS = 3
BATCH_SIZE = 50  # of each rank
SAVE_EVERY = 30  # steps


class Points(lightning.LightningModule):
    """A linear model."""

    def __init__(self) -> None:
        super().__init__()
        self.model = torch.nn.Linear(FEATURES, 1)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.Adam(self.parameters(), lr=0.02)

    def training_step(self, batch: dict[str, Any]) -> torch.Tensor:
        return torch.nn.functional.mse_loss(self.model(batch["x"]).squeeze(1), batch["y"])


class ShowEpochs(lightning.Callback):
    """Prints after each epoch that its rows are exact, also when it was gone on with."""

    def __init__(self) -> None:
        self.seen = SeenRows(ROWS)

    def on_train_epoch_start(self, trainer: Any, pl_module: Any) -> None:
        self.seen.begin_epoch()

    def on_train_batch_end(
        self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        self.seen.add(batch["id"], outputs["loss"])

    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        if trainer.is_last_batch:
            self.seen.end_epoch(trainer.current_epoch)
        elif trainer.is_global_zero:
            print(f"stops at step {trainer.global_step}, in epoch {trainer.current_epoch}")

    def on_save_checkpoint(self, trainer: Any, pl_module: Any, checkpoint: Any) -> None:
        checkpoint["seen"] = [] if trainer.is_last_batch else self.seen.of_all_ranks()

    def on_load_checkpoint(self, trainer: Any, pl_module: Any, checkpoint: Any) -> None:
        self.seen = SeenRows(ROWS, checkpoint["seen"])


class Rows(lightning.LightningDataModule):
    """Makes the loader when Lightning asks for it: its ranks have met by then."""

    def __init__(self, directory: str) -> None:
        super().__init__()
        self.directory = directory

    def train_dataloader(self) -> EpochLoader:
        stream = LanceStream(f"{self.directory}/points.lance", local=f"{self.directory}/cache")
        dataset = LanceStreamingDataset(
            streams=[stream], batch_size=BATCH_SIZE, shuffle=True, batched=True
        )
        return EpochLoader(dataset, batch_size=None, num_workers=2)


def fit(
    directory: str,
    *,
    max_steps: int = -1,
    save_every: int = SAVE_EVERY,
    checkpoint: str | None = None,
) -> str:
    """Train, going on from the checkpoint if one is given; gives the path of the last one."""
    saving = ModelCheckpoint(f"{directory}/checkpoints", every_n_train_steps=save_every)
    trainer = lightning.Trainer(
        accelerator="cpu",
        devices=int(os.environ.get("LOCAL_WORLD_SIZE", "1")),
        max_epochs=EPOCHS,
        max_steps=max_steps,
        callbacks=[ShowEpochs(), saving],
        default_root_dir=directory,
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(Points(), Rows(directory), ckpt_path=checkpoint)
    return saving.best_model_path


def run(directory: str) -> None:
    checkpoint = fit(directory, max_steps=110)
    if os.environ.get("RANK", "0") == "0":
        print(f"goes on from {os.path.basename(checkpoint)}", flush=True)
    fit(directory, checkpoint=checkpoint)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--directory", help="keep table, cache and checkpoints here")
    directory = parser.parse_args().directory
    if directory:
        if os.environ.get("LOCAL_RANK", "0") == "0":
            write_table(directory)
        run(directory)
        return
    with tempfile.TemporaryDirectory() as directory:
        write_table(directory)
        run(directory)


if __name__ == "__main__":
    main()
