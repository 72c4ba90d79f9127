"""Tasks of the leaderboard: clients, a bound on their constraints, and a budget."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from scipy import optimize

from softswitch.data.client_data import ClientData
from softswitch.oracles.base import Federation
from softswitch.oracles.gradient import make_federation
from softswitch.oracles.options import Sampling
from softswitch.problem.fairness import demographic_parity, equal_opportunity
from softswitch.problem.networks import predict_probability
from softswitch.problem.problem import Problem
from softswitch_experiments.leaderboard import tables
from softswitch_experiments.leaderboard.tables import make_table_problem
from softswitch_experiments.tasks.fair_classification import adult
from softswitch_experiments.tasks.neyman_pearson import breast_cancer

BATCH_SIZE = 32
QUADRATICS, VARIABLES = 12, 10
TOLERANCE = 1e-2
"""Tolerance of the problems with a known optimum."""
ROSEN_SUZUKI_OPTIMUM = -44.0


class Scheme(NamedTuple):
    """Share of the clients that participate in a round, and number of local steps."""

    participation: float
    local_steps: int

    @property
    def name(self) -> str:
        """Name in tables and files."""
        share = "all" if self.participation == 1 else f"{self.participation:.0%}"
        return f"{share}, E = {self.local_steps}"


MAIN = Scheme(0.5, 2)
"""Scheme of the main table."""
OTHERS = (Scheme(1.0, 1), Scheme(1.0, 5), Scheme(0.25, 1), Scheme(0.25, 5))
"""Further schemes, for the tasks with ``several``."""


class Setup(NamedTuple):
    """The clients of a task, and the number of their rows: the cost of a pass over the data."""

    federation: Federation
    rows: int


@dataclass(frozen=True)
class BenchTask:
    """A problem on which methods are compared.

    Attributes:
        name: Name in tables and files.
        tolerance: Bound ε on the constraint of every client.
        setup: Function that returns the clients for a scheme.
        passes: Budget in passes over the data, for reports and gradients together.
        convex: Whether all functions are convex.
        several: Whether all schemes are run.
        optimum: F*, if it is known.
        gradients: Whether clients compute gradients on rows; simulated clients do not.
    """

    name: str
    tolerance: float
    setup: Callable[[Scheme], Setup]
    passes: float
    convex: bool = True
    several: bool = False
    optimum: float | None = None
    gradients: bool = True


def setup_rows(make: Callable[[], tuple[Problem, ClientData]]) -> Callable[[Scheme], Setup]:
    """Return the setup function for clients with rows. Clients with fewer rows than a batch use all of them."""

    def setup(scheme: Scheme) -> Setup:
        problem, clients = make()
        federation = make_federation(
            problem,
            clients,
            Sampling(local_steps=scheme.local_steps, participation=scheme.participation, batch_size=BATCH_SIZE),
        )
        return Setup(federation, int(np.sum(clients.sizes)))

    return setup


def make_rosen_suzuki() -> tuple[Problem, ClientData]:
    """Return the Rosen–Suzuki problem as a minimax over four clients, each with all its constraints.

    The published solution is (0, 1, 2, −1) with objective −44: Hock and Schittkowski (1981), problem 43. Client i has
    the objective f + i·(a constraint that is at most 0 there), whose maximum is f for every feasible w.
    """

    def parts(w: Any) -> tuple[Any, Any]:
        a, b, c, d = w
        f = a**2 + b**2 + 2 * c**2 + d**2 - 5 * a - 5 * b - 21 * c + 7 * d
        g = jnp.stack(
            [
                a**2 + b**2 + c**2 + d**2 + a - b + c - d - 8,
                a**2 + 2 * b**2 + c**2 + 2 * d**2 - a - d - 10,
                2 * a**2 + b**2 + c**2 + 2 * a - b - d - 5,
            ]
        )
        return f, g

    def objective(w: Any, batch: dict[str, Any]) -> Any:
        f, g = parts(w)
        by_client = jnp.concatenate([f[None], f + g])
        return jnp.average(by_client[batch["i"]], weights=batch["weight"])

    def constraint(w: Any, batch: dict[str, Any]) -> Any:
        return parts(w)[1]

    number = np.arange(4)
    return Problem(objective, constraint, jnp.zeros(4), convex=True), ClientData.from_arrays({"i": number}, number)


def make_quadratics(seed: int = 0) -> tuple[Problem, ClientData]:
    """Return clients with one quadratic and one half-space each.

    Each quadratic has its own centre, which lies outside the half-spaces. All half-spaces intersect. Every client has
    40 rows scattered around its centre, which makes batches noisy.
    """
    generator = np.random.default_rng(seed)
    centres = generator.normal(size=(QUADRATICS, VARIABLES))
    slopes = (1 + generator.normal(size=(QUADRATICS, VARIABLES))) / np.sqrt(VARIABLES)
    rows = 40
    owner = np.repeat(np.arange(QUADRATICS), rows)
    noise = generator.normal(size=(len(owner), VARIABLES))
    noise -= np.repeat(noise.reshape(QUADRATICS, rows, -1).mean(axis=1), rows, axis=0)
    data = {"centre": (centres[owner] + noise).astype(np.float32), "slope": slopes[owner].astype(np.float32)}

    def objective(w: Any, batch: dict[str, Any]) -> Any:
        return jnp.average(0.5 * jnp.square(w - batch["centre"]).sum(axis=1), weights=batch["weight"])

    def constraint(w: Any, batch: dict[str, Any]) -> Any:
        return jnp.average(batch["slope"] @ w, weights=batch["weight"]) + 0.5

    return Problem(objective, constraint, jnp.zeros(VARIABLES), convex=True), ClientData.from_arrays(data, owner)


def find_quadratics_optimum(seed: int = 0, tolerance: float = TOLERANCE) -> float:
    """Return F* at the tolerance, by SLSQP in epigraph form."""
    _, clients = make_quadratics(seed)
    columns = {name: np.asarray(column, float) for name, column in clients.rows.columns.items()}
    shape = (QUADRATICS, -1, VARIABLES)
    points, slopes = columns["centre"].reshape(shape), columns["slope"].reshape(shape)[:, 0]
    centres, spread = points.mean(axis=1), 0.5 * np.square(points - points.mean(axis=1, keepdims=True)).sum(-1).mean(1)

    def objectives(w: np.ndarray) -> np.ndarray:
        return 0.5 * np.square(w - centres).sum(axis=1) + spread

    constraints = [
        {"type": "ineq", "fun": lambda z: z[-1] - objectives(z[:-1])},
        {"type": "ineq", "fun": lambda z: tolerance - 0.5 - slopes @ z[:-1]},
    ]
    start = np.append(np.zeros(VARIABLES), objectives(np.zeros(VARIABLES)).max())
    solution = optimize.minimize(
        lambda z: z[-1], start, method="SLSQP", constraints=constraints, options={"maxiter": 500, "ftol": 1e-12}
    )
    if not solution.success:
        raise RuntimeError(f"SLSQP did not find the optimum of the quadratics: {solution.message}")
    return float(solution.fun)


def _cancer() -> tuple[Problem, ClientData]:
    task = breast_cancer()
    return task.problem, task.train


def _adult_parity() -> tuple[Problem, ClientData]:
    task = adult(constraint=demographic_parity(predict_probability), strata="group")
    return task.problem, task.train


def _adult_opportunity() -> tuple[Problem, ClientData]:
    task = adult(by="occupation", constraint=equal_opportunity(predict_probability), strata=("group", "y"))
    return task.problem, task.train


def _setup_carts(scheme: Scheme) -> Setup:
    from softswitch_experiments.tasks.safe_rl.task import cartpole

    federation = cartpole(
        local_steps=scheme.local_steps,
        participation=scheme.participation,
        gradient_episodes=5,
        estimation_episodes=5,
        evaluation_episodes=40,
        fisher_every=5,
    )
    values, gradients = federation.oracle.cost(None)
    return Setup(federation, int(values + gradients))


def _setup_table(load: Callable[[], Any], kind: str) -> Callable[[Scheme], Setup]:
    return setup_rows(make_table_problem(load, kind))


TASKS: tuple[BenchTask, ...] = (
    BenchTask("Neyman–Pearson, breast cancer", 0.1, setup_rows(_cancer), 600, several=True),
    BenchTask("Adult, parity, network", 0.05, setup_rows(_adult_parity), 12, convex=False),
    BenchTask("Adult, opportunity by occupation, network", 0.1, setup_rows(_adult_opportunity), 12, convex=False),
    BenchTask("birds, misses", 0.5, _setup_table(tables.birds, "neyman-pearson"), 60),
    BenchTask("churn, misses", 0.5, _setup_table(tables.churn, "neyman-pearson"), 200, several=True),
    BenchTask("digits, misses", 0.3, _setup_table(tables.digits, "neyman-pearson"), 200),
    BenchTask("exam, group loss", 0.7, _setup_table(tables.exam, "group-loss"), 200),
    BenchTask("loans, misses", 0.5, _setup_table(tables.loans, "neyman-pearson"), 120),
    BenchTask("votes, group loss", 0.53, _setup_table(tables.votes, "group-loss"), 60),
    BenchTask("wages, parity", 0.1, _setup_table(tables.wages, "demographic-parity"), 40, convex=False),
    BenchTask("women, parity", 0.05, _setup_table(tables.women, "demographic-parity"), 60, convex=False, several=True),
    BenchTask(
        "quadratics", TOLERANCE, setup_rows(make_quadratics), 600, several=True, optimum=find_quadratics_optimum()
    ),
    BenchTask("Rosen–Suzuki", TOLERANCE, setup_rows(make_rosen_suzuki), 2000, optimum=ROSEN_SUZUKI_OPTIMUM),
    BenchTask("safe cart-poles", 0.0, _setup_carts, 60, convex=False, gradients=False),
)
