"""The book of the leaderboard: a file a cell, so that a run can be interrupted and goes on."""

from __future__ import annotations

import json
import re
from dataclasses import asdict
from pathlib import Path
from typing import Any

from softswitch.support.files import write_atomically
from softswitch_experiments.leaderboard.one_cell import Effort


class ScoreBook:
    """What was found, in a folder.

    Args:
        folder: where; it is made.
        effort: how much is spent on a cell: cells of another effort do not count.
    """

    def __init__(self, folder: Path, effort: Effort) -> None:
        self.folder, self._effort = folder, effort
        (folder / "cells").mkdir(parents=True, exist_ok=True)

    def path(self, task: str, method: str, scheme: str) -> Path:
        """A cell's file."""
        name = "--".join(re.sub(r"\W+", "-", part).strip("-").lower() for part in (task, scheme, method))
        return self.folder / "cells" / f"{name}.json"

    def read(self, task: str, method: str, scheme: str) -> dict[str, Any] | None:
        """What is there of a cell; None where it has to be played."""
        path = self.path(task, method, scheme)
        if not path.exists():
            return None
        found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        return found if found["effort"] == asdict(self._effort) else None

    def write(self, found: dict[str, Any]) -> None:
        """Keep a cell."""
        path = self.path(found["task"], found["method"], found["scheme"])
        write_atomically(path, json.dumps(found, indent=1, ensure_ascii=False).encode(), durable=False)
