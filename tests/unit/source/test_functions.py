from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from lance_stream.errors import PlanError
from lance_stream.source.functions import load_function

MODULE = """
import sys

number = 7

def double(x):
    return 2 * x

class Adder:
    def __call__(self, x):
        return x + 1

add = Adder()
"""


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[str]:
    """A folder with modules that only the search path leads to; all is undone."""
    (tmp_path / "our_functions.py").write_text(MODULE)
    (tmp_path / "our_broken.py").write_text("1 / 0\n")
    package = tmp_path / "our_package"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "inner.py").write_text("def f():\n    return 'inner'\n")
    path, names = list(sys.path), set(sys.modules)
    yield str(tmp_path)
    sys.path[:] = path
    for name in set(sys.modules) - names:
        del sys.modules[name]


def load(name: str, folder: str) -> Callable[..., object]:
    return load_function("transform", name, (folder,))


def test_a_function_is_found_through_the_search_path(folder: str) -> None:
    assert load("our_functions:double", folder)(4) == 8
    assert load("our_functions:add", folder)(4) == 5
    assert load("our_package.inner:f", folder)() == "inner"
    assert load_function("transform", "os.path:join", ())("a", "b") == "a/b"


def test_the_search_path_comes_last_and_once(folder: str) -> None:
    before = list(sys.path)
    for _ in range(3):
        load_function("transform", "our_functions:double", (folder, before[0]))
    assert sys.path == [*before, folder]


def test_a_module_is_loaded_once(folder: str) -> None:
    assert load("our_functions:double", folder) is load("our_functions:double", folder)


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("our_missing:f", "ModuleNotFoundError: No module named 'our_missing'"),
        ("our_functions:nope", "AttributeError: module 'our_functions' has no attribute 'nope'"),
        ("our_broken:f", "ZeroDivisionError: division by zero"),
        ("our_functions", "AttributeError"),
        ("", "ValueError"),
        ("our_functions:", "AttributeError"),
    ],
)
def test_a_function_that_cannot_be_had_says_which_and_why(
    folder: str, name: str, why: str
) -> None:
    with pytest.raises(PlanError) as raised:
        load(name, folder)
    message = str(raised.value)
    assert message.startswith(f"transform={name!r}: ")
    assert why in message
    assert "package.module:function" in message


def test_what_is_no_function_is_refused(folder: str) -> None:
    with pytest.raises(PlanError, match="transform='our_functions:number' is a int, not a func"):
        load("our_functions:number", folder)


def test_the_argument_that_names_it_is_named(folder: str) -> None:
    with pytest.raises(PlanError, match=r"^storage_options='our_missing:f': "):
        load_function("storage_options", "our_missing:f", (folder,))
