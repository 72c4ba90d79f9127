"""The main comparison: F and G against gradient evaluations, for the paper's settings and for tuned baselines."""

from __future__ import annotations

from softswitch.paper import np_tuning
from softswitch.paper.experiment import Claim, Experiment, Outcome, Row, Scale
from softswitch.paper.neyman_pearson import (
    PAPER,
    TOLERANCE,
    Point,
    Way,
    answer_rows,
    averages,
    curve_rows,
    gradient_evaluations,
    lasts,
    mean,
    runs,
    said,
    tasks,
    ways,
)
from softswitch.plotting import METHODS, band, legend, log_values, panels, tolerance
from softswitch.result import Result
from softswitch.rules import Rule

PARTS = (
    ("full", "objective", "F, training rows"),
    ("full", "constraint", "G, training rows"),
    ("held_out", "objective", "F, test rows"),
    ("held_out", "constraint", "G, test rows"),
)


def run(scale: Scale) -> Outcome:
    """Softmax SGM, penalty and primal-dual; the baselines also at the best of their grid."""
    title = "Neyman–Pearson, breast cancer, 20 clients: the worst client (tuned: the best of the baseline's grid)"
    figure, axes = panels(len(ways(scale)), 4, title, width=3.7)
    curves: list[Row] = []
    ends: list[Row] = []
    claims: list[Claim] = []
    for row, way in zip(axes, ways(scale), strict=True):
        rules = PAPER | tuned(way, scale)
        found = runs(rules, way, scale, evaluations=scale.pick(100, 10))
        for label, results in found.items():
            _draw(row, label, results)
            curves += curve_rows(results, way=way.name, method=label)
            for iterate, points in (("average", averages(results)), ("last", lasts(results, tasks(scale.seeds)))):
                ends += answer_rows(points, way=way.name, method=label, iterate=iterate)
        for panel, (_, name, title) in zip(row, PARTS, strict=True):
            panel.set(title=f"{title}  ({way.name})", xlabel="gradient evaluations")
            log_values(panel)
            panel.ticklabel_format(axis="x", style="sci", scilimits=(0, 0))
            if name == "constraint":
                tolerance(panel, TOLERANCE)
        claims += _claims(found, way, scale)
    legend(figure, axes.flat, columns=6)
    return Outcome(figure, {"np-comparison": curves, "answers": ends}, tuple(claims))


def tuned(way: Way, scale: Scale) -> dict[str, Rule]:
    """The best of each baseline's grid, labelled as such."""
    best = {method: np_tuning.best(method, way, scale) for method in ("Penalty", "Primal-dual")}
    return {f"{method}, tuned": rule for method, rule in best.items() if rule is not None}


def _draw(row: list, label: str, results: tuple[Result, ...]) -> None:
    method, _, is_tuned = label.partition(", ")
    spent = gradient_evaluations(results[0])
    for panel, (part, name, _) in zip(row, PARTS, strict=True):
        values = [getattr(getattr(result.history, part), name) for result in results]
        band(panel, spent, values, METHODS[method], label, linestyle=":" if is_tuned else "-")


def _claims(found: dict[str, tuple[Result, ...]], way: Way, scale: Scale) -> list[Claim]:
    """The method's own promise on w̄; against the baselines, last iterate against last iterate."""
    softmax = averages(found["Softmax SGM"])
    ends = {label: lasts(results, tasks(scale.seeds)) for label, results in found.items()}
    claims = [
        Claim(
            f"{way.name}: Softmax SGM's average meets G <= {TOLERANCE}",
            mean(softmax, "worst_constraint") <= TOLERANCE,
            _reached(softmax),
        )
    ]
    for method in ("Penalty", "Primal-dual"):
        best = ends.get(f"{method}, tuned")
        claims.append(
            Claim(
                f"{way.name}: last iterates, Softmax SGM has a lower F than {method} tuned to meet G",
                best is None or mean(ends["Softmax SGM"], "worst_objective") < mean(best, "worst_objective"),
                f"{_reached(ends['Softmax SGM'])}; {method} tuned: "
                f"{'nothing on its grid meets G' if best is None else _reached(best)}; "
                f"at the paper's setting: {_reached(ends[method])}",
            )
        )
    return claims


def _reached(points: list[Point]) -> str:
    return f"F {said(points, 'worst_objective')}, G {said(points, 'worst_constraint')}"


EXPERIMENT = Experiment("np-comparison", "Softmax SGM, penalty and primal-dual against gradient evaluations", run)
