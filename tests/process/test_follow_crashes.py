"""A producer that crashes, a trainer that is killed: each row is in one round, once."""

from __future__ import annotations

import json
import random
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from torch.utils.data import DataLoader

from lance_stream import LanceStreamingDataset, follow
from tests.support.forked import fork
from tests.support.scripts import start_script

ROWS, TIMES, EVERY_S, PER_ROUND = 50, 40, 0.2, 130

_PRODUCER = """
import sys, time, lance, numpy as np, pyarrow as pa
uri, rows, times, every, stable = sys.argv[1], *map(float, sys.argv[2:])
rows, times = int(rows), int(times)

def there():
    try:
        return lance.dataset(uri).count_rows()
    except ValueError:
        return 0

# As a producer goes on that has been killed: from what was committed.
while (first := there()) < rows * times:
    began = time.monotonic()
    i = np.arange(first, first + rows)
    lance.write_dataset(
        pa.table({"i": i, "x": i * 1.0}),
        uri,
        mode="append" if first else "create",
        enable_stable_row_ids=bool(stable),
    )
    if first % (rows * 7) == 0 and first:
        lance.dataset(uri).optimize.compact_files(target_rows_per_fragment=rows * 3)
    time.sleep(max(0.0, began + every - time.monotonic()))
"""


def keep(path: Path, value: object) -> None:
    temporary = path.with_suffix(".tmp")
    temporary.write_text(json.dumps(value))
    temporary.rename(path)


def train(uri: str, out: str, last: int) -> list[Any]:
    """Train to the end of a round, from the states that were kept with what was trained.

    They are kept together in one file: what was trained after it is undone by a kill, as the
    weights of a model are.
    """
    path = Path(out)
    saved = json.loads(path.read_text()) if path.exists() else None
    follower = follow(uri, rows_per_round=PER_ROUND, poll_seconds=0.05, timeout=60, shard_rows=20)
    trained = saved["trained"] if saved else []
    if saved:
        follower.load_state_dict(saved["follower"])
    for each in follower:
        data = LanceStreamingDataset(
            streams=[each.stream()], batch_size=10, shuffle=True, num_canonical_nodes=1
        )
        done = 0
        if saved:
            data.load_state_dict(saved["dataset"])
            done = saved["done"]
        if done < PER_ROUND:
            for batch in DataLoader(data, 10, num_workers=2, collate_fn=list):
                assert all(row["x"] == row["i"] for row in batch)
                trained.append([each.number, [int(row["i"]) for row in batch]])
                done += len(batch)
                states = {"follower": follower.state_dict(), "dataset": data.state_dict(done)}
                keep(path, {**states, "trained": trained, "done": done})
        saved = None
        if each.number == last:
            break
    return trained


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    "seed",
    [seed if seed < 2 else pytest.param(seed, marks=pytest.mark.slow) for seed in range(20)],
)
def test_each_row_is_trained_on_once_through_kills(tmp_path: Path, seed: int) -> None:
    """With and without stable row ids; the producer compacts now and then."""
    dice = random.Random(seed)
    uri, out = str(tmp_path / "t.lance"), tmp_path / "state.json"
    num_rounds = ROWS * TIMES // PER_ROUND
    arguments = [uri, str(ROWS), str(TIMES), str(EVERY_S), str(seed % 2)]
    producer = start_script(_PRODUCER, *arguments)
    crash_at = time.monotonic() + dice.uniform(0.5, 5)
    restarted = False
    deadline = time.monotonic() + 240
    kills = 0
    while True:
        trainer = fork(train, uri, str(out), num_rounds - 1)
        until = time.monotonic() + (dice.uniform(0.3, 4) if kills < 5 else 240)
        while trainer.poll() is None and time.monotonic() < min(until, deadline):
            if not restarted and time.monotonic() > crash_at:
                producer.kill_group()
                producer.close()
                producer = start_script(_PRODUCER, *arguments)
                restarted = True
            time.sleep(0.01)
        assert time.monotonic() < deadline, trainer.output()
        if trainer.poll() is not None:
            break
        trainer.kill()
        kills += 1
    trained = trainer.wait(5)
    producer.wait(60).check()
    producer.close()
    rounds: dict[int, Counter[int]] = {}
    for number, rows in trained:
        rounds.setdefault(number, Counter()).update(rows)
    assert restarted
    assert kills
    assert {number: sorted(rows.elements()) for number, rows in rounds.items()} == {
        number: list(range(number * PER_ROUND, (number + 1) * PER_ROUND))
        for number in range(num_rounds)
    }
