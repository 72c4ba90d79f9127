"""A tracker that writes a CSV file."""

from __future__ import annotations

import csv
from pathlib import Path

from softswitch.results.callbacks import Chunk
from softswitch.results.trackers.tracker import SAMPLED, Tracker, evaluated_values, sampled_values

EVALUATED = tuple(
    f"{part}_{name}"
    for part in ("train", "held_out")
    for name in ("objective", "constraint", "mean_objective", "mean_constraint")
)


class CSVTracker(Tracker):
    """Writes one line per round: the reports, and in some rounds the values on all data.

    Args:
        file: A new CSV file. Its folder is created if it does not exist.
    """

    def __init__(self, file: str | Path) -> None:
        path = Path(file)
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            self._stream = path.open("x", newline="", encoding="utf-8")
        except FileExistsError as error:
            raise ValueError(f"file must not exist, but {path} does; use a new file for each run") from error
        self._writer = csv.DictWriter(self._stream, ("round", *SAMPLED, *EVALUATED))
        self._writer.writeheader()

    def __call__(self, chunk: Chunk) -> None:
        """Write a chunk of rounds."""
        evaluated = dict(evaluated_values(chunk))
        self._writer.writerows({"round": k, **values, **evaluated.get(k, {})} for k, values in sampled_values(chunk))
        self._stream.flush()

    def close(self) -> None:
        """Close the file."""
        self._stream.close()
