"""One thread that reads ahead: what is needed next is on its way while something else is computed."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

from softswitch.data.client_data import Rows
from softswitch.data.streamed_data import StreamedData
from softswitch.oracles.gradient import GradientOracle, RowDraws

Job = TypeVar("Job")
Made = TypeVar("Made")


class PrefetchThread:
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


MOST_ROUNDS = 250
"""A stretch is at most so many rounds."""


class Stretch(NamedTuple):
    """Some rounds' rows, on the device.

    Attributes:
        rows: the store: the rows of the clients that take part with all of theirs, then those that are drawn.
        draws: the rounds' draws; their rows are places in the store.
    """

    rows: Rows
    draws: RowDraws


class Coming(NamedTuple):
    """Rows that are on their way.

    Attributes:
        run: the key of the run they are for, as bytes.
        first: their first round,
        rounds: and how many rounds they are for.
        rows: what will be there.
    """

    run: bytes
    first: int
    rounds: int
    rows: Future[Stretch]


class RowFeed:
    """Reads what rounds draw.

    Attributes:
        rounds: how many rounds' rows fit into one half of the buffer, at most.
        coming: what is on its way; None: nothing.
    """

    def __init__(self, data: StreamedData, drawing: GradientOracle) -> None:
        self._data, self._drawing, self._ahead = data, drawing, PrefetchThread()
        m = drawing.participants
        report, update = drawing.report_batching, drawing.update_batching
        self._reported = 0 if report.draws is None else m * report.width
        self._updated = 0 if update.draws is None else m * drawing.local_steps * update.width
        self._of_participants = (
            int(np.sort(data.sizes)[-m:].sum()) if report.draws is None or update.draws is None else 0
        )
        self._total, self._half = int(data.sizes.sum()), data.buffer_bytes // 2
        self.rounds = next((r for r in range(MOST_ROUNDS, 0, -1) if self._bytes(r) <= self._half), 0)
        if not self.rounds:
            whole = " (all rows of every participant, as with batch_size=None)" if self._of_participants else ""
            raise ValueError(
                f"one round's rows take up to {self._bytes(1):,} bytes{whole}, more than half of buffer_bytes = "
                f"{data.buffer_bytes:,}; lower batch_size, value_batch_size, local_steps or participation, or raise "
                "buffer_bytes"
            )
        self.coming: Coming | None = None
        self._kept: tuple[np.ndarray, dict[str, np.ndarray]] | None = None
        self._on_device: tuple[np.ndarray, Rows] | None = None

    def ask(self, draws: RowDraws, count: int) -> Future[Stretch]:
        """Begin to read what the first ``count`` of these rounds draw, beside whatever else is done."""
        return self._ahead.ask(self.read, draws, count)

    def read(self, draws: RowDraws, count: int) -> Stretch:
        """Read what the first ``count`` of these rounds draw; the others' rows are zeros, and nobody looks at them.

        Args:
            draws: of as many rounds as are computed at most, on the first axis of every array.
            count: how many rounds there are.
        """
        rounds = draws.clients.shape[0]
        everyone = np.unique(np.asarray(draws.clients)[:count]) if self._of_participants else np.zeros(0, int)
        first = self._whole_rows(rounds)
        nothing_drawn = not (self._reported or self._updated)
        if nothing_drawn and self._on_device is not None and np.array_equal(self._on_device[0], everyone):
            return Stretch(self._on_device[1], draws)
        store = self._data.store(first + rounds * (self._reported + self._updated))
        self._fill_whole(everyone, store)
        placed = {}
        for name, many in (("report_rows", self._reported), ("update_rows", self._updated)):
            drawn: Any = getattr(draws, name)
            if many:
                self._data.read(np.asarray(drawn)[:count].reshape(-1), store, first)
                placed[name] = jnp.arange(first, first + rounds * many, dtype=jnp.int32).reshape(drawn.shape)
                first += rounds * many
        columns = {key: jax.device_put(column, may_alias=True) for key, column in store.items()}
        rows = Rows(columns, jnp.asarray(self._offsets(everyone)), self._drawing.rows.counts)
        if nothing_drawn:
            self._on_device = everyone, rows
        return Stretch(rows, draws._replace(**placed))

    def _whole_rows(self, rounds: int) -> int:
        """Places for all rows of those who take part in so many rounds."""
        return min(self._total, rounds * self._of_participants)

    def _bytes(self, rounds: int) -> int:
        drawn = rounds * (self._reported + self._updated)
        return (self._whole_rows(rounds) + drawn) * self._data.row_bytes

    def _offsets(self, everyone: np.ndarray) -> np.ndarray:
        """Where the rows of those who take part with all of theirs begin in the store."""
        offsets = np.zeros(self._drawing.rows.offsets.shape, np.int32)
        if len(everyone):
            sizes = self._data.sizes[everyone]
            offsets[everyone] = (np.cumsum(sizes) - sizes)[:, None]
        return offsets

    def _fill_whole(self, everyone: np.ndarray, store: dict[str, np.ndarray]) -> None:
        """All rows of these clients, to the front of the store; those of the stretch before are not read again."""
        if not len(everyone):
            return
        many = int(self._data.sizes[everyone].sum())
        if self._kept is not None and np.array_equal(self._kept[0], everyone):
            for key, column in self._kept[1].items():
                store[key][:many] = column
            return
        sizes = self._data.sizes[everyone]
        within = np.arange(many) - np.repeat(np.cumsum(sizes) - sizes, sizes)
        self._data.read(np.repeat(self._data.offsets[everyone, 0], sizes) + within, store, 0)
        if len(everyone) == len(self._data) and (self._reported or self._updated):
            self._kept = everyone, {key: column[:many].copy() for key, column in store.items()}
