"""A tracker for TensorBoard: ``pip install 'softswitch[tensorboard]'``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.summary.writer.event_file_writer import EventFileWriter

from softswitch.results.callbacks import Chunk
from softswitch.results.trackers.tracker import Tracker, evaluated_values, sampled_values


class TensorBoardTracker(Tracker):
    """Writes scalars ``sampled/…`` for every round, and ``train/…`` and ``held_out/…`` for evaluations on all data.

    Args:
        folder: TensorBoard's log directory.
        every: Number of rounds from one written round to the next.
    """

    def __init__(self, folder: str | Path, *, every: int = 1) -> None:
        self._writer, self._every = EventFileWriter(str(folder)), every

    def __call__(self, chunk: Chunk) -> None:
        """Write a chunk of rounds."""
        for k, values in sampled_values(chunk):
            if k % self._every == 0:
                self._write(k, {f"sampled/{name}": value for name, value in values.items()})
        for k, values in evaluated_values(chunk):
            tags = {name: "held_out" if name.startswith("held_out") else "train" for name in values}
            self._write(k, {f"{tags[n]}/{n.removeprefix(f'{tags[n]}_')}": value for n, value in values.items()})
        self._writer.flush()

    def _write(self, k: int, values: dict[str, float]) -> None:
        scalars: list[Any] = [Summary.Value(tag=tag, simple_value=value) for tag, value in values.items()]
        self._writer.add_event(Event(step=k, summary=Summary(value=scalars)))

    def close(self) -> None:
        """Flush and close the event file."""
        self._writer.close()
