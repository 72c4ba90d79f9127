"""The base class of trackers, and the numbers that they write."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Self

from softswitch.results.callbacks import Chunk

SAMPLED = ("objective", "constraint", "criterion", "feasible")


class Tracker(ABC):
    """A callback that writes the numbers of a run to another system, and a context manager that closes it."""

    @abstractmethod
    def __call__(self, chunk: Chunk) -> None:
        """Write a chunk of rounds."""

    @abstractmethod
    def close(self) -> None:
        """Close the tracker."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def sampled_values(chunk: Chunk) -> Iterator[tuple[int, dict[str, float]]]:
    """Yield the number and the reported values of each round."""
    history, first = chunk.history, chunk.round - len(chunk.history)
    columns = [getattr(history, name).tolist() for name in SAMPLED]
    for k, values in enumerate(zip(*columns, strict=True)):
        yield first + k, {name: float(value) for name, value in zip(SAMPLED, values, strict=True)}


def evaluated_values(chunk: Chunk) -> Iterator[tuple[int, dict[str, float]]]:
    """Yield the number and the values of each round that was evaluated on all data, and on held-out data if any."""
    history = chunk.history
    parts = {"train": history.full, "held_out": history.held_out}
    for i, k in enumerate(history.full_rounds.tolist()):
        values = {
            f"{part}_{name}": float(column[i])
            for part, summary in parts.items()
            if summary is not None
            for name, column in summary._asdict().items()
        }
        yield k, values
