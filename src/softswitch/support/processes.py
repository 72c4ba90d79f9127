"""How many threads to compute with."""

from __future__ import annotations

import json
import os
import platform
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from softswitch.support.files import read_json


def thread_count() -> int:
    """As many as XLA has in this process: ``NPROC`` where it is set, and else one a core."""
    told = os.environ.get("NPROC", "")
    return int(told) if told.isdigit() and int(told) else os.cpu_count() or 1


LOCK, OWNER = ".in-use.lock", ".in-use.json"
MOST = 10_000
"""Bytes that are read of who has it."""


@contextmanager
def lock_folder(folder: Path) -> Iterator[None]:
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


MAX_DEFERRED = 2
"""How many times it is only noted."""


@contextmanager
def defer_interrupts() -> Iterator[None]:
    """Within it Ctrl-C is only noted, and told afterwards; a third one comes through, should there be no end.

    In other threads than the main one it never comes.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    noted: list[Any] = []

    def note(number: int, frame: Any) -> None:
        noted.append(number)
        if len(noted) > MAX_DEFERRED:
            raise KeyboardInterrupt

    before = signal.getsignal(signal.SIGINT)
    if before is None:  # set by something other than Python, which cannot be put back
        yield
        return
    signal.signal(signal.SIGINT, note)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
    if noted:
        signal.raise_signal(signal.SIGINT)
