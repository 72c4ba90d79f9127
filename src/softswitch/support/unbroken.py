"""Ctrl-C waits while something must not be left half done."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def unbroken() -> Iterator[None]:
    """Within it Ctrl-C is only noted, and told afterwards. In other threads than the main one it never comes."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    noted: list[Any] = []
    before = signal.getsignal(signal.SIGINT)
    if before is None:  # set by something other than Python, which cannot be put back
        yield
        return
    signal.signal(signal.SIGINT, lambda number, frame: noted.append(number))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
    if noted:
        signal.raise_signal(signal.SIGINT)
