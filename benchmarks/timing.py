"""Timing in turns: noise of the machine falls on all candidates alike."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping


def seconds_in_turns(candidates: Mapping[str, Callable[[], object]], repeats: int) -> dict[str, float]:
    """The median seconds of each candidate, after one call each to warm up; in turns, ``repeats`` times."""
    for candidate in candidates.values():
        candidate()
    taken: dict[str, list[float]] = {name: [] for name in candidates}
    for _ in range(repeats):
        for name, candidate in candidates.items():
            began = time.perf_counter()
            candidate()
            taken[name].append(time.perf_counter() - began)
    return {name: statistics.median(times) for name, times in taken.items()}
