"""How many clients' updates a second: all candidates take turns at the same work."""

from __future__ import annotations

import os
import statistics
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.peers.candidates import CALL, OURS, Candidate
from benchmarks.peers.environments import FOLDER
from benchmarks.peers.workers import Worker
from benchmarks.peers.workloads import Workload

SAME = 1e-4
"""Parameters after a round that differ by less are the same."""
MOST_ROUNDS = 20_000
Row = dict[str, Any]


@contextmanager
def written(workload: Workload) -> Iterator[Path]:
    """The work as a file, while it is needed; runs beside each other have their own."""
    path = workload.write(FOLDER / "work" / f"{workload.model}-{os.getpid()}.npz", FOLDER)
    try:
        yield path
    finally:
        path.unlink()


def difference(one: dict[str, Any], other: dict[str, Any]) -> float:
    """The largest difference of any parameter."""
    if set(one) != set(other):
        raise ValueError(f"parameters have other names: {sorted(one)} and {sorted(other)}")
    return max(float(np.abs(np.asarray(one[name]) - np.asarray(other[name])).max()) for name in one)


def disagreement(workload: Workload, candidates: Sequence[Candidate]) -> dict[str, float]:
    """How far each candidate's parameters are from ours after a round in which nothing is drawn; raise where too far.

    Every client takes part, and takes all of its rows in every local step.
    """
    found: dict[str, dict[str, Any]] = {}
    with written(workload.small) as work:
        for one in candidates:
            if one.word not in ("call", "switching"):
                with Worker(one, work, 1) as worker:
                    found[one.name] = worker.ask("check")["params"]
    apart = {name: difference(params, found[OURS.name]) for name, params in found.items()}
    wrong = {name: far for name, far in apart.items() if not far <= SAME}
    if wrong:
        raise RuntimeError(f"{workload.name}: not the same work: {wrong}")
    return apart


def enough_rounds(worker: Worker, wanted: float) -> int:
    """So many rounds that they take about as many seconds as wanted; everything is compiled after that."""
    rounds = 1
    worker.ask("time", rounds=1, seed=0)
    for _ in range(6):
        seconds = worker.ask("time", rounds=rounds, seed=0)["seconds"]
        if seconds >= wanted / 2 or rounds == MOST_ROUNDS:
            break
        rounds = min(MOST_ROUNDS, int(np.ceil(rounds * min(30.0, wanted / seconds))))
    return rounds


def measured(workload: Workload, candidates: Sequence[Candidate], turns: int, wanted: float) -> list[Row]:
    """One row a candidate: the median of its turns, with the number of threads that is fastest for it."""
    tried = [(one, threads) for one in candidates for threads in one.threads(workload.model)]
    with ExitStack() as stack:
        work = stack.enter_context(written(workload))
        workers = [stack.enter_context(Worker(one, work, threads)) for one, threads in tried]
        rounds = [one.rounds or enough_rounds(worker, wanted) for (one, _), worker in zip(tried, workers, strict=True)]
        rates: list[list[float]] = [[] for _ in tried]
        for turn in range(turns):
            for i, worker in enumerate(workers):
                told = worker.ask("time", rounds=rounds[i], seed=turn + 1)
                rates[i].append(told["updates"] / told["seconds"])
        versions = [worker.ask("versions")["versions"] for worker in workers]
    rows: dict[str, Row] = {}
    for (one, threads), many, seen, using in zip(tried, rounds, rates, versions, strict=True):
        rate = statistics.median(seen)
        if one.name not in rows or rate > rows[one.name]["rate"]:
            rows[one.name] = {
                "work": workload.name,
                "name": one.name,
                "rate": rate,
                "slowest": min(seen),
                "fastest": max(seen),
                "rounds": many,
                "threads": threads if one.in_torch else None,
                "versions": using,
            }
    return list(rows.values())


def table(rows: Sequence[Row]) -> Iterator[str]:
    """One work's rows in Markdown, line by line."""
    ours, call = (next(row["rate"] for row in rows if row["name"] == one.name) for one in (OURS, CALL))
    yield f"**{rows[0]['work']}**"
    yield ""
    yield "| | updates a second | slowest and fastest turn | softswitch's rounds are | its whole call is |"
    yield "|---|---|---|---|---|"
    for row in rows:
        against = () if row["name"].startswith("softswitch") else (ours, call)
        times = [_times(rate / row["rate"]) for rate in against] or ["", ""]
        spread = f"{_rate(row['slowest'])} to {_rate(row['fastest'])}"
        yield f"| {named(row)} | {_rate(row['rate'])} | {spread} | {times[0]} | {times[1]} |"
    yield ""


def named(row: Row) -> str:
    """The candidate, and its threads where it has a number of them."""
    threads = row["threads"]
    return str(row["name"]) if threads is None else f"{row['name']} ({threads} thread{'' if threads == 1 else 's'})"


def _rate(rate: float) -> str:
    return f"{rate:,.0f}" if rate >= 100 else f"{rate:.1f}"


def _times(ratio: float) -> str:
    return f"{ratio:,.0f}×" if ratio >= 10 else f"{ratio:.1f}×" if ratio >= 1 else f"{ratio:.2f}×"
