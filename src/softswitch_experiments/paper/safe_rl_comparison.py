"""Safe reinforcement learning: Softmax SGM against Parallel CRPO, seed by seed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from softswitch.results.result import Result
from softswitch.support.plotting import BLUE, VERMILLION, band, legend, narrow_panels
from softswitch.support.text import mean_and_spread
from softswitch_experiments.paper.experiment import Claim, Experiment, Outcome, Row, Scale
from softswitch_experiments.paper.safe_rl_study import (
    ALPHA,
    CRPO,
    DRAWN,
    PRIMARY,
    REFERENCE,
    SECONDARY,
    SOFTMAX,
    CartSetting,
    last_return,
    run_rows,
    runs,
    violated,
    violations,
    worst_return,
)
from softswitch_experiments.paper.study import half_interval

SMOOTH = 10
"""Returns are drawn as means over so many rounds."""
LEVEL = 0.05
SWAPS = 2**14


@dataclass(frozen=True)
class Paired:
    """Two methods on the same seeds: the first minus the second.

    Attributes:
        ours: the first's numbers, one a seed.
        theirs: the second's.
    """

    ours: np.ndarray
    theirs: np.ndarray

    @property
    def difference(self) -> float:
        """The mean difference."""
        return float((self.ours - self.theirs).mean())

    @property
    def half_interval(self) -> float:
        """Half of its 95% interval (Student's t)."""
        return half_interval(self.ours - self.theirs)

    @property
    def smaller(self) -> int:
        """In how many pairs the first is smaller."""
        return int((self.ours < self.theirs).sum())

    @cached_property
    def p(self) -> float:
        """The two-sided sign-flip test: all ways to swap the members of pairs, or ``SWAPS`` of them for many pairs."""
        if len(self.ours) < 2:
            return 1.0
        from scipy import stats  # takes half a second to import

        test = stats.permutation_test(
            (self.ours, self.theirs),
            lambda x, y, axis: (x - y).mean(axis=axis),
            permutation_type="samples",
            vectorized=True,
            n_resamples=SWAPS,
            batch=1000,
            rng=0,
        )
        return float(test.pvalue)

    def __str__(self) -> str:
        return f"{self.difference:.1f} ± {self.half_interval:.1f}, p = {self.p:.2g}"


def paired(measure: Callable[[Result], float], ours: Sequence[Result], theirs: Sequence[Result]) -> Paired:
    """A number of both methods' runs, seed by seed."""
    return Paired(*(np.array([measure(result) for result in results], dtype=float) for results in (ours, theirs)))


def run(scale: Scale) -> Outcome:
    """Worst-client return and cumulative violations against rounds, in three settings, and the paired comparison."""
    figure, axes = narrow_panels(3, 2, "CartPole on three planets: one policy, ten budgets", height=2.2)
    tables: dict[str, list[Row]] = {"comparison": [], "runs": [], "curves": []}
    claims: list[Claim] = []
    settings = (PRIMARY, SECONDARY, DRAWN)
    for i, setting in enumerate(settings if scale.quick else (*settings, REFERENCE)):
        methods = {CRPO: runs(setting, 0.0, scale), SOFTMAX: runs(setting, ALPHA, scale)}
        if i < len(axes):
            _draw(axes[i], setting, methods)
        for method, results in methods.items():
            tables["runs"] += run_rows(results, setting=setting.name, method=method)
            tables["curves"] += _curve_rows(setting, method, results)
        counts = paired(violations, methods[SOFTMAX], methods[CRPO])
        returns = paired(last_return, methods[SOFTMAX], methods[CRPO])
        tables["comparison"] += [
            _comparison_row(setting, "rounds in violation", counts),
            _comparison_row(setting, "worst return", returns),
        ]
        claims += _claims(setting, counts, returns)
    for panel in axes[-1]:
        panel.set(xlabel="round")
    legend(figure, axes.flat)
    return Outcome(figure, tables, tuple(claims))


def _draw(row: np.ndarray, setting: CartSetting, methods: dict[str, tuple[Result, ...]]) -> None:
    returns, counts = row
    for (method, results), colour in zip(methods.items(), (VERMILLION, BLUE), strict=True):
        curves = [worst_return(result) for result in results]
        whole = len(curves[0]) // SMOOTH * SMOOTH
        smooth = np.array([curve[:whole].reshape(-1, SMOOTH).mean(axis=1) for curve in curves])
        label = method if method == CRPO else f"{method}, α = {ALPHA:g}"
        band(returns, np.arange(0, whole, SMOOTH) + SMOOTH / 2, smooth, colour, label)
        band(counts, np.arange(len(curves[0])), [np.cumsum(violated(result)) for result in results], colour, label)
    returns.set(title=f"{setting.name}: worst client's return", ylim=(0, None))
    counts.set(title="rounds in violation so far", ylim=(0, None))


def _curve_rows(setting: CartSetting, method: str, results: Sequence[Result]) -> list[Row]:
    return [
        {"setting": setting.name, "method": method, "seed": result.seed, "round": k, "worst_return": a, "worst_g": g}
        for result in results
        for k, (a, g) in enumerate(zip(worst_return(result).tolist(), result.history.constraint.tolist(), strict=True))
    ]


def _comparison_row(setting: CartSetting, what: str, pair: Paired) -> Row:
    return {
        "setting": setting.name,
        "measure": what,
        "seeds": len(pair.ours),
        "softmax": mean_and_spread(pair.ours),
        "parallel_crpo": mean_and_spread(pair.theirs),
        "difference": pair.difference,
        "low": pair.difference - pair.half_interval,
        "high": pair.difference + pair.half_interval,
        "pairs_where_softmax_is_smaller": pair.smaller,
        "sign_flip_p": pair.p,
    }


def _claims(setting: CartSetting, counts: Paired, returns: Paired) -> list[Claim]:
    pairs = len(counts.ours)
    nearly_all = pairs - pairs // 10
    told = f"{mean_and_spread(counts.ours)} against {mean_and_spread(counts.theirs)} rounds"
    claims = [
        Claim(
            f"{setting.name}: the worst client violates in fewer rounds in {nearly_all} of {pairs} pairs or more",
            counts.smaller >= nearly_all,
            f"in {counts.smaller} of {pairs}; {told}",
        ),
        Claim(
            f"{setting.name}: no loss of the worst client's return is to be seen (the 95% interval reaches 0 or more)",
            returns.difference + returns.half_interval >= 0,
            f"{mean_and_spread(returns.ours)} against {mean_and_spread(returns.theirs)}; difference {returns}",
        ),
    ]
    if 2 / 2**pairs < LEVEL:  # with fewer pairs the test cannot say it
        fewer = counts.difference < 0 and counts.p < LEVEL
        claims.append(Claim(f"{setting.name}: sign-flip p < {LEVEL}", fewer, f"difference {counts}"))
    return claims


EXPERIMENT = Experiment(
    "safe-rl",
    "safe RL: worst-client return and violations, Softmax SGM and Parallel CRPO",
    run,
    seeds=10,
    group="safe-rl",
)
