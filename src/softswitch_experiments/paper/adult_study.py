"""The fair classification study: Adult over ten clients, with the paper's settings."""

from __future__ import annotations

from typing import Any

import optax

from softswitch.methods.penalty import Penalty
from softswitch.methods.primal_dual import PrimalDual
from softswitch.methods.softmax_sgm import SoftmaxSGM
from softswitch_experiments.paper.study import Grid, Study, Way
from softswitch_experiments.tasks.fair_classification import Adult, adult
from softswitch_experiments.tasks.paper_settings import MEAN_SWITCH, SOFTMAX_SWITCH, steps

CLIENTS, TOLERANCE = 10, 0.05
FULL = Way("E = 1, m = n", 1, 1.0)
PARTIAL = Way("E = 2, m/n = 0.5", 2, 0.5)
STEP = 0.001
SETTINGS: dict[str, Any] = {
    "tolerance": TOLERANCE,
    "threshold": TOLERANCE,  # the paper names no other; its λ = ε/1.1 is the Neyman–Pearson experiment's
    "optimizer": optax.adam,
}
COMMON: dict[str, Any] = MEAN_SWITCH | SETTINGS
"""Of all methods but Softmax SGM."""


def softmax(alpha: float, step: float = STEP, **changes: Any) -> SoftmaxSGM:
    """Softmax SGM with the switch on the softmax mean, unless ``changes`` say otherwise."""
    return SoftmaxSGM(**{"alpha": alpha, **steps(step), **SOFTMAX_SWITCH, **SETTINGS} | changes)


SOFTMAX = softmax(1.0, criterion="pooled")
"""The paper's server recomputes the gap from pooled group sums."""


def penalty(weight: float, step: float = STEP) -> Penalty:
    """The penalty method with another ρ or step."""
    return Penalty(penalty=weight, **steps(step), **COMMON)


def primal_dual(multiplier: float, dual_step: float, step: float = STEP) -> PrimalDual:
    """The primal-dual method with another μ₀, η_d or step."""
    return PrimalDual(multiplier=multiplier, dual_step_size=dual_step, **steps(step), **COMMON)


def _task(seed: int, by: str | None = None, strata: str | None = None, hidden: tuple[int, ...] = (64,)) -> Adult:
    return adult(CLIENTS, seed=seed, by=by, strata=strata, hidden=hidden)


STUDY = Study(
    title="Fair classification, Adult, 10 clients",
    task=_task,
    rules={
        "Softmax SGM": SOFTMAX,
        "Penalty": penalty(10.0),
        "Primal-dual": primal_dual(10.0, 0.01),
    },
    full=FULL,
    partial=PARTIAL,
    tolerance=TOLERANCE,
    rounds=500,
    quick_rounds=40,
    batch_size=128,
    grids={
        "Softmax SGM": Grid("α", (0.1, 1, 10, 100), 1, lambda alpha, _, step: softmax(alpha, step, criterion="pooled")),
        "Penalty": Grid("ρ", (0.1, 1, 10, 100), 10, lambda rho, _, step: penalty(rho, step)),
        "Primal-dual": Grid(
            "μ₀",
            (0.1, 1, 10, 100),
            10,
            primal_dual,
            "η_d",
            (0.01, 0.1, 1.0),
        ),
    },
    steps=(0.001,),
    tuning_seeds=2,
)
