"""Timing in turns: noise of the machine falls on all candidates alike."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping


def seconds_in_turns(
    candidates: Mapping[str, Callable[[], object]], repeats: int, clock: Callable[[], float] = time.perf_counter
) -> dict[str, float]:
    """The median seconds of each candidate, after one call each to warm up; in turns, ``repeats`` times.

    ``clock``: ``time.process_time`` counts the processors' time, for a machine that others use too.
    """
    for candidate in candidates.values():
        candidate()
    taken: dict[str, list[float]] = {name: [] for name in candidates}
    for _ in range(repeats):
        for name, candidate in candidates.items():
            began = clock()
            candidate()
            taken[name].append(clock() - began)
    return {name: statistics.median(times) for name, times in taken.items()}
