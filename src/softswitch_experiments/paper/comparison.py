"""The main comparison: F and G against gradient evaluations, for the paper's settings and for tuned baselines."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from matplotlib.axes import Axes

from softswitch.methods.base import Method
from softswitch.results.result import Result
from softswitch.support.plotting import METHODS, band, legend, log_values, narrow_panels, tolerance
from softswitch_experiments.paper import tuning
from softswitch_experiments.paper.experiment import Claim, Outcome, Row, Scale
from softswitch_experiments.paper.study import (
    Study,
    Way,
    answer_rows,
    averages,
    curve_rows,
    gradient_evaluations,
    lasts,
    mean,
    paired,
    reached,
)
from softswitch_experiments.paper.violations import fewer_violations, met_early, violation_rows

PARTS = (
    ("full", "objective", "F, training rows"),
    ("full", "constraint", "G, training rows"),
    ("held_out", "objective", "F, test rows"),
    ("held_out", "constraint", "G, test rows"),
)
Found = dict[str, tuple[Result, ...]]


Beside = Callable[[Axes, Way, Found], tuple[list[Claim], dict[str, list[Row]]]]
"""Draws a fifth panel from the runs of a way to take part, and adds claims and tables."""


def compare(study: Study, scale: Scale, beside: Beside | None = None) -> Outcome:
    """Softmax SGM, penalty and primal-dual, the baselines also at the best of their grid."""
    title = f"{study.title}: the worst client (tuned: the best of the baseline's grid)"
    figure, axes = narrow_panels(len(study.ways(scale)), 5 if beside else 4, title)
    tables: dict[str, list[Row]] = {"curves": [], "answers": [], "settings": [], "violations": []}
    claims: list[Claim] = []
    for row, way in zip(axes, study.ways(scale), strict=True):
        rules = {**study.rules, **tuned(study, way, scale)}
        found = study.runs(rules, way, scale, evaluations=100 if not scale.quick else 10)
        for label, results in found.items():
            _draw(row, label, results)
            tables["curves"] += curve_rows(results, way=way.name, method=label)
            tables["violations"] += violation_rows(results, way=way.name, method=label)
            tables["settings"].append({"way": way.name, "method": label, "rule": str(results[0].method)})
            points = {"average": averages(results), "last": lasts(results, study.tasks(scale.seeds))}
            for iterate, own in points.items():
                tables["answers"] += answer_rows(own, way=way.name, method=label, iterate=iterate)
        for panel, (_, name, word) in zip(row, PARTS, strict=False):
            panel.set(title=f"{word}  ({way.name})", xlabel="gradient evaluations")
            log_values(panel)
            panel.ticklabel_format(axis="x", style="sci", scilimits=(0, 0))
            if name == "constraint":
                tolerance(panel, study.tolerance)
        claims += _claims(study, found, way, scale)
        if beside is not None:
            more, added = beside(row[4], way, found)
            claims += more
            for name, rows in added.items():
                tables.setdefault(name, []).extend(rows)
    legend(figure, axes[:, :4].flat, columns=6)
    return Outcome(figure, tables, tuple(claims))


def tuned(study: Study, way: Way, scale: Scale) -> dict[str, Method]:
    """The best of each baseline's grid, labelled as such."""
    best = {method: tuning.best(study, method, way, scale) for method in ("Penalty", "Primal-dual")}
    return {f"{method}, tuned": rule for method, rule in best.items() if rule is not None}


def _draw(row: Any, label: str, results: tuple[Result, ...]) -> None:
    method, _, is_tuned = label.partition(", ")
    spent = gradient_evaluations(results[0])
    for panel, (part, name, _) in zip(row, PARTS, strict=False):
        values = [getattr(getattr(result.history, part), name) for result in results]
        band(panel, spent, values, METHODS[method], label, linestyle=":" if is_tuned else "-")


def _claims(study: Study, found: Found, way: Way, scale: Scale) -> list[Claim]:
    """The method's own promise on w̄; against the baselines, last iterate against last iterate."""
    softmax = averages(found["Softmax SGM"])
    ends = {label: lasts(results, study.tasks(scale.seeds)) for label, results in found.items()}
    claims = [
        Claim(
            f"{way.name}: Softmax SGM's average meets G <= {study.tolerance}",
            mean(softmax, "worst_constraint") <= study.tolerance,
            reached(softmax),
        )
    ]
    own = ends["Softmax SGM"]
    meets = mean(own, "worst_constraint") <= study.tolerance
    for method in ("Penalty", "Primal-dual"):
        best = ends.get(f"{method}, tuned")
        statement = f"{way.name}: last iterates meet G, with a lower F than {method} tuned to meet G (or it cannot)"
        told = f"{reached(own)}; {method} at the paper's setting: {reached(ends[method])}; tuned: "
        if best is None:
            claims.append(Claim(statement, meets, f"{told}nothing on its grid meets G"))
            continue
        higher, margin = paired(best, own, "worst_objective")
        told += f"{reached(best)}, F higher by {higher:.3f} ± {margin:.3f} (95%, paired)"
        claims.append(Claim(statement, meets and higher > margin, told))
    others = [label for label in found if label != "Softmax SGM"]
    return [
        *claims,
        met_early(way.name, found["Softmax SGM"]),
        *fewer_violations(way.name, found, "Softmax SGM", others),
    ]
