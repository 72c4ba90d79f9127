"""Thread counts, and locks of run folders."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock, Timeout

from softswitch.support.files import check_unshared, make_folder

LOCK = ".in-use.lock"  # name of the lock file in a run folder


def thread_count() -> int:
    """Return the number of threads that XLA uses: the environment variable ``NPROC``, or the number of cores."""
    count = os.environ.get("NPROC", "")
    return int(count) if count.isdigit() and int(count) else os.cpu_count() or 1


@contextmanager
def lock_folder(folder: Path) -> Iterator[None]:
    """Create a folder if needed and lock it in the ``with`` block; raise ValueError if another run has locked it."""
    make_folder(folder)
    check_unshared(folder / LOCK)
    lock = FileLock(folder / LOCK)
    try:
        lock.acquire(timeout=0)
    except Timeout:
        raise ValueError(f"{folder} is in use by another run; wait until it has ended, or use another folder") from None
    try:
        yield
    finally:
        lock.release()
