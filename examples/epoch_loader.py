"""A StreamingDataLoader for frameworks that count epochs themselves.

After the last batch of an epoch the state of a StreamingDataLoader is "epoch 0, all of it": a run
that goes on from it first ends that epoch, without any batch. A framework that takes such a
checkpoint for the start of epoch 1 would give that epoch nothing to train on.
"""

from typing import Any

from streaming import StreamingDataLoader, StreamingDataset


class EpochLoader(StreamingDataLoader):
    """A loader whose state at the end of an epoch is the start of the next one."""

    def state_dict(self) -> dict[str, Any] | None:
        state = super().state_dict()
        if (
            state is not None
            and isinstance(self.dataset, StreamingDataset)
            and state["sample_in_epoch"] >= self.dataset.epoch_size
        ):
            return {**state, "epoch": state["epoch"] + 1, "sample_in_epoch": 0}
        return state
