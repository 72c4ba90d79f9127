"""Seconds to a solution of problems on public tables: a model within the bound, with F at most 1% or 0.1% above F*."""

from __future__ import annotations

import os
import statistics
import subprocess
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.peers.environments import FOLDER, python_of
from benchmarks.peers.workers import HERE, ROOT, surroundings
from benchmarks.tables.cases import CASES, Case
from benchmarks.tables.known import known
from benchmarks.tables.opponents import Judge
from benchmarks.tables.reference import Means

GOALS = (0.01, 0.001)
"""Largest (F − F*)/F* of a solution; one column each. F* is exact to 1e-8."""
SLACK = 1e-7
"""Largest excess of G over the bound: some models are rounded to float32."""
FULL = (
    "flights, neyman-pearson",
    "mortgages, demographic-parity",
    "diamonds, neyman-pearson",
    "adult, equal-opportunity",
)
QUICK = ("cancer, neyman-pearson",)
PATIENCE = 300.0
"""Seconds after which a method that ends by itself is not waited for any more."""
LONG = 60.0
"""A run of so many seconds is not repeated."""
Row = dict[str, Any]


class NoAnswerError(Exception):
    """Why a solver has none."""


@dataclass(frozen=True)
class Solver:
    """A peer that solves the problem.

    Attributes:
        name: as tables have it.
        script: in the folder ``solvers``.
        environment: whose Python; "": ours.
        kinds: of constraints that it can state; none named: all.
        goes_on: it has no end of its own; several settings are tried, once each, and the best counts.
    """

    name: str
    script: str
    environment: str = ""
    kinds: tuple[str, ...] = ()
    goes_on: bool = False


SOLVERS = {
    "softswitch": Solver("softswitch", "solve_softswitch.py"),
    "slsqp": Solver("SLSQP (SciPy)", "solve_slsqp.py"),
    "cvxpy": Solver("CVXPY, Clarabel", "solve_cvxpy.py", kinds=("neyman-pearson", "group-loss")),
    "fairlearn": Solver(
        "Fairlearn, ExponentiatedGradient", "solve_fairlearn.py", kinds=("demographic-parity", "equal-opportunity")
    ),
    "cooper": Solver("Cooper", "solve_cooper.py", goes_on=True),
    "humancompatible": Solver(
        "humancompatible-train, ALM", "solve_humancompatible.py", "humancompatible", goes_on=True
    ),
}


def cases(quick: bool) -> tuple[Case, ...]:
    """The tables that are tried, the largest first."""
    names = QUICK if quick else FULL
    return tuple(next(case for case in CASES if case.name == name) for name in names)


def write(case: Case, judge: Judge, path: Path, seconds: float) -> Path:
    """The case as a file for the scripts."""
    rows = judge.rows

    def shares(means: Means) -> dict[str, np.ndarray]:
        table = means.weights.tocoo()
        return {"mean": table.row, "row": table.col, "weight": table.data}

    parts = {"objectives": shares(rows.objectives), "constraints": shares(rows.constraints)}
    path.parent.mkdir(parents=True, exist_ok=True)
    np.savez(
        path,
        allow_pickle=False,
        name=np.array(case.name),
        x=rows.x,
        y=rows.y,
        tolerance=np.array(case.tolerance),
        seconds=np.array(seconds),
        of_loss=np.array(rows.constraints.of_loss),
        both_sides=np.array(rows.constraints.both_sides),
        **{f"{name}.{key}": array for name, every in parts.items() for key, array in every.items()},
    )
    return path


def solved(
    case: Case, only: Collection[str], *, quick: bool = False, seconds: float = 15.0, turns: int = 3
) -> list[Row]:
    """One row a solver; those that end by themselves take turns, and the median counts.

    Args:
        case: the problem.
        only: these solvers beside ours; all where none is named.
        quick: one turn, and few seconds.
        seconds: for each setting of the methods that go on for ever.
        turns: how often.
    """
    judge = Judge(case)
    seconds, turns = (2.0, 1) if quick else (seconds, turns)
    work = write(case, judge, FOLDER / "work" / f"case-{os.getpid()}.npz", seconds)
    chosen = {
        key: one
        for key, one in SOLVERS.items()
        if (not only or key in (*only, "softswitch")) and (not one.kinds or case.kind in one.kinds)
    }
    told: dict[str, list[list[Row]]] = {key: [] for key in chosen}
    why: dict[str, str] = {}
    for turn in range(turns):
        for key, one in chosen.items():
            if key in why or (turn and (one.goes_on or told[key][0][0]["seconds"] > LONG)):
                continue
            try:
                told[key].append(judged(one, judge, work))
            except NoAnswerError as reason:
                why[key] = str(reason)
    work.unlink()
    optimum = known(case).optimum
    rows = []
    for key, one in chosen.items():
        if key in why:
            rows.append({"name": one.name, "setting": "", "none": why[key]})
        else:
            found = [{"name": one.name, **row} for row in medians(told[key])]
            rows += [min(found, key=_rank)] if one.goes_on else found
    return [row | {"case": case.name, "optimum": optimum} for row in rows]


def medians(runs: Sequence[Sequence[Row]]) -> Iterator[Row]:
    """Setting by setting; what the first run found, with the median seconds of all."""
    for each in zip(*runs, strict=True):
        firsts = [[row["first"][i] for row in each] for i in range(len(GOALS))]
        yield each[0] | {
            "first": [_median(seconds) for seconds in firsts],
            "processor": _median([row["processor"] for row in each]),
            "seconds": statistics.median(row["seconds"] for row in each),
            "turns": [{key: row[key] for key in ("first", "processor", "seconds")} for row in each],
        }


def _median(seconds: Sequence[float | None]) -> float | None:
    """Return the median, or None if a turn did not reach the goal."""
    reached = [second for second in seconds if second is not None]
    return statistics.median(reached) if len(reached) == len(seconds) else None


def _rank(row: Row) -> tuple[float, ...]:
    """Return the seconds to the goals, the hardest first, and then the smallest F within the bound."""
    return (*(np.inf if first is None else first for first in reversed(row["first"])), row["best"])


def judged(one: Solver, judge: Judge, work: Path) -> list[Row]:
    """A solver's run, setting by setting.

    Raises:
        NoAnswerError: it failed, or took too long.
    """
    place, out = HERE / "solvers", FOLDER / "work" / f"models-{os.getpid()}.npz"
    out.parent.mkdir(parents=True, exist_ok=True)
    out.unlink(missing_ok=True)
    ours = () if one.environment else (ROOT / "src", ROOT)
    log = FOLDER / "logs" / f"{one.script.removesuffix('.py')}.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("w", encoding="utf-8") as printed:
        try:
            subprocess.run(
                [str(python_of(one.environment)), str(place / one.script), str(work), str(out)],
                env=surroundings(2, place, *ours),
                stdout=printed,
                stderr=subprocess.STDOUT,
                timeout=PATIENCE,
                check=True,
            )
        except subprocess.TimeoutExpired as late:
            raise NoAnswerError(f"no answer in {PATIENCE:.0f} s") from late
        except subprocess.CalledProcessError as failed:
            raise NoAnswerError(f"failed: {log.read_text(encoding='utf-8').strip().splitlines()[-1]}") from failed
    with np.load(out) as file:
        settings, setting, models = (file[key] for key in ("settings", "setting", "models"))
        seconds = np.column_stack([file["seconds"], file["processor"]])
    out.unlink()
    tolerance, optimum = judge.case.tolerance, known(judge.case).optimum
    rows = []
    for i, name in enumerate(settings):
        reached: list[tuple[np.ndarray, float, float]] = []
        for model, second in zip(models[setting == i], seconds[setting == i], strict=True):
            score = model if len(model) == len(judge.rows.y) else judge.rows.x @ model
            values = judge.judge("", score)
            reached.append((second, values.objective, values.constraint))
        within = [(second, f) for second, f, g in reached if g <= tolerance + SLACK]
        none = (None, None)
        first = [next((tuple(second) for second, f in within if f <= (1 + goal) * optimum), none) for goal in GOALS]
        rows.append(
            {
                "setting": str(name),
                "first": [second for second, _ in first],
                "processor": first[-1][1],
                "seconds": reached[-1][0][0],
                "objective": reached[-1][1],
                "constraint": reached[-1][2],
                "best": min((f for _, f in within), default=np.inf),
            }
        )
    return rows


def table(case: Case, rows: Sequence[Row]) -> Iterator[str]:
    """One case's rows in Markdown."""
    about = known(case)
    yield (
        f"**{case.name}**: {about.rows:,} rows, {about.clients} clients, {about.features} features; "
        f"F* = {about.optimum:.6f}, bound {case.tolerance:g}"
    )
    yield ""
    goals = " | ".join(f"seconds to {goal:.1%}".replace(".0%", "%") for goal in GOALS)
    processor = f"processor seconds to {GOALS[-1]:.1%}"
    yield f"| | {goals} | {processor} | best F within the bound | final F | final G | seconds in all |"
    yield "|---|" + "---|" * (len(GOALS) + 5)
    for row in rows:
        name = row["name"] + (f" ({row['setting']})" if row["setting"] else "")
        if row.get("none"):
            yield f"| {name} | {row['none']} | – | – | – | – | – | – |"
            continue
        first = " | ".join(
            "never" if second is None else f"{second:.2f}" for second in (*row["first"], row["processor"])
        )
        best, end = (_excess(row[what], about.optimum) for what in ("best", "objective"))
        yield f"| {name} | {first} | {best} | {end} | {row['constraint']:.4f} | {row['seconds']:.1f} |"
    yield ""


def _excess(objective: float, optimum: float) -> str:
    """F, and how far it is above F*."""
    if not np.isfinite(objective):
        return "none"
    share = round(100 * (objective / optimum - 1), 2) + 0.0  # no minus before a zero
    return f"{objective:.4f} ({share:+.2f}%)"
