"""Ctrl-C waits while something must not be left half done."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

PATIENCE = 2
"""How many times it is only noted."""


@contextmanager
def unbroken() -> Iterator[None]:
    """Within it Ctrl-C is only noted, and told afterwards; a third one comes through, should there be no end.

    In other threads than the main one it never comes.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    noted: list[Any] = []

    def note(number: int, frame: Any) -> None:
        noted.append(number)
        if len(noted) > PATIENCE:
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
