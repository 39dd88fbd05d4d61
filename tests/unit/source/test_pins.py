from __future__ import annotations

import os
import re
from typing import Any

import pytest

from lance_stream.source import pins
from lance_stream.source.pins import pin_version, unpin

OWNER = (4711, 1_700_000_000)


class FakeTags:
    """Tags as Lance shows them; those in ``stuck`` cannot be removed."""

    def __init__(self, *names: str) -> None:
        self.names = dict.fromkeys(names, 1)
        self.stuck: set[str] = set()
        self.listable = True

    def create(self, name: str, version: int) -> None:
        if name in self.names:
            raise ValueError(f"tag {name} exists")
        self.names[name] = version

    def delete(self, name: str) -> None:
        if name in self.stuck or name not in self.names:
            raise ValueError(f"cannot delete {name}")
        del self.names[name]

    def list(self) -> dict[str, Any]:
        if not self.listable:
            raise OSError("the store is gone")
        return {name: {"version": version} for name, version in self.names.items()}


class FakeTable:
    def __init__(self, *names: str) -> None:
        self.tags = FakeTags(*names)


def pin(table: FakeTable, *alive: tuple[int, int]) -> str:
    return pin_version(table, 7, OWNER, lambda *who: who in {OWNER, *alive})


def test_a_pin_is_a_tag_that_names_its_owner() -> None:
    table = FakeTable("v1")
    name = pin(table)
    assert re.fullmatch(
        r"lance_stream\.pin\.([0-9a-f]{12}\.){3}4711\.1700000000\.[0-9a-f]{8}", name
    )
    assert table.tags.names == {"v1": 1, name: 7}


def test_two_jobs_hold_a_version_with_a_tag_each() -> None:
    table = FakeTable()
    first, second = pin(table), pin(table)
    assert first != second
    unpin(table, first)
    assert table.tags.names == {second: 7}


def test_stale_pins_of_this_host_go_and_no_other_tag_does() -> None:
    machine, boot, pids = pins._host()
    host, other = f"{machine}.{boot}.{pids}", "0123456789ab"
    stale = [
        f"lance_stream.pin.{host}.1.2.aaaaaaaa",
        # Of this machine before it was started again.
        f"lance_stream.pin.{machine}.{other}.{pids}.4712.2.aaaaaaaa",
    ]
    others = [
        "v1",
        f"lance_stream.pin.{host}.4712.2.aaaaaaaa",
        # Of another container or machine, where the pid means something else.
        f"lance_stream.pin.{machine}.{boot}.{other}.1.2.aaaaaaaa",
        f"lance_stream.pin.{machine}.{other}.{other}.1.2.aaaaaaaa",
        f"lance_stream.pin.{other}.{boot}.{pids}.1.2.aaaaaaaa",
        f"lance_stream.pin.{other}.{other}.{pids}.1.2.aaaaaaaa",
        # Made by somebody, with a name like ours.
        f"lance_stream.pin.{host}.1.2",
        f"lance_stream.pin.{host}.x.y.aaaaaaaa",
        f"lance_stream.pin.{host}.1.2.3.4",
        f"my.lance_stream.pin.{host}.1.2.aaaaaaaa",
        "lance_stream.pin.",
    ]
    table = FakeTable(*stale, *others)
    name = pin(table, (4712, 2))
    assert set(table.tags.names) == {name, *others}


def test_the_version_is_held_even_if_stale_pins_stay(caplog: pytest.LogCaptureFixture) -> None:
    stale = f"lance_stream.pin.{'.'.join(pins._host())}.1.2.aaaaaaaa"
    table = FakeTable(stale)
    table.tags.stuck.add(stale)
    name = pin(table)
    assert set(table.tags.names) == {stale, name}
    assert "stale pins cannot be removed" in caplog.text
    table.tags.listable = False
    assert pin(table) in table.tags.names


def test_a_pin_that_is_gone_is_unpinned() -> None:
    unpin(FakeTable("v1"), "lance_stream.pin.x")


def test_a_pin_that_cannot_be_removed_is_an_error() -> None:
    table = FakeTable("p")
    table.tags.stuck.add("p")
    with pytest.raises(ValueError, match="cannot delete p"):
        unpin(table, "p")


def test_a_tag_that_cannot_be_made_is_an_error() -> None:
    table = FakeTable()
    table.tags.create = lambda name, version: (_ for _ in ()).throw(OSError("read-only"))  # type: ignore[method-assign]
    with pytest.raises(OSError, match="read-only"):
        pin(table)


def test_the_host_is_the_same_for_all_of_it() -> None:
    here = pins._host()
    assert all(re.fullmatch(r"[0-9a-f]{12}", part) for part in here)
    reader, writer = os.pipe()
    child = os.fork()
    if not child:
        os.write(writer, ".".join(pins._host()).encode())
        os._exit(0)
    os.waitpid(child, 0)
    assert os.read(reader, 100).decode() == ".".join(here)
    os.close(reader)
    os.close(writer)


def test_a_container_does_not_know_its_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its name and id are of an image that others run too: after another start it is another."""
    lines = {"/proc/sys/kernel/random/boot_id": "first", "/etc/machine-id": "m"}
    monkeypatch.setattr(pins, "_first_line", lines.__getitem__)
    for pids, knows in (("pid:[4026531836]", True), ("pid:[4026532999]", False)):
        monkeypatch.setattr(os, "readlink", lambda _path, pids=pids: pids)
        lines["/proc/sys/kernel/random/boot_id"] = "first"
        before = pins._host()
        lines["/proc/sys/kernel/random/boot_id"] = "second"
        after = pins._host()
        assert (before[0] == after[0]) == knows
        assert before[1] != after[1]
        assert before[2] == after[2]
