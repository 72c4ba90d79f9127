"""Read the rows that rounds draw from out-of-core data, ahead of the rounds."""

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
Result = TypeVar("Result")
MAX_ROUNDS = 250
"""Maximum number of rounds whose rows are read together."""


class PrefetchThread:
    """One thread that reads ahead, with the caller's JAX settings."""

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="rows")

    def submit(self, function: Callable[..., Result], *arguments: Any) -> Future[Result]:
        """Call a function in the thread."""
        x64, device = (getattr(jax.config, name) for name in ("jax_enable_x64", "jax_default_device"))

        def call() -> Result:
            with jax.enable_x64(x64), jax.default_device(device):  # both are settings of a thread
                return function(*arguments)

        return self._pool.submit(call)

    def map(self, function: Callable[[Job], Result], jobs: Iterable[Job]) -> Iterator[tuple[Job, Result]]:
        """Yield each job with its result, while the next result is computed.

        The caller must delete a result before it asks for the next one: then at most two exist at a time.
        """
        pending: tuple[Job, Future[Result]] | None = None
        for job in jobs:
            following = job, self.submit(function, job)
            if pending is not None:
                yield pending[0], pending[1].result()
            pending = following
        if pending is not None:
            yield pending[0], pending[1].result()


def make_store(data: StreamedData, rows: int) -> dict[str, np.ndarray]:
    """Allocate columns for this number of rows, after the memory of deleted arrays is released."""
    jax.device_put(np.zeros(()))  # JAX releases host memory of deleted arrays at the next transfer
    return data.store(rows)


class RoundRows(NamedTuple):
    """The rows of some rounds, on the device.

    Attributes:
        rows: All rows of the participants that use all of them, then the drawn rows.
        draws: The draws of the rounds, with row indices into ``rows``.
    """

    rows: Rows
    draws: RowDraws


class PendingRows(NamedTuple):
    """Rows that are being read.

    Attributes:
        run: Key of the run, as bytes.
        first: First round.
        rounds: Number of rounds.
        rows: The result.
    """

    run: bytes
    first: int
    rounds: int
    rows: Future[RoundRows]


class RowFeed:
    """Reads the rows that rounds draw.

    The rows of two groups of rounds, one computed and one being read, and a cache of the rows that every round uses
    take at most ``data.buffer_bytes`` together.

    Attributes:
        rounds: Maximum number of rounds whose rows are read together.
        pending: The rows that are being read; None if there are none.
    """

    def __init__(self, data: StreamedData, drawing: GradientOracle) -> None:
        self._data, self._drawing, self._thread = data, drawing, PrefetchThread()
        m, report, update = drawing.participants, drawing.report_batching, drawing.update_batching
        self._report_rows = 0 if report.draws is None else m * report.width
        self._update_rows = 0 if update.draws is None else m * drawing.local_steps * update.width
        takes_all = report.draws is None or update.draws is None
        self._participant_rows = int(np.sort(data.sizes)[-m:].sum()) if takes_all else 0
        self._total = int(data.sizes.sum())
        half = data.buffer_bytes // 2
        cached = self._total * data.row_bytes
        draws_any = bool(self._report_rows or self._update_rows)
        self._caches = takes_all and draws_any and m == len(data) and self._bytes(1) + cached <= half
        limit = half - cached if self._caches else half
        self.rounds = next((r for r in range(MAX_ROUNDS, 0, -1) if self._bytes(r) <= limit), 0)
        if not self.rounds:
            reason = " (all rows of every participant, as with batch_size=None)" if takes_all else ""
            raise ValueError(
                f"one round's rows take up to {self._bytes(1):,} bytes{reason}, more than half of buffer_bytes = "
                f"{data.buffer_bytes:,}; lower batch_size, value_batch_size, local_steps or participation, or raise "
                "buffer_bytes"
            )
        self.pending: PendingRows | None = None
        self._cache: dict[str, np.ndarray] | None = None
        self._on_device: tuple[np.ndarray, Rows] | None = None

    @property
    def holds_rows(self) -> bool:
        """Whether rows are in memory or being read."""
        return not (self.pending is None and self._cache is None and self._on_device is None)

    def submit(self, draws: RowDraws, count: int) -> Future[RoundRows]:
        """Call ``read`` in the background."""
        return self._thread.submit(self.read, draws, count)

    def read(self, draws: RowDraws, count: int) -> RoundRows:
        """Read the rows of the first ``count`` rounds of ``draws``; the rows of further rounds are zeros."""
        rounds = draws.clients.shape[0]
        participants = np.unique(np.asarray(draws.clients)[:count]) if self._participant_rows else np.zeros(0, int)
        draws_any = self._report_rows or self._update_rows
        if self._on_device is not None and np.array_equal(self._on_device[0], participants):
            return RoundRows(self._on_device[1], draws)
        self._on_device = None
        first = self._whole_rows(rounds)
        store = make_store(self._data, first + rounds * (self._report_rows + self._update_rows))
        self._fill_whole(participants, store)
        placed = {}
        for name, size in (("report_rows", self._report_rows), ("update_rows", self._update_rows)):
            drawn: Any = getattr(draws, name)
            if size:
                self._data.read(np.asarray(drawn)[:count].reshape(-1), store, first)
                placed[name] = jnp.arange(first, first + rounds * size, dtype=jnp.int32).reshape(drawn.shape)
                first += rounds * size
        columns = {key: jax.device_put(column, may_alias=True) for key, column in store.items()}
        rows = Rows(columns, jnp.asarray(self._offsets(participants)), self._drawing.rows.counts)
        if not draws_any:
            self._on_device = participants, rows
        return RoundRows(rows, draws._replace(**placed))

    def _whole_rows(self, rounds: int) -> int:
        return min(self._total, rounds * self._participant_rows)

    def _bytes(self, rounds: int) -> int:
        drawn = rounds * (self._report_rows + self._update_rows)
        return (self._whole_rows(rounds) + drawn) * self._data.row_bytes

    def _offsets(self, participants: np.ndarray) -> np.ndarray:
        offsets = np.zeros(self._drawing.rows.offsets.shape, np.int32)
        if len(participants):
            sizes = self._data.sizes[participants]
            offsets[participants] = (np.cumsum(sizes) - sizes)[:, None]
        return offsets

    def _fill_whole(self, participants: np.ndarray, store: dict[str, np.ndarray]) -> None:
        """Put all rows of the participants at the beginning of the store."""
        if not len(participants):
            return
        sizes = self._data.sizes[participants]
        total = int(sizes.sum())
        if self._cache is not None:
            for key, column in self._cache.items():
                store[key][:total] = column
            return
        within = np.arange(total) - np.repeat(np.cumsum(sizes) - sizes, sizes)
        self._data.read(np.repeat(self._data.offsets[participants, 0], sizes) + within, store, 0)
        if self._caches:
            self._cache = {key: column[:total].copy() for key, column in store.items()}
