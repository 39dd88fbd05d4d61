from __future__ import annotations

import re

import pytest

import lance_stream
from lance_stream import errors

# What users may import. A name that is missing here is free to move; a name that is here is not.
PUBLIC = [
    "CacheFullError",
    "CacheInUseError",
    "CacheUnusableError",
    "CredentialsError",
    "DatasetNotFoundError",
    "DownloadProcessError",
    "EmptyStreamError",
    "IndexFileError",
    "IndexFormatError",
    "LanceStream",
    "LanceStreamError",
    "LanceStreamingDataset",
    "NoNewDataError",
    "PlanError",
    "Round",
    "ShardCache",
    "ShardCorruptError",
    "ShardCredentialsError",
    "ShardIndex",
    "ShardUnavailableError",
    "SourceUnavailableError",
    "StateMismatchError",
    "TableChangedError",
    "TransformError",
    "UnsupportedTypeError",
    "ValueTooLargeError",
    "VersionGoneError",
    "VersionNotFoundError",
    "__version__",
    "build_index",
    "collate",
    "counter",
    "follow",
    "open_shard_cache",
    "progress",
    "stats",
]


def test_the_public_names_are_these() -> None:
    assert lance_stream.__all__ == PUBLIC
    assert dir(lance_stream) == sorted(PUBLIC)


@pytest.mark.parametrize("name", PUBLIC)
def test_every_public_name_is_there(name: str) -> None:
    value = getattr(lance_stream, name)
    if name != "__version__":
        assert value.__name__ == name
        assert value.__doc__
        assert getattr(lance_stream, name) is value


def test_every_error_is_public() -> None:
    names = {name for name in errors.__all__ if name.endswith("Error")}
    assert names <= set(PUBLIC)
    for name in names:
        assert getattr(lance_stream, name) is getattr(errors, name)


def test_the_version_is_that_of_the_distribution() -> None:
    assert re.fullmatch(r"\d+\.\d+\.\d+.*", lance_stream.__version__)


@pytest.mark.parametrize("name", ["Unheard", "lance", "_ROOMS_", "collate_all"])
def test_another_name_is_an_attribute_error(name: str) -> None:
    with pytest.raises(AttributeError, match=f"module 'lance_stream' has no attribute '{name}'"):
        getattr(lance_stream, name)
    assert not hasattr(lance_stream, name)


def test_a_star_import_gives_the_public_names() -> None:
    names: dict[str, object] = {}
    exec("from lance_stream import *", names)
    assert set(names) - {"__builtins__"} == set(PUBLIC)
