"""In processes of their own, since they import lance."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

_PRELUDE = """
import gc, json, sys
import lance, pyarrow as pa
from lance_stream.service import open_tables
from lance_stream.service.attempt import AttemptError
from lance_stream.service.fetching import Fetcher
from lance_stream.service.messages import Register
from lance_stream.service.stream_source import StreamSource
from lance_stream.service.wanted import Wanted
from lance_stream.source.failures import Failure, FailureKind
from lance_stream.source.options import StorageOptions

folder, = sys.argv[1:]
Table, opened = open_tables.Table, []

def counted(*arguments):
    opened.append(arguments[0].uri)
    return Table(*arguments)

open_tables.Table = counted
fetcher = Fetcher()

def source(number):
    uri = f"{folder}/{number}.lance"
    lance.write_dataset(pa.table({"a": list(range(20))}), uri, mode="overwrite")
    wanted = Wanted.of(uri, shard_rows=10)
    index = fetcher.plan(wanted.request(timeout_s=10, attempts=1))
    return StreamSource(
        Register(
            stream=str(number), uri=uri, version=index.version, index_path="", directory=folder,
            ledger_path="", options=wanted.options, timeout_s=10, attempts=1,
        ),
        index,
    )
"""


def test_a_table_is_opened_once_however_many_there_are(
    run_python: Callable[..., str], tmp_path: Path
) -> None:
    """As long as a stream has it; what is still read afterwards is not kept."""
    script = """
sources = [source(number) for number in range(80)]
opened.clear()
for shard in range(2):
    for each in sources:
        fetcher.read(each, shard)
first = len(opened)
gc.collect()
gc.disable()
for each in sources:
    fetcher.forget(each)
    each.checked = None
alive = sum(isinstance(each, Table) for each in gc.get_objects())
late = fetcher.read(sources[0], 0).num_rows
print(json.dumps([first, alive, late, len(fetcher._tables._tables)]))
"""
    assert json.loads(run_python(_PRELUDE + script, str(tmp_path))) == [80, 0, 10, 0]


def test_two_streams_of_a_table_share_it(run_python: Callable[..., str], tmp_path: Path) -> None:
    script = """
import msgspec
one = source(1)
other = StreamSource(msgspec.structs.replace(one.register, stream="other"), one.index)
opened.clear()
counts = []
for each in (one, other):
    fetcher.read(each, 0)
fetcher.forget(one)
fetcher.read(other, 1)
counts.append(len(opened))
fetcher.forget(other)
counts.append(len(fetcher._tables._tables))
print(json.dumps(counts))
"""
    assert json.loads(run_python(_PRELUDE + script, str(tmp_path))) == [1, 0]


def test_what_a_function_made_is_in_no_error(
    run_python: Callable[..., str], tmp_path: Path
) -> None:
    """Also keys that the store has refused since."""
    (tmp_path / "keys_of_a_test.py").write_text(
        "made = iter(['first-sesame', 'second-sesame', 'third-sesame'])\n"
        "def keys():\n    return {'session_token': next(made)}, None\n"
    )
    script = """
options = StorageOptions(None, "keys_of_a_test:keys", (folder,))

def refuse(made, generation):
    text = f"the store has refused {made['session_token']}"
    raise AttemptError(Failure(FailureKind.CREDENTIALS, text, False, detail=text))

try:
    open_tables.OpenTables().renewing(options, refuse)
except AttemptError as error:
    options.renew(2)
    print(json.dumps([error.failure.message, error.failure.detail, str(error)]))
"""
    said = json.loads(run_python(_PRELUDE + script, str(tmp_path)))
    assert said == ["the store has refused ***"] * 3
