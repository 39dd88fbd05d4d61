from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from lance_stream.errors import ShardCorruptError
from lance_stream.shards.regular import open_regular, read_regular


def test_a_plain_file_is_read(tmp_path: Path) -> None:
    path = tmp_path / "x"
    path.write_bytes(b"abc")
    assert read_regular(str(path)) == b"abc"


@pytest.mark.parametrize("kind", ["pipe", "link", "dangling link", "socket"])
def test_what_is_no_plain_file_is_not_opened(tmp_path: Path, kind: str) -> None:
    path, target = tmp_path / "x", tmp_path / "target"
    target.write_bytes(b"abc")
    with socket.socket(socket.AF_UNIX) as listener:
        if kind == "pipe":
            os.mkfifo(path)
        elif kind == "socket":
            listener.bind(str(path))
        else:
            path.symlink_to(target if kind == "link" else tmp_path / "nowhere")
        with pytest.raises(ShardCorruptError, match="x: not a plain file, but a link, a pipe or"):
            open_regular(str(path))


def test_directories_and_what_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(IsADirectoryError, match=str(tmp_path)):
        read_regular(str(tmp_path))
    with pytest.raises(FileNotFoundError, match="nowhere"):
        read_regular(str(tmp_path / "nowhere"))
