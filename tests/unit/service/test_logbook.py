"""The log of the download process: structured, bounded, without secrets."""

from __future__ import annotations

import json
import logging
import subprocess
import sys
from pathlib import Path

from lance_stream.service.logbook import JsonLines, read_errors

WRITER = """
import logging, os, sys
from lance_stream.service.logbook import LogHandler
path, max_bytes = sys.argv[1], int(sys.argv[2])
log = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
os.dup2(log, 1), os.dup2(log, 2)
handler = LogHandler(path, max_bytes)
logging.basicConfig(level=logging.INFO, handlers=[handler])
exec(sys.argv[3])
"""


def write(path: Path, code: str, max_bytes: int = 10_000) -> None:
    """Run code whose stderr is a log."""
    subprocess.run(
        [sys.executable, "-c", WRITER, str(path), str(max_bytes), code], check=True, timeout=60
    )


def test_a_line_is_a_json_object_without_secrets() -> None:
    """Also with a traceback, and with what is about a shard."""
    try:
        raise ValueError("s3://key:hidden@bucket/t")
    except ValueError:
        told = sys.exc_info()
    record = logging.LogRecord(
        "l", logging.WARNING, "p", 1, "of %s\n", ("s3://key:hidden@b/t",), told
    )
    record.about = {"shard": 3, "error": "ShardUnavailableError"}
    line = JsonLines().format(record)
    assert "\n" not in line
    assert "hidden" not in line
    entry = json.loads(line)
    assert entry["level"] == "WARNING"
    assert entry["shard"] == 3
    assert "ValueError" in entry["traceback"]
    assert entry["time"].endswith("+00:00")


def test_it_is_bounded_and_its_newest_errors_stay(tmp_path: Path) -> None:
    """By two files; lines are never cut in two."""
    path = tmp_path / "log"
    write(path, "for i in range(2000): logging.warning('number %d %s', i, 'x' * 20)")
    assert sorted(entry.name for entry in tmp_path.glob("log*")) == ["log", "log.1"]
    for name in ("log", "log.1"):
        assert (tmp_path / name).stat().st_size < 11_000
        assert (tmp_path / name).stat().st_mode & 0o077 == 0
        for line in (tmp_path / name).read_text().splitlines():
            json.loads(line)
    found = [entry["message"].split()[1] for entry in read_errors(str(path), 30)]
    assert found == [str(number) for number in range(1970, 2000)]


def test_what_is_printed_counts_and_is_no_error(tmp_path: Path) -> None:
    """The size is looked at from time to time too; then both go into the new file."""
    path = tmp_path / "log"
    write(
        path,
        "os.write(1, b'noise\\n' * 5000); handler.bound()\n"
        "os.write(1, b'{\"level\": 3}\\n[1]\\n'); logging.info('fine'); logging.error('wrong')",
    )
    assert (tmp_path / "log.1").read_bytes() == b"noise\n" * 5000
    assert path.stat().st_size < 1000
    assert [entry["message"] for entry in read_errors(str(path), 5)] == ["wrong"]


def test_a_long_message_is_cut(tmp_path: Path) -> None:
    """One line cannot be larger than the file."""
    path = tmp_path / "log"
    write(path, "logging.error('y' * 1_000_000)")
    (entry,) = read_errors(str(path), 5)
    assert 1_000 < len(entry["message"]) < 10_000


def test_another_stderr_is_not_touched(tmp_path: Path) -> None:
    """Whoever runs it with a stderr of his own keeps it."""
    path, other = tmp_path / "log", tmp_path / "other"
    write(
        path,
        f"fd = os.open({str(other)!r}, os.O_WRONLY | os.O_CREAT); os.dup2(fd, 2)\n"
        "os.write(2, b'z' * 20_000); logging.error('there')",
    )
    assert other.stat().st_size > 20_000
    assert not (tmp_path / "log.1").exists()


def test_no_log_has_no_errors(tmp_path: Path) -> None:
    """A process may not have begun one."""
    assert read_errors(str(tmp_path / "log"), 5) == []
