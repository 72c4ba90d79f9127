"""Events of clients during a run: one JSON object per line, appended immediately."""

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
MAX_LINE_BYTES = 2**16  # longer lines are not read as one event


class EventLog:
    """Appends events to a file, each in one write, so that a kill loses none.

    The first write raises an error if it fails. If a later write fails (because the disk is full, for example), the
    run continues and the log has one warning.

    Attributes:
        file: The file; None: events are discarded.
        round: The current round, which every event has; None before the first.
    """

    def __init__(self, file: str | Path | None = None) -> None:
        self.file = None if file is None else Path(file)
        self.round: int | None = None
        self._has_begun = self._has_failed = False

    def record(self, what: str, why: str = "", *, client: str | None = None, node: int | None = None) -> None:
        """Append an event: its kind, such as "lost", the reason, and the client's name or, if uncertain, its node."""
        if self.file is None:
            return
        now = datetime.now(UTC).isoformat(timespec="milliseconds")
        event: dict[str, Any] = {"time": now, "round": self.round, "client": client, "what": what, "why": why}
        if node is not None:
            event["node"] = str(node)  # too large a number for some readers of JSON
        line = (json.dumps(event, ensure_ascii=False) + "\n").encode("utf-8", "backslashreplace")
        if not self._has_begun:
            self.file.parent.mkdir(parents=True, exist_ok=True)
        try:
            with self.file.open("ab+") as stream:
                if not self._has_begun and stream.tell():
                    stream.seek(-1, os.SEEK_END)
                    line = line if stream.read() == b"\n" else b"\n" + line  # a process was killed while it wrote
                stream.write(line)
            self._has_begun, self._has_failed = True, False
        except OSError as error:
            if not self._has_begun:
                raise
            if not self._has_failed:
                logger.warning("events cannot be written, and are lost until they can: %s", error)
            self._has_failed = True


def read_events(file: str | Path) -> list[dict[str, Any]]:
    """Read all events of a file in order. Damaged lines are skipped; a missing file has no events.

    Args:
        file: The file of events.
    """
    path, events = Path(file), []
    if not path.exists():
        return []
    with path.open("rb") as stream:
        while line := stream.readline(MAX_LINE_BYTES):
            with suppress(ValueError, RecursionError):
                event = json.loads(line)
                if isinstance(event, dict) and isinstance(event.get("what"), str):
                    events.append(event)
    return events


def count_events(events: Iterable[Mapping[str, Any]]) -> dict[str, int]:
    """Count the events of each kind, the most frequent first."""
    return dict(Counter(str(event["what"]) for event in events).most_common())
