"""The fair classification study: Adult over ten clients, with the settings of the paper."""

from __future__ import annotations

from typing import Any

import optax

from softswitch.methods.multipliers import PrimalDual
from softswitch.methods.penalties import Penalty
from softswitch.methods.softmax_sgm import SoftmaxSGM
from softswitch_experiments.paper.study import Grid, Scheme, Study
from softswitch_experiments.tasks.fair_classification import Adult, adult
from softswitch_experiments.tasks.paper_settings import MEAN_SWITCH, SOFTMAX_SWITCH, steps

CLIENTS, TOLERANCE = 10, 0.05
FULL = Scheme("E = 1, m = n", 1, 1.0)
PARTIAL = Scheme("E = 2, m/n = 0.5", 2, 0.5)
STEP = 0.001
SETTINGS: dict[str, Any] = {
    "tolerance": TOLERANCE,
    "threshold": TOLERANCE,  # λ = ε/1.1 is only stated for the Neyman–Pearson experiment
    "optimizer": optax.adam,
}
COMMON: dict[str, Any] = MEAN_SWITCH | SETTINGS
"""Settings of all methods except Softmax SGM."""


def softmax(alpha: float, step: float = STEP, **changes: Any) -> SoftmaxSGM:
    """Return Softmax SGM with the switch on the softmax mean, or with other settings."""
    return SoftmaxSGM(**{"alpha": alpha, **steps(step), **SOFTMAX_SWITCH, **SETTINGS} | changes)


SOFTMAX = softmax(1.0, criterion="pooled")
"""The server of the paper computes the gap from pooled group sums."""


def penalty(weight: float, step: float = STEP) -> Penalty:
    """Return the penalty method with another ρ or step."""
    return Penalty(penalty=weight, **steps(step), **COMMON)


def primal_dual(multiplier: float, dual_step: float, step: float = STEP) -> PrimalDual:
    """Return the primal-dual method with another μ₀, η_d or step."""
    return PrimalDual(multiplier=multiplier, dual_step_size=dual_step, **steps(step), **COMMON)


def _make_task(seed: int, by: str | None = None, strata: str | None = None, hidden: tuple[int, ...] = (64,)) -> Adult:
    return adult(CLIENTS, seed=seed, by=by, strata=strata, hidden=hidden)


STUDY = Study(
    title="Fair classification, Adult, 10 clients",
    make_task=_make_task,
    methods={"Softmax SGM": SOFTMAX, "Penalty": penalty(10.0), "Primal-dual": primal_dual(10.0, 0.01)},
    full=FULL,
    partial=PARTIAL,
    tolerance=TOLERANCE,
    rounds=500,
    quick_rounds=40,
    batch_size=128,
    grids={
        "Softmax SGM": Grid("α", (0.1, 1, 10, 100), 1, lambda alpha, _, step: softmax(alpha, step, criterion="pooled")),
        "Penalty": Grid("ρ", (0.1, 1, 10, 100), 10, lambda rho, _, step: penalty(rho, step)),
        "Primal-dual": Grid("μ₀", (0.1, 1, 10, 100), 10, primal_dual, "η_d", (0.01, 0.1, 1.0)),
    },
    steps=(0.001,),
    tuning_seeds=2,
)
