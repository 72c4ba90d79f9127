"""A run's rounds for TensorBoard: ``pip install 'softswitch[tensorboard]'``."""

from __future__ import annotations

from pathlib import Path
from types import TracebackType
from typing import Any

from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.summary.writer.event_file_writer import EventFileWriter

from softswitch.results.callbacks import Chunk
from softswitch.results.trackers.numbers import on_all_data, sampled


class TensorBoardTracker:
    """Scalars ``sampled/…`` for every round, and ``train/…``, ``held_out/…`` where all data was looked at.

    Args:
        folder: where TensorBoard looks.
        every: a point every so many rounds, for long runs.
    """

    def __init__(self, folder: str | Path, *, every: int = 1) -> None:
        self._writer = EventFileWriter(str(folder))
        self._every = every

    def __call__(self, chunk: Chunk) -> None:
        """Write a chunk."""
        for k, values in sampled(chunk):
            if k % self._every == 0:
                self._write(k, {f"sampled/{name}": value for name, value in values.items()})
        for k, values in on_all_data(chunk):
            self._write(k, {_tag(name): value for name, value in values.items()})
        self._writer.flush()

    def _write(self, k: int, values: dict[str, float]) -> None:
        told: list[Any] = [Summary.Value(tag=tag, simple_value=value) for tag, value in values.items()]
        self._writer.add_event(Event(step=k, summary=Summary(value=told)))

    def close(self) -> None:
        """Write out all, and close."""
        self._writer.close()

    def __enter__(self) -> TensorBoardTracker:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _tag(name: str) -> str:
    part = "held_out" if name.startswith("held_out") else "train"
    return f"{part}/{name.removeprefix(f'{part}_')}"
