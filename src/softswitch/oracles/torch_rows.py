"""Rows of PyTorch clients: data sets and loaders, and tensors of many clients in one place."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import count
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset, TensorDataset, default_collate

from softswitch.oracles.batch_sizes import draw_rows
from softswitch.support.tracing import function_digest

ROWS_IN_DIGEST = 64  # maximum number of evenly spaced rows in the digest of a Dataset that does not consist of tensors
MAX_READ = 2**20  # maximum size in bytes of several batches that are read at once
MAX_COPY = 2**28  # maximum size in bytes of a copy of all rows in the memory of the processor


class TorchRows:
    """Rows of a client: a ``Dataset`` with a length, or a ``DataLoader``. ``argument`` is its name in errors."""

    def __init__(self, argument: str, data: Dataset | DataLoader, device: str | torch.device) -> None:
        self.argument, self._device = argument, device
        self.loader = data if isinstance(data, DataLoader) else None
        self._rows: Dataset = data.dataset if isinstance(data, DataLoader) else data
        self._collate: Callable[[list[Any]], Any] = getattr(self.loader, "collate_fn", None) or default_collate
        if not hasattr(self._rows, "__len__") or not len(self._rows):
            raise ValueError(f"{argument} must be a Dataset with a length of at least 1, but is {data!r}")
        self._cached: Any = None

    def __len__(self) -> int:
        return len(self._rows)  # type: ignore[arg-type]

    @property
    def tensors(self) -> tuple[torch.Tensor, ...] | None:
        """The tensors of a ``TensorDataset`` without a loader; None for other data."""
        return self._rows.tensors if isinstance(self._rows, TensorDataset) and self.loader is None else None

    def take(self, indices: np.ndarray, seed: tuple[int, ...] = (0,)) -> Any:
        """Return the rows ``indices`` as one batch; ``seed`` is for random numbers that a Dataset draws."""
        if isinstance(self._rows, TensorDataset):
            return to_device(self._rows[torch.from_numpy(indices)], self._device)
        with seeded(seed):
            return to_device(self._collate([self._rows[int(i)] for i in indices]), self._device)

    def all_rows(self, *, keep: bool = False) -> Any:
        """Return all rows as one batch; with ``keep`` it is cached for later calls."""
        if self._cached is not None:
            return self._cached
        tensors = self._rows.tensors if isinstance(self._rows, TensorDataset) else None
        batch = self.take(np.arange(len(self))) if tensors is None else to_device(tensors, self._device)
        self._cached = batch if keep else None
        return batch

    def batches(self, seed: tuple[int, ...], size: int | None, replace: bool) -> Generator[Any]:
        """Yield batches of ``size`` random rows (None: all), or of the ``DataLoader``, without end; close after use."""
        if self.loader is not None:
            with seeded(seed, self.loader.generator):
                while True:
                    is_empty = True
                    for batch in self.loader:
                        is_empty = False
                        yield to_device(batch, self._device)
                    if is_empty:
                        raise ValueError("data must yield at least one batch, but the DataLoader yields none")
        generator = np.random.default_rng(seed)
        for i in count():
            if size is None:
                yield self.all_rows(keep=True)
            else:
                yield self.take(draw_rows(generator, len(self), size, replace), (*seed, i))

    def digest(self) -> str:
        """Return a SHA-256 digest of all rows if they are tensors, else of up to ``ROWS_IN_DIGEST`` rows."""
        some = np.unique(np.linspace(0, len(self) - 1, ROWS_IN_DIGEST).astype(int))
        batch = self._rows.tensors if isinstance(self._rows, TensorDataset) else self.take(some)
        parts: list[Any] = [type(self._rows).__name__, len(self), batch]
        if self.loader is not None:
            parts += [self.loader.batch_size, self.loader.drop_last, type(self.loader.sampler).__name__]
        return function_digest(*parts)


def to_device(batch: Any, device: str | torch.device) -> Any:
    """Return a batch with its tensors, in nested dicts, lists and tuples, on a device."""
    return map_batch(lambda leaf: leaf.to(device) if hasattr(leaf, "to") else leaf, batch)


def map_batch(function: Callable[[Any], Any], batch: Any) -> Any:
    """Return a batch with ``function`` applied to every leaf of its nested dicts, lists and tuples."""
    if hasattr(batch, "to"):  # a tensor, a packed sequence, a tokenizer's batch
        return function(batch)
    if isinstance(batch, Mapping):
        return {key: map_batch(function, value) for key, value in batch.items()}
    if isinstance(batch, list | tuple):
        parts = [map_batch(function, value) for value in batch]
        return type(batch)(*parts) if hasattr(batch, "_fields") else type(batch)(parts)
    return function(batch)


@contextmanager
def seeded(seed: tuple[int, ...], extra: torch.Generator | None = None) -> Iterator[None]:
    """Seed PyTorch's generators, and ``extra``, for the ``with`` block; restore their states afterwards."""
    generators = [torch.default_generator, *([] if extra is None else [extra])]
    if torch.cuda.is_initialized():
        generators.extend(torch.cuda.default_generators)
    before = [generator.get_state() for generator in generators]
    number = int(np.random.default_rng(seed).integers(2**62))
    for generator in generators:  # without a GPU, torch.manual_seed keeps a traceback for every call
        generator.manual_seed(number)
    try:
        yield
    finally:
        for generator, state in zip(generators, before, strict=True):
            generator.set_state(state)


class TensorStore:
    """The rows of all clients in one place on the device of the module, if they are tensors of equal kinds."""

    def __init__(self, tensors: Sequence[tuple[torch.Tensor, ...]], device: torch.device) -> None:
        self.sizes = np.array([len(client[0]) for client in tensors])
        self._starts = np.cumsum(self.sizes) - self.sizes
        self._columns = tuple(torch.cat(column).to(device) for column in zip(*tensors, strict=True))

    @classmethod
    def of(cls, clients: Sequence[TorchRows], device: torch.device) -> TensorStore | None:
        """Return the clients' rows in one place; None if they are no tensors, or if a copy would be too large."""
        tensors = [rows.tensors for rows in clients]
        known = [client for client in tensors if client is not None]
        kinds = {tuple((t.dtype, t.shape[1:], t.device) for t in client) for client in known}
        size = sum(t.numel() * t.element_size() for client in known for t in client)
        if len(known) < len(tensors) or len(kinds) > 1 or (device.type == "cpu" and size > MAX_COPY):
            return None
        return cls(known, device)

    def places(self, clients: np.ndarray, rows: np.ndarray) -> np.ndarray:
        """Return the places of rows of clients, steps × clients × batch."""
        places: np.ndarray = self._starts[clients][:, None] + rows
        return places

    def batches(self, places: np.ndarray) -> Iterator[tuple[torch.Tensor, ...]]:
        """Yield the rows ``places[i]`` as one batch for each i; several small batches are read at once."""
        size = sum(column[0].numel() * column.element_size() for column in self._columns) * places[0].size
        for some in torch.from_numpy(places).to(self._columns[0].device).split(max(1, MAX_READ // size)):
            rows = [column.index_select(0, some.flatten()).unflatten(0, some.shape) for column in self._columns]
            yield from zip(*(column.unbind() for column in rows), strict=True)

    def all_rows(self, clients: np.ndarray) -> list[tuple[torch.Tensor, ...]]:
        """Return all rows of every client, without copies."""
        ranges = zip(self._starts[clients].tolist(), self.sizes[clients].tolist(), strict=True)
        return [tuple(column[start : start + size] for column in self._columns) for start, size in ranges]
