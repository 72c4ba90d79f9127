"""A run's rounds as a CSV file."""

from __future__ import annotations

import csv
from pathlib import Path
from types import TracebackType

from softswitch.results.callbacks import Chunk
from softswitch.results.trackers.numbers import SAMPLED, on_all_data, sampled

FULL = tuple(
    f"{part}_{name}"
    for part in ("train", "held_out")
    for name in ("objective", "constraint", "mean_objective", "mean_constraint")
)


class CSVTracker:
    """One line a round: what was reported, and in some rounds what all data say. Written out after every chunk.

    Args:
        file: the CSV; its folder is made if need be. A file that is there is refused: it may be another run's.
    """

    def __init__(self, file: str | Path) -> None:
        path = Path(file)
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            self._stream = path.open("x", newline="", encoding="utf-8")
        except FileExistsError as error:
            raise ValueError(f"{path} is there already; a run writes a file of its own") from error
        self._writer = csv.DictWriter(self._stream, ("round", *SAMPLED, *FULL))
        self._writer.writeheader()

    def __call__(self, chunk: Chunk) -> None:
        """Write a chunk."""
        looked = dict(on_all_data(chunk))
        self._writer.writerows({"round": k, **values, **looked.get(k, {})} for k, values in sampled(chunk))
        self._stream.flush()

    def close(self) -> None:
        """Close the file."""
        self._stream.close()

    def __enter__(self) -> CSVTracker:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
