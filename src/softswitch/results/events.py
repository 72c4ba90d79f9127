"""What happened to clients during a run: one JSON object a line, appended as it happens."""

from __future__ import annotations

import json
import logging
import os
from collections import Counter
from collections.abc import Iterable, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

logger = logging.getLogger("softswitch.runs")
EVENTS = "events.jsonl"
LONGEST_LINE = 2**16
"""More bytes are not read as one event."""


class EventLog:
    """Appends events to a file, each whole and handed to the system at once: a kill loses none that was told.

    A file that cannot be written at all is an error. One that cannot be written any longer (a full disk, say) does not
    end the run: the log tells so, once.

    Attributes:
        file: where; None: they are not kept.
        round: the round under way, which events are told with; None before the first.
    """

    def __init__(self, file: str | Path | None = None) -> None:
        self.file = None if file is None else Path(file)
        self.round: int | None = None
        self._begun = self._failed = False

    def record(self, what: str, why: str = "", *, client: str | None = None, node: int | None = None) -> None:
        """Append an event.

        Args:
            what: its kind, such as "lost".
            why: the reason, in words.
            client: the name of the client it is about.
            node: Flower's id of the node it is about, where no client's name is known for certain.
        """
        if self.file is None:
            return
        told: dict[str, Any] = {
            "time": datetime.now(UTC).isoformat(timespec="milliseconds"),
            "round": self.round,
            "client": client,
            "what": what,
            "why": why,
        }
        if node is not None:
            told["node"] = str(node)  # too large a number for some readers of JSON
        self._append((json.dumps(told, ensure_ascii=False) + "\n").encode("utf-8", "backslashreplace"))

    def _append(self, line: bytes) -> None:
        assert self.file is not None
        if not self._begun:
            self.file.parent.mkdir(parents=True, exist_ok=True)
            if _is_torn(self.file):  # of a process that was killed: the next line must not be spoiled
                line = b"\n" + line
            with self.file.open("ab") as stream:
                stream.write(line)
            self._begun = True
            return
        try:
            with self.file.open("ab") as stream:
                stream.write(line)
            self._failed = False
        except OSError as error:
            if not self._failed:
                logger.warning("events cannot be written any longer, and are lost until they can: %s", error)
            self._failed = True


def _is_torn(file: Path) -> bool:
    """Whether a file does not end with the end of a line."""
    if not file.exists() or not file.stat().st_size:
        return False
    with file.open("rb") as stream:
        stream.seek(-1, os.SEEK_END)
        return stream.read() != b"\n"


def read_events(file: str | Path) -> list[dict[str, Any]]:
    """All events of a file, the first one first; lines that are torn are passed over, and a file that is not there.

    Args:
        file: where they are.
    """
    path, found = Path(file), []
    if not path.exists():
        return []
    with path.open("rb") as stream:
        while line := stream.readline(LONGEST_LINE):
            with suppress(ValueError, RecursionError):
                told = json.loads(line)
                if isinstance(told, dict) and isinstance(told.get("what"), str):
                    found.append(told)
    return found


def events_by_kind(events: Iterable[Mapping[str, Any]]) -> dict[str, int]:
    """How many events there are of each kind, the most frequent first.

    Args:
        events: as ``read_events`` gives them.
    """
    return dict(Counter(str(event["what"]) for event in events).most_common())
