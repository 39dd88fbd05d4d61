from __future__ import annotations

import builtins
import pickle
import re

import pytest

from lance_stream import errors

CLASSES = [
    value
    for value in vars(errors).values()
    if isinstance(value, type) and issubclass(value, BaseException)
]
# All but those that are two of them.
TREE = [
    cls for cls in CLASSES if cls not in (errors.ShardCredentialsError, errors.VersionGoneError)
]
each_class = pytest.mark.parametrize("cls", CLASSES, ids=lambda cls: cls.__name__)


def test_the_tree_in_the_docstring_is_the_tree() -> None:
    assert errors.__doc__ is not None
    drawn = re.findall(r"[├└]── (\w+) +\((\w+)\)", errors.__doc__)
    found = [(cls.__name__, cls.__bases__[1].__name__) for cls in TREE[1:]]
    assert sorted(drawn) == sorted(found)
    assert TREE[0] is errors.LanceStreamError
    assert "LanceStreamError\n" in errors.__doc__


def test_all_lists_every_class_and_nothing_that_is_not_there() -> None:
    assert set(errors.__all__) == {cls.__name__ for cls in CLASSES} | {"error_from_name"}
    assert len(errors.__all__) == len(set(errors.__all__))


@each_class
def test_every_error_is_ours_and_says_what_it_means(cls: type[Exception]) -> None:
    assert issubclass(cls, errors.LanceStreamError)
    assert cls.__module__ == "lance_stream.errors"
    assert cls.__name__.endswith("Error")
    assert cls.__doc__
    assert cls.__doc__ != errors.LanceStreamError.__doc__ or cls is errors.LanceStreamError


@each_class
def test_every_error_is_also_a_builtin_that_fits(cls: type[Exception]) -> None:
    if cls is errors.LanceStreamError:
        assert cls.__bases__ == (Exception,)
        return
    if cls is errors.ShardCredentialsError:
        assert cls.__bases__ == (errors.ShardUnavailableError, errors.CredentialsError)
        return
    if cls is errors.VersionGoneError:
        assert cls.__bases__ == (errors.ShardUnavailableError, errors.VersionNotFoundError)
        return
    base, builtin = cls.__bases__
    assert base is errors.LanceStreamError
    assert vars(builtins)[builtin.__name__] is builtin
    assert builtin is not Exception


@each_class
def test_none_is_a_file_not_found_error(cls: type[Exception]) -> None:
    # Inside a reader the host takes that to mean "evicted, prepare the shard again".
    assert not issubclass(cls, FileNotFoundError)


@each_class
def test_an_error_is_one_message_and_survives_the_way_home(cls: type[Exception]) -> None:
    error = cls("shard 3: ünglück 'x'")
    assert str(error) == "shard 3: ünglück 'x'"
    assert error.args == ("shard 3: ünglück 'x'",)
    for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
        copy = pickle.loads(pickle.dumps(error, protocol))
        assert type(copy) is cls
        assert str(copy) == str(error)
        assert copy.args == error.args


@each_class
def test_an_error_is_made_from_its_name(cls: type[Exception]) -> None:
    error = errors.error_from_name(cls.__name__, "why")
    assert type(error) is cls
    assert str(error) == "why"


@pytest.mark.parametrize(
    "name", ["", "ValueError", "Unheard", "error_from_name", "annotations", "__all__", "__doc__"]
)
def test_an_unknown_name_is_kept_in_the_message(name: str) -> None:
    error = errors.error_from_name(name, "why")
    assert type(error) is errors.LanceStreamError
    assert str(error) == f"{name}: why"
