"""A process that appends to a Lance table and does worse to it, as a producer of data does.

Row i of its tables has the columns ``i`` (int64) and ``x`` (float64), both i.
"""

from __future__ import annotations

import json
import subprocess
import sys
from types import TracebackType
from typing import Any

from tests.support.processes import leashed
from tests.support.scripts import REPO_ROOT

__all__ = ["Producer"]

_MAIN = "from tests.support.producer import main; main()"


class Producer:
    """The process; a context manager. Commands are done one after the other."""

    def __init__(
        self, uri: str, *, stable_row_ids: bool = False, options: dict[str, str] | None = None
    ) -> None:
        self.rows = 0
        self._process = subprocess.Popen(
            leashed([sys.executable, "-c", _MAIN]),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            cwd=REPO_ROOT,
            start_new_session=True,
        )
        self._do(uri=uri, stable=stable_row_ids, options=options)

    def __enter__(self) -> Producer:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._process.kill()
        self._process.communicate()

    def append(self, rows: int, times: int = 1) -> int:
        """Append the next rows, in so many versions; the version."""
        version = 0
        for _ in range(times):
            version = self._do(op="append", first=self.rows, rows=rows)
            self.rows += rows
        return version

    def compact(self, target: int = 1_000_000) -> int:
        """Compact the fragments that have fewer rows than that."""
        return self._do(op="compact", target=target)

    def merge(self, updates: int, inserts: int) -> int:
        """Update the first rows, and insert the next."""
        version = self._do(op="merge", updates=updates, first=self.rows, inserts=inserts)
        self.rows += inserts
        return version

    def run(self, op: str, **arguments: Any) -> int:
        """Another operation (see ``main``); the version after it."""
        return self._do(op=op, **arguments)

    def _do(self, **command: Any) -> int:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(command).encode() + b"\n")
        self._process.stdin.flush()
        answer = json.loads(self._process.stdout.readline() or '"the producer ended"')
        assert isinstance(answer, int), answer
        return answer


def main() -> None:
    """In the process: do what is asked on stdin."""
    import datetime as dt
    import shutil

    import lance
    import numpy as np
    import pyarrow as pa

    settings = json.loads(sys.stdin.readline())
    uri, options = settings["uri"], settings["options"]
    stable = {"enable_stable_row_ids": settings["stable"], "storage_options": options}

    def rows(first: int, stop: int, plus: float = 0.0) -> pa.Table:
        i = np.arange(first, stop)
        return pa.table({"i": i, "x": i.astype(np.float64) + plus})

    def do(op: str, **a: Any) -> None:
        if op == "append":
            mode = "append" if a["first"] else "create"
            more = rows(a["first"], a["first"] + a["rows"])
            lance.write_dataset(more, uri, mode=mode, **stable)
            return
        if op == "create_empty":
            lance.write_dataset(rows(0, 0), uri, mode="create", **stable)
            return
        if op == "overwrite":
            lance.write_dataset(rows(0, a["rows"]), uri, mode="overwrite", **stable)
            return
        if op == "drop":
            shutil.rmtree(uri)
            return
        table = lance.dataset(uri, storage_options=options)
        if op == "compact":
            table.optimize.compact_files(target_rows_per_fragment=a["target"])
        elif op == "merge":
            changed = pa.concat_tables(
                [rows(0, a["updates"], 0.5), rows(a["first"], a["first"] + a["inserts"])]
            )
            merge = table.merge_insert("i").when_matched_update_all()
            merge.when_not_matched_insert_all().execute(changed)
        elif op == "delete":
            table.delete(a["where"])
        elif op == "update":
            table.update({"x": "x + 1"}, where=a["where"])
        elif op == "restore":
            lance.dataset(uri, version=a["version"]).restore()
        elif op == "add_column":
            table.add_columns({a["name"]: "x * 2"})
        elif op == "drop_column":
            table.drop_columns([a["name"]])
        elif op == "retype":
            table.alter_columns({"path": a["name"], "data_type": pa.float32()})
        elif op == "rename":
            table.alter_columns({"path": a["name"], "name": a["to"]})
        elif op == "index":
            table.create_scalar_index("i", "BTREE")
        elif op == "cleanup":
            table.cleanup_old_versions(older_than=dt.timedelta(0))
        else:
            raise ValueError(op)

    def say(what: int | str) -> None:
        sys.stdout.write(json.dumps(what) + "\n")
        sys.stdout.flush()

    say(0)
    for line in sys.stdin:
        try:
            command = json.loads(line)
            do(**command)
            version = 0
            if command["op"] != "drop":
                version = lance.dataset(uri, storage_options=options).version
            say(version)
        except Exception as error:  # noqa: BLE001
            say(f"{type(error).__name__}: {error}")
