"""Federated safe reinforcement learning: the paper's settings, and what is measured in a run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from softswitch.engine.sweep import sweep
from softswitch.methods.average_sgm import AverageSGM
from softswitch.methods.base import Method
from softswitch.methods.softmax_sgm import SoftmaxSGM
from softswitch.oracles.options import group_options
from softswitch.results.result import Result
from softswitch_experiments.paper.experiment import Row, Scale
from softswitch_experiments.tasks.paper_settings import ANSWER, MEAN_SWITCH, SOFTMAX_SWITCH, steps
from softswitch_experiments.tasks.safe_rl import cartpole

FIRST_SEED = 100
ALPHA = 0.05
ROUNDS, QUICK_ROUNDS = 500, 30
LAST = 100
"""Returns are means over so many last rounds."""
QUICK = {"horizon": 60, "gradient_episodes": 4, "estimation_episodes": 6, "evaluation_episodes": 10}
CRPO, SOFTMAX = "Parallel CRPO", "Softmax SGM"


@dataclass(frozen=True)
class CartSetting:
    """How budgets are given, where the switch is, and which Fisher matrix the local solver has."""

    name: str
    budgets: str
    threshold: float
    fisher_every: int = 5

    def rule(self, alpha: float, alpha_scale: str = "raw") -> Method:
        """Softmax SGM; for α = 0 the average, which is Parallel CRPO and computed by the same program."""
        common: dict[str, Any] = {"tolerance": 0.0, "threshold": self.threshold, **steps(1.0)}
        if alpha == 0:
            return AverageSGM(**common, **MEAN_SWITCH)
        return SoftmaxSGM(alpha=alpha, **common, **SOFTMAX_SWITCH | {"alpha_scale": alpha_scale})


PRIMARY = CartSetting("even budgets, λ = −5", "even", -5.0)
SECONDARY = CartSetting("even budgets, λ = 0", "even", 0.0)
DRAWN = CartSetting("drawn budgets, λ = 0", "drawn", 0.0)
REFERENCE = CartSetting("even budgets, λ = −5, full Fisher", "even", -5.0, fisher_every=1)


_made: dict[Any, Result] = {}


def runs(setting: CartSetting, alpha: float, scale: Scale, alpha_scale: str = "raw") -> tuple[Result, ...]:
    """One run a seed, each with its own first policy and, where they are drawn, budgets; kept for other figures."""
    keys = {
        seed: (setting, alpha, alpha_scale, scale.quick, seed) for seed in range(FIRST_SEED, FIRST_SEED + scale.seeds)
    }
    missing = [seed for seed, key in keys.items() if key not in _made]
    if missing:
        smaller: dict[str, Any] = scale.pick({}, QUICK)
        found = sweep(
            [
                cartpole(seed=seed, budgets=setting.budgets, fisher_every=setting.fisher_every, **smaller)
                for seed in missing
            ],
            None,
            {"": setting.rule(alpha, alpha_scale)},
            seeds=missing,
            rounds=scale.pick(ROUNDS, QUICK_ROUNDS),
            **group_options(eval_every=0, record_clients=True, progress=scale.progress, **ANSWER),
        )
        _made.update({keys[result.seed]: result for result in found[""]})
    results = tuple(_made[key] for key in keys.values())
    scale.add_runs(f"{setting.name} α={alpha:g} {alpha_scale}", results)
    return results


def violated(result: Result, by: float = 0.0) -> np.ndarray:
    """In which rounds the worst client's reported constraint was above ``by``."""
    return result.history.constraint > by


def violations(result: Result) -> int:
    """In how many rounds the worst client violated its constraint."""
    return int(violated(result).sum())


def worst_return(result: Result) -> np.ndarray:
    """The worst client's undiscounted return, round by round."""
    assert result.history.per_client is not None
    smallest: np.ndarray = result.history.per_client.metrics["return"].min(axis=1)
    return smallest


def last_return(result: Result) -> float:
    """The worst client's undiscounted return over the last rounds."""
    return float(worst_return(result)[-LAST:].mean())


def run_rows(results: tuple[Result, ...], **labels: Any) -> list[Row]:
    """A row a seed."""
    return [
        {
            **labels,
            "seed": result.seed,
            "violation_rounds": violations(result),
            "rounds_above_5": int(violated(result, 5.0).sum()),
            "worst_return_last_rounds": last_return(result),
            "switch_share": result.history.switch_share,
        }
        for result in results
    ]
