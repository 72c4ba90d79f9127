"""What trackers write of a chunk."""

from __future__ import annotations

from collections.abc import Iterator

from softswitch.results.callbacks import Chunk

SAMPLED = ("objective", "constraint", "criterion", "feasible")


def sampled(chunk: Chunk) -> Iterator[tuple[int, dict[str, float]]]:
    """Round by round what its participants reported."""
    history, first = chunk.history, chunk.round - len(chunk.history)
    columns = [getattr(history, name).tolist() for name in SAMPLED]
    for k, values in enumerate(zip(*columns, strict=True)):
        yield first + k, {name: float(value) for name, value in zip(SAMPLED, values, strict=True)}


def on_all_data(chunk: Chunk) -> Iterator[tuple[int, dict[str, float]]]:
    """The rounds in which all data was looked at: the worst and the mean client, and held-out rows where there are."""
    history = chunk.history
    parts = {"train": history.full, "held_out": history.held_out}
    for i, k in enumerate(history.full_rounds.tolist()):
        yield (
            k,
            {
                f"{part}_{name}": float(values[i])
                for part, seen in parts.items()
                if seen is not None
                for name, values in seen._asdict().items()
            },
        )
