"""The main comparison: F and G against gradient evaluations, at the paper's settings and with tuned baselines."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from matplotlib.axes import Axes

from softswitch.methods.base import Method
from softswitch.results.result import Result
from softswitch_experiments.paper import tuning
from softswitch_experiments.paper.experiment import Claim, Outcome, Row, Scale
from softswitch_experiments.paper.study import (
    Runs,
    Scheme,
    Study,
    answer_rows,
    averages,
    curve_rows,
    format_point,
    gradient_evaluations,
    last_iterates,
    mean,
    paired_difference,
)
from softswitch_experiments.paper.violations import fewer_violations, met_early, violation_rows
from softswitch_experiments.plotting import (
    METHODS,
    add_legend,
    make_narrow_panels,
    plot_band,
    plot_tolerance,
    set_log_scale,
)

PARTS = (
    ("full", "objective", "F, training rows"),
    ("full", "constraint", "G, training rows"),
    ("held_out", "objective", "F, test rows"),
    ("held_out", "constraint", "G, test rows"),
)
FifthPanel = Callable[[Axes, Scheme, Runs], tuple[list[Claim], dict[str, list[Row]]]]
"""Draws a fifth panel from the runs of a scheme, and returns additional claims and tables."""


def compare(study: Study, scale: Scale, fifth_panel: FifthPanel | None = None) -> Outcome:
    """Compare Softmax SGM, penalty and primal-dual, the baselines also with tuned settings."""
    title = f"{study.title}: the worst client (tuned: the best of the baseline's grid)"
    figure, axes = make_narrow_panels(len(study.schemes(scale)), 5 if fifth_panel else 4, title)
    tables: dict[str, list[Row]] = {"curves": [], "answers": [], "settings": [], "violations": []}
    claims: list[Claim] = []
    for row, scheme in zip(axes, study.schemes(scale), strict=True):
        methods = {**study.methods, **_tune_baselines(study, scheme, scale)}
        runs = study.run(methods, scheme, scale, evaluations=100 if not scale.quick else 10)
        for label, results in runs.items():
            _draw(row, label, results)
            tables["curves"] += curve_rows(results, scheme=scheme.name, method=label)
            tables["violations"] += violation_rows(results, scheme=scheme.name, method=label)
            tables["settings"].append({"scheme": scheme.name, "method": label, "settings": str(results[0].method)})
            iterates = {"average": averages(results), "last": last_iterates(results, study.tasks(scale.seeds))}
            for iterate, points in iterates.items():
                tables["answers"] += answer_rows(points, scheme=scheme.name, method=label, iterate=iterate)
        for panel, (_, name, title) in zip(row, PARTS, strict=False):
            panel.set(title=f"{title}  ({scheme.name})", xlabel="gradient evaluations")
            set_log_scale(panel)
            panel.ticklabel_format(axis="x", style="sci", scilimits=(0, 0))
            if name == "constraint":
                plot_tolerance(panel, study.tolerance)
        claims += _claims(study, runs, scheme, scale)
        if fifth_panel is not None:
            more_claims, more_tables = fifth_panel(row[4], scheme, runs)
            claims += more_claims
            for name, rows in more_tables.items():
                tables.setdefault(name, []).extend(rows)
    add_legend(figure, axes[:, :4].flat, columns=6)
    return Outcome(figure, tables, tuple(claims))


def _tune_baselines(study: Study, scheme: Scheme, scale: Scale) -> dict[str, Method]:
    best = {name: tuning.find_best(study, name, scheme, scale) for name in ("Penalty", "Primal-dual")}
    return {f"{name}, tuned": method for name, method in best.items() if method is not None}


def _draw(row: Any, label: str, results: tuple[Result, ...]) -> None:
    method, _, is_tuned = label.partition(", ")
    gradients = gradient_evaluations(results[0])
    for panel, (part, name, _) in zip(row, PARTS, strict=False):
        values = [getattr(getattr(result.history, part), name) for result in results]
        plot_band(panel, gradients, values, METHODS[method], label, linestyle=":" if is_tuned else "-")


def _claims(study: Study, runs: Runs, scheme: Scheme, scale: Scale) -> list[Claim]:
    """Test the guarantee of the method for w̄, and compare the last iterate with those of the baselines."""
    average = averages(runs["Softmax SGM"])
    last = {label: last_iterates(results, study.tasks(scale.seeds)) for label, results in runs.items()}
    claims = [
        Claim(
            f"{scheme.name}: Softmax SGM's average meets G <= {study.tolerance}",
            mean(average, "worst_constraint") <= study.tolerance,
            format_point(average),
        )
    ]
    softmax = last["Softmax SGM"]
    is_feasible = mean(softmax, "worst_constraint") <= study.tolerance
    for method in ("Penalty", "Primal-dual"):
        best = last.get(f"{method}, tuned")
        statement = f"{scheme.name}: last iterates meet G, with a lower F than {method} tuned to meet G (or it cannot)"
        measured = f"{format_point(softmax)}; {method} at the paper's setting: {format_point(last[method])}; tuned: "
        if best is None:
            claims.append(Claim(statement, is_feasible, f"{measured}nothing on its grid meets G"))
            continue
        higher, margin = paired_difference(best, softmax, "worst_objective")
        measured += f"{format_point(best)}, F higher by {higher:.3f} ± {margin:.3f} (95%, paired)"
        claims.append(Claim(statement, is_feasible and higher > margin, measured))
    others = [label for label in runs if label != "Softmax SGM"]
    return [
        *claims,
        met_early(scheme.name, runs["Softmax SGM"]),
        *fewer_violations(scheme.name, runs, "Softmax SGM", others),
    ]
