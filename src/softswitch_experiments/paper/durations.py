"""Durations of experiments: estimated from earlier outputs, or from a table that comes with the package."""

from __future__ import annotations

import heapq
import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from softswitch.support.files import write_json
from softswitch_experiments.paper.experiment import Experiment, Scale
from softswitch_experiments.paper.outputs import read_outputs

FILE = Path(__file__).with_name("seconds.json")


def load_durations() -> dict[str, dict[str, float]]:
    """Return the seconds that come with the package, by version ("full" or "quick") and experiment."""
    return json.loads(FILE.read_text(encoding="utf-8"))


def estimate_seconds(experiment: Experiment, scale: Scale, out: Path) -> float:
    """Return the expected duration: from earlier outputs in ``out``, or from the table."""
    earlier = read_outputs(out, experiment.name)
    if earlier is not None and earlier.get("quick") == scale.quick and earlier.get("seconds"):
        return float(earlier["seconds"]) * (1 if scale.quick else scale.seeds / earlier["seeds"])
    table = load_durations()["quick" if scale.quick else "full"]
    seconds = table.get(experiment.name) or (median(table.values()) if table else 60.0)
    return seconds * (1 if scale.quick else scale.seeds / experiment.seeds)


def estimate_makespan(seconds: Iterable[float], jobs: int, running: Sequence[float] = ()) -> float:
    """Return when ``jobs`` processes finish tasks that they take in this order; ``running``: seconds still to run."""
    free = sorted([*running, *[0.0] * max(0, jobs - len(running))])
    for duration in seconds:
        heapq.heapreplace(free, free[0] + duration)
    return max(free)


def record_durations(outputs: Mapping[str, Mapping[str, Any]]) -> None:
    """Update the table that comes with the package from the outputs of experiments."""
    table = load_durations()
    for name, output in outputs.items():
        table["quick" if output["quick"] else "full"][name] = output["seconds"]
    write_json(FILE, table)


def format_duration(seconds: float) -> str:
    """Return a duration as text: 40 s, 12 min, 1 h 5 min."""
    if seconds < 100:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 100 else f"{minutes // 60} h {minutes % 60} min"
