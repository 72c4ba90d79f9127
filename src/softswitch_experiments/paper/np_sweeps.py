"""One setting at a time: the softmax parameter α, the local steps E, the share of clients m/n."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes

from softswitch.results.result import Result
from softswitch.support.plotting import (
    BLUE,
    VERMILLION,
    band,
    dots,
    ladder,
    legend,
    log_values,
    narrow_panels,
    tolerance,
)
from softswitch_experiments.paper.experiment import Claim, Experiment, Outcome, Row, Scale
from softswitch_experiments.paper.np_speed import course_rows, courses, speed_claims
from softswitch_experiments.paper.np_study import SOFTMAX, STUDY, TOLERANCE, softmax
from softswitch_experiments.paper.study import Point, Way, answer_rows, averages, curve_rows, gradient_evaluations, mean

ALPHAS = (0.0, 1.0, 10.0, 100.0, 1000.0, 6400.0)
STEPS = (1, 2, 5, 10, 20)
SHARES = (0.1, 0.25, 0.5, 0.75, 1.0)
Swept = Mapping[float, tuple[Result, ...]]


def alpha_sensitivity(scale: Scale) -> Outcome:
    """α from the plain mean to nearly the maximum, with full and with partial participation."""
    alphas = scale.pick(ALPHAS, (1.0, 100.0, 6400.0))
    rules = {f"{a:g}": softmax(a) for a in alphas}
    figure, axes = narrow_panels(len(STUDY.ways(scale)), 3, "Softmax SGM: what α does")
    rows: list[Row] = []
    ends: list[Row] = []
    claims: list[Claim] = []
    for row, way in zip(axes, STUDY.ways(scale), strict=True):
        found = STUDY.runs(rules, way, scale, evaluations=scale.pick(100, 10))
        swept = {a: found[f"{a:g}"] for a in alphas}
        _draw_curves(row[:2], swept, "α", way.name)
        # A logarithmic axis that has room for α = 0.
        _draw_answers(row[2], swept, f"α  ({way.name})")
        row[2].set_xscale("symlog", linthresh=1, linscale=0.5)
        row[2].set(
            xlim=(-0.3, 2 * alphas[-1]), xticks=[0, 1, 10, 100, 1000], xticklabels=["0", "1", "10", "100", "1000"]
        )
        more, at = _tables(swept, "alpha", way=way.name)
        rows, ends = rows + more, ends + at
        claims += _alpha_claims(swept, way)
    legend(figure, axes.flat, columns=5)
    return Outcome(figure, {"curves": rows, "answers": ends}, tuple(claims))


def local_steps(scale: Scale) -> Outcome:
    """E, with half of the clients in a round; the quick version has one point, and compiles nothing for it."""
    steps, share = scale.pick((STEPS, 0.5), ((1,), 1.0))
    swept = _swept({float(e): Way(f"E = {e}", e, share) for e in steps}, scale)
    points = _points(swept)
    met = [mean(own, "worst_constraint") <= TOLERANCE for own in points.values()]
    levels = [mean(own, "worst_objective") for own in points.values()]
    claims = [
        Claim(
            f"the method is robust to E: G(w̄) <= {TOLERANCE} for every E",
            all(met),
            _said(points, "worst_constraint", "E"),
        )
    ]
    if len(points) > 1:
        told = _said(points, "worst_objective", "E")
        claims.append(Claim("and F(w̄) differs by less than a quarter", max(levels) <= 1.25 * min(levels), told))
    return _one_sweep(f"Softmax SGM: local steps E (m/n = {share:g})", swept, "E", claims)


def participation(scale: Scale) -> Outcome:
    """m/n, with five local steps; the quick version has one point, and compiles nothing for it."""
    shares, steps = scale.pick((SHARES, 5), ((1.0,), 1))
    ways = {r: Way(f"m/n = {r:g}", steps, r) for r in shares}
    swept = _swept(ways, scale)
    points = _points(swept)
    least, most = points[shares[0]], points[shares[-1]]
    comparable = len(points) > 1
    claims = [
        Claim(
            "more clients a round bring G(w̄) down, within the seeds' standard error",
            _falls(points),
            _said(points, "worst_constraint", "m/n"),
        ),
        Claim(
            f"few clients a round hinder strict satisfaction: G(w̄) > {TOLERANCE} with the fewest, met with all",
            mean(least, "worst_constraint") > TOLERANCE >= mean(most, "worst_constraint"),
            _said(points, "violating", "m/n", "clients violating: "),
        ),
    ]
    title = f"Softmax SGM: share of clients m/n (E = {steps})"
    if not comparable:
        return _one_sweep(title, swept, "m/n", [])
    on_the_way = {r: courses(way, scale, swept[r]) for r, way in ways.items()}
    outcome = _one_sweep(title, swept, "m/n", [*claims, *speed_claims(on_the_way)])
    return Outcome(outcome.figure, {**outcome.tables, "courses": course_rows(on_the_way, "m/n")}, outcome.claims)


def _swept(values: Mapping[float, Way], scale: Scale) -> Swept:
    """The paper's method in each of the given ways."""
    rules = {"": SOFTMAX}
    return {value: STUDY.runs(rules, way, scale, evaluations=scale.pick(100, 10))[""] for value, way in values.items()}


def _one_sweep(title: str, swept: Swept, symbol: str, claims: Sequence[Claim]) -> Outcome:
    figure, axes = narrow_panels(1, 3, title)
    _draw_curves(axes[0, :2], swept, symbol, "")
    _draw_answers(axes[0, 2], swept, symbol)
    axes[0, 2].set(xticks=list(swept), xticklabels=[f"{value:g}" for value in swept])
    legend(figure, axes.flat, columns=5)
    rows, ends = _tables(swept, symbol)
    return Outcome(figure, {"curves": rows, "answers": ends}, tuple(claims))


def _points(swept: Swept) -> dict[float, list[Point]]:
    return {value: averages(results) for value, results in swept.items()}


def _tables(swept: Swept, symbol: str, **labels: str) -> tuple[list[Row], list[Row]]:
    curves = [row for v, results in swept.items() for row in curve_rows(results, **labels, **{symbol: v})]
    ends = [row for v, points in _points(swept).items() for row in answer_rows(points, **labels, **{symbol: v})]
    return curves, ends


def _draw_curves(axes: Sequence[Axes], swept: Swept, symbol: str, where: str) -> None:
    for colour, (value, results) in zip(ladder(len(swept)), swept.items(), strict=True):
        spent = gradient_evaluations(results[0])
        for panel, name in zip(axes, ("objective", "constraint"), strict=True):
            curves = [getattr(result.history.full, name) for result in results]
            band(panel, spent, curves, colour, f"{symbol} = {value:g}")
    for panel, name in zip(axes, "FG", strict=True):
        panel.set(title=f"{name}(wₖ)  {where}", xlabel="gradient evaluations")
        log_values(panel)
        panel.ticklabel_format(axis="x", style="sci", scilimits=(0, 0))
    tolerance(axes[1], TOLERANCE)


def _draw_answers(panel: Axes, swept: Swept, label: str) -> None:
    points = _points(swept)
    for name, word, colour in (("worst_objective", "F(w̄)", BLUE), ("worst_constraint", "G(w̄)", VERMILLION)):
        values = [[getattr(point, name) for point in own] for own in points.values()]
        dots(panel, list(points), values, colour, word)
    tolerance(panel, TOLERANCE)
    panel.set(title="at the answer", xlabel=label, ylim=(0, None))


def _alpha_claims(swept: Swept, way: Way) -> list[Claim]:
    points = _points(swept)
    return [
        Claim(
            f"{way.name}: α = 1 violates, G(w̄) > 0.3",
            mean(points[1.0], "worst_constraint") > 0.3,
            f"{mean(points[1.0], 'worst_constraint'):.3f}",
        ),
        Claim(
            f"{way.name}: G(w̄) falls as α grows, within the seeds' standard error",
            _falls(points),
            _said(points, "worst_constraint", "α"),
        ),
        Claim(
            f"{way.name}: the paper's α = 6400 meets G(w̄) <= {TOLERANCE}",
            mean(points[6400.0], "worst_constraint") <= TOLERANCE,
            f"{mean(points[6400.0], 'worst_constraint'):.3f}",
        ),
    ]


def _falls(points: Mapping[float, list[Point]]) -> bool:
    """Whether G falls from the first value to the last by more than the standard error, and no step rises by more.

    The standard error is that of a difference of two independent means over seeds.
    """
    values = np.array([[point.worst_constraint for point in own] for own in points.values()])
    seeds = values.shape[1]
    variance = values.var(axis=1, ddof=min(1, seeds - 1)) / seeds
    middle = values.mean(axis=1)
    steady = np.diff(middle) <= np.sqrt(variance[1:] + variance[:-1])
    return bool(steady.all() and middle[0] - middle[-1] > np.sqrt(variance[0] + variance[-1]))


def _said(points: Mapping[float, list[Point]], name: str, symbol: str, before: str = "") -> str:
    return before + ", ".join(f"{mean(own, name):.3g} at {symbol} = {value:g}" for value, own in points.items())


ALPHA = Experiment("alpha-sensitivity", "Softmax SGM over α: from the plain mean to the maximum", alpha_sensitivity)
STEPS_EXPERIMENT = Experiment("local-steps", "Softmax SGM over the local steps E", local_steps)
PARTICIPATION = Experiment("participation", "Softmax SGM over the share of clients m/n", participation)
