"""The three errors of the theory, measured on the convex task in a ball.

g_i is the loss of class 1 minus ``LEVEL``, for which an optimum F* with G <= 0 exists. The gap of an answer is
max(F(w̄) − F*, G(w̄)). Step size, threshold and 1/α decrease with √K, as in the theorems, from the paper's values at
K = 1000. The constants of the theorems are worst cases and would need far longer runs.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float
from scipy import optimize

from softswitch.data.client_data import ClientData
from softswitch.engine.sweep import sweep
from softswitch.methods.softmax_sgm import SoftmaxSGM
from softswitch.problem.domains import Ball
from softswitch.problem.parameters import Batch
from softswitch.problem.problem import Problem
from softswitch.theory.theorems import Constants, Setting, bound, sampling_error
from softswitch_experiments.options import group_options
from softswitch_experiments.paper.experiment import Claim, Experiment, Outcome, Row, Scale
from softswitch_experiments.paper.np_study import CLIENTS, STUDY
from softswitch_experiments.paper.study import half_interval
from softswitch_experiments.plotting import (
    BLUE,
    GREEN,
    GREY,
    NARROW_WIDTH,
    VERMILLION,
    make_panels,
    plot_error_bars,
    set_log_scale,
)
from softswitch_experiments.tasks.neyman_pearson import class_loss, objective
from softswitch_experiments.tasks.paper_settings import RUN, SOFTMAX_SWITCH, steps
from softswitch_experiments.theory.pilot import estimate_constants

LEVEL, RADIUS, FEATURES = 0.1, 5.0, 31
ROUNDS = (100, 316, 1000, 3162, 10_000)
ROWS = (2, 8, 32, 128)
PARTICIPANTS = (2, 5, 10, 20)
THRESHOLD = 0.05  # λ at K = 1000
DELTA = 0.05  # of the theorems' lines


def miss_loss(params: Float[Array, " d"], batch: Batch) -> Float[Array, ""]:
    """Return the loss of class 1 minus ``LEVEL``."""
    return class_loss(params, batch, 1) - LEVEL


PROBLEM = Problem(objective, miss_loss, jnp.zeros(FEATURES), Ball(RADIUS))


def find_optimum(clients: ClientData) -> float:
    """Return F* by SciPy: minimise t subject to f_i(w) <= t and g_i(w) <= 0 for all clients, |w| <= radius."""
    x, y = np.asarray(clients.rows.columns["x"], float), np.asarray(clients.rows.columns["y"])
    owner = np.repeat(np.arange(len(clients)), clients.sizes)
    d = x.shape[1]
    shares = []
    for label in (0, 1):
        selected = (owner == np.arange(len(clients))[:, None]) & (y == label)
        shares.append(selected / selected.sum(axis=1, keepdims=True))

    def losses(w: np.ndarray, label: int) -> np.ndarray:
        scores = x @ w
        return shares[label] @ (np.logaddexp(0, scores) - label * scores)

    def slopes(w: np.ndarray, label: int) -> np.ndarray:
        return shares[label] @ ((1 / (1 + np.exp(-x @ w)) - label)[:, None] * x)

    level = np.append(np.zeros(d), 1.0)  # the gradient of t
    inequalities = [
        {
            "type": "ineq",
            "fun": lambda v: v[d] - losses(v[:d], 0),
            "jac": lambda v: level - np.pad(slopes(v[:d], 0), ((0, 0), (0, 1))),
        },
        {
            "type": "ineq",
            "fun": lambda v: LEVEL - losses(v[:d], 1),
            "jac": lambda v: -np.pad(slopes(v[:d], 1), ((0, 0), (0, 1))),
        },
        {"type": "ineq", "fun": lambda v: RADIUS**2 - v[:d] @ v[:d], "jac": lambda v: np.append(-2 * v[:d], 0.0)},
    ]
    solution = optimize.minimize(
        lambda v: v[d],
        np.append(np.zeros(d), 1.0),
        jac=lambda _: level,
        method="SLSQP",
        constraints=inequalities,
        options={"maxiter": 500, "ftol": 1e-10},
    )
    if not solution.success:
        raise RuntimeError(f"SLSQP did not find the optimum of the convex task: {solution.message}")
    return float(solution.fun)


def run(scale: Scale) -> Outcome:
    """Measure the gap over K, B_ζ and m/n."""
    clients = [task.train for task in STUDY.tasks(scale.seeds)]
    optimum = np.array([find_optimum(one) for one in clients])
    constants = estimate_constants(PROBLEM, clients[0], points=scale.pick(16, 2), pilots=64, batch_size=32)
    figure, axes = make_panels(
        3, 1, "Neyman–Pearson in a ball: measured gap and the theory's terms", width=NARROW_WIDTH
    )

    def measure(rounds: int, threshold: float = THRESHOLD, **options: Any) -> list[Row]:
        """Return a row per seed."""
        settings = {"rounds": rounds, "batch_size": None, "eval_every": 0, "progress": scale.progress}
        methods = [_method(rounds, threshold)]
        grouped = group_options(**RUN | settings | options)
        results = sweep(PROBLEM, clients, methods, seeds=scale.seeds, **grouped).results[0]
        scale.add_runs(
            " ".join(f"{name}={value}" for name, value in {"K": rounds, "λ": threshold, **options}.items()), results
        )
        rows = []
        for seed, result in enumerate(results):
            above = result.worst_objective - optimum[seed]
            gap = {"F - F*": above, "G": result.worst_constraint, "gap": max(above, result.worst_constraint)}
            rows.append({"K": rounds, "threshold at K = 1000": threshold, **options, "seed": seed, **gap})
        return rows

    horizon = scale.pick(ROUNDS, (100, 316, 1000))
    middle = scale.pick(1000, 316)
    batches, few = scale.pick(ROWS, (8,)), scale.pick(PARTICIPANTS, (20,))
    runs = {
        "rounds": [measure(k) for k in horizon],
        "rounds, λ = 0": [measure(k, 0.0) for k in horizon],
        "rows": [measure(middle, value_batch_size=b) for b in batches],
        "clients": [measure(middle, participation=m / CLIENTS) for m in few],
    }
    gaps = {name: np.array([[row["gap"] for row in rows] for rows in cases]) for name, cases in runs.items()}

    optimization, estimation, sampling = axes[:, 0]
    plot_error_bars(optimization, horizon, gaps["rounds"], BLUE, "measured, λ ~ K^(-1/2)")
    plot_error_bars(optimization, horizon, gaps["rounds, λ = 0"], GREEN, "measured, λ = 0", ":")
    term = constants.diameter * constants.lipschitz / np.sqrt(horizon)
    optimization.plot(horizon, term, color=GREY, linestyle="--", label="theory: DL/√K")
    lines = theory_lines(constants, horizon, batches, few, middle)
    optimization.plot(horizon, lines["optimization"], color=GREY, label="Theorem 1: 2DL/√K")
    optimization.set(xscale="log", xlabel="rounds K", ylabel="gap max(F(w̄) − F*, G(w̄))", title="optimization")

    plot_error_bars(estimation, batches, gaps["rows"], VERMILLION, "measured")
    term = constants.value_noise / np.sqrt(batches)
    estimation.plot(batches, term, color=GREY, linestyle="--", label="theory: σ_ζ/√B_ζ")
    estimation.plot(batches, lines["estimation"], color=GREY, marker=".", label="Theorem 1, with its constants")
    estimation.set(xscale="log", xlabel=f"rows a report B_ζ  (K = {middle})", title="estimation")

    share = np.array(few) / CLIENTS
    plot_error_bars(sampling, share, gaps["clients"], VERMILLION, "measured")
    partial = share[share < 1]
    term = constants.heterogeneity / (np.abs(np.log1p(-partial)) * CLIENTS)
    sampling.plot(partial, term, color=GREY, linestyle="--", marker=".", label="theory: σ/(|ln(1−r)|n), 0 at r = 1")
    for name, line, label in (
        ("sampling", "-", "Theorem 3, with its constants"),
        ("general", ":", "the general bound"),
    ):
        sampling.plot(partial, lines[name][share < 1], color=GREY, linestyle=line, marker=".", label=label)
    sampling.set(xlabel=f"share of clients r = m/n  (K = {middle})", title="sampling")
    places = ((0.5, 0.55), (0.45, 0.42), (0.66, 0.38))  # between measured values and bounds
    for panel, place in zip(axes.flat, places, strict=True):
        set_log_scale(panel)
        panel.legend(frameon=False, fontsize="small", loc="center", bbox_to_anchor=place)

    claims = [_slope_claim(horizon, gaps["rounds, λ = 0"]), _guarantee_claim(horizon, gaps["rounds"])]
    if not scale.quick:
        claims += [
            _fewest_cost_most("fewer rows a report cost more", gaps["rows"], f"B_ζ = {batches}"),
            _fewest_cost_most("fewer clients a round cost more", gaps["clients"], f"m = {few}"),
        ]
    base = gaps["rounds"][horizon.index(middle)]  # exact reports of all clients in the same number of rounds
    measured_errors = {
        "optimization": (horizon, gaps["rounds, λ = 0"]),
        "estimation": (batches, gaps["rows"] - base),
        "sampling": (few, gaps["clients"] - base),
        "general": (few, gaps["clients"] - base),
    }
    terms = [
        {"term": name, "at": x, "bound": line, "measured": error.mean(), **vars(constants)}
        for name, (at, errors) in measured_errors.items()
        for x, line, error in zip(at, lines[name], errors, strict=True)
    ]
    claims += [_covers(name, lines[name], errors) for name, (_, errors) in measured_errors.items()]
    table = [row for cases in runs.values() for rows in cases for row in rows]
    return Outcome(figure, {"gaps": table, "terms": terms}, tuple(claims))


def theory_lines(
    constants: Constants, rounds: Sequence[int], rows: Sequence[int], participants: Sequence[int], middle: int
) -> dict[str, np.ndarray]:
    """Return the three errors of the theorems, and the general bound on sampling, for exact gradients."""
    exact = replace(constants, gradient_noise=0.0)
    base = Setting(CLIENTS, CLIENTS, middle, delta=DELTA)
    some = [replace(base, participants=m) for m in participants]
    sharper = [replace(setting, delta=DELTA / 8) for setting in some]
    return {
        "optimization": np.array([bound(exact, replace(base, rounds=k)).optimization for k in rounds]),
        "estimation": np.array([bound(exact, replace(base, value_batch_size=b)).estimation for b in rows]),
        "sampling": np.array([bound(exact, setting).sampling for setting in some]),
        "general": np.array([2 * sampling_error(exact.heterogeneity, setting) for setting in sharper]),
    }


def _covers(name: str, line: np.ndarray, errors: np.ndarray) -> Claim:
    """Test whether the bound is above the measured mean over seeds, and by what factor."""
    measured = errors.mean(axis=1)
    quantity = {"optimization": "gap at λ = 0", "estimation": "gap that batches add"}.get(name, "gap that absence adds")
    source = "the general bound on sampling" if name == "general" else f"the theorem's error of {name}"
    factors = line[measured > 0] / measured[measured > 0]
    loose = f"loose by a factor of {factors.min():.3g} to {factors.max():.3g}" if len(factors) else "nothing is added"
    pairs = ", ".join(f"{b:.3g} against {m:.3g}" for b, m in zip(line, measured, strict=True))
    return Claim(f"{source} is at least the {quantity}", bool((line >= measured - 1e-12).all()), f"{pairs}; {loose}")


def _method(rounds: int, threshold: float) -> SoftmaxSGM:
    """Return the method with the paper's values at K = 1000, scaled to other K as in the theorems."""
    shrink = math.sqrt(1000 / rounds)
    level = threshold * shrink
    return SoftmaxSGM(
        alpha=6400 / shrink, tolerance=2 * level, threshold=level, **steps(0.5 * shrink), **SOFTMAX_SWITCH
    )


def slopes(rounds: Any, gaps: np.ndarray) -> tuple[float, float, float]:
    """Return the mean slope of log gap over log K and its 95% interval, NaN if a gap is not positive."""
    if not (gaps > 0).all():
        return math.nan, math.nan, math.nan
    each = np.polyfit(np.log(rounds), np.log(gaps), 1)[0]
    middle = float(np.mean(each))
    margin = half_interval(each)
    return middle, middle - margin, middle + margin


def _slope_claim(rounds: Any, gaps: np.ndarray) -> Claim:
    """Test the rate with λ = 0, for which w̄ is feasible and the gap is F(w̄) − F*."""
    middle, low, high = slopes(rounds, gaps)
    return Claim(
        "with λ = 0 the gap falls like K^(-1/2) or faster",
        high <= -0.5,
        f"fitted slope {middle:.2f}, 95% interval [{low:.2f}, {high:.2f}]",
    )


def _guarantee_claim(rounds: Any, gaps: np.ndarray) -> Claim:
    """Test the guarantee with λ > 0, for which G comes near λ and F falls below F*."""
    bounds = 2 * THRESHOLD * np.sqrt(1000 / np.asarray(rounds))
    middle, low, high = slopes(rounds, gaps)
    return Claim(
        "with λ = ε/2 ~ K^(-1/2) the promise is kept at every K: F(w̄) − F* <= ε and G(w̄) <= ε",
        bool((gaps.max(axis=1) <= bounds).all()),
        f"the largest gap is {(gaps.max(axis=1) / bounds).max():.2f} ε; fitted slope {middle:.2f}, "
        f"95% interval [{low:.2f}, {high:.2f}]",
    )


def _fewest_cost_most(statement: str, gaps: np.ndarray, over: str) -> Claim:
    """Test whether the first gap exceeds the last by more than twice the paired standard error."""
    fall = gaps[0] - gaps[-1]
    error = float(fall.std(ddof=1)) / math.sqrt(len(fall)) if len(fall) > 1 else 0.0
    measured = f"{', '.join(f'{gap:.4f}' for gap in gaps.mean(axis=1))} for {over}"
    return Claim(f"{statement}, beyond twice the standard error", bool(fall.mean() > 2 * error), measured)


EXPERIMENT = Experiment(
    "error-budget", "measured gap against K, B_ζ and m/n compared with the theory's three errors", run
)
