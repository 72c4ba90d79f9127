"""Seconds to the same accuracy of the convolutional network on MNIST's test images."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from typing import Any

from benchmarks.peers.candidates import Candidate
from benchmarks.peers.updates import named, written
from benchmarks.peers.workers import Worker
from benchmarks.peers.workloads import Workload

Row = dict[str, Any]


def raced(
    workload: Workload, candidates: Sequence[Candidate], turns: int, accuracy: float, rounds: int, every: int
) -> list[Row]:
    """One row a candidate: medians over seeds, with the number of threads that is fastest for it."""
    tried = [(one, threads) for one in candidates if one.races for threads in one.threads(workload.model)]
    with ExitStack() as stack:
        work = stack.enter_context(written(workload))
        workers = [stack.enter_context(Worker(one, work, threads)) for one, threads in tried]
        for worker in workers:
            worker.ask("time", rounds=2, seed=0)  # compiles
        told: list[list[Row]] = [[] for _ in tried]
        for turn in range(turns):
            for i, worker in enumerate(workers):
                told[i].append(worker.ask("race", accuracy=accuracy, rounds=rounds, every=every, seed=turn))
    rows: dict[str, Row] = {}
    for (one, threads), seen in zip(tried, told, strict=True):
        row = {
            "name": one.name,
            "seconds": statistics.median(run["seconds"] for run in seen),
            "rounds": statistics.median(run["rounds"] for run in seen),
            "accuracy": min(run["accuracy"] for run in seen),
            "threads": threads if one.in_torch else None,
            "reached": all(run["accuracy"] >= accuracy for run in seen),
        }
        if one.name not in rows or row["seconds"] < rows[one.name]["seconds"]:
            rows[one.name] = row
    return list(rows.values())


def table(rows: Sequence[Row], accuracy: float) -> Iterator[str]:
    """The rows in Markdown."""
    fastest = next(row["seconds"] for row in rows)
    yield f"| | seconds to {accuracy:.0%} | rounds | of softswitch's rounds |"
    yield "|---|---|---|---|"
    for row in rows:
        seconds = f"{row['seconds']:.1f}" if row["reached"] else f"not reached: {row['accuracy']:.1%}"
        yield f"| {named(row)} | {seconds} | {row['rounds']:.0f} | {row['seconds'] / fastest:.1f}× |"
    yield ""
