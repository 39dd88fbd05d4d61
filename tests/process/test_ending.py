"""How a program ends that has streamed: with its own status, whatever threads do then."""

from __future__ import annotations

from contextlib import ExitStack

from tests.support.scripts import start_script

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
