"""Several processes that compute one program together (``jax.distributed``): what they must be of one mind about."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any

import jax
import numpy as np
from jax.experimental import multihost_utils

from softswitch.support.arrays import fingerprint


def process_count() -> int:
    """How many there are."""
    return jax.process_count()


def is_first_process() -> bool:
    """Whether this is the first of them: the one that writes files and speaks to the user."""
    return jax.process_index() == 0


def broadcast_flags(*answers: bool) -> tuple[bool, ...]:
    """Yes or no, as the first process says; the others' answers do not count."""
    if process_count() == 1:
        return answers
    told = multihost_utils.broadcast_one_to_all(np.array(answers, np.int32))
    return tuple(bool(answer) for answer in np.asarray(told))


@contextmanager
def enter_on_first_process(take: Callable[[], AbstractContextManager[None]]) -> Iterator[None]:
    """Within, the first process has taken something; where it cannot, all of them raise, and none waits for it."""
    with ExitStack() as held:
        refused: Exception | None = None
        if is_first_process():
            try:
                held.enter_context(take())
            except Exception as error:
                refused = error
        (failed,) = broadcast_flags(refused is not None)
        if failed:
            raise refused or ValueError("the first process was refused what it needs; it says why")
        yield


def all_equal(number: int) -> bool:
    """Whether all processes have this number."""
    if process_count() == 1:
        return True
    every = np.asarray(multihost_utils.process_allgather(np.int32(number)))
    return bool((every == number).all())


def check_equal(name: str, *arrays: Any) -> None:
    """Raise where not all processes were given the same arrays, by a digest: a program would wait for ever."""
    digest = int(fingerprint(arrays)[:7], 16)
    if not all_equal(digest):
        raise ValueError(f"{name} must be the same in every process, but differ between processes")
