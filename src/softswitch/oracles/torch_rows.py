"""One client's rows for PyTorch: a data set or a DataLoader, as batches on a device."""

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
from softswitch.support.function_equality import function_digest

ROWS_IN_DIGEST = 64
"""Of a data set that is not made of tensors so many rows, evenly spread, stand for all."""


class TorchRows:
    """A ``Dataset`` with a length, or a ``DataLoader``, whose own batches are then used.

    Args:
        argument: what the caller calls the data, for errors.
        data: the data.
        device: where batches are to lie.
    """

    def __init__(self, argument: str, data: Dataset | DataLoader, device: str | torch.device) -> None:
        self.loader = data if isinstance(data, DataLoader) else None
        self._rows: Dataset = data.dataset if isinstance(data, DataLoader) else data
        self._collate: Callable[[list[Any]], Any] = default_collate
        if isinstance(data, DataLoader) and data.collate_fn is not None:
            self._collate = data.collate_fn
        if not hasattr(self._rows, "__len__") or not len(self._rows):
            raise ValueError(f"{argument} must be a Dataset with a length of at least 1, but is {data!r}")
        self._device = device
        self._whole: Any = None

    def __len__(self) -> int:
        return len(self._rows)  # type: ignore[arg-type]

    def take(self, indices: np.ndarray, seed: tuple[int, ...] = (0,)) -> Any:
        """These rows as one batch; what a data set draws for itself, it draws from the seed."""
        if isinstance(self._rows, TensorDataset):
            return on(self._rows[torch.from_numpy(indices)], self._device)
        with seeded(seed):
            return on(self._collate([self._rows[int(i)] for i in indices]), self._device)

    def everything(self, *, keep: bool = False) -> Any:
        """All rows as one batch; kept for the next time, where it is asked for."""
        if self._whole is not None:
            return self._whole
        if isinstance(self._rows, TensorDataset):
            whole = on(self._rows.tensors, self._device)
        else:
            whole = self.take(np.arange(len(self)))
        if keep:
            self._whole = whole
        return whole

    def batches(self, seed: tuple[int, ...], size: int | None, replace: bool) -> Generator[Any]:
        """Batches without end, from the seed alone: all rows where the size is None. To be closed after use.

        Args:
            seed: of these batches.
            size: rows of a batch.
            replace: whether they are drawn with replacement.
        """
        if self.loader is not None:
            with seeded(seed, self.loader.generator):
                while True:
                    some = False
                    for batch in self.loader:
                        some = True
                        yield on(batch, self._device)
                    if not some:
                        raise ValueError("data must yield at least one batch, but the DataLoader yields none")
        if size is None:
            everything = self.everything(keep=True)
            while True:
                yield everything
        generator = np.random.default_rng(seed)
        for i in count():
            yield self.take(draw_rows(generator, len(self), size, replace), (*seed, i))

    def digest(self) -> str:
        """A digest of the rows: of all of them where they are tensors, else of some."""
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


def on(batch: Any, device: str | torch.device) -> Any:
    """A batch with its tensors on a device, whatever holds them."""
    if hasattr(batch, "to"):  # a tensor, a packed sequence, a tokenizer's batch
        return batch.to(device)
    if isinstance(batch, Mapping):
        return {key: on(value, device) for key, value in batch.items()}
    if isinstance(batch, tuple) and hasattr(batch, "_fields"):
        return type(batch)(*(on(value, device) for value in batch))
    if isinstance(batch, list | tuple):
        return type(batch)(on(value, device) for value in batch)
    return batch


@contextmanager
def seeded(seed: tuple[int, ...], also: torch.Generator | None = None) -> Iterator[None]:
    """Within, PyTorch's own generators begin from this seed, and one of a user; after, they are as they were."""
    generators = [torch.default_generator, *([] if also is None else [also])]
    if torch.cuda.is_initialized():
        generators.extend(torch.cuda.default_generators)
    before = [generator.get_state() for generator in generators]
    number = int(np.random.default_rng(seed).integers(2**62))
    for generator in generators:  # torch.manual_seed would keep a traceback for every call where there is no GPU
        generator.manual_seed(number)
    try:
        yield
    finally:
        for generator, state in zip(generators, before, strict=True):
            generator.set_state(state)
