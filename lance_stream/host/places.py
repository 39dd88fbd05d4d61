"""Which cache directory a node takes, where nodes may share a file system.

Nodes that were given the same directory each leave a mark in it. Who sees the mark of an earlier
node shares its disk, and takes a directory of its own beside it: ledgers and evictions are a
node's own affair, and no lock has to reach from one node to another.
"""

from __future__ import annotations

import logging
import os
import secrets
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress

from lance_stream.errors import LanceStreamError
from lance_stream.host.ranks import Ranks
from lance_stream.processes import this_node
from lance_stream.service.directory import make_default_root

__all__ = ["Mark", "marked", "own_directory"]

logger = logging.getLogger(__name__)


class Mark:
    """A file that tells other nodes of the job that they share a directory, until closed."""

    def __init__(self, local: str | None) -> None:
        """Leave a mark.

        Args:
            local: The cache directory that was given; None: where the default ones lie.

        A directory that cannot be used gets none: claiming it will say why.
        """
        self.name = f".node-{this_node()}-{secrets.token_hex(6)}"
        self.directory: str | None = None
        with suppress(OSError, LanceStreamError):
            directory = local or make_default_root()
            os.makedirs(directory, exist_ok=True)
            os.close(os.open(os.path.join(directory, self.name), os.O_CREAT | os.O_EXCL, 0o600))
            self.directory = directory

    def sees(self, names: Sequence[str]) -> bool:
        """Whether the mark of another node is in the same directory."""
        # Names that nobody has looked for before: no cache of a network file system has them.
        return self.directory is not None and any(
            os.path.exists(os.path.join(self.directory, name)) for name in names
        )

    def close(self) -> None:
        """Remove the mark."""
        if self.directory is not None:
            with suppress(OSError):
                os.unlink(os.path.join(self.directory, self.name))


@contextmanager
def marked(ranks: Ranks, local: str | None) -> Iterator[Mark | None]:
    """Have this node's mark in a directory; None where there is one node, or another leads it."""
    mark = Mark(local) if ranks.num_nodes > 1 and ranks.is_local_leader else None
    try:
        yield mark
    finally:
        if mark is not None:
            mark.close()


def own_directory(local: str, node: int) -> str:
    """The directory of a node that shares the given one with an earlier node."""
    directory = os.path.join(local, f"node-{node}")
    logger.info("local=%r is shared with other nodes of the job: using %s", local, directory)
    return directory
