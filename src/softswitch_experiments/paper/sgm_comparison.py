"""Softmax SGM against average SGM: the worst and the mean client, and every client at the answer."""

from __future__ import annotations

from typing import Any

import numpy as np

from softswitch.results.result import Result
from softswitch.support.plotting import METHODS, band, legend, log_values, narrow_panels, tolerance
from softswitch_experiments.paper.experiment import Claim, Experiment, Outcome, Row, Scale
from softswitch_experiments.paper.np_study import AVERAGE, CLIENTS, PARTIAL, SOFTMAX, STUDY, TOLERANCE
from softswitch_experiments.paper.study import Point, Way, answer_rows, averages, curve_rows, mean
from softswitch_experiments.paper.violations import fewer_violations, violation_rows

RULES = {"Softmax SGM": SOFTMAX, "Average SGM": AVERAGE}


def run(scale: Scale) -> Outcome:
    """Both methods in both ways to take part."""
    title = "Softmax SGM and average SGM: worst client (solid), mean client (dotted), and each client at the answer"
    figure, axes = narrow_panels(len(STUDY.ways(scale)), 3, title)
    curves: list[Row] = []
    ends: list[Row] = []
    broken: list[Row] = []
    claims: list[Claim] = []
    for row, way in zip(axes, STUDY.ways(scale), strict=True):
        found = STUDY.runs(RULES, way, scale, evaluations=scale.pick(100, 10))
        at = {method: averages(results) for method, results in found.items()}
        for side, method in zip((-0.2, 0.2), found, strict=True):
            _draw(row, method, found[method], at[method], side)
            curves += curve_rows(found[method], way=way.name, method=method)
            ends += answer_rows(at[method], way=way.name, method=method)
            broken += violation_rows(found[method], way=way.name, method=method)
        for panel, name in zip(row[:2], "FG", strict=True):
            panel.set(title=f"{name}(wₖ)  ({way.name})", xlabel="round")
            log_values(panel)
        row[2].set(
            title=f"g of each client at the answer  ({way.name})",
            xlabel="client, worst first",
            xticks=[1, 5, 10, 15, 20],
        )
        for panel in row[1:]:
            tolerance(panel, TOLERANCE)
        claims += [*_claims(at, way), *fewer_violations(way.name, found, "Softmax SGM", ["Average SGM"])]
    legend(figure, axes[0, :2], columns=5)
    return Outcome(figure, {"curves": curves, "answers": ends, "violations": broken}, tuple(claims))


def _draw(row: Any, method: str, results: tuple[Result, ...], points: list[Point], side: float) -> None:
    steps, colour = results[0].history.full_rounds, METHODS[method]
    for panel, name in zip(row[:2], ("objective", "constraint"), strict=True):
        for kind, who, line in (("", "worst", "-"), ("mean_", "mean", ":")):
            curves = [getattr(result.history.full, kind + name) for result in results]
            band(panel, steps, curves, colour, f"{method}, {who} client", linestyle=line)
    ranked = np.mean([np.sort(point.constraint)[::-1] for point in points], axis=0)
    row[2].bar(np.arange(1, CLIENTS + 1) + side, ranked, width=0.4, color=colour)


def _claims(at: dict[str, list[Point]], way: Way) -> list[Claim]:
    softmax, plain = at["Softmax SGM"], at["Average SGM"]
    violating = mean(softmax, "violating")
    rare = way is PARTIAL
    return [
        Claim(
            f"{way.name}: average SGM meets G <= {TOLERANCE} in the mean, not at several clients",
            mean(plain, "mean_constraint") <= TOLERANCE < mean(plain, "worst_constraint")
            and mean(plain, "violating") >= 2,
            f"mean g {mean(plain, 'mean_constraint'):.3f}, G {mean(plain, 'worst_constraint'):.3f}, "
            f"{mean(plain, 'violating'):.1f} of {CLIENTS} clients violate; F {mean(plain, 'worst_objective'):.3f}",
        ),
        Claim(
            f"{way.name}: Softmax SGM meets it at {'all but rare clients' if rare else 'every client'}",
            violating <= 0.5 if rare else violating == 0,
            f"G {mean(softmax, 'worst_constraint'):.3f}, {violating:.1f} of {CLIENTS} clients violate; "
            f"F {mean(softmax, 'worst_objective'):.3f}",
        ),
    ]


EXPERIMENT = Experiment("sgm-comparison", "Softmax SGM and average SGM: worst, mean and every client", run)
