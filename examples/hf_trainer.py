"""Hugging Face Trainer: train, a checkpoint in the middle of an epoch, and train on from there.

    python examples/hf_trainer.py                    # stops in mid-epoch, and goes on
    torchrun --nproc-per-node 2 examples/hf_trainer.py --directory DIR

Left alone, Trainer divides an IterableDataset among the ranks by itself: rank 0 reads and hands
out its batches, or each rank keeps every so many of those it reads. This dataset has divided its
rows already: either way some would never be seen. And it goes on from a checkpoint by reading
again what was trained on, in the order of another epoch. ``LanceTrainer`` takes the loader as it
is, and ``KeepLoader`` puts its state into the checkpoints.
"""

import argparse
import json
import os
import tempfile
from pathlib import Path
from typing import Any

import torch
from epoch_loader import EpochLoader
from seen_rows import SeenRows
from small_table import FEATURES, ROWS, write_table
from transformers import PrinterCallback, Trainer, TrainerCallback, TrainingArguments

from lance_stream import LanceStream, LanceStreamingDataset

EPOCHS = 3
BATCH_SIZE = 50  # of each rank
SAVE_EVERY = 30  # steps


class Points(torch.nn.Module):
    """A linear model that gives its loss, as Trainer wants it."""

    def __init__(self) -> None:
        super().__init__()
        self.model = torch.nn.Linear(FEATURES, 1)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"loss": torch.nn.functional.mse_loss(self.model(x).squeeze(1), y)}


class LanceTrainer(Trainer):
    """A Trainer for a loader whose dataset divides its rows among ranks and workers."""

    def __init__(self, loader: EpochLoader, seen: SeenRows, **arguments: Any) -> None:
        super().__init__(train_dataset=loader.dataset, **arguments)
        self.loader = loader
        self.seen = seen

    def get_train_dataloader(self) -> EpochLoader:
        return self.loader  # not through accelerator.prepare(), which divides the rows again

    def training_step(
        self, model: Any, inputs: dict[str, Any], num_items_in_batch: Any = None
    ) -> torch.Tensor:
        ids = inputs.pop("id")
        loss = super().training_step(model, inputs, num_items_in_batch)
        self.seen.add(ids, loss)
        return loss


class KeepLoader(TrainerCallback):
    """Puts the state of the loader into each checkpoint, and shows that epochs are exact."""

    def __init__(self, loader: EpochLoader, seen: SeenRows, stop_at_step: int | None) -> None:
        self.loader = loader
        self.seen = seen
        self.stop_at_step = stop_at_step

    def on_epoch_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.seen.begin_epoch()

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        control.should_training_stop |= state.global_step == self.stop_at_step

    def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        at_end = state.global_step % len(self.loader) == 0
        seen = [] if at_end else self.seen.of_all_ranks()
        if state.is_world_process_zero:
            saved = {"loader": self.loader.state_dict(), "seen": seen}
            path = Path(args.output_dir, f"checkpoint-{state.global_step}", "loader.json")
            path.write_text(json.dumps(saved))

    def on_epoch_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.global_step % len(self.loader) == 0:
            self.seen.end_epoch(round(state.epoch) - 1)
        elif state.is_world_process_zero:
            print(f"stops at step {state.global_step}, in epoch {int(state.epoch)}", flush=True)


def train(
    directory: str,
    *,
    stop_at_step: int | None = None,
    save_every: int = SAVE_EVERY,
    checkpoint: str | None = None,
) -> None:
    """Train, going on from the checkpoint if one is given."""
    ranks = int(os.environ.get("WORLD_SIZE", "1"))
    # First of all: it has the ranks of torchrun meet.
    arguments = TrainingArguments(
        output_dir=f"{directory}/checkpoints",
        num_train_epochs=EPOCHS,
        learning_rate=0.02,
        lr_scheduler_type="constant",
        save_steps=save_every,
        logging_strategy="no",
        ignore_data_skip=True,  # the dataset goes on by itself
        use_cpu=True,
        ddp_backend="gloo" if ranks > 1 else None,
        ddp_find_unused_parameters=False,
        disable_tqdm=True,
        report_to="none",
    )
    saved = json.loads(Path(checkpoint, "loader.json").read_text()) if checkpoint else None
    dataset = LanceStreamingDataset(
        streams=[LanceStream(f"{directory}/points.lance", local=f"{directory}/cache")],
        batch_size=BATCH_SIZE,
        shuffle=True,
        batched=True,
        resume=saved["loader"] if saved else None,
    )
    loader = EpochLoader(dataset, batch_size=None, num_workers=2)
    seen = SeenRows(ROWS, saved["seen"] if saved else ())
    keep = KeepLoader(loader, seen, stop_at_step)
    trainer = LanceTrainer(loader, seen, model=Points(), args=arguments, callbacks=[keep])
    trainer.remove_callback(PrinterCallback)
    trainer.train(resume_from_checkpoint=checkpoint)


def run(directory: str) -> None:
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        # On CPUs Trainer cannot go on with several ranks: torch loads nothing to "cpu:0".
        train(directory)
        return
    train(directory, stop_at_step=110)
    print("goes on from checkpoint-90")
    train(directory, checkpoint=f"{directory}/checkpoints/checkpoint-90")


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
