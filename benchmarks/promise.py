"""The theorems' promise, tried on a problem whose constants and optimum are known: is it kept, and how loose is it?

Linear f_i(w) = <c_i + z, w> and g_i(w) = <h_i + z, w> − 0.1 on the unit disc, z a random vector of length b: L is the
largest |c_i| and |h_i|, and σ_g = σ_ζ = b/√(ln 2). Clients draw from finitely many rows whose z average to 0, with
replacement, so that their means are known exactly.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import product
from typing import Any

import jax.numpy as jnp
import numpy as np
import optax
from scipy import optimize

import softswitch as ss
from benchmarks import flat
from softswitch.theory import constraint_bound
from softswitch.theory.plan import Plan, plan
from softswitch.theory.theorems import Constants, heterogeneity
from softswitch_experiments.tasks.paper_settings import RUN

NOISE = 0.05
ROWS = 64
OFFSET = 0.1


def objective(w: Any, batch: dict[str, Any]) -> Any:
    """<c + z, w>."""
    return jnp.average(batch["c"] @ w, weights=batch["weight"])


def constraint(w: Any, batch: dict[str, Any]) -> Any:
    """<h + z, w> − 0.1."""
    return jnp.average(batch["h"] @ w, weights=batch["weight"]) - OFFSET


@dataclass(frozen=True)
class Tried:
    """What 200 runs with a plan's settings gave.

    Attributes:
        plan: the plan.
        gaps: F(w̄) − F* of each run.
        violations: G(w̄) of each run.
        kept: the share of runs in which both promises held.
    """

    plan: Plan
    gaps: np.ndarray
    violations: np.ndarray
    kept: float


@lru_cache
def linear_clients(clients: int, spread: float, scale: float = 1.0) -> tuple[np.ndarray, np.ndarray, ss.ClientData]:
    """Directions c_i and h_i near (−0.8, 0.2) and (0.7, 0.3), the latter times ``scale``, and their noisy rows."""
    generator = np.random.default_rng(1)
    c = np.array([-0.8, 0.2]) + spread * generator.uniform(-1, 1, (clients, 2))
    h = np.array([0.7, 0.3]) + spread * generator.uniform(-1, 1, (clients, 2))
    angles = 2 * np.pi * np.arange(ROWS) / ROWS
    noise = NOISE * np.stack([np.cos(angles), np.sin(angles)], axis=1)
    data = {
        "c": (c[:, None] + noise).reshape(-1, 2).astype(np.float32),
        "h": scale * (h[:, None] + noise).reshape(-1, 2).astype(np.float32),
    }
    return c, h, ss.ClientData.from_arrays(data, client=np.repeat(np.arange(clients), ROWS))


def smallest_objective(c: np.ndarray, h: np.ndarray) -> float:
    """F* by SciPy: minimise t subject to <c_i, w> <= t, <h_i, w> <= 0.1, |w| <= 1."""
    inequalities = [
        {"type": "ineq", "fun": lambda v: v[2] - c @ v[:2]},
        {"type": "ineq", "fun": lambda v: OFFSET - h @ v[:2]},
        {"type": "ineq", "fun": lambda v: 1 - v[:2] @ v[:2]},
    ]
    found = optimize.minimize(lambda v: v[2], np.zeros(3), method="SLSQP", constraints=inequalities)
    assert found.success
    return float(found.fun)


def worst_heterogeneity(c: np.ndarray, h: np.ndarray) -> float:
    """σ over the disc: client values are linear in w, so the largest is on the rim."""
    rim = np.stack([np.cos(a := np.linspace(0, 2 * np.pi, 2000)), np.sin(a)])
    return max(heterogeneity(column) for values in (c @ rim, h @ rim) for column in values.T)


def keep_promise(theorem: int, seeds: int = 200, delta: float = 0.1, binding: bool = True) -> Tried:
    """Plan for a theorem's case, run it ``seeds`` times as one program, and compare with the promise.

    With a constraint that does not bind, F(w̄) − F* cannot be negative: there the promise on F is put to the test.
    """
    clients, participation, local_steps, spread = {1: (6, 1.0, 1, 0.1), 2: (6, 1.0, 5, 0.1), 3: (20, 0.5, 5, 0.01)}[
        theorem
    ]
    c, h, data = linear_clients(clients, spread)
    h, data = (h, data) if binding else (h / 100, linear_clients(clients, spread, 0.01)[2])
    lipschitz = max(np.linalg.norm(c, axis=1).max(), np.linalg.norm(h, axis=1).max())
    noise = NOISE / np.sqrt(np.log(2))
    sigma = worst_heterogeneity(c, h) if participation < 1 else 0.0
    known = Constants(2.0, float(lipschitz), noise, noise, sigma)
    planned = plan(
        known,
        clients=clients,
        participation=participation,
        local_steps=local_steps,
        batch_size=4,
        delta=delta,
        epsilon=0.3 + (0.3 if theorem == 3 else 0.0),
    )
    problem = ss.Problem(objective, constraint, jnp.zeros(2), ss.Ball(1.0))
    method = ss.SoftmaxSGM(**planned.method_settings(), criterion="softmax", alpha_scale="raw", optimizer=optax.sgd)
    how = RUN | planned.solve_options()
    how["sampling"] = replace(how["sampling"], replace=True, memory=None)
    runs = flat.sweep(problem, data, [method], seeds=seeds, vectorize=True, eval_every=0, **how).results[0]
    gaps = np.array([run.worst_objective for run in runs]) - smallest_objective(c, h)
    violations = np.array([run.worst_constraint for run in runs])
    allowed = np.array([constraint_bound(known, planned.setting, run.history.switch_share) for run in runs])
    kept = (gaps <= planned.bound.epsilon) & (violations <= allowed)
    return Tried(planned, gaps, violations, float(kept.mean()))


if __name__ == "__main__":
    for theorem, binding in product((1, 2, 3), (True, False)):
        tried = keep_promise(theorem, binding=binding)
        setting, promise = tried.plan.setting, tried.plan.bound
        kind = "binding" if binding else "slack"
        print(
            f"Theorem {promise.theorem} (m = {setting.participants} of {setting.clients}, E = {setting.local_steps}, "
            f"{kind} constraint, K = {setting.rounds}, B_ζ = {setting.value_batch_size}): promised F − F* and G <= "
            f"{promise.epsilon:.3f} in {1 - setting.delta:.0%} of runs; kept in {tried.kept:.1%} of {len(tried.gaps)}. "
            f"Largest F − F* {tried.gaps.max():.4f}, largest G {tried.violations.max():.4f}: "
            f"the bound is {promise.epsilon / max(tried.gaps.max(), tried.violations.max()):.1f}× what was needed."
        )
