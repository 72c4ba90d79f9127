"""Sweeps over one setting: the softmax parameter α, the local steps E, the share of clients m/n."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from matplotlib.axes import Axes

from softswitch.results.result import Result
from softswitch_experiments.paper.experiment import Claim, Experiment, Outcome, Row, Scale
from softswitch_experiments.paper.np_study import SOFTMAX, STUDY, TOLERANCE, softmax
from softswitch_experiments.paper.study import (
    Point,
    Scheme,
    answer_rows,
    averages,
    curve_rows,
    gradient_evaluations,
    half_interval,
    mean,
    values_of,
)
from softswitch_experiments.plotting import (
    BLUE,
    VERMILLION,
    add_legend,
    make_narrow_panels,
    plot_band,
    plot_error_bars,
    plot_tolerance,
    sequential_colours,
    set_log_scale,
)

ALPHAS = (0.0, 1.0, 10.0, 100.0, 1000.0, 6400.0)
STEPS = (1, 2, 5, 10, 20)
SHARES = (0.1, 0.25, 0.5, 0.75, 1.0)
Swept = Mapping[float, tuple[Result, ...]]
CHECKPOINTS = (25, 50, 100, 200, 400)
"""Numbers of rounds after which w̄ is evaluated. A shorter run is the beginning of a longer one with the same seed."""


def alpha_sensitivity(scale: Scale) -> Outcome:
    """Sweep α from the plain mean to nearly the maximum, with full and with partial participation."""
    alphas = scale.pick(ALPHAS, (1.0, 100.0, 6400.0))
    methods = {f"{a:g}": softmax(a) for a in alphas}
    figure, axes = make_narrow_panels(len(STUDY.schemes(scale)), 3, "Softmax SGM: what α does")
    rows: list[Row] = []
    ends: list[Row] = []
    claims: list[Claim] = []
    for row, scheme in zip(axes, STUDY.schemes(scale), strict=True):
        runs = STUDY.run(methods, scheme, scale, evaluations=scale.pick(100, 10))
        swept = {a: runs[f"{a:g}"] for a in alphas}
        _draw_curves(row[:2], swept, "α", scheme.name)
        _draw_answers(row[2], swept, f"α  ({scheme.name})")
        row[2].set_xscale("symlog", linthresh=1, linscale=0.5)  # logarithmic, with α = 0
        row[2].set(
            xlim=(-0.3, 2 * alphas[-1]), xticks=[0, 1, 10, 100, 1000], xticklabels=["0", "1", "10", "100", "1000"]
        )
        more, at = _tables(swept, "alpha", scheme=scheme.name)
        rows, ends = rows + more, ends + at
        claims += _alpha_claims(swept, scheme)
    add_legend(figure, axes.flat, columns=5)
    return Outcome(figure, {"curves": rows, "answers": ends}, tuple(claims))


def local_steps(scale: Scale) -> Outcome:
    """Sweep E with half of the clients per round; the quick version has one point."""
    steps, share = scale.pick((STEPS, 0.5), ((1,), 1.0))
    swept = _sweep({float(e): Scheme(f"E = {e}", e, share) for e in steps}, scale)
    points = _points(swept)
    met = [mean(one, "worst_constraint") <= TOLERANCE for one in points.values()]
    levels = [mean(one, "worst_objective") for one in points.values()]
    claims = [
        Claim(
            f"the method is robust to E: G(w̄) <= {TOLERANCE} for every E",
            all(met),
            _describe(points, "worst_constraint", "E"),
        )
    ]
    if len(points) > 1:
        measured = _describe(points, "worst_objective", "E")
        claims.append(Claim("and F(w̄) differs by less than a quarter", max(levels) <= 1.25 * min(levels), measured))
    return _one_sweep(f"Softmax SGM: local steps E (m/n = {share:g})", swept, "E", claims)


def participation(scale: Scale) -> Outcome:
    """Sweep m/n with five local steps; the quick version has one point."""
    shares, steps = scale.pick((SHARES, 5), ((1.0,), 1))
    schemes = {r: Scheme(f"m/n = {r:g}", steps, r) for r in shares}
    swept = _sweep(schemes, scale)
    points = _points(swept)
    least, most = points[shares[0]], points[shares[-1]]
    claims = [
        Claim(
            "more clients a round bring G(w̄) down, within the seeds' standard error",
            _falls(points),
            _describe(points, "worst_constraint", "m/n"),
        ),
        Claim(
            f"few clients a round hinder strict satisfaction: G(w̄) > {TOLERANCE} with the fewest, met with all",
            mean(least, "worst_constraint") > TOLERANCE >= mean(most, "worst_constraint"),
            _describe(points, "violating", "m/n", "clients violating: "),
        ),
    ]
    title = f"Softmax SGM: share of clients m/n (E = {steps})"
    if len(points) == 1:
        return _one_sweep(title, swept, "m/n", [])
    progress = {r: measure_progress(scheme, scale, swept[r]) for r, scheme in schemes.items()}
    outcome = _one_sweep(title, swept, "m/n", [*claims, *speed_claims(progress)])
    return Outcome(outcome.figure, {**outcome.tables, "progress": progress_rows(progress, "m/n")}, outcome.claims)


def _sweep(values: Mapping[float, Scheme], scale: Scale) -> Swept:
    evaluations = scale.pick(100, 10)
    return {
        value: STUDY.run({"": SOFTMAX}, scheme, scale, evaluations=evaluations)[""] for value, scheme in values.items()
    }


def _one_sweep(title: str, swept: Swept, symbol: str, claims: Sequence[Claim]) -> Outcome:
    figure, axes = make_narrow_panels(1, 3, title)
    _draw_curves(axes[0, :2], swept, symbol, "")
    _draw_answers(axes[0, 2], swept, symbol)
    axes[0, 2].set(xticks=list(swept), xticklabels=[f"{value:g}" for value in swept])
    add_legend(figure, axes.flat, columns=5)
    rows, ends = _tables(swept, symbol)
    return Outcome(figure, {"curves": rows, "answers": ends}, tuple(claims))


def _points(swept: Swept) -> dict[float, list[Point]]:
    return {value: averages(results) for value, results in swept.items()}


def _tables(swept: Swept, symbol: str, **labels: str) -> tuple[list[Row], list[Row]]:
    curves = [row for v, results in swept.items() for row in curve_rows(results, **labels, **{symbol: v})]
    ends = [row for v, points in _points(swept).items() for row in answer_rows(points, **labels, **{symbol: v})]
    return curves, ends


def _draw_curves(axes: Sequence[Axes], swept: Swept, symbol: str, where: str) -> None:
    for colour, (value, results) in zip(sequential_colours(len(swept)), swept.items(), strict=True):
        spent = gradient_evaluations(results[0])
        for panel, name in zip(axes, ("objective", "constraint"), strict=True):
            curves = [getattr(result.history.full, name) for result in results]
            plot_band(panel, spent, curves, colour, f"{symbol} = {value:g}")
    for panel, name in zip(axes, "FG", strict=True):
        panel.set(title=f"{name}(wₖ)  {where}", xlabel="gradient evaluations")
        set_log_scale(panel)
        panel.ticklabel_format(axis="x", style="sci", scilimits=(0, 0))
    plot_tolerance(axes[1], TOLERANCE)


def _draw_answers(panel: Axes, swept: Swept, label: str) -> None:
    points = _points(swept)
    for name, word, colour in (("worst_objective", "F(w̄)", BLUE), ("worst_constraint", "G(w̄)", VERMILLION)):
        values = [values_of(one, name) for one in points.values()]
        plot_error_bars(panel, list(points), values, colour, word)
    plot_tolerance(panel, TOLERANCE)
    panel.set(title="at the answer", xlabel=label, ylim=(0, None))


def _alpha_claims(swept: Swept, scheme: Scheme) -> list[Claim]:
    points = _points(swept)
    return [
        Claim(
            f"{scheme.name}: α = 1 violates, G(w̄) > 0.3",
            mean(points[1.0], "worst_constraint") > 0.3,
            f"{mean(points[1.0], 'worst_constraint'):.3f}",
        ),
        Claim(
            f"{scheme.name}: G(w̄) falls as α grows, within the seeds' standard error",
            _falls(points),
            _describe(points, "worst_constraint", "α"),
        ),
        Claim(
            f"{scheme.name}: the paper's α = 6400 meets G(w̄) <= {TOLERANCE}",
            mean(points[6400.0], "worst_constraint") <= TOLERANCE,
            f"{mean(points[6400.0], 'worst_constraint'):.3f}",
        ),
    ]


def _falls(points: Mapping[float, list[Point]]) -> bool:
    """Return whether G falls from first to last by more than the standard error, and no step rises by more.

    The standard error is that of a difference of two independent means over seeds.
    """
    values = np.array([values_of(one, "worst_constraint") for one in points.values()])
    seeds = values.shape[1]
    variance = values.var(axis=1, ddof=min(1, seeds - 1)) / seeds
    middle = values.mean(axis=1)
    steady = np.diff(middle) <= np.sqrt(variance[1:] + variance[:-1])
    return bool(steady.all() and middle[0] - middle[-1] > np.sqrt(variance[0] + variance[-1]))


def _describe(points: Mapping[float, list[Point]], name: str, symbol: str, prefix: str = "") -> str:
    return prefix + ", ".join(f"{mean(one, name):.3g} at {symbol} = {value:g}" for value, one in points.items())


@dataclass(frozen=True)
class Progress:
    """The answer w̄ of a seed after several numbers of rounds."""

    rounds: np.ndarray
    gradients: np.ndarray
    objective: np.ndarray
    constraint: np.ndarray

    def until_met(self, cost: str = "rounds") -> float:
        """Return the rounds or gradients until G(w̄) stays within the tolerance, infinite if it does not."""
        met = self.constraint <= TOLERANCE
        stays = np.logical_and.accumulate(met[::-1])[::-1]
        return float(getattr(self, cost)[np.argmax(stays)]) if stays.any() else float("inf")


def measure_progress(scheme: Scheme, scale: Scale, whole: Sequence[Result]) -> list[Progress]:
    """Return one per seed: shorter runs, and the whole one at the end."""
    quiet = Scale(scale.seeds, scale.quick, scale.progress)
    runs = [STUDY.run({"": SOFTMAX}, scheme, quiet, rounds=rounds)[""] for rounds in CHECKPOINTS]
    return [
        Progress(
            np.array([len(r.history) for r in seed]),
            np.array([r.history.gradient_evaluations[-1] for r in seed]),
            np.array([r.worst_objective for r in seed]),
            np.array([r.worst_constraint for r in seed]),
        )
        for seed in zip(*runs, whole, strict=True)
    ]


def progress_rows(progress: Mapping[float, Sequence[Progress]], symbol: str) -> list[Row]:
    """Return a row per share of clients, seed and number of rounds."""
    return [
        {symbol: value, "seed": seed, "rounds": k, "gradient_evaluations": spent, "F": f, "G": g}
        for value, seeds in progress.items()
        for seed, one in enumerate(seeds)
        for k, spent, f, g in zip(one.rounds, one.gradients, one.objective, one.constraint, strict=True)
    ]


def speed_claims(progress: Mapping[float, Sequence[Progress]]) -> list[Claim]:
    """Test whether more clients are faster: rounds and gradients to feasibility, and F after equal rounds."""
    shares = list(progress)
    claims = []
    for cost, label in (("rounds", "rounds"), ("gradients", "gradient evaluations")):
        spent = np.array([[one.until_met(cost) for one in seeds] for seeds in progress.values()])
        is_monotone = all((b <= a).all() for a, b in pairwise(spent))
        measured = ", ".join(f"{_format_median(s)} at m/n = {r:g}" for r, s in zip(shares, spent, strict=True))
        claims.append(
            Claim(
                f"higher participation accelerates convergence: fewer {label} until G(w̄) <= {TOLERANCE} for good, "
                "at no seed more with the next larger share",
                is_monotone and _beyond_interval(spent[0], spent[-1]),
                f"median over seeds {measured}",
            )
        )
    for at in (100, CHECKPOINTS[-1]):
        objective = np.array([[one.objective[one.rounds == at][0] for one in seeds] for seeds in progress.values()])
        lower = objective[0] - objective[-1]
        measured = ", ".join(f"{f.mean():.3f} at m/n = {r:g}" for r, f in zip(shares, objective, strict=True))
        claims.append(
            Claim(
                f"higher participation accelerates convergence: a lower F(w̄) after {at} rounds with all clients "
                "than with the fewest",
                bool(lower.mean() > half_interval(lower)),
                f"{measured}; lower by {lower.mean():.3f} ± {half_interval(lower):.3f} (95%, paired)",
            )
        )
    return claims


def _beyond_interval(first: np.ndarray, last: np.ndarray) -> bool:
    """Return whether the first exceeds the last by more than the paired interval; values may be infinite."""
    finite = np.isfinite(first) & np.isfinite(last)
    if not finite.all():
        return bool((first[~finite] > last[~finite]).all() and (first[finite] >= last[finite]).all())
    fall = first - last
    return bool(fall.mean() > half_interval(fall))


def _format_median(spent: np.ndarray) -> str:
    middle = float(np.median(spent))
    return "never" if np.isinf(middle) else f"{middle:,.0f}"


ALPHA = Experiment("alpha-sensitivity", "Softmax SGM over α: from the plain mean to the maximum", alpha_sensitivity)
STEPS_EXPERIMENT = Experiment("local-steps", "Softmax SGM over the local steps E", local_steps)
PARTICIPATION = Experiment("participation", "Softmax SGM over the share of clients m/n", participation)
