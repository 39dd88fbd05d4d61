"""Put an index where it is to be: a file, or any URL that fsspec writes."""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote, urlsplit

import fsspec

from lance_stream.errors import PlanError
from lance_stream.planning.fingerprint import digest
from lance_stream.planning.index import ShardIndex
from lance_stream.service.runtime import private_directory
from lance_stream.source.location import redact

__all__ = ["PARTIAL_DIRECTORY", "IndexFile", "user_directory"]

PARTIAL_DIRECTORY = "partial"
_SCHEME = re.compile(r"[a-zA-Z][a-zA-Z0-9+.-]*://")


def user_directory() -> str:
    """The user's own directory in the temporary directory; not made."""
    return os.path.join(tempfile.gettempdir(), f"lance-stream-{os.getuid()}")


@dataclass(frozen=True, slots=True)
class IndexFile:
    """Where an index goes.

    Attributes:
        name: As given, without a password.
        path: Of a local file; None for a URL.
        system: The fsspec filesystem of a URL; None for a local file.
        inner: The path in it.
    """

    name: str
    path: str | None
    system: Any = None
    inner: str = ""

    @classmethod
    def at(cls, out: str, options: Mapping[str, Any]) -> IndexFile:
        """Understand a path or URL; writes nothing.

        Raises:
            PlanError: It is neither, or its directory is not there.
        """
        scheme = out.partition("://")[0].lower() if _SCHEME.match(out) else "file"
        if scheme == "memory":
            raise PlanError(f"--out {out} would be lost when this process ends: choose another")
        if scheme in ("file", "local"):
            if options:
                raise PlanError(f"--out-option is for a URL, and --out {out} is a file")
            path = unquote(urlsplit(out).path) if "://" in out else os.path.expanduser(out)
            path = os.path.abspath(path)
            if os.path.isdir(path):
                raise PlanError(f"--out {out} is a directory: name a file in it")
            return cls(path, path)
        parts = urlsplit(out)
        if parts.password or parts.query:
            msg = (
                f"--out {redact(out)} carries credentials or a query: give them with "
                "--out-option, --out-option-env or --out-options-from"
            )
            raise PlanError(msg)
        try:
            system, inner = fsspec.core.url_to_fs(out, **options)
        except (ValueError, ImportError, TypeError) as error:
            raise PlanError(f"--out {redact(out)}: {redact(str(error))}") from error
        return cls(redact(out), None, system, inner)

    def partial_path(self, uri: str) -> str:
        """Where the progress of a long scan is kept: beside the file, or in the user's directory.

        Makes the directory.

        Args:
            uri: Of the table.

        Raises:
            PlanError: It cannot be made.
            DownloadProcessError: The user's directory is somebody else's.
        """
        if self.path is not None:
            try:
                os.makedirs(os.path.dirname(self.path), exist_ok=True)
            except OSError as error:
                raise PlanError(f"--out {self.name} cannot be written: {error}") from error
            return f"{self.path}.partial"
        folder = private_directory(user_directory())
        folder = private_directory(os.path.join(folder, PARTIAL_DIRECTORY))
        return os.path.join(folder, digest({"out": self.name, "uri": uri}))

    def write(self, index: ShardIndex) -> int:
        """Write the file: complete, or not there. Returns its bytes.

        Raises:
            PlanError: It cannot be written.
        """
        data = index.to_bytes()
        try:
            if self.path is not None:
                index.save(self.path)
            else:
                # One object; a filesystem that has folders wants them.
                self.system.makedirs(self.system._parent(self.inner), exist_ok=True)
                self.system.pipe_file(self.inner, data)
        except Exception as error:
            # Each store's client has errors of its own.
            cause = error.__cause__ or error
            words = f"{type(cause).__name__}: {redact(str(cause))}"
            msg = f"--out {self.name} cannot be written: {words}; check it and --out-option"
            raise PlanError(msg) from error
        return len(data)
