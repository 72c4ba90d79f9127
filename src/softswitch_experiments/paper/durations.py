"""How long experiments take: from what they took before, or from a table that comes with the package."""

from __future__ import annotations

import heapq
import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from softswitch.support.files import write_json
from softswitch_experiments.paper.experiment import Experiment, Scale
from softswitch_experiments.paper.outputs import told

TABLE = Path(__file__).with_name("seconds.json")
"""Seconds in the full version and in the quick one, by experiment: as one run of all of them took."""


def table() -> dict[str, dict[str, float]]:
    """The table that comes with the package, by version ("full" or "quick") and experiment."""
    return json.loads(TABLE.read_text(encoding="utf-8"))


def expected(experiment: Experiment, scale: Scale, out: Path) -> float:
    """Seconds that an experiment will probably take: those of its outputs in ``out``, or else the table's."""
    before = told(out, experiment.name)
    if before is not None and before.get("quick") == scale.quick and before.get("seconds"):
        return float(before["seconds"]) * (1 if scale.quick else scale.seeds / before["seeds"])
    known = table()["quick" if scale.quick else "full"]
    seconds = known.get(experiment.name) or (median(known.values()) if known else 60.0)
    return seconds * (1 if scale.quick else scale.seeds / experiment.seeds)


def until_the_last(seconds: Iterable[float], jobs: int, begun: Sequence[float] = ()) -> float:
    """When the last of some tasks ends that ``jobs`` processes take in this order; ``begun``: what they still have."""
    free = sorted([*begun, *[0.0] * max(0, jobs - len(begun))])
    for one in seconds:
        heapq.heapreplace(free, free[0] + one)
    return max(free)


def record(found: Mapping[str, Mapping[str, Any]]) -> None:
    """Put what experiments took into the table that comes with the package."""
    known = table()
    for name, one in found.items():
        known["quick" if one["quick"] else "full"][name] = one["seconds"]
    write_json(TABLE, known)


def in_words(seconds: float) -> str:
    """A duration for people: 40 s, 12 min, 1 h 5 min."""
    if seconds < 100:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 100 else f"{minutes // 60} h {minutes % 60} min"
