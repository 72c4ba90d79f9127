"""Safe reinforcement learning by client and by planet."""

from __future__ import annotations

import numpy as np

from softswitch.results.result import Result
from softswitch_experiments.paper.experiment import Claim, Experiment, Outcome, Row, Scale
from softswitch_experiments.paper.safe_rl_study import ALPHA, CRPO, LAST, PRIMARY, SOFTMAX, run_setting
from softswitch_experiments.paper.study import half_interval
from softswitch_experiments.plotting import BLUE, NARROW_WIDTH, VERMILLION, add_legend, make_panels


def run(scale: Scale) -> Outcome:
    """Measure every client's constraint and return over the last rounds with both methods."""
    methods = {CRPO: run_setting(PRIMARY, 0.0, scale), SOFTMAX: run_setting(PRIMARY, ALPHA, scale)}
    names = methods[CRPO][0].names
    figure, axes = make_panels(2, 1, f"Safe RL, client by client ({PRIMARY.name})", width=NARROW_WIDTH, height=2.6)
    measured = {method: [_last_means(result) for result in results] for method, results in methods.items()}
    rows: list[Row] = []
    for i, (method, colour) in enumerate(zip(methods, (VERMILLION, BLUE), strict=True)):
        for panel, name in zip(axes[:, 0], ("constraint", "return"), strict=True):
            values = np.array([one[name] for one in measured[method]])
            panel.errorbar(
                np.arange(len(names)) + 0.16 * (i - 0.5),
                values.mean(axis=0),
                values.std(axis=0, ddof=1) if len(values) > 1 else None,
                color=colour,
                label=method if method == CRPO else f"{method}, α = {ALPHA:g}",
                linestyle="",
                marker="o",
                capsize=3,
            )
        rows += [
            {"method": method, "seed": result.seed, "client": client, **{key: float(one[key][c]) for key in one}}
            for result, one in zip(methods[method], measured[method], strict=True)
            for c, client in enumerate(names)
        ]
    axes[0, 0].axhline(0, color="black", linestyle="--", linewidth=1, label="budget")
    axes[0, 0].set(ylabel="discounted cost − budget", xticks=[])
    axes[1, 0].set(ylabel="return", xticks=np.arange(len(names)), xticklabels=names, ylim=(0, None))
    add_legend(figure, axes[:, 0])
    return Outcome(figure, {"clients": rows}, tuple(_claims(names, measured)))


def _last_means(result: Result) -> dict[str, np.ndarray]:
    """Return each client's means over the last rounds."""
    clients = result.history.per_client
    assert clients is not None
    return {
        "constraint": clients.constraint[-LAST:, :, 0].mean(axis=0),
        "return": clients.metrics["return"][-LAST:].mean(axis=0),
        "cost": clients.metrics["cost"][-LAST:].mean(axis=0),
    }


def _claims(names: tuple[str, ...], measured: dict[str, list[dict[str, np.ndarray]]]) -> list[Claim]:
    mean = {method: np.mean([one["constraint"] for one in runs], axis=0) for method, runs in measured.items()}
    worst = {method: int(values.argmax()) for method, values in mean.items()}
    return [
        Claim(
            "with Parallel CRPO it is Mars that violates",
            names[worst[CRPO]].startswith("mars") and mean[CRPO].max() > 0,
            f"{names[worst[CRPO]]} is {mean[CRPO].max():.1f} above its budget",
        ),
        Claim(
            "Softmax SGM lowers the constraint of the client that is worst",
            mean[SOFTMAX].max() < mean[CRPO].max(),
            f"{names[worst[SOFTMAX]]} {mean[SOFTMAX].max():.1f} against {names[worst[CRPO]]} {mean[CRPO].max():.1f}",
        ),
        Claim(
            "with Softmax SGM no cart is above its budget on average, with Parallel CRPO some are",
            not (mean[SOFTMAX] > 0).any() and bool((mean[CRPO] > 0).any()),
            "; ".join(f"{method}: {_list_violating(names, values)}" for method, values in mean.items()),
        ),
        *planet_claims(names, {method: np.array([one["return"] for one in runs]) for method, runs in measured.items()}),
    ]


def _list_violating(names: tuple[str, ...], constraint: np.ndarray) -> str:
    return ", ".join(f"{names[c]} +{constraint[c]:.1f}" for c in np.flatnonzero(constraint > 0)) or "none"


def planet_claims(names: tuple[str, ...], returns: dict[str, np.ndarray]) -> list[Claim]:
    """Test which planets gain or lose return; returns are seeds × carts."""
    planets = list(dict.fromkeys(name.split()[0] for name in names))
    members = {planet: [name.split()[0] == planet for name in names] for planet in planets}
    levels = {m: {p: values[:, members[p]].mean(axis=1) for p in planets} for m, values in returns.items()}
    gains = {p: levels[SOFTMAX][p] - levels[CRPO][p] for p in planets}
    poorest = min(planets, key=lambda p: levels[CRPO][p].mean())
    described = {
        p: f"{p} {levels[CRPO][p].mean():.0f} → {levels[SOFTMAX][p].mean():.0f}, "
        f"{gains[p].mean():+.0f} ± {half_interval(gains[p]):.0f} (95%, paired)"
        for p in planets
    }
    seeds = len(returns[CRPO])
    halved = int((returns[SOFTMAX].mean(axis=1) < returns[CRPO].mean(axis=1) / 2).sum())
    return [
        Claim(
            "the planet with the smallest return gains from Softmax SGM",
            bool(gains[poorest].mean() > half_interval(gains[poorest])),
            described[poorest],
        ),
        Claim(
            "no planet loses return by it, beyond the 95% interval",
            not any(gains[p].mean() < -half_interval(gains[p]) for p in planets),
            "; ".join(described[p] for p in planets if p != poorest)
            + f"; all carts' mean return is less than half of Parallel CRPO's in {halved} of {seeds} seeds",
        ),
    ]


EXPERIMENT = Experiment(
    "safe-rl-clients", "safe RL: return and constraint of every client, planet by planet", run, group="safe-rl"
)
