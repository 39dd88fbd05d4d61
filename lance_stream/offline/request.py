"""Which table, rows and shards a command is about. Pure; does not lead to lance."""

from __future__ import annotations

import threading
from dataclasses import dataclass

from lance_stream.offline.attempts import Policy
from lance_stream.service.wanted import Wanted

__all__ = ["StreamRequest"]


@dataclass(frozen=True, slots=True)
class StreamRequest:
    """What a ``LanceStream`` would be given.

    Attributes:
        wanted: What decides about the index.
        index: Path or URL of an index that was made before, or None.
        timeout_s: Longest time of an attempt at one shard, or of a silence while planning.
        attempts: How often a thing is tried.
    """

    wanted: Wanted
    index: str | None
    timeout_s: float
    attempts: int

    def policy(self, stop: threading.Event) -> Policy:
        """How long and how often to try."""
        return Policy(self.attempts, self.timeout_s, stop)
