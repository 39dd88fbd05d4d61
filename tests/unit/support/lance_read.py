"""A lance read in a process of its own, told as a value."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tests.support.scripts import run_script

# One request per failure: what lance would retry is seen as an error at once.
NO_RETRIES = {"client_max_retries": "0", "lance_aimd_max_retries": "0", "timeout": "1s"}

_SCRIPT = """
    import json, sys
    import lance
    import numpy as np
    from tests.support.tables import assert_row

    request = json.loads(sys.argv[1])
    outcome = {"rows": 0, "wrong_rows": [], "error": None, "error_kind": None}
    try:
        dataset = lance.dataset(request["uri"], storage_options=request["storage_options"])
        for i, row in zip(request["rows"], dataset.take(request["rows"]).to_pylist()):
            row["v"] = np.array(row["v"], np.float32)
            outcome["rows"] += 1
            try:
                assert_row(row, i)
            except AssertionError:
                outcome["wrong_rows"].append(i)
    except BaseException as error:  # a Rust panic is no Exception
        outcome["error_kind"] = type(error).__name__
        outcome["error"] = str(error)
    print(json.dumps(outcome))
"""


@dataclass(frozen=True)
class Outcome:
    """What came of opening a table and taking rows from it."""

    rows: int
    wrong_rows: list[int]
    error: str | None
    error_kind: str | None

    @property
    def good(self) -> bool:
        """All rows came, each as it was written."""
        return self.error is None and self.rows > 0 and not self.wrong_rows


def read_table(
    uri: str, storage_options: Mapping[str, str], rows: Sequence[int] = range(2000)
) -> Outcome:
    """Opens a table of `write_table` and takes rows, in a new process (0.4 s)."""
    request = {"uri": uri, "storage_options": dict(storage_options), "rows": list(rows)}
    return Outcome(**run_script(_SCRIPT, json.dumps(request), timeout_s=40).json())
