"""The Neyman–Pearson study: breast cancer over 20 clients, with the settings of the paper."""

from __future__ import annotations

from typing import Any

from softswitch.methods.multipliers import PrimalDual
from softswitch.methods.penalties import Penalty
from softswitch.methods.softmax_sgm import AverageSGM, SoftmaxSGM
from softswitch_experiments.paper.study import Grid, Scheme, Study
from softswitch_experiments.tasks.neyman_pearson import BreastCancer, breast_cancer
from softswitch_experiments.tasks.paper_settings import MEAN_SWITCH, SOFTMAX_SWITCH, steps

CLIENTS, TOLERANCE, ALPHA = 20, 0.1, 6400.0
HELD_OUT_SPLIT = 42
"""Seed of the split into training and test rows, the same for all runs. The seed of a run splits rows over clients."""
FULL = Scheme("E = 1, m = n", 1, 1.0)
PARTIAL = Scheme("E = 5, m/n = 0.5", 5, 0.5)
STEP, BASELINE_STEP = 0.5, 0.1
COMMON: dict[str, Any] = {"tolerance": TOLERANCE, **MEAN_SWITCH}
"""Settings of all methods except Softmax SGM."""


def softmax(alpha: float, step: float = STEP, alpha_scale: str = "raw") -> SoftmaxSGM:
    """Return the paper's method with another α, step size or unit of α."""
    return SoftmaxSGM(alpha=alpha, tolerance=TOLERANCE, **steps(step), **SOFTMAX_SWITCH | {"alpha_scale": alpha_scale})


SOFTMAX = softmax(ALPHA)
AVERAGE = AverageSGM(**steps(STEP), **COMMON)


def _make_task(seed: int, concentration: float | None = None) -> BreastCancer:
    return breast_cancer(CLIENTS, seed=seed, split_seed=HELD_OUT_SPLIT, concentration=concentration)


STUDY = Study(
    title="Neyman–Pearson, breast cancer, 20 clients",
    make_task=_make_task,
    methods={
        "Softmax SGM": SOFTMAX,
        "Penalty": Penalty(penalty=2.5, **steps(BASELINE_STEP), **COMMON),
        "Primal-dual": PrimalDual(multiplier=2.5, dual_step_size=0.01, **steps(BASELINE_STEP), **COMMON),
    },
    full=FULL,
    partial=PARTIAL,
    tolerance=TOLERANCE,
    rounds=1000,
    quick_rounds=200,
    batch_size=32,
    grids={
        "Softmax SGM": Grid("α", (1, 10, 100, 1000, 6400, 64000), 6400, lambda alpha, _, step: softmax(alpha, step)),
        "Penalty": Grid(
            "ρ",
            (0.5, 1, 2.5, 4, 5.5, 7.5, 10, 15, 25, 50, 100),
            2.5,
            lambda rho, _, step: Penalty(penalty=rho, **steps(step), **COMMON),
        ),
        "Primal-dual": Grid(
            "μ₀",
            (0.5, 2.5, 4, 6, 10, 16, 25),
            2.5,
            lambda mu, dual, step: PrimalDual(multiplier=mu, dual_step_size=dual, **steps(step), **COMMON),
            "η_d",
            (0.001, 0.01, 0.1),
        ),
    },
    steps=(0.1, 0.5),
    tuning_seeds=5,
)
