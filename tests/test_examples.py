"""Every example, as a user starts it: exact rows, also through checkpoints and over ranks."""

from __future__ import annotations

import re
import runpy
import signal
from collections.abc import Iterable
from pathlib import Path

import pytest

from tests.support.scripts import ScriptResult, run_script, start_script

ROOT = Path(__file__).parent.parent
EXAMPLES = ROOT / "examples"
SECONDS = 115
EXACT = "4,000 rows, each exactly once"
# Ranks meet on loopback, and two of them share two cores.
ENVIRON = {"GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}

_TORCHRUN = """
import os, sys
run = ["-m", "torch.distributed.run", "--standalone", "--local-addr", "127.0.0.1"]
os.execv(sys.executable, [sys.executable, *run, "--nproc-per-node", "2", *sys.argv[1:]])
"""
_SPAWN = """
import multiprocessing, runpy, sys
if __name__ == "__main__":
    multiprocessing.set_start_method("spawn")
    sys.argv = sys.argv[1:]
    sys.path.insert(0, sys.argv[0].rpartition("/")[0])
    runpy.run_path(sys.argv[0], run_name="__main__")
"""
_AGAIN = """
import runpy, sys, threading
folder, *names = sys.argv[1:]
sys.path.insert(0, folder)
for name in names:
    runpy.run_path(f"{folder}/{name}", run_name="__mp_main__")
from lance_stream.host.settling import _Job
print("ready" if _Job.endpoint is None else "a download process was started")
"""
# Trains to a checkpoint that is taken at the very end of an epoch, and on from there.
_LIGHTNING_AT_END = """
import sys
directory, examples = sys.argv[1:]
sys.path.insert(0, examples)
import lightning_trainer as example
example.write_table(directory)
checkpoint = example.fit(directory, max_steps=110, save_every=80)
print("goes on", flush=True)
example.fit(directory, checkpoint=checkpoint)
"""
_HF_AT_END = """
import sys
directory, examples = sys.argv[1:]
sys.path.insert(0, examples)
import hf_trainer as example
example.write_table(directory)
example.train(directory, stop_at_step=110, save_every=80)
print("goes on", flush=True)
example.train(directory, checkpoint=f"{directory}/checkpoints/checkpoint-80")
"""
# What becomes of the rows if each rank keeps every second batch of its own: the example without
# its override. (By default rank 0 would read for all, and wait for the other ranks' datasets.)
_HF_LEFT_ALONE = """
import sys
directory, examples = sys.argv[1:]
sys.path.insert(0, examples)
import hf_trainer as example
from seen_rows import SeenRows, exactness

class Kept(SeenRows):
    def __init__(self, *arguments):
        super().__init__(*arguments)
        kept.append(self)

def arguments(**options):
    options |= {"num_train_epochs": 1, "per_device_train_batch_size": example.BATCH_SIZE}
    options |= {"accelerator_config": {"dispatch_batches": False}, "remove_unused_columns": False}
    return Arguments(**options)

def samples(**options):
    return Dataset(**{**options, "batched": False})

if __name__ == "__main__":
    kept = []
    Arguments, example.TrainingArguments = example.TrainingArguments, arguments
    Dataset, example.LanceStreamingDataset = example.LanceStreamingDataset, samples
    example.SeenRows = Kept
    del example.LanceTrainer.get_train_dataloader
    example.train(directory)
    exactness(kept[0].of_all_ranks(), 4000)
"""


def programs() -> list[str]:
    """Names of the examples that are started, not imported by others."""
    return [path.name for path in EXAMPLES.glob("*.py") if "\ndef main(" in path.read_text()]


def run(name: str, *args: object) -> str:
    """What an example prints."""
    return run_script(EXAMPLES / name, *args, timeout_s=SECONDS).check().stdout


def on_two_ranks(script: Path, *args: object) -> ScriptResult:
    with start_script(_TORCHRUN, script, *args, env=ENVIRON) as job:
        return job.wait(SECONDS)


def assert_exact(printed: str, epochs: Iterable[int]) -> None:
    """Each of the epochs, in this order and no other, has a line that says it was exact."""
    lines = re.findall(r"epoch (\d+): loss (\S+), [\d,]+ rows/s, (.*)", printed)
    assert [int(epoch) for epoch, _, _ in lines] == list(epochs), printed
    assert {words for _, _, words in lines} == {EXACT}, printed
    # The noise of the table is 0.1: what is left of the loss once the function is found.
    assert float(lines[-1][1]) < 0.05, printed


def test_plain_loop() -> None:
    """Stops in the middle of epoch 1 after a checkpoint, and trains on the rest of it."""
    printed = run("plain_loop.py")
    assert "stops at step 110, 1,500 rows into epoch 1" in printed
    assert "goes on at step 105, 1,250 rows into epoch 1" in printed
    assert_exact(printed, [0, 1, 2])


def test_ddp() -> None:
    """Two ranks, each with its half of every epoch."""
    printed = run("ddp.py")
    for rank in range(2):
        assert printed.count(f"rank {rank}: 2,000 rows") == 2
    assert_exact(printed, [0, 1])


def test_lightning() -> None:
    """Lightning's own checkpoints have the place in the epoch."""
    printed = run("lightning_trainer.py")
    assert "stops at step 110, in epoch 1" in printed
    assert "goes on from epoch=1-step=90.ckpt" in printed
    assert_exact(printed, [0, 1, 2])


def test_hugging_face_trainer() -> None:
    """Its checkpoints, with the state of the loader beside them, have the place in the epoch."""
    printed = run("hf_trainer.py")
    assert "stops at step 110, in epoch 1" in printed
    assert_exact(printed, [0, 1, 2])


def test_hugging_face_trainer_on_two_ranks(tmp_path: Path) -> None:
    """Trainer does not divide again what the dataset has divided among the ranks."""
    done = on_two_ranks(EXAMPLES / "hf_trainer.py", "--directory", tmp_path).check()
    assert_exact(done.stdout, [0, 1, 2])


@pytest.mark.slow
def test_hugging_face_trainer_left_alone(tmp_path: Path) -> None:
    """Without the example's override rows are lost, and the example's count shows it."""
    run_script(EXAMPLES / "small_table.py", tmp_path / "points.lance", 4000).check()
    script = tmp_path / "left_alone.py"
    script.write_text(_HF_LEFT_ALONE)
    done = on_two_ranks(script, tmp_path, EXAMPLES)
    assert done.returncode != 0
    assert re.search(r"NOT EXACT: of 4,000 rows [1-9][\d,]* are missing", done.stderr), done


@pytest.mark.slow
def test_lightning_on_two_ranks(tmp_path: Path) -> None:
    """Each rank its half, also of an epoch that is gone on with."""
    done = on_two_ranks(EXAMPLES / "lightning_trainer.py", "--directory", tmp_path).check()
    assert "goes on from epoch=2-step=90.ckpt" in done.stdout
    assert_exact(done.stdout, [0, 1, 2])


@pytest.mark.slow
@pytest.mark.parametrize("script", [_LIGHTNING_AT_END, _HF_AT_END], ids=["lightning", "hf"])
def test_checkpoint_at_the_end_of_an_epoch(tmp_path: Path, script: str) -> None:
    """The next epoch is whole: the framework does not take an empty rest for it."""
    done = run_script(script, tmp_path, EXAMPLES, timeout_s=SECONDS).check()
    first, _, second = done.stdout.partition("goes on")
    assert_exact(first, [0])
    assert_exact(second, [1, 2])


@pytest.mark.slow
def test_plain_loop_is_killed(tmp_path: Path) -> None:
    """kill -9 at some step; the same command goes on from the last checkpoint."""
    directory = tmp_path / "run"
    with start_script(EXAMPLES / "plain_loop.py", "--directory", directory) as first:
        first.wait_for_line("step 105: .* saved", SECONDS)
        first.kill_group(signal.SIGKILL)
        assert first.wait(10).returncode == -signal.SIGKILL
    printed = run("plain_loop.py", "--directory", directory)
    resumed = re.search(r"goes on at step (\d+), [\d,]+ rows into epoch (\d)", printed)
    assert resumed is not None
    assert int(resumed.group(1)) >= 105
    assert_exact(printed, range(int(resumed.group(2)), 3))


@pytest.mark.slow
def test_ddp_with_rows_that_do_not_divide() -> None:
    """Ranks have as many rows; a few come twice, none is left out."""
    printed = run("ddp.py", "--rows", 1003)
    repeated = re.findall(r"1,003 rows, each seen, (\d+) repeated to fill up", printed)
    assert len(repeated) == 2, printed
    assert all(0 < int(rows) <= 50 for rows in repeated)
    assert len(set(re.findall(r"rank \d: (\d+) rows", printed))) == 1


@pytest.mark.slow
def test_spawned_workers() -> None:
    """DataLoader workers that are spawned import the example again."""
    # Each worker of each epoch imports torch and streaming.
    done = run_script(_SPAWN, EXAMPLES / "plain_loop.py", timeout_s=400).check()
    assert_exact(done.stdout, [0, 1, 2])


@pytest.mark.slow
def test_importing_an_example_again_does_nothing() -> None:
    """That is what spawned workers do, before anything else, also of those not run above."""
    done = run_script(_AGAIN, EXAMPLES, *programs(), timeout_s=100).check()
    assert done.stdout == "ready\n"


@pytest.mark.parametrize(
    ("ids", "said"),
    [
        ([0, 2], "of 3 rows 1 are missing, 0 repeated, 0 foreign"),
        ([0, 1, 2, 2], "of 3 rows 0 are missing, 1 repeated, 0 foreign"),
        ([0, 1, 2, 3], "of 3 rows 0 are missing, 0 repeated, 1 foreign"),
        ([], "of 3 rows 3 are missing"),
    ],
)
def test_rows_that_are_not_exact(ids: list[int], said: str) -> None:
    """The count on which the tests above rest sees what is lost and what comes twice."""
    exactness = runpy.run_path(str(EXAMPLES / "seen_rows.py"))["exactness"]
    with pytest.raises(SystemExit, match=said):
        exactness(ids, 3)
    assert exactness([2, 0, 1], 3) == "3 rows, each exactly once"
    assert exactness([2, 0, 1, 1], 3, 1).startswith("3 rows, each seen, 1 repeated")


def test_every_example_is_listed() -> None:
    """docs/examples.md names each program, with the command that a test runs, and no other."""
    text = (ROOT / "docs" / "examples.md").read_text()
    assert set(re.findall(r"python examples/(\S+\.py)", text)) == set(programs())
    helpers = {path.name for path in EXAMPLES.glob("*.py")} - set(programs())
    assert set(re.findall(r"`(\w+\.py)`", text)) == helpers
