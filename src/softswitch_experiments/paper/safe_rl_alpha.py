"""Safe reinforcement learning over α: fewer violations, until episodes become short."""

from __future__ import annotations

import numpy as np

from softswitch.results.result import Result
from softswitch.support.plotting import BLUE, dots, narrow_panels
from softswitch_experiments.paper.experiment import Claim, Experiment, Outcome, Row, Scale
from softswitch_experiments.paper.safe_rl_study import ALPHA, PRIMARY, last_return, run_rows, runs, violations

ALPHAS = (0.0, 0.02, 0.05, 0.1, 0.3, 0.5, 1.0)
QUICK_ALPHAS = (0.0, 0.05, 1.0)
COLLAPSED = 30.0
"""A return as of a pole that is let fall."""


def run(scale: Scale) -> Outcome:
    """Violations, return, and the share of rounds that improve the return, over α."""
    found = {alpha: runs(PRIMARY, alpha, scale) for alpha in scale.pick(ALPHAS, QUICK_ALPHAS)}
    figure, axes = narrow_panels(1, 3, f"Safe RL over α ({PRIMARY.name})")
    measures = {
        "rounds in violation": violations,
        "worst client's return, last rounds": last_return,
        "share of rounds that improve the return": _switch_share,
    }
    places = np.arange(len(found))
    for panel, (title, measure) in zip(axes[0], measures.items(), strict=True):
        dots(panel, places, [[measure(result) for result in results] for results in found.values()], BLUE)
        panel.set(title=title, xlabel="α", xticks=places, ylim=(0, None))
        panel.set_xticklabels([f"{alpha:g}" for alpha in found])
    counts, returns = (
        {alpha: float(np.mean([measure(result) for result in results])) for alpha, results in found.items()}
        for measure in (violations, last_return)
    )
    largest = max(found)
    claims = (
        Claim(
            f"α = {ALPHA:g} violates in fewer rounds than α = 0",
            counts[ALPHA] < counts[0.0],
            f"{counts[ALPHA]:.0f} against {counts[0.0]:.0f}",
        ),
        Claim(
            f"a large α collapses into short episodes: at α = {largest:g} the worst return is below {COLLAPSED:g}",
            returns[largest] < COLLAPSED,
            ", ".join(f"{value:.0f} at α = {alpha:g}" for alpha, value in returns.items()),
        ),
    )
    rows: list[Row] = [row for alpha, results in found.items() for row in run_rows(results, alpha=alpha)]
    return Outcome(figure, {"runs": rows}, claims)


def _switch_share(result: Result) -> float:
    return result.history.switch_share


EXPERIMENT = Experiment(
    "safe-rl-alpha",
    "safe RL over α: fewer violations, then a collapse into short episodes",
    run,
    group="safe-rl",
)
