from __future__ import annotations

import os
from pathlib import Path

import pytest

from lance_stream.host.places import Mark, marked, own_directory
from lance_stream.host.ranks import Ranks


def test_nodes_that_share_a_directory_see_each_other(tmp_path: Path) -> None:
    local = str(tmp_path / "cache")
    first, second, elsewhere = Mark(local), Mark(local), Mark(str(tmp_path / "other"))
    assert second.sees([first.name])
    assert second.sees([elsewhere.name, first.name])
    assert not first.sees([])
    assert not elsewhere.sees([first.name, second.name])
    first.close()
    assert not second.sees([first.name])
    second.close()
    assert os.listdir(local) == []


def test_default_directories_are_looked_at_where_none_is_given(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LANCE_STREAM_CACHE_DIR", str(tmp_path / "shared"))
    first, second = Mark(None), Mark(None)
    assert second.sees([first.name])
    assert second.directory == str(tmp_path / "shared")


def test_a_directory_that_cannot_be_used_gets_no_mark(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    mark = Mark(str(tmp_path / "file"))
    assert not mark.sees([mark.name])
    mark.close()


@pytest.mark.parametrize(
    ("rank", "ranks", "per_node", "there"),
    [(0, 1, 1, False), (0, 2, 2, False), (0, 4, 2, True), (1, 4, 2, False), (2, 4, 2, True)],
)
def test_the_first_rank_of_each_of_many_nodes_marks(
    tmp_path: Path, rank: int, ranks: int, per_node: int, there: bool
) -> None:
    local = tmp_path / "cache"
    local.mkdir()
    with marked(Ranks(rank, ranks, per_node), str(local)) as mark:
        assert (mark is not None) == there
        assert len(os.listdir(local)) == there
    assert os.listdir(local) == []


def test_a_node_has_the_same_directory_in_every_run() -> None:
    assert own_directory("/shared/cache", 3) == "/shared/cache/node-3"
