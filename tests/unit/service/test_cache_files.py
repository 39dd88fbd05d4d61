from __future__ import annotations

import os
import time
from pathlib import Path

from lance_stream.processes import this_node, this_process
from lance_stream.service.cache_files import ledger_path, sweep_ledgers


def test_ledgers_of_the_dead_are_swept_and_those_of_other_nodes_when_they_are_old(
    tmp_path: Path,
) -> None:
    directory = tmp_path / "cache"
    directory.mkdir()
    pid, started = this_process()
    other = "f" * 12
    kept = [
        Path(ledger_path(str(directory), "a", "f" * 32)).name,
        f".ledger-{pid}-{started}-b",
        f".ledger-{pid}-{started - 5000}-n{other}-c",
        "0" * 20 + ".00000000.arrow",
    ]
    old = f".ledger-{pid}-{started}-n{other}-d"
    swept = [
        f".ledger-{pid}-{started - 5000}-n{this_node()}-e",
        f".ledger-{pid}-{started - 5000}-f",
        ".ledger-strange",
        old,
    ]
    for name in kept + swept:
        (directory / name).touch()
    long_ago = time.time() - 31 * 86400
    os.utime(directory / old, (long_ago, long_ago))

    sweep_ledgers(str(directory))
    assert sorted(os.listdir(directory)) == sorted(kept)
