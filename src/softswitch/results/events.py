"""The event log of a run over Flower: one JSON object per line, such as a client that joined or was lost."""

from __future__ import annotations

import json
import logging
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from softswitch.support.files import MAX_TEXT_BYTES, check_size, open_regular

logger = logging.getLogger("softswitch.runs")
EVENTS = "events.jsonl"
MAX_LINE_BYTES = 2**16  # longer lines are damaged, and skipped


class EventLog:
    """A file to which events are appended immediately, each in one write, so that a killed process loses none.

    The first write raises OSError if it fails. If a later write fails (because the disk is full, for example), the
    run continues and the log has a warning.

    Attributes:
        file: The file. None discards all events.
        round: The current round, which is written with every event; None before round 0. The caller sets it.
    """

    def __init__(self, file: str | Path | None = None) -> None:
        self.file = None if file is None else Path(file)
        self.round: int | None = None
        self._has_begun = False

    def record(self, what: str, why: str = "", *, client: str | None = None, node: int | None = None) -> None:
        """Append an event: its kind, such as "lost", its reason, and the client's name or Flower's id of its node."""
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
            with open_regular(self.file, "ab") as stream:
                if not self._has_begun and stream.tell():
                    line = b"\n" + line  # a process may have been killed while it wrote
                stream.write(line)
            self._has_begun = True
        except (OSError, ValueError) as error:
            if not self._has_begun:
                raise
            logger.warning("an event cannot be written and is lost: %s", error)


def read_events(file: str | Path) -> list[dict[str, Any]]:
    """Return all events of a log in order; an empty list if the file does not exist. Damaged lines are skipped.

    If it is too large, a link, a pipe or a device, ValueError is raised.

    Args:
        file: The file of an ``EventLog``, such as events.jsonl in a run folder.
    """
    path, events = Path(file), []
    if not path.exists():
        return []
    check_size(path, MAX_TEXT_BYTES)
    with open_regular(path) as stream:
        while line := stream.readline(MAX_LINE_BYTES):
            with suppress(ValueError, RecursionError):
                event = json.loads(line)
                if isinstance(event, dict) and isinstance(event.get("what"), str):
                    events.append(event)
    return events
