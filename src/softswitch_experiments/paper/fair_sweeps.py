"""Fair classification, sweeps over one setting: the criterion of the switch, α, and the server's optimizer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import optax
from matplotlib.figure import Figure

from softswitch.problem.choices import CRITERIA
from softswitch.results.result import Result
from softswitch_experiments.paper.adult_study import FULL, SOFTMAX, STUDY, TOLERANCE, softmax
from softswitch_experiments.paper.experiment import Claim, Experiment, Outcome, Row, Scale
from softswitch_experiments.paper.study import (
    Point,
    answer_rows,
    averages,
    curve_rows,
    last_iterates,
    mean,
    values_of,
)
from softswitch_experiments.plotting import (
    BLUE,
    GREEN,
    VERMILLION,
    add_legend,
    make_narrow_panels,
    plot_band,
    plot_error_bars,
    plot_tolerance,
)
from softswitch_experiments.tasks.fair_classification import accuracy_and_gap
from softswitch_experiments.tasks.paper_settings import steps

ALPHAS = (0.0, 1.0, 10.0, 100.0, 1000.0)


def criterion(scale: Scale) -> Outcome:
    """Compare criteria of the switch: softmax mean, maximum, mean, or the constraint on pooled data."""
    methods = {name: softmax(1.0, criterion=name) for name in CRITERIA}
    runs = STUDY.run(methods, FULL, scale)
    last, gaps, figure, tables = _show("Adult: the switch's criterion (α = 1)", runs, scale, "criterion", line="none")
    worst = {name: mean(points, "worst_constraint") for name, points in last.items()}
    claims = (
        Claim(
            "the pooled criterion keeps the gap on all data put together within the tolerance, not the worst client's",
            float(gaps["pooled"].mean()) <= TOLERANCE < worst["pooled"],
            f"pooled gap {gaps['pooled'].mean():.3f}, worst client {worst['pooled']:.3f}",
        ),
        Claim(
            "the other criteria keep the worst client within the tolerance",
            max(worst[name] for name in worst if name != "pooled") <= TOLERANCE,
            ", ".join(f"{name} {value:.3f}" for name, value in worst.items() if name != "pooled"),
        ),
        Claim(
            "the more pessimistic the criterion, the larger F: pooled < softmax < max",
            mean(last["pooled"], "worst_objective")
            < mean(last["softmax"], "worst_objective")
            < mean(last["max"], "worst_objective"),
            ", ".join(f"{name} {mean(points, 'worst_objective'):.3f}" for name, points in last.items()),
        ),
    )
    return Outcome(figure, tables, claims)


def alpha(scale: Scale) -> Outcome:
    """Sweep α from the mean towards the maximum."""
    alphas = scale.pick(ALPHAS, (1.0, 100.0))
    methods = {f"{a:g}": softmax(a) for a in alphas}
    runs = STUDY.run(methods, FULL, scale)
    last, _, figure, tables = _show("Adult: what α does (softmax criterion)", runs, scale, "α")
    smallest, largest = last[f"{alphas[0]:g}"], last[f"{alphas[-1]:g}"]
    claims = [
        Claim(
            f"every α meets G <= {TOLERANCE} on IID clients",
            max(mean(points, "worst_constraint") for points in last.values()) <= TOLERANCE,
            ", ".join(f"{mean(points, 'worst_constraint'):.3f} at α = {a}" for a, points in last.items()),
        ),
        Claim(
            "the largest α is more cautious than the smallest: smaller G, larger F",
            mean(largest, "worst_constraint") < mean(smallest, "worst_constraint")
            and mean(largest, "worst_objective") > mean(smallest, "worst_objective"),
            ", ".join(f"F {mean(points, 'worst_objective'):.3f} at α = {a}" for a, points in last.items()),
        ),
    ]
    if not scale.quick:
        zero, one = (mean(last[a], "worst_objective") for a in ("0", "1"))
        claims.append(
            Claim(
                "the paper's α = 1 is far from the mean (α = 0): F differs by 1% or more",
                abs(one - zero) >= 0.01 * zero,
                f"F {zero:.4f} at α = 0, {one:.4f} at α = 1",
            )
        )
    return Outcome(figure, tables, tuple(claims))


def optimizer(scale: Scale) -> Outcome:
    """Compare Adam and plain SGD on the server."""
    methods = {
        "Adam, 0.001": SOFTMAX,
        "SGD, 0.001": replace(SOFTMAX, optimizer=optax.sgd),
        "SGD, 0.1": replace(SOFTMAX, optimizer=optax.sgd, **steps(0.1)),
    }
    runs = STUDY.run(methods, FULL, scale, evaluations=scale.pick(50, 4))
    figure, axes = make_narrow_panels(1, 2, "Adult: the server's optimiser and step size")
    for colour, (label, results) in zip((BLUE, VERMILLION, GREEN), runs.items(), strict=True):
        for panel, name in zip(axes[0], ("objective", "constraint"), strict=True):
            curves = [getattr(result.history.full, name) for result in results]
            plot_band(panel, results[0].history.full_rounds, curves, colour, label)
    for panel, word in zip(axes[0], "FG", strict=True):
        panel.set(title=f"{word}, worst client, training rows", xlabel="round", ylim=(0, None))
    plot_tolerance(axes[0, 1], TOLERANCE)
    add_legend(figure, axes.flat, columns=4)
    last = {label: last_iterates(results, STUDY.tasks(scale.seeds)) for label, results in runs.items()}
    adam, slow, fast = (mean(points, "worst_objective") for points in last.values())
    claims = (
        Claim(
            "plain SGD with a step of 0.001 hardly moves: F stays above 0.6",
            slow > 0.6,
            f"F {slow:.3f}, against {adam:.3f} with Adam",
        ),
        Claim("Adam is better than SGD with a step of 0.1 too", adam < fast, f"F {fast:.3f} against {adam:.3f}"),
    )
    curves = [row for label, results in runs.items() for row in curve_rows(results, optimizer=label)]
    answers = [row for label, points in last.items() for row in answer_rows(points, optimizer=label)]
    return Outcome(figure, {"curves": curves, "answers": answers}, claims)


def _show(
    title: str, runs: Mapping[str, tuple[Result, ...]], scale: Scale, symbol: str, line: str = "-"
) -> tuple[dict[str, list[Point]], dict[str, np.ndarray], Figure, dict[str, list[Row]]]:
    """Return last iterates, pooled gaps, figure and tables over the settings."""
    tasks = STUDY.tasks(scale.seeds)
    last = {name: last_iterates(results, tasks) for name, results in runs.items()}
    average = {name: averages(results) for name, results in runs.items()}
    pooled = {
        name: np.array(
            [
                accuracy_and_gap(result.last, task.train)["probability_gap"]
                for result, task in zip(results, tasks, strict=True)
            ]
        )
        for name, results in runs.items()
    }
    figure, axes = make_narrow_panels(1, 2, title)
    objective, constraint = axes[0]
    places = np.arange(len(runs))
    for panel, name, word in ((objective, "worst_objective", "F"), (constraint, "worst_constraint", "G")):
        for iterates, colour, label in ((last, BLUE, "last iterate"), (average, GREEN, "average of feasible iterates")):
            values = [values_of(points, name) for points in iterates.values()]
            plot_error_bars(panel, places, values, colour, label, line)
        panel.set(title=f"{word}, worst client, training rows", xlabel=symbol, xticks=places, xticklabels=list(runs))
    plot_error_bars(constraint, places, list(pooled.values()), VERMILLION, "last iterate, all data put together", line)
    plot_tolerance(constraint, TOLERANCE)
    add_legend(figure, axes.flat, columns=4)
    rows: list[Row] = []
    for name in runs:
        for iterate, points in (("last", last[name]), ("average", average[name])):
            rows += answer_rows(points, setting=name, iterate=iterate)
    gaps = [
        {"setting": name, "seed": seed, "pooled_gap": float(gap)}
        for name, values in pooled.items()
        for seed, gap in enumerate(values)
    ]
    return last, pooled, figure, {"answers": rows, "pooled": gaps}


CRITERION = Experiment("fair-criterion", "Adult: softmax, max, mean and pooled criterion side by side", criterion)
OPTIMIZER = Experiment("fair-optimizer", "Adult: Adam and plain SGD on the server", optimizer)
ALPHA = Experiment("fair-alpha", "Adult over α: from the plain mean to the maximum", alpha)
