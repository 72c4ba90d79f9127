"""One run at a time in a folder."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

from filelock import FileLock, Timeout

from softswitch.support.capped_files import read_json

LOCK, OWNER = ".in-use.lock", ".in-use.json"
MOST = 10_000
"""Bytes that are read of who has it."""


@contextmanager
def sole_use(folder: Path) -> Iterator[None]:
    """Within, nobody else has this folder: neither another process nor another call in this one.

    The system lets go of the lock when its process ends, however it ends: none is ever left behind by a kill.

    Raises:
        ValueError: somebody else has it.
    """
    folder.mkdir(parents=True, exist_ok=True)
    lock = FileLock(folder / LOCK)
    try:
        lock.acquire(timeout=0)
    except Timeout:
        raise ValueError(
            f"{folder} is in use by another run{_owner(folder)}; wait until it has ended, or use another folder"
        ) from None
    try:
        told = {"process": os.getpid(), "host": platform.node(), "since": f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC"}
        (folder / OWNER).write_text(json.dumps(told), encoding="utf-8")
        yield
    finally:
        (folder / OWNER).unlink(missing_ok=True)
        lock.release()


def _owner(folder: Path) -> str:
    """Who has it, as far as that was written down."""
    try:
        told = read_json(folder / OWNER, MOST)
        return f" (process {told['process']} on {told['host']}, since {told['since']})"
    except (OSError, ValueError, KeyError, TypeError):
        return ""
