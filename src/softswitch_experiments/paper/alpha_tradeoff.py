"""The trade-off of α on f = ±w: smooth, damped and cycling iterates, as cobweb plots."""

from __future__ import annotations

import math

import jax.numpy as jnp
import numpy as np

from softswitch.data.client_data import ClientData
from softswitch.engine.solve import solve
from softswitch.methods.softmax_sgm import SoftmaxSGM
from softswitch.problem.parameters import Batch, Params
from softswitch.problem.problem import Problem
from softswitch.results.result import Result
from softswitch_experiments.options import group_options
from softswitch_experiments.paper.experiment import Claim, Experiment, Outcome, Row, Scale
from softswitch_experiments.plotting import BLUE, GREY, VERMILLION, make_narrow_panels
from softswitch_experiments.tasks.paper_settings import RUN, SOFTMAX_SWITCH, steps
from softswitch_experiments.theory.statements import limit_cycle

REGIMES = {"smooth": 0.7, "damped": 1.8, "limit cycle": 3.5}
"""αη of each regime."""
START, ROUNDS, STEP = 2.3, 60, 1.0


def signed(params: Params, batch: Batch) -> Params:
    """Return f_1 = w, f_2 = −w."""
    return (batch["weight"] * batch["sign"]).sum() * params


def constant_constraint(params: Params, batch: Batch) -> Params:
    """Return g = −1."""
    return 0 * params - batch["weight"].sum()


def run_method(product: float, rounds: int = ROUNDS) -> Result:
    """Run the method with αη = ``product``."""
    clients = ClientData.from_arrays({"sign": [1.0, -1.0]}, client=[1, 2])
    problem = Problem(signed, constant_constraint, jnp.array(START))
    method = SoftmaxSGM(alpha=product / STEP, tolerance=0.1, **steps(STEP), **SOFTMAX_SWITCH)
    options = group_options(rounds=rounds, batch_size=None, eval_every=0, record_clients=True, **RUN)
    return solve(problem, clients, method, **options)


def iterates(result: Result) -> np.ndarray:
    """Return w_k, which is the report f_1 = w of client 1."""
    assert result.history.per_client is not None
    return result.history.per_client.objective[:, 0]


def run(scale: Scale) -> Outcome:
    """Draw one cobweb plot per regime from the iterates of the method."""
    figure, axes = make_narrow_panels(1, 3, "The trade-off of α: w ← w − η tanh(αw), from f = ±w", height=3.4)
    rows: list[Row] = []
    claims = []
    span = np.linspace(-1.1, START + 0.1, 400)
    for panel, (regime, product) in zip(axes[0], REGIMES.items(), strict=True):
        result = run_method(product)
        scale.add_runs(regime, [result])
        w = iterates(result)
        panel.plot(span, span, color=GREY, linewidth=0.8, label="diagonal")
        panel.plot(span, span - STEP * np.tanh(product * span), color="black", linewidth=1.4, label="w − η tanh(αw)")
        # Vertical lines to the curve, horizontal lines to the diagonal.
        across = np.repeat(w, 2)
        panel.plot(across[:-1], np.concatenate([[across[0]], across[2:]]), color=BLUE, linewidth=1, label="iterates")
        panel.plot(w[0], w[0], "o", color=BLUE, markersize=5)
        cycle = limit_cycle(product / STEP, STEP)
        ends = [cycle, -cycle] if cycle else [0.0]
        panel.plot(ends, [-e for e in ends], "s", color=VERMILLION, markersize=6, label="where it ends")
        panel.set(title=f"{regime}: αη = {product:g}", xlabel="wₖ", ylabel="wₖ₊₁", aspect="equal")
        rows += [{"regime": regime, "alpha_eta": product, "round": k, "w": float(v)} for k, v in enumerate(w)]
        claims.append(_claim(regime, product, w))
    axes[0, 0].legend(frameon=False, fontsize="small")
    return Outcome(figure, {"iterates": rows}, tuple(claims))


def _claim(regime: str, product: float, w: np.ndarray) -> Claim:
    if regime == "smooth":
        held = bool((np.diff(w) <= 0).all() and (w >= 0).all() and w[-1] < 1e-6)
        return Claim(f"αη = {product:g} <= 1: monotone to 0", held, f"|w| after {len(w)} rounds {abs(w[-1]):.1e}")
    if regime == "damped":
        near = w[np.abs(w) < 1]
        alternates = bool((near[1:] * near[:-1] < 0).all())
        held = alternates and bool((np.diff(np.abs(w)) < 0).all())
        return Claim(f"1 < αη = {product:g} <= 2: alternating and shrinking", held, f"|w| in the end {abs(w[-1]):.1e}")
    p = limit_cycle(product / STEP, STEP) / STEP
    low, high = math.sqrt(1 - 2 / product) / 2, math.sqrt(3 * (product - 2) / 8)
    held = bool(np.allclose(np.abs(w[-4:]), STEP * p, atol=1e-5) and (w[-4:-1] * w[-3:] < 0).all() and low < p < high)
    return Claim(
        f"αη = {product:g} > 2: a cycle of two, ±ηp with tanh(αηp) = 2p, p within the paper's bounds",
        held,
        f"|w| in the end {abs(w[-1]):.6f}, p = {p:.6f} in ({low:.3f}, {high:.3f})",
    )


EXPERIMENT = Experiment("alpha-tradeoff", "smooth, damped and cycling iterates as cobweb plots", run)
