"""ReleaseLedger: what a private run has released or begun to release, counted before it happens."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from softswitch.support import checks
from softswitch.support.files import make_folder, read_json, write_json

logger = logging.getLogger("softswitch")
LEDGER = "releases.json"  # name of the file in a folder of checkpoints
SCHEMA = {"rounds": int, "evaluated": str, "values": [[(float, None)]], "certified": bool, "settings": str}


class ReleaseLedger:
    """Counts the rounds of a run before they are played, and keeps its only evaluation.

    With a folder, the counts survive the process, so that rounds of an interrupted process stay spent. Its file is read
    before every use, because another process may have written it. ``settings`` identifies the noise, which the counts
    of a folder have in common, and ``planned`` is the maximum number of rounds.
    """

    def __init__(self, folder: Path | None = None, settings: str = "", planned: int | None = None) -> None:
        self._file, self._planned = None if folder is None else folder / LEDGER, planned
        self._own = {"rounds": 0, "evaluated": "", "values": [], "certified": False, "settings": settings}
        if settings and (written := self._state["settings"]) != settings:
            raise ValueError(f"{self._file} counts the releases of {written}, not of {settings}; use another folder")

    @property
    def _state(self) -> dict[str, Any]:
        if self._file is None or not self._file.exists():
            return self._own
        state: dict[str, Any] = read_json(self._file)
        checks.check_schema(state, SCHEMA, LEDGER)
        return state

    @property
    def rounds(self) -> int:
        """Number of rounds that were begun, by all processes."""
        return int(self._state["rounds"])

    @property
    def is_evaluated(self) -> bool:
        """Whether the answer was evaluated."""
        return bool(self._state["evaluated"])

    def begin_rounds(self, count: int) -> None:
        """Count rounds before they are played, or raise ValueError if there are more than planned."""
        if self._planned is not None and self.rounds + count > self._planned:
            raise ValueError(f"the privacy budget has {self._planned} rounds, of which {self.rounds} are spent")
        self._write(rounds=self.rounds + count)

    def evaluate(self, params: str, compute: Callable[[], np.ndarray]) -> np.ndarray:
        """Return the only evaluation, of parameters with this digest: saved, or computed and saved."""
        if not self.is_evaluated:
            values = compute()
            rows = [[value if np.isfinite(value) else None for value in row] for row in values.tolist()]
            self._write(evaluated=params, values=rows)
            return values
        if self._state["evaluated"] != params:
            raise ValueError("the privacy budget has one evaluation, which was spent on other parameters")
        return np.array([[-np.inf if value is None else value for value in row] for row in self._state["values"]])

    def claim_certificate(self) -> bool:
        """Return whether the budget of the certificate is left, and count it as spent."""
        is_left = not self._state["certified"]
        if not is_left:
            logger.warning("no certificate: its privacy budget was spent by a process that was interrupted")
        self._write(certified=True)
        return is_left

    def _write(self, **changes: Any) -> None:
        self._own = self._state | changes
        if self._file is not None:
            make_folder(self._file.parent)
            write_json(self._file, self._own)
