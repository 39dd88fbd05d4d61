"""A process that keeps Lance loaded: writes tables of any type, and fetches shards of them.

The pytest process may not import lance, and a process of its own for every table takes half a
second. Tables go there as Arrow IPC streams; what comes back are paths of index and shard files,
which the caller opens as a trainer does.
"""

from __future__ import annotations

import json
import os
import selectors
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from tests.support.processes import kill_group, leashed, tail
from tests.support.scripts import REPO_ROOT

if TYPE_CHECKING:
    import pyarrow as pa

    from lance_stream.planning.index import ShardIndex

__all__ = ["Fetched", "LanceProcess", "Refused"]

_MAIN = "from tests.support.lance_process import main; main()"
_PAUSE_S = 60.0


class Refused(Exception):  # noqa: N818
    """Lance, or lance_stream, refused what was asked: name of the exception class, and text."""

    def __init__(self, name: str, message: str) -> None:
        super().__init__(f"{name}: {message}")
        self.name = name
        self.message = message


@dataclass(frozen=True)
class Fetched:
    """The shards of a table.

    Attributes:
        index: The plan.
        fingerprint: Of what is cached, as files have it.
        paths: A file per shard.
    """

    index: ShardIndex
    fingerprint: str
    paths: list[str]

    def samples(self, cache_format: str = "arrow", *, zero_copy: bool = False) -> list[Any]:
        """Every sample in order, read as a trainer does."""
        from lance_stream.shards.header import ShardHeader
        from lance_stream.shards.shard_file import open_shard

        found = []
        for shard, path in enumerate(self.paths):
            rows = len(self.index.shard_rows(shard))
            header = ShardHeader(self.fingerprint, shard, rows)
            opened = open_shard(cache_format, path, header, self.index.schema, verified=None)
            sample = opened.samples(zero_copy=zero_copy)
            found += [sample(row) for row in range(rows)]
        return found


class LanceProcess:
    """The process; a context manager. It dies with the thread that starts it."""

    def __init__(self) -> None:
        """Start it; Lance is loaded (1 s) while the caller goes on."""
        self._directory = tempfile.TemporaryDirectory(prefix="lance-process-")
        self._names = count()
        log = Path(self._directory.name, "log")
        self._log = log
        path = os.pathsep.join([str(REPO_ROOT), os.environ.get("PYTHONPATH", "")])
        with log.open("wb") as stderr:
            self._process = subprocess.Popen(
                leashed([sys.executable, "-c", _MAIN]),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=stderr,
                env={**os.environ, "PYTHONPATH": path},
                start_new_session=True,
            )

    def __enter__(self) -> LanceProcess:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        kill_group(self._process.pid)
        self._process.communicate()
        self._directory.cleanup()

    def new_path(self, suffix: str = "") -> str:
        """A path that is not there, in a directory that goes with the process."""
        return os.path.join(self._directory.name, f"{next(self._names)}{suffix}")

    def write(
        self,
        table: pa.Table,
        *,
        uri: str | None = None,
        version: str | None = None,
        rows_per_file: int = 1_000_000,
        delete: str = "",
        mode: str = "create",
    ) -> str:
        """Write a table to Lance.

        Args:
            table: The rows.
            uri: Where; default a new place.
            version: Data storage version.
            rows_per_file: The most rows of one fragment.
            delete: Predicate of rows to delete afterwards.
            mode: As in ``lance.write_dataset``.

        Returns:
            The table's uri.

        Raises:
            Refused: Lance does not write such a table.
        """
        import pyarrow as pa

        uri, path = uri or self.new_path(".lance"), self.new_path(".arrows")
        # The stream format: a dictionary may change from batch to batch.
        with pa.ipc.new_stream(path, table.schema) as writer:
            writer.write_table(table)
        self.call(
            "write",
            path=path,
            uri=uri,
            version=version,
            rows_per_file=rows_per_file,
            delete=delete,
            mode=mode,
        )
        os.unlink(path)
        return uri

    def fetch(self, uri: str, **plan: Any) -> Fetched:
        """Plan a table and fetch all of its shards.

        Args:
            uri: The table.
            plan: Fields of a ``Plan`` message.

        Raises:
            Refused: What a user would get: names of errors are those of ``lance_stream.errors``.
        """
        from lance_stream.planning.index import ShardIndex

        directory = self.new_path()
        os.mkdir(directory)
        made = self.call("fetch", uri=uri, directory=directory, plan=plan)
        index = ShardIndex.load(made["index"])
        return Fetched(index, made["fingerprint"], made["paths"])

    def run(self, source: str, *args: Any) -> Any:
        """Run statements that see ``lance``, ``pa`` and ``args``, and set ``result`` (JSON)."""
        return self.call("run", source=source, args=args)

    def call(self, command: str, **arguments: Any) -> Any:
        """Have a command carried out.

        Raises:
            Refused: It raised.
            AssertionError: The process ended, or did not answer; shows the end of its log.
        """
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        line = json.dumps({"command": command, "arguments": arguments}) + "\n"
        try:
            self._process.stdin.write(line.encode())
            self._process.stdin.flush()
            with selectors.DefaultSelector() as selector:
                selector.register(self._process.stdout, selectors.EVENT_READ)
                answered = selector.select(_PAUSE_S)
            answer = json.loads(self._process.stdout.readline()) if answered else None
        except (OSError, ValueError) as error:
            raise AssertionError(f"{command}: {error}\n{tail(self._log)}") from error
        if answer is None:
            raise AssertionError(f"{command}: no answer in {_PAUSE_S} s\n{tail(self._log)}")
        if "error" in answer:
            raise Refused(*answer["error"])
        return answer["result"]


def main() -> None:
    """Carry out commands from stdin until it ends."""
    # Whatever prints does so to the log.
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    commands = {"write": _write, "fetch": _fetch, "run": _run}
    for line in sys.stdin:
        request = json.loads(line)
        try:
            answer = {"result": commands[request["command"]](**request["arguments"])}
        except BaseException as error:  # noqa: BLE001 - Lance panics are not Exceptions
            traceback.print_exc()
            answer = {"error": [type(error).__name__, str(error)]}
        answers.write(json.dumps(answer).encode() + b"\n")
        answers.flush()


def _write(
    path: str, uri: str, version: str | None, rows_per_file: int, delete: str, mode: str
) -> None:
    # First, as it registers Arrow extension types.
    import lance
    import pyarrow as pa

    # Lance panics of a decimal that is aligned as IPC has it.
    options = pa.ipc.IpcReadOptions(ensure_alignment=pa.ipc.Alignment.At64Byte)
    with pa.ipc.open_stream(path, options=options) as reader:
        dataset = lance.write_dataset(
            reader,
            uri,
            mode=mode,
            max_rows_per_file=rows_per_file,
            data_storage_version=version,
        )
    if delete:
        dataset.delete(delete)


def _fetch(uri: str, directory: str, plan: dict[str, Any]) -> dict[str, Any]:
    from lance_stream.service.fetching import Fetcher
    from lance_stream.service.messages import Options, Plan, Register
    from lance_stream.service.stream_source import StreamSource

    columns = plan.pop("columns", None)
    algorithm = plan.pop("algorithm", None)
    request = Plan(
        uri=uri,
        split=None,
        version=None,
        columns=None if columns is None else tuple(map(tuple, columns)),
        with_row_id=plan.pop("with_row_id", False),
        shard_rows=plan.pop("shard_rows", None),
        shard_bytes=plan.pop("shard_bytes", 1 << 25),
        options=Options(),
        timeout_s=30.0,
        attempts=1,
        search_path=tuple(plan.pop("search_path", ())),
        **plan,
    )
    fetcher = Fetcher()
    index = fetcher.plan(request)
    index_path = os.path.join(directory, "index")
    Path(index_path).write_bytes(index.to_bytes())
    register = Register(
        stream="s",
        uri=index.uri,
        version=index.version,
        index_path=index_path,
        directory=directory,
        ledger_path="",
        options=Options(),
        timeout_s=30.0,
        attempts=1,
        cache_format=request.cache_format,
        algorithm=algorithm,
        search_path=request.search_path,
    )
    source = StreamSource.load(register)
    paths = _fetch_all(fetcher, source, range(index.num_shards))
    return {"index": index_path, "fingerprint": source.fingerprint, "paths": paths}


def _fetch_all(fetcher: Any, source: Any, shards: Iterable[int]) -> Sequence[str]:
    paths = []
    for shard in shards:
        temporary = fetcher.fetch(source, shard).path
        path = source.path(shard)
        os.rename(temporary, path)
        paths.append(path)
    return paths


def _run(source: str, args: list[Any]) -> Any:
    import lance
    import pyarrow as pa

    names = {"lance": lance, "pa": pa, "args": args, "result": None}
    exec(source, names)
    return names["result"]
