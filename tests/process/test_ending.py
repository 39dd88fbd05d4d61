"""How a program ends that has streamed: with its own status, whatever threads do then."""

from __future__ import annotations

from contextlib import ExitStack

import pytest

from tests.support.scripts import run_script, start_script

_SCRIPT = """
import sys
from lance_stream.host import watch
from tests.support.streams import batches, dataset
# So that the thread is nearly always at it, and hundreds of mapped shards have to be let go.
watch._LOOK_EVERY_S = 0.0005
def main():
    data = dataset(sys.argv[1], shard_rows=10, batch_size=8)
    print(sum(len(batch) for batch in batches(data, 0)), flush=True)
if __name__ == "__main__":
    main()
"""


def test_a_dataset_that_goes_with_the_interpreter(table_5000: str) -> None:
    """No thread is stopped while it frees mapped files: Arrow would end the process for it."""
    with ExitStack() as stack:
        scripts = [stack.enter_context(start_script(_SCRIPT, table_5000)) for _ in range(2)]
        for script in scripts:
            assert script.wait(100).check().stdout == "5000\n"


_KEPT = """
import sys
import lance_stream.host.dataset as module
import lance_stream.planning.layout as planning
from lance_stream import LanceStream, LanceStreamingDataset

if __name__ == "__main__":
    uri, kind = sys.argv[1:]
    data = LanceStreamingDataset(
        streams=[LanceStream(uri, shard_rows=10)], batch_size=8, batched=kind == "batches"
    )
    iterator = iter(data)
    print(len(next(iterator)), flush=True)
    # As where a library was given a function of this script: they go with its modules.
    planning.hook = lambda: (iterator, module)
"""


@pytest.mark.parametrize("kind", ["samples", "batches"])
def test_an_iterator_that_is_kept_to_the_end(table_100: str, kind: str) -> None:
    """Nothing is said when it is closed, after the modules it is made of."""
    done = run_script(_KEPT, table_100, kind, timeout_s=60).check()
    assert done.stdout == "3\n"
    assert "Exception ignored" not in done.stderr
    assert "Traceback" not in done.stderr
