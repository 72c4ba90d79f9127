"""Processes: thread counts, folder locks, and agreement between JAX's distributed processes."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from typing import Any

import jax
import numpy as np
from filelock import FileLock, Timeout
from jax.experimental import multihost_utils

from softswitch.support.arrays import fingerprint
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


def is_first_process() -> bool:
    """Return whether this is JAX's process 0, which alone writes files and messages."""
    return jax.process_index() == 0


def broadcast_flags(*flags: bool) -> tuple[bool, ...]:
    """Return the flags of process 0, in every process. All processes must call it."""
    if jax.process_count() == 1:
        return flags
    return tuple(map(bool, np.asarray(multihost_utils.broadcast_one_to_all(np.array(flags, np.int32)))))


@contextmanager
def enter_on_first_process(make_context: Callable[[], AbstractContextManager[None]]) -> Iterator[None]:
    """Enter ``make_context()`` in process 0 only; if that fails, raise in all processes."""
    with ExitStack() as stack:
        failure: Exception | None = None
        if is_first_process():
            try:
                stack.enter_context(make_context())
            except Exception as error:
                failure = error
        (has_failed,) = broadcast_flags(failure is not None)
        if has_failed:
            raise failure or ValueError("the first process failed; see its error")
        yield


def all_equal(number: int) -> bool:
    """Return whether all processes pass the same number, of at most 31 bits. All processes must call it."""
    if jax.process_count() == 1:
        return True
    return bool((np.asarray(multihost_utils.process_allgather(np.int32(number))) == number).all())


def check_equal(name: str, *arrays: Any) -> None:
    """Raise ValueError unless all processes pass equal arrays, compared by digest; ``name`` appears in the error."""
    if not all_equal(int(fingerprint(arrays)[:7], 16)):
        raise ValueError(f"{name} must be the same in every process, but differ between processes")
