"""Does one α serve all tasks, once it is measured in the spread of the reports?"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from softswitch.support.plotting import BLUE, GREY, VERMILLION, dots, legend, narrow_panels
from softswitch_experiments.paper import adult_study, fair_noniid, np_study, safe_rl_study
from softswitch_experiments.paper.experiment import Claim, Experiment, Outcome, Row, Scale
from softswitch_experiments.paper.study import Point, averages, lasts

RAW = (0.05, 0.5, 5.0, 50.0, 500.0)
"""α per unit, and"""
SPREADS = (1.0, 2.0, 4.0, 8.0)
"""α per spread, the same for all tasks."""
FEWER = 0.8
"""Safe RL is served where the rounds in violation are at most this share of Parallel CRPO's,"""
WITHIN = 1.1
"""and every task where its loss is at most so many times the best of those that meet the bound."""


@dataclass(frozen=True)
class Measured:
    """What an α reaches, one number a seed: a loss to be small, and a constraint to be within a bound."""

    loss: list[float]
    constraint: list[float]


Measure = Callable[[Sequence[float], str, Scale], dict[float, Measured]]
"""Runs every α on one scale."""


@dataclass(frozen=True)
class Part:
    """One task.

    Attributes:
        title: its name.
        loss: what the loss is.
        constraint: what the constraint is.
        measure: runs it.
        bound: the largest mean constraint that counts as met.
    """

    title: str
    loss: str
    constraint: str
    measure: Measure
    bound: Callable[[Scale], float]


def _at(points: Sequence[Point]) -> Measured:
    return Measured([p.worst_objective for p in points], [p.worst_constraint for p in points])


def _neyman_pearson(alphas: Sequence[float], alpha_scale: str, scale: Scale) -> dict[float, Measured]:
    rules = {f"{alpha:g}": np_study.softmax(alpha, alpha_scale=alpha_scale) for alpha in alphas}
    found = np_study.STUDY.runs(rules, np_study.FULL, scale)
    return {alpha: _at(averages(found[f"{alpha:g}"])) for alpha in alphas}


def _adult(alphas: Sequence[float], alpha_scale: str, scale: Scale) -> dict[float, Measured]:
    rules = {f"{alpha:g}": adult_study.softmax(alpha, alpha_scale=alpha_scale) for alpha in alphas}
    found = adult_study.STUDY.runs(rules, adult_study.FULL, scale, variant=fair_noniid.VARIANT)
    own = adult_study.STUDY.tasks(scale.seeds, **fair_noniid.VARIANT)
    return {alpha: _at(lasts(found[f"{alpha:g}"], own)) for alpha in alphas}


def _safe_rl(alphas: Sequence[float], alpha_scale: str, scale: Scale) -> dict[float, Measured]:
    longest = scale.pick(200, safe_rl_study.QUICK["horizon"])
    found = {alpha: safe_rl_study.runs(safe_rl_study.PRIMARY, alpha, scale, alpha_scale) for alpha in alphas}
    return {
        alpha: Measured(
            [longest - safe_rl_study.last_return(run) for run in results],
            [float(safe_rl_study.violations(run)) for run in results],
        )
        for alpha, results in found.items()
    }


def _fewer_than_crpo(scale: Scale) -> float:
    return FEWER * float(np.mean(_safe_rl((0.0,), "raw", scale)[0.0].constraint))


PARTS = (
    Part(
        "Neyman–Pearson",
        "F, worst client",
        "G, worst client",
        _neyman_pearson,
        lambda scale: np_study.TOLERANCE,
    ),
    Part(
        "Adult, a client an occupation",
        "F, worst client",
        "G, worst client",
        _adult,
        lambda scale: adult_study.TOLERANCE,
    ),
    Part(
        "safe RL",
        "steps lost, worst client",
        "rounds in violation",
        _safe_rl,
        _fewer_than_crpo,
    ),
)


def run(scale: Scale) -> Outcome:
    """Loss and constraint of each task over α, per unit and per spread; which α serves which task."""
    figure, axes = narrow_panels(len(PARTS), 2, "α per unit (the paper's) and α per spread of the reports")
    rows: list[Row] = []
    serving: dict[str, list[set[float]]] = {"raw": [], "spread": []}
    for pair, part in zip(axes, PARTS, strict=True):
        grids = {"raw": scale.pick(RAW, RAW[:1]), "spread": scale.pick(SPREADS, SPREADS[2:3])}
        found = {kind: part.measure(alphas, kind, scale) for kind, alphas in grids.items()}
        bound = part.bound(scale)
        best = _best(found, bound)
        _draw(pair, part, found, bound)
        for kind, measured in found.items():
            serves = {
                alpha for alpha, own in measured.items() if _meets(own, bound) and np.mean(own.loss) <= WITHIN * best
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
                for alpha, own in measured.items()
                for seed, (loss, constraint) in enumerate(zip(own.loss, own.constraint, strict=True))
            ]
    legend(figure, axes.flat)
    return Outcome(figure, {"settings": rows}, tuple(_claims(serving)))


def _meets(own: Measured, bound: float) -> bool:
    return bool(np.mean(own.constraint) <= bound)


def _best(found: dict[str, dict[float, Measured]], bound: float) -> float:
    """The smallest mean loss of any α on either scale that meets the bound; infinite where none does."""
    losses = [np.mean(own.loss) for measured in found.values() for own in measured.values() if _meets(own, bound)]
    return float(min(losses, default=np.inf))


def _draw(pair: np.ndarray, part: Part, found: dict[str, dict[float, Measured]], bound: float) -> None:
    for kind, colour in (("raw", VERMILLION), ("spread", BLUE)):
        alphas, label = list(found[kind]), "per unit" if kind == "raw" else "per spread"
        dots(pair[0], alphas, [own.loss for own in found[kind].values()], colour, f"α {label}")
        dots(pair[1], alphas, [own.constraint for own in found[kind].values()], colour, f"α {label}")
    pair[0].set(title=part.title, xlabel="α", ylabel=part.loss, xscale="log")
    pair[1].set(title=part.title, xlabel="α", ylabel=part.constraint, xscale="log")
    pair[1].axhline(bound, color=GREY, linestyle="--", linewidth=1, label="bound")


def _claims(serving: dict[str, list[set[float]]]) -> list[Claim]:
    claims = []
    for kind, word in (("raw", "per unit"), ("spread", "per spread")):
        everywhere = set.intersection(*serving[kind])
        each = "; ".join(
            f"{part.title}: {', '.join(f'{alpha:g}' for alpha in sorted(serves)) or 'none'}"
            for part, serves in zip(PARTS, serving[kind], strict=True)
        )
        claims.append(
            Claim(
                f"one α {word} serves all three tasks: the bound met, the loss within {WITHIN - 1:.0%} of the best",
                bool(everywhere),
                each,
            )
        )
    return claims


EXPERIMENT = Experiment(
    "alpha-scale", "one α for all tasks? α per unit and α per spread of the reports", run, group="safe-rl"
)
