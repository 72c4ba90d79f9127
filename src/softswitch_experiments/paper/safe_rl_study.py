"""The safe reinforcement learning study: settings of the paper, and measurements of a run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from softswitch.engine.sweep import sweep
from softswitch.methods.base import Method
from softswitch.methods.softmax_sgm import AverageSGM, SoftmaxSGM
from softswitch.results.result import Result
from softswitch_experiments.options import group_options
from softswitch_experiments.paper.experiment import Row, Scale
from softswitch_experiments.tasks.paper_settings import ANSWER, MEAN_SWITCH, SOFTMAX_SWITCH, steps
from softswitch_experiments.tasks.safe_rl import cartpole

FIRST_SEED = 100
ALPHA = 0.05
ROUNDS, QUICK_ROUNDS = 500, 30
LAST = 100
"""Number of last rounds over which returns are averaged."""
QUICK = {"horizon": 60, "gradient_episodes": 4, "estimation_episodes": 6, "evaluation_episodes": 10}
CRPO, SOFTMAX = "Parallel CRPO", "Softmax SGM"


@dataclass(frozen=True)
class CartSetting:
    """Budgets, threshold of the switch, and Fisher matrix of the local solver."""

    name: str
    budgets: str
    threshold: float
    fisher_every: int = 5

    def make_method(self, alpha: float, alpha_scale: str = "raw") -> Method:
        """Return Softmax SGM, or for α = 0 Average SGM, which is Parallel CRPO."""
        common: dict[str, Any] = {"tolerance": 0.0, "threshold": self.threshold, **steps(1.0)}
        if alpha == 0:
            return AverageSGM(**common, **MEAN_SWITCH)
        return SoftmaxSGM(alpha=alpha, **common, **SOFTMAX_SWITCH | {"alpha_scale": alpha_scale})


PRIMARY = CartSetting("even budgets, λ = −5", "even", -5.0)
SECONDARY = CartSetting("even budgets, λ = 0", "even", 0.0)
DRAWN = CartSetting("drawn budgets, λ = 0", "drawn", 0.0)
REFERENCE = CartSetting("even budgets, λ = −5, full Fisher", "even", -5.0, fisher_every=1)


_cache: dict[Any, Result] = {}


def run_setting(setting: CartSetting, alpha: float, scale: Scale, alpha_scale: str = "raw") -> tuple[Result, ...]:
    """Return one run per seed, each with its own initial policy and drawn budgets. Cached for other figures."""
    keys = {
        seed: (setting, alpha, alpha_scale, scale.quick, seed) for seed in range(FIRST_SEED, FIRST_SEED + scale.seeds)
    }
    missing = [seed for seed, key in keys.items() if key not in _cache]
    if missing:
        options: dict[str, Any] = scale.pick({}, QUICK)
        runs = sweep(
            [
                cartpole(seed=seed, budgets=setting.budgets, fisher_every=setting.fisher_every, **options)
                for seed in missing
            ],
            None,
            {"": setting.make_method(alpha, alpha_scale)},
            seeds=missing,
            rounds=scale.pick(ROUNDS, QUICK_ROUNDS),
            **group_options(eval_every=0, record_clients=True, progress=scale.progress, **ANSWER),
        )
        _cache.update({keys[result.seed]: result for result in runs[""]})
    results = tuple(_cache[key] for key in keys.values())
    scale.add_runs(f"{setting.name} α={alpha:g} {alpha_scale}", results)
    return results


def is_violated(result: Result, level: float = 0.0) -> np.ndarray:
    """Return for each round whether the worst client's reported constraint was above ``level``."""
    return result.history.constraint > level


def count_violations(result: Result) -> int:
    """Return the number of rounds in which the worst client violated its constraint."""
    return int(is_violated(result).sum())


def worst_return(result: Result) -> np.ndarray:
    """Return the worst client's undiscounted return in each round."""
    assert result.history.per_client is not None
    return result.history.per_client.metrics["return"].min(axis=1)


def last_return(result: Result) -> float:
    """Return the worst client's undiscounted return over the last rounds."""
    return float(worst_return(result)[-LAST:].mean())


def run_rows(results: tuple[Result, ...], **labels: Any) -> list[Row]:
    """Return a row per seed."""
    return [
        {
            **labels,
            "seed": result.seed,
            "violation_rounds": count_violations(result),
            "rounds_above_5": int(is_violated(result, 5.0).sum()),
            "worst_return_last_rounds": last_return(result),
            "switch_share": result.history.switch_share,
        }
        for result in results
    ]
