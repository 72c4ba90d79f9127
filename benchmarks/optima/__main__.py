"""Distance of answers from known optima, with all constraints within the tolerance.

``python -m benchmarks.optima [--half tuned|held-out|all] [--recipe first-order|adam|sqp] [--only NAME …] [--figure F]``
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from dataclasses import dataclass

import jax
import numpy as np
from rich.console import Console
from rich.table import Table

from benchmarks.optima.as_clients import as_clients
from benchmarks.optima.epigraph import slsqp
from benchmarks.optima.known import KnownProblem
from benchmarks.optima.problems import HALVES, half
from benchmarks.optima.recipes import RECIPES, recipe
from benchmarks.optima.scores import CLOSE, TOLERANCE, Score, relaxed_optimum, score
from softswitch_experiments.plotting import BLUE, GREY, VERMILLION, make_panels

SLSQP = "SLSQP"


@dataclass(frozen=True, eq=False)
class Row:
    """A problem, and how close its answers came.

    Attributes:
        known: the problem.
        clients: how many objectives it has.
        relaxed: the optimum at the tolerance.
        scores: of every answer by its name, SLSQP's from the published start among them.
        seconds: what the recipe took, compilation included.
    """

    known: KnownProblem
    clients: int
    relaxed: float
    scores: dict[str, Score]
    seconds: float


def tried(known: KnownProblem, name: str) -> Row:
    """Solve one problem by a recipe and by SLSQP, which is told the constraints' Jacobian and the epigraph's form."""
    relaxed = relaxed_optimum(known)
    problem, clients = as_clients(known)
    begin = time.perf_counter()
    answers = recipe(name, problem, clients, TOLERANCE)
    seconds = time.perf_counter() - begin
    answers[SLSQP] = slsqp(known, tolerance=TOLERANCE).params
    scores = {answer: score(known, relaxed, params) for answer, params in answers.items()}
    return Row(known, len(clients), relaxed, scores, seconds)


def table(rows: Sequence[Row]) -> Table:
    """One line a problem and answer of the recipe, with SLSQP's error beside it."""
    shown = Table(box=None, pad_edge=False)
    for heading in ("problem", "variables", "objectives", "F*", "F* at tol.", "answer"):
        shown.add_column(heading, justify="left" if heading in ("problem", "answer") else "right")
    for heading in ("F", "error", "at tol. 0", "G", "solved", "SLSQP", "seconds"):
        shown.add_column(heading, justify="right")
    for row in rows:
        opponent = row.scores[SLSQP]
        for answer, found in row.scores.items():
            if answer == SLSQP:
                continue
            shown.add_row(
                row.known.name,
                str(row.known.variables),
                str(row.clients),
                f"{row.known.optimum:.7g}",
                f"{row.relaxed:.7g}",
                answer,
                f"{found.objective:.7g}",
                f"{found.error:+.1e}",
                f"{found.published_error:+.1e}",
                "" if row.known.constraints is None else f"{found.constraint:.2e}",
                "yes" if found.solved else "no",
                f"{opponent.error:+.1e}" + ("" if opponent.solved else " no"),
                f"{row.seconds:.1f}",
            )
    return shown


def counts(rows: Sequence[Row]) -> str:
    """How many problems each answer solves."""
    told = [f"{name} {sum(row.scores[name].solved for row in rows)}" for name in rows[0].scores]
    return (
        f"Of {len(rows)} problems solved, that is |F − F*| <= {CLOSE:g} max(1, |F*|) at G <= {TOLERANCE:g}: "
        + ", ".join(told)
    )


def draw(rows: Sequence[Row], file: str) -> None:
    """The errors of all answers, problem by problem; what violates a constraint is hollow."""
    figure, ((axes,),) = make_panels(1, 1, width=7, height=0.5 + 0.2 * len(rows))
    for name, color in zip(reversed(rows[0].scores), (GREY, BLUE, VERMILLION), strict=False):
        errors = [max(abs(row.scores[name].error), 1e-12) for row in rows]
        faces = [color if row.scores[name].met else "none" for row in rows]
        axes.scatter(errors, np.arange(len(rows)), s=18, facecolors=faces, edgecolors=color, label=name)
    axes.axvline(CLOSE, color=GREY, linestyle="--")
    axes.set(xscale="log", xlabel="|F − F*| / max(1, |F*|)", title="Distance from the known optimum")
    axes.set_yticks(range(len(rows)), [row.known.name for row in rows])
    axes.invert_yaxis()
    axes.legend(frameon=False)
    figure.savefig(file, dpi=150)


def main() -> None:
    """Solve the problems of a half, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--half", choices=HALVES, default="tuned")
    parser.add_argument("--recipe", choices=list(RECIPES), default="first-order")
    parser.add_argument("--only", nargs="+", default=(), help="problems of that half by name")
    parser.add_argument("--figure", help="file to draw the errors into")
    asked = parser.parse_args()
    problems = [known for known in half(asked.half) if not asked.only or known.name in asked.only]
    if not problems:
        parser.error(f"no problem of the half {asked.half!r} is named {' or '.join(asked.only)}")
    jax.config.update("jax_enable_x64", True)
    rows = [tried(known, asked.recipe) for known in problems]
    console = Console(width=None if Console().is_terminal else 150)
    console.print(table(rows))
    console.print(counts(rows))
    if asked.figure:
        draw(rows, asked.figure)


if __name__ == "__main__":
    main()
