"""One thread that reads ahead: what is needed next is on its way while something else is computed."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeVar

import jax

Job = TypeVar("Job")
Made = TypeVar("Made")


class ReadingAhead:
    """A thread of its own for reading, with the settings of JAX of whoever asks."""

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="rows")

    def ask(self, function: Callable[..., Made], *arguments: Any) -> Future[Made]:
        """Call a function in that thread; its result, or what it raised, comes with the future."""
        wide, device = (getattr(jax.config, name) for name in ("jax_enable_x64", "jax_default_device"))

        def called() -> Made:
            with jax.enable_x64(wide), jax.default_device(device):  # both belong to a thread
                return function(*arguments)

        return self._pool.submit(called)

    def each(self, function: Callable[[Job], Made], jobs: Iterable[Job]) -> Iterator[tuple[Job, Made]]:
        """What a function makes of every job, one after another; the next is under way while one is worked with."""
        waiting: tuple[Job, Future[Made]] | None = None
        for job in jobs:
            coming = job, self.ask(function, job)
            if waiting is not None:
                yield waiting[0], waiting[1].result()
            waiting = coming
        if waiting is not None:
            yield waiting[0], waiting[1].result()
