"""Options and credentials of a store, in the download process."""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Mapping

from lance_stream.errors import CredentialsError, PlanError
from lance_stream.source.functions import load_function
from lance_stream.source.location import redact

__all__ = ["StorageOptions"]

logger = logging.getLogger(__name__)

# Renew options this long before they lapse; those that live for less, halfway.
_RENEW_BEFORE_S = 60.0
# Where making them anew failed, and those from before are good for longer.
_TRY_AGAIN_S = 10.0


class StorageOptions:
    """Options of a store: fixed, or made by a function that also tells when they lapse."""

    def __init__(
        self, options: Mapping[str, str] | None, function: str | None, search_path: tuple[str, ...]
    ) -> None:
        """Take options as given by the user.

        Args:
            options: Fixed options, or None.
            function: ``"package.module:function"`` that returns ``(options, expiry)``, expiry
                as unix seconds or None; called in this process.
            search_path: Folders where the trainer finds modules, for the function's.
        """
        self._fixed = dict(options or {})
        self._function = function
        self._search_path = search_path
        self._renew_at: float | None = None
        self._lapse_at: float | None = None
        self._made: dict[str, str] | None = None if function else self._fixed
        # Also what the store has refused since.
        self._latest = self._fixed
        self._generation = 0
        self._lock = threading.Lock()

    def current(self) -> tuple[dict[str, str], int]:
        """The options to use now, and their generation: it grows when they are made anew.

        Raises:
            PlanError: The function cannot be imported, or returns something else.
            CredentialsError: It failed, and what it gave before has lapsed or was refused.
        """
        with self._lock:
            due = self._renew_at is not None and time.time() >= self._renew_at
            if self._made is None:
                self._made = self._make()
            elif due:
                try:
                    self._made = self._make()
                except (CredentialsError, PlanError) as error:
                    left_s = (self._lapse_at or 0.0) - time.time()
                    if left_s <= 0:
                        raise
                    # A service of tokens that is away for a moment is no reason to end.
                    self._renew_at = time.time() + min(left_s / 2, _TRY_AGAIN_S)
                    said = redact(str(error), self.secrets())
                    logger.warning("%s; what it gave before is good for %.0f s", said, left_s)
            return self._made, self._generation

    def renew(self, refused: int) -> bool:
        """Note that the store refused the options of a generation; whether there are others.

        Several reads are refused at the same time: only the first has them made anew.
        """
        if not self._function:
            return False
        with self._lock:
            if self._generation == refused:
                self._made = None
        return True

    def secrets(self) -> dict[str, str]:
        """Options whose values must not be printed."""
        return dict(self._latest)

    def _make(self) -> dict[str, str]:
        made, self._lapse_at = self._call()
        lapse_at = self._lapse_at
        self._renew_at = None if lapse_at is None else _renewal(time.time(), lapse_at)
        self._generation += 1
        self._latest = made
        return made

    def _call(self) -> tuple[dict[str, str], float | None]:
        function = load_function("storage_options", str(self._function), self._search_path)
        try:
            returned = function()
        except (Exception, SystemExit) as error:
            msg = f"storage_options={self._function!r} raised {type(error).__name__}: {error}"
            raise CredentialsError(msg) from error
        try:
            options, expiry = returned
            expiry = None if expiry is None else float(expiry)
            if expiry is not None and not math.isfinite(expiry):
                raise ValueError(f"expiry {expiry} is no time")
            return {str(k): str(v) for k, v in options.items()}, expiry
        except Exception as error:
            msg = (
                f"storage_options={self._function!r}: {type(error).__name__}: {error}; it must "
                "return (options, expiry)"
            )
            raise PlanError(msg) from error


def _renewal(now_s: float, expiry_s: float) -> float:
    """When to ask for options anew that were made now. Pure."""
    life_s = expiry_s - now_s
    return expiry_s - (_RENEW_BEFORE_S if life_s > _RENEW_BEFORE_S else life_s / 2)
