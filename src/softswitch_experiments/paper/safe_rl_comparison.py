"""Safe reinforcement learning: Softmax SGM against Parallel CRPO, paired by seed, and a sweep over α."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from softswitch.results.result import Result
from softswitch.support.text import format_mean_std
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
    count_violations,
    is_violated,
    last_return,
    run_rows,
    run_setting,
    worst_return,
)
from softswitch_experiments.paper.study import half_interval
from softswitch_experiments.plotting import BLUE, VERMILLION, add_legend, make_narrow_panels, plot_band, plot_error_bars

SMOOTH = 10
"""Number of rounds over which the drawn returns are averaged."""
LEVEL = 0.05
SWAPS = 2**14
ALPHAS = (0.0, 0.02, 0.05, 0.1, 0.3, 0.5, 1.0)
QUICK_ALPHAS = (0.0, 0.05, 1.0)
COLLAPSED = 30.0
"""Return below which the policy lets the pole fall."""


@dataclass(frozen=True)
class Paired:
    """Values of two methods on the same seeds."""

    softmax: np.ndarray
    crpo: np.ndarray

    @property
    def difference(self) -> float:
        """Mean difference."""
        return float((self.softmax - self.crpo).mean())

    @property
    def half_interval(self) -> float:
        """Half of the 95% interval (Student's t) of the mean difference."""
        return half_interval(self.softmax - self.crpo)

    @property
    def smaller(self) -> int:
        """Number of pairs in which the first is smaller."""
        return int((self.softmax < self.crpo).sum())

    @cached_property
    def p(self) -> float:
        """P-value of the two-sided sign-flip test over all swaps of pairs, or over ``SWAPS`` random ones."""
        if len(self.softmax) < 2:
            return 1.0
        from scipy import stats  # slow to import

        test = stats.permutation_test(
            (self.softmax, self.crpo),
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


def pair_values(measure: Callable[[Result], float], softmax: Sequence[Result], crpo: Sequence[Result]) -> Paired:
    """Return a measurement of the runs of both methods."""
    return Paired(*(np.array([measure(result) for result in results], dtype=float) for results in (softmax, crpo)))


def run(scale: Scale) -> Outcome:
    """Draw worst return and cumulative violations in three settings, and compare the methods by paired tests."""
    figure, axes = make_narrow_panels(3, 2, "CartPole on three planets: one policy, ten budgets", height=2.2)
    tables: dict[str, list[Row]] = {"comparison": [], "runs": [], "curves": []}
    claims: list[Claim] = []
    settings = (PRIMARY, SECONDARY, DRAWN)
    for i, setting in enumerate(settings if scale.quick else (*settings, REFERENCE)):
        methods = {CRPO: run_setting(setting, 0.0, scale), SOFTMAX: run_setting(setting, ALPHA, scale)}
        if i < len(axes):
            _draw(axes[i], setting, methods)
        for method, results in methods.items():
            tables["runs"] += run_rows(results, setting=setting.name, method=method)
            tables["curves"] += _curve_rows(setting, method, results)
        counts = pair_values(count_violations, methods[SOFTMAX], methods[CRPO])
        returns = pair_values(last_return, methods[SOFTMAX], methods[CRPO])
        tables["comparison"] += [
            _comparison_row(setting, "rounds in violation", counts),
            _comparison_row(setting, "worst return", returns),
        ]
        claims += _claims(setting, counts, returns)
    for panel in axes[-1]:
        panel.set(xlabel="round")
    add_legend(figure, axes.flat)
    return Outcome(figure, tables, tuple(claims))


def _draw(row: np.ndarray, setting: CartSetting, methods: dict[str, tuple[Result, ...]]) -> None:
    returns, counts = row
    for (method, results), colour in zip(methods.items(), (VERMILLION, BLUE), strict=True):
        curves = [worst_return(result) for result in results]
        whole = len(curves[0]) // SMOOTH * SMOOTH
        smooth = np.array([curve[:whole].reshape(-1, SMOOTH).mean(axis=1) for curve in curves])
        label = method if method == CRPO else f"{method}, α = {ALPHA:g}"
        plot_band(returns, np.arange(0, whole, SMOOTH) + SMOOTH / 2, smooth, colour, label)
        plot_band(
            counts, np.arange(len(curves[0])), [np.cumsum(is_violated(result)) for result in results], colour, label
        )
    returns.set(title=f"{setting.name}: worst client's return", ylim=(0, None))
    counts.set(title="rounds in violation so far", ylim=(0, None))


def _curve_rows(setting: CartSetting, method: str, results: Sequence[Result]) -> list[Row]:
    return [
        {"setting": setting.name, "method": method, "seed": result.seed, "round": k, "worst_return": a, "worst_g": g}
        for result in results
        for k, (a, g) in enumerate(zip(worst_return(result).tolist(), result.history.constraint.tolist(), strict=True))
    ]


def _comparison_row(setting: CartSetting, measure: str, pair: Paired) -> Row:
    return {
        "setting": setting.name,
        "measure": measure,
        "seeds": len(pair.softmax),
        "softmax": format_mean_std(pair.softmax),
        "parallel_crpo": format_mean_std(pair.crpo),
        "difference": pair.difference,
        "low": pair.difference - pair.half_interval,
        "high": pair.difference + pair.half_interval,
        "pairs_where_softmax_is_smaller": pair.smaller,
        "sign_flip_p": pair.p,
    }


def _claims(setting: CartSetting, counts: Paired, returns: Paired) -> list[Claim]:
    pairs = len(counts.softmax)
    required = pairs - pairs // 10
    rounds = f"{format_mean_std(counts.softmax)} against {format_mean_std(counts.crpo)} rounds"
    claims = [
        Claim(
            f"{setting.name}: the worst client violates in fewer rounds in {required} of {pairs} pairs or more",
            counts.smaller >= required,
            f"in {counts.smaller} of {pairs}; {rounds}",
        ),
        Claim(
            f"{setting.name}: no loss of the worst client's return is visible (the 95% interval reaches 0 or more)",
            returns.difference + returns.half_interval >= 0,
            f"{format_mean_std(returns.softmax)} against {format_mean_std(returns.crpo)}; difference {returns}",
        ),
    ]
    if 2 / 2**pairs < LEVEL:  # fewer pairs cannot reach this level
        held = counts.difference < 0 and counts.p < LEVEL
        claims.append(Claim(f"{setting.name}: sign-flip p < {LEVEL}", held, f"difference {counts}"))
    return claims


def run_alphas(scale: Scale) -> Outcome:
    """Measure violations, return, and the share of rounds that improve the return, over α."""
    runs = {alpha: run_setting(PRIMARY, alpha, scale) for alpha in scale.pick(ALPHAS, QUICK_ALPHAS)}
    figure, axes = make_narrow_panels(1, 3, f"Safe RL over α ({PRIMARY.name})")
    measures: dict[str, Callable[[Result], float]] = {
        "rounds in violation": count_violations,
        "worst client's return, last rounds": last_return,
        "share of rounds that improve the return": lambda result: result.history.switch_share,
    }
    positions = np.arange(len(runs))
    for panel, (title, measure) in zip(axes[0], measures.items(), strict=True):
        plot_error_bars(panel, positions, [[measure(result) for result in results] for results in runs.values()], BLUE)
        panel.set(title=title, xlabel="α", xticks=positions, ylim=(0, None))
        panel.set_xticklabels([f"{alpha:g}" for alpha in runs])
    counts, returns = (
        {alpha: float(np.mean([measure(result) for result in results])) for alpha, results in runs.items()}
        for measure in (count_violations, last_return)
    )
    largest = max(runs)
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
    rows: list[Row] = [row for alpha, results in runs.items() for row in run_rows(results, alpha=alpha)]
    return Outcome(figure, {"runs": rows}, claims)


EXPERIMENT = Experiment(
    "safe-rl",
    "safe RL: worst-client return and violations, Softmax SGM and Parallel CRPO",
    run,
    seeds=10,
    group="safe-rl",
)
ALPHA_EXPERIMENT = Experiment(
    "safe-rl-alpha",
    "safe RL over α: fewer violations, then a collapse into short episodes",
    run_alphas,
    group="safe-rl",
)
