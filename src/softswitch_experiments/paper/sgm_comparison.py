"""Softmax SGM and average SGM: the worst and the mean client, and every client at the answer."""

from __future__ import annotations

from typing import Any

import numpy as np

from softswitch.results.result import Result
from softswitch_experiments.paper.experiment import Claim, Experiment, Outcome, Row, Scale
from softswitch_experiments.paper.np_study import AVERAGE, CLIENTS, PARTIAL, SOFTMAX, STUDY, TOLERANCE
from softswitch_experiments.paper.study import Point, Scheme, answer_rows, averages, curve_rows, mean
from softswitch_experiments.paper.violations import fewer_violations, violation_rows
from softswitch_experiments.plotting import (
    METHODS,
    add_legend,
    make_narrow_panels,
    plot_band,
    plot_tolerance,
    set_log_scale,
)

BOTH = {"Softmax SGM": SOFTMAX, "Average SGM": AVERAGE}


def run(scale: Scale) -> Outcome:
    """Run both methods with both schemes."""
    title = "Softmax SGM and average SGM: worst client (solid), mean client (dotted), and each client at the answer"
    figure, axes = make_narrow_panels(len(STUDY.schemes(scale)), 3, title)
    curves: list[Row] = []
    ends: list[Row] = []
    violations: list[Row] = []
    claims: list[Claim] = []
    for row, scheme in zip(axes, STUDY.schemes(scale), strict=True):
        runs = STUDY.run(BOTH, scheme, scale, evaluations=scale.pick(100, 10))
        points = {method: averages(results) for method, results in runs.items()}
        for side, method in zip((-0.2, 0.2), runs, strict=True):
            _draw(row, method, runs[method], points[method], side)
            curves += curve_rows(runs[method], scheme=scheme.name, method=method)
            ends += answer_rows(points[method], scheme=scheme.name, method=method)
            violations += violation_rows(runs[method], scheme=scheme.name, method=method)
        for panel, name in zip(row[:2], "FG", strict=True):
            panel.set(title=f"{name}(wₖ)  ({scheme.name})", xlabel="round")
            set_log_scale(panel)
        row[2].set(
            title=f"g of each client at the answer  ({scheme.name})",
            xlabel="client, worst first",
            xticks=[1, 5, 10, 15, 20],
        )
        for panel in row[1:]:
            plot_tolerance(panel, TOLERANCE)
        claims += [*_claims(points, scheme), *fewer_violations(scheme.name, runs, "Softmax SGM", ["Average SGM"])]
    add_legend(figure, axes[0, :2], columns=5)
    return Outcome(figure, {"curves": curves, "answers": ends, "violations": violations}, tuple(claims))


def _draw(row: Any, method: str, results: tuple[Result, ...], points: list[Point], side: float) -> None:
    steps, colour = results[0].history.full_rounds, METHODS[method]
    for panel, name in zip(row[:2], ("objective", "constraint"), strict=True):
        for prefix, client, line in (("", "worst", "-"), ("mean_", "mean", ":")):
            curves = [getattr(result.history.full, prefix + name) for result in results]
            plot_band(panel, steps, curves, colour, f"{method}, {client} client", linestyle=line)
    ranked = np.mean([np.sort(point.constraint)[::-1] for point in points], axis=0)
    row[2].bar(np.arange(1, CLIENTS + 1) + side, ranked, width=0.4, color=colour)


def _claims(points: dict[str, list[Point]], scheme: Scheme) -> list[Claim]:
    softmax, average = points["Softmax SGM"], points["Average SGM"]
    violating = mean(softmax, "violating")
    is_partial = scheme is PARTIAL
    return [
        Claim(
            f"{scheme.name}: average SGM meets G <= {TOLERANCE} in the mean, not at several clients",
            mean(average, "mean_constraint") <= TOLERANCE < mean(average, "worst_constraint")
            and mean(average, "violating") >= 2,
            f"mean g {mean(average, 'mean_constraint'):.3f}, G {mean(average, 'worst_constraint'):.3f}, "
            f"{mean(average, 'violating'):.1f} of {CLIENTS} clients violate; F {mean(average, 'worst_objective'):.3f}",
        ),
        Claim(
            f"{scheme.name}: Softmax SGM meets it at {'all but rare clients' if is_partial else 'every client'}",
            violating <= 0.5 if is_partial else violating == 0,
            f"G {mean(softmax, 'worst_constraint'):.3f}, {violating:.1f} of {CLIENTS} clients violate; "
            f"F {mean(softmax, 'worst_objective'):.3f}",
        ),
    ]


EXPERIMENT = Experiment("sgm-comparison", "Softmax SGM and average SGM: worst, mean and every client", run)
