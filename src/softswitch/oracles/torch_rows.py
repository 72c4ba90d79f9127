"""Rows of one client for PyTorch, from a Dataset or a DataLoader."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import contextmanager
from itertools import count
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset, TensorDataset, default_collate

from softswitch.oracles.batch_sizes import draw_rows
from softswitch.support.tracing import function_digest

ROWS_IN_DIGEST = 64
"""Number of evenly spaced rows in the digest of a Dataset that does not consist of tensors."""


class TorchRows:
    """A ``Dataset`` with a length, or a ``DataLoader`` with its own batches.

    Args:
        argument: Name of the data in error messages.
        data: The data.
        device: Device of the batches.
    """

    def __init__(self, argument: str, data: Dataset | DataLoader, device: str | torch.device) -> None:
        self.argument = argument
        self.loader = data if isinstance(data, DataLoader) else None
        self._rows: Dataset = data.dataset if isinstance(data, DataLoader) else data
        self._collate: Callable[[list[Any]], Any] = default_collate
        if isinstance(data, DataLoader) and data.collate_fn is not None:
            self._collate = data.collate_fn
        if not hasattr(self._rows, "__len__") or not len(self._rows):
            raise ValueError(f"{argument} must be a Dataset with a length of at least 1, but is {data!r}")
        self._device = device
        self._cached: Any = None

    def __len__(self) -> int:
        return len(self._rows)  # type: ignore[arg-type]

    def take(self, indices: np.ndarray, seed: tuple[int, ...] = (0,)) -> Any:
        """Return these rows as one batch; the seed determines the random numbers that a Dataset draws."""
        if isinstance(self._rows, TensorDataset):
            return to_device(self._rows[torch.from_numpy(indices)], self._device)
        with seeded(seed):
            return to_device(self._collate([self._rows[int(i)] for i in indices]), self._device)

    def all_rows(self, *, keep: bool = False) -> Any:
        """Return all rows as one batch, and cache it if ``keep`` is True."""
        if self._cached is not None:
            return self._cached
        if isinstance(self._rows, TensorDataset):
            batch = to_device(self._rows.tensors, self._device)
        else:
            batch = self.take(np.arange(len(self)))
        if keep:
            self._cached = batch
        return batch

    def batches(self, seed: tuple[int, ...], size: int | None, replace: bool) -> Generator[Any]:
        """Yield batches without end; close the generator after use.

        Args:
            seed: Seed of the batches.
            size: Rows of a batch; None for all rows.
            replace: Whether rows are drawn with replacement.
        """
        if self.loader is not None:
            with seeded(seed, self.loader.generator):
                while True:
                    is_empty = True
                    for batch in self.loader:
                        is_empty = False
                        yield to_device(batch, self._device)
                    if is_empty:
                        raise ValueError("data must yield at least one batch, but the DataLoader yields none")
        if size is None:
            batch = self.all_rows(keep=True)
            while True:
                yield batch
        generator = np.random.default_rng(seed)
        for i in count():
            yield self.take(draw_rows(generator, len(self), size, replace), (*seed, i))

    def digest(self) -> str:
        """Return a digest of all rows if they are tensors, else of some rows."""
        digest = hashlib.sha256(f"{type(self._rows).__name__} {len(self)}".encode())
        if self.loader is not None:
            sampler = type(self.loader.sampler).__name__
            digest.update(f"{self.loader.batch_size} {self.loader.drop_last} {sampler}".encode())
        if isinstance(self._rows, TensorDataset):
            batch: Any = self._rows.tensors
        else:
            batch = self.take(np.unique(np.linspace(0, len(self) - 1, ROWS_IN_DIGEST).astype(int)))
        digest.update(function_digest(batch).encode())
        return digest.hexdigest()


def to_device(batch: Any, device: str | torch.device) -> Any:
    """Move the tensors of a batch, in any container, to a device."""
    if hasattr(batch, "to"):  # a tensor, a packed sequence, a tokenizer's batch
        return batch.to(device)
    if isinstance(batch, Mapping):
        return {key: to_device(value, device) for key, value in batch.items()}
    if isinstance(batch, tuple) and hasattr(batch, "_fields"):
        return type(batch)(*(to_device(value, device) for value in batch))
    if isinstance(batch, list | tuple):
        return type(batch)(to_device(value, device) for value in batch)
    return batch


@contextmanager
def seeded(seed: tuple[int, ...], extra: torch.Generator | None = None) -> Iterator[None]:
    """Seed PyTorch's generators, and a user's, within the context; restore their states afterwards."""
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
