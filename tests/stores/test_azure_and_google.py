"""Tables, indices, exports and shared caches on Azure; tables on Google's store."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from streaming import StreamingDataset

from lance_stream import stats
from lance_stream.testing import ShardCacheContract
from lance_stream.tiers.fsspec_cache import FsspecCache
from lance_stream.tiers.shard_cache import ShardCache
from lance_stream.tiers.tier_url import TierUrl
from tests.stores.outcomes import epoch, leaks, outcome
from tests.support.cloud_stores import AzureStore, GoogleStore, start_azure, start_google
from tests.support.forked import run_forked
from tests.support.scripts import ScriptResult, start_script
from tests.support.streams import dataset, wait_until
from tests.support.tables import write_table

pytestmark = pytest.mark.slow

ROWS = list(range(100))
COMMAND = "import sys\nfrom lance_stream.cli.main import main\nsys.exit(main())\n"


@pytest.fixture(scope="module")
def azure(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AzureStore]:
    """An account with the containers ``tables`` and ``results``, and a table."""
    with start_azure(tmp_path_factory.mktemp("azure")) as store:
        store.create_container("tables")
        store.create_container("results")
        write_table("az://tables/t100.lance", 100, 25, storage_options=store.storage_options())
        yield store


@pytest.fixture(scope="module")
def google(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GoogleStore]:
    """A store with the bucket ``tables`` and a table in it."""
    objects = tmp_path_factory.mktemp("google-objects")
    (objects / "tables").mkdir()
    write_table(str(objects / "tables/t100.lance"), 100, 25)
    with start_google(tmp_path_factory.mktemp("google"), objects) as store:
        yield store


def _epoch(uri: str, options: dict[str, str], local: Path, workers: int = 0) -> dict[str, Any]:
    """What becomes of building a dataset and an epoch of it."""

    def run() -> dict[str, Any]:
        def build_and_read() -> list[int]:
            host = {"shuffle": True}
            given = {"storage_options": options, "local": str(local), "host": host}
            result = epoch(dataset(uri, shard_rows=10, **given), workers)
            assert result["error"] is None, result["text"]
            return result["value"]

        return outcome(build_and_read)

    return run_forked(run)


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("form", ["az", "abfss"])
def test_an_azure_table(azure: AzureStore, tmp_path: Path, form: str, workers: int) -> None:
    """Both ways to name it give each row once."""
    uri = "az://tables/t100.lance" if form == "az" else azure.uri("tables", "t100.lance")
    result = _epoch(uri, azure.storage_options(), tmp_path / "cache", workers)
    assert result["value"] == ROWS, result["text"]


def test_an_azure_table_that_is_not_to_be_had(azure: AzureStore, tmp_path: Path) -> None:
    """A wrong key, a missing table and a missing container are told apart, without the key."""
    wrong = f"AAAA{azure.key[4:]}"

    def refused(uri: str, **options: str) -> str:
        result = _epoch(uri, azure.storage_options(**options), tmp_path / "cache")
        assert wrong not in result["text"]
        assert azure.key not in result["text"]
        return f"{result['error']}: {result['message']}"

    assert refused("az://tables/t100.lance", account_key=wrong).startswith(
        "CredentialsError: cannot open az://tables/t100.lance: the store refused access"
    )
    for uri in ("az://tables/none.lance", "az://nowhere/t100.lance"):
        assert refused(uri).startswith(f"DatasetNotFoundError: cannot open {uri}")
    assert leaks([wrong, azure.key]) == []


def _command(azure: AzureStore, options: Path, *arguments: object) -> ScriptResult:
    options.write_text(json.dumps(azure.storage_options()))
    with start_script(
        COMMAND,
        *arguments,
        *("--storage-options-from", options),
        *("--out-option-env", "connection_string=OUT"),
        env={"OUT": azure.connection_string},
    ) as script:
        return script.wait(60)


def test_an_index_on_azure(
    azure: AzureStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Written by the command, opened by a stream that plans nothing."""
    url = "az://results/t100.index"
    options = tmp_path / "options.json"
    _command(
        azure, options, "index", "az://tables/t100.lance", "--shard-rows", 10, "--out", url
    ).check()
    monkeypatch.setenv("AZURE_STORAGE_CONNECTION_STRING", azure.connection_string)

    def run() -> list[int]:
        data = dataset(
            "az://tables/t100.lance",
            index=url,
            storage_options=azure.storage_options(),
            local=str(tmp_path / "cache"),
        )
        return sorted(epoch(data, 0)["value"])

    assert run_forked(run) == ROWS


def test_an_export_to_azure(azure: AzureStore, tmp_path: Path) -> None:
    """What is written there is a dataset that the stock class reads."""
    options = tmp_path / "options.json"
    exported = ("az://tables/t100.lance", "--shard-rows", 30, "--out", "az://results/mds")
    _command(azure, options, "export", *exported).check()

    def run() -> list[int]:
        import adlfs

        files = adlfs.AzureBlobFileSystem(connection_string=azure.connection_string)
        for name in files.find("results/mds"):
            files.get_file(name, str(tmp_path / Path(name).name))
        data = StreamingDataset(local=str(tmp_path), batch_size=1)
        return [int(row["i"]) for row in data]

    assert run_forked(run) == ROWS


def _tier_url(azure: AzureStore, folder: str) -> str:
    return f"az://results/{folder}?connection_string={quote(azure.connection_string, safe='')}"


# adlfs gives aiohttp bytes where that would have a file.
@pytest.mark.filterwarnings("ignore:Sending a large body:ResourceWarning")
class TestAzureContract(ShardCacheContract):
    rounds = 4

    @pytest.fixture(autouse=True)
    def _store(self, azure: AzureStore) -> None:
        self.secrets = (azure.key,)
        self.url = _tier_url(azure, f"contract-{id(self)}")

    def new_cache(self) -> ShardCache:
        return FsspecCache(TierUrl.parse(self.url))


def test_a_cache_on_azure_that_nodes_share(azure: AzureStore, tmp_path: Path) -> None:
    """What the first node has read from Lance, the second takes from there."""

    def run(node: str) -> list[Any]:
        data = dataset(
            "az://tables/t100.lance",
            shard_rows=10,
            storage_options=azure.storage_options(),
            shared_cache=_tier_url(azure, "shards"),
            local=str(tmp_path / node),
        )
        rows = epoch(data, 0)["value"]

        def counts() -> tuple[int, int]:
            (tier,) = stats(data).shared_caches[0].tiers
            return tier.hits, tier.puts

        wait_until(lambda: sum(counts()) == 10, 20, "ten shards are counted")
        return [rows, *counts()]

    assert run_forked(run, "first") == [ROWS, 0, 10]
    assert run_forked(run, "second") == [ROWS, 10, 0]
    assert leaks([azure.key]) == []


@pytest.mark.parametrize("workers", [0, 2])
def test_a_google_table(google: GoogleStore, tmp_path: Path, workers: int) -> None:
    """Read exactly."""
    result = _epoch(
        "gs://tables/t100.lance", google.storage_options(), tmp_path / "cache", workers
    )
    assert result["value"] == ROWS, result["text"]


def test_a_google_table_that_is_missing(google: GoogleStore, tmp_path: Path) -> None:
    """It is said to be."""
    uri = "gs://tables/none.lance"
    result = _epoch(uri, google.storage_options(), tmp_path / "cache")
    assert result["error"] == "DatasetNotFoundError", result["text"]
    assert uri in result["message"]
