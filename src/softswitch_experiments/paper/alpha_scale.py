"""One α for all tasks: α per unit, and α per spread of the reports."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from softswitch_experiments.paper import adult_study, fair_noniid, np_study, safe_rl_study
from softswitch_experiments.paper.experiment import Claim, Experiment, Outcome, Row, Scale
from softswitch_experiments.paper.study import Point, averages, last_iterates, values_of
from softswitch_experiments.plotting import BLUE, GREY, VERMILLION, add_legend, make_narrow_panels, plot_error_bars

RAW = (0.05, 0.5, 5.0, 50.0, 500.0)
"""α per unit."""
SPREADS = (1.0, 2.0, 4.0, 8.0)
"""α per spread of the reports."""
FEWER = 0.8
"""Bound of safe RL: the rounds in violation, as a share of those of Parallel CRPO."""
WITHIN = 1.1
"""An α serves a task if it meets the bound, with a loss of at most this multiple of the best one that does."""


@dataclass(frozen=True)
class Measured:
    """Loss and constraint of an α, one number per seed."""

    loss: list[float]
    constraint: list[float]


@dataclass(frozen=True)
class Part:
    """One task.

    Attributes:
        measure: Function that runs it for several α on one scale.
    """

    title: str  # its name
    loss: str  # label of the loss
    constraint: str  # label of the constraint
    measure: Callable[[Sequence[float], str, Scale], dict[float, Measured]]
    bound: Callable[[Scale], float]  # function that returns the largest mean constraint that counts as met


def _measured(points: Sequence[Point]) -> Measured:
    return Measured(values_of(points, "worst_objective"), values_of(points, "worst_constraint"))


def _neyman_pearson(alphas: Sequence[float], alpha_scale: str, scale: Scale) -> dict[float, Measured]:
    methods = {f"{alpha:g}": np_study.softmax(alpha, alpha_scale=alpha_scale) for alpha in alphas}
    runs = np_study.STUDY.run(methods, np_study.FULL, scale)
    return {alpha: _measured(averages(runs[f"{alpha:g}"])) for alpha in alphas}


def _adult(alphas: Sequence[float], alpha_scale: str, scale: Scale) -> dict[float, Measured]:
    methods = {f"{alpha:g}": adult_study.softmax(alpha, alpha_scale=alpha_scale) for alpha in alphas}
    runs = adult_study.STUDY.run(methods, adult_study.FULL, scale, variant=fair_noniid.VARIANT)
    tasks = adult_study.STUDY.tasks(scale.seeds, **fair_noniid.VARIANT)
    return {alpha: _measured(last_iterates(runs[f"{alpha:g}"], tasks)) for alpha in alphas}


def _safe_rl(alphas: Sequence[float], alpha_scale: str, scale: Scale) -> dict[float, Measured]:
    horizon = scale.pick(200, safe_rl_study.QUICK["horizon"])
    runs = {alpha: safe_rl_study.run_setting(safe_rl_study.PRIMARY, alpha, scale, alpha_scale) for alpha in alphas}
    return {
        alpha: Measured(
            [horizon - safe_rl_study.last_return(run) for run in results],
            [float(safe_rl_study.count_violations(run)) for run in results],
        )
        for alpha, results in runs.items()
    }


def _fewer_than_crpo(scale: Scale) -> float:
    return FEWER * float(np.mean(_safe_rl((0.0,), "raw", scale)[0.0].constraint))


PARTS = (
    Part("Neyman–Pearson", "F, worst client", "G, worst client", _neyman_pearson, lambda scale: np_study.TOLERANCE),
    Part(
        "Adult, a client an occupation",
        "F, worst client",
        "G, worst client",
        _adult,
        lambda scale: adult_study.TOLERANCE,
    ),
    Part("safe RL", "steps lost, worst client", "rounds in violation", _safe_rl, _fewer_than_crpo),
)


def run(scale: Scale) -> Outcome:
    """Measure loss and constraint of each task over α on both scales, and find which α serves which task."""
    figure, axes = make_narrow_panels(len(PARTS), 2, "α per unit (the paper's) and α per spread of the reports")
    rows: list[Row] = []
    serving: dict[str, list[set[float]]] = {"raw": [], "spread": []}
    for pair, part in zip(axes, PARTS, strict=True):
        grids = {"raw": scale.pick(RAW, RAW[:1]), "spread": scale.pick(SPREADS, SPREADS[2:3])}
        results = {kind: part.measure(alphas, kind, scale) for kind, alphas in grids.items()}
        bound = part.bound(scale)
        best = _best_loss(results, bound)
        _draw(pair, part, results, bound)
        for kind, measured in results.items():
            serves = {
                alpha for alpha, one in measured.items() if _meets(one, bound) and np.mean(one.loss) <= WITHIN * best
            }
            serving[kind].append(serves)
            rows += [
                {
                    "task": part.title,
                    "scale": kind,
                    "alpha": alpha,
                    "seed": seed,
                    "loss": loss,
                    "constraint": constraint,
                    "serves": alpha in serves,
                }
                for alpha, one in measured.items()
                for seed, (loss, constraint) in enumerate(zip(one.loss, one.constraint, strict=True))
            ]
    add_legend(figure, axes.flat)
    return Outcome(figure, {"settings": rows}, tuple(_claims(serving)))


def _meets(measured: Measured, bound: float) -> bool:
    return bool(np.mean(measured.constraint) <= bound)


def _best_loss(results: dict[str, dict[float, Measured]], bound: float) -> float:
    """Return the smallest mean loss of any α that meets the bound, infinite if none does."""
    losses = [np.mean(one.loss) for measured in results.values() for one in measured.values() if _meets(one, bound)]
    return float(min(losses, default=np.inf))


def _draw(pair: np.ndarray, part: Part, results: dict[str, dict[float, Measured]], bound: float) -> None:
    for kind, colour in (("raw", VERMILLION), ("spread", BLUE)):
        alphas, label = list(results[kind]), "per unit" if kind == "raw" else "per spread"
        plot_error_bars(pair[0], alphas, [one.loss for one in results[kind].values()], colour, f"α {label}")
        plot_error_bars(pair[1], alphas, [one.constraint for one in results[kind].values()], colour, f"α {label}")
    pair[0].set(title=part.title, xlabel="α", ylabel=part.loss, xscale="log")
    pair[1].set(title=part.title, xlabel="α", ylabel=part.constraint, xscale="log")
    pair[1].axhline(bound, color=GREY, linestyle="--", linewidth=1, label="bound")


def _claims(serving: dict[str, list[set[float]]]) -> list[Claim]:
    claims = []
    for kind, label in (("raw", "per unit"), ("spread", "per spread")):
        common = set.intersection(*serving[kind])
        each = "; ".join(
            f"{part.title}: {', '.join(f'{alpha:g}' for alpha in sorted(serves)) or 'none'}"
            for part, serves in zip(PARTS, serving[kind], strict=True)
        )
        claims.append(
            Claim(
                f"one α {label} serves all three tasks: the bound met, the loss within {WITHIN - 1:.0%} of the best",
                bool(common),
                each,
            )
        )
    return claims


EXPERIMENT = Experiment(
    "alpha-scale", "one α for all tasks? α per unit and α per spread of the reports", run, group="safe-rl"
)
