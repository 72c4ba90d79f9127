"""Two constrained finite sums of one owner: what the claim is made for, with non-convex losses of Adult's rows."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float
from scipy import optimize

import softswitch as ss
from softswitch_experiments.tasks import adult

RIDGE = 1e-3
"""λ of λ/2 ‖w‖², which every objective has: without it sigmoid losses are smallest at infinity."""
PARITY_BOUND, MISS_BOUND = 0.05, 0.2

Rows = Mapping[str, Array]
RowValues = Callable[[Array, Rows], Float[Array, " rows"]]


class Look(NamedTuple):
    """What all rows say of some parameters.

    Attributes:
        objective: f.
        constraint: g, at most 0 where the bound is kept.
        slope: ‖∇f‖.
        kkt: min over μ >= 0 of ‖∇f + μ ∇g‖.
    """

    objective: Any
    constraint: Any
    slope: Any
    kkt: Any


@dataclass(frozen=True, eq=False)
class FiniteSum:
    """min f(w) with g(w) <= 0, both means over the same rows.

    Attributes:
        name: for tables.
        rows: the columns.
        objective: every row's part of f.
        constraint: every row's part of g, the bound taken off.
        bound: what g is measured in.
    """

    name: str
    rows: Rows
    objective: RowValues
    constraint: RowValues
    bound: float

    @property
    def count(self) -> int:
        """How many rows."""
        return len(self.rows["x"])

    @property
    def start(self) -> Array:
        """w = 0."""
        return jnp.zeros(self.rows["x"].shape[1], self.rows["x"].dtype)

    def look(self) -> Callable[[Array], Look]:
        """f, g and how far from stationary, on all rows."""
        f, g = (lambda w, rows, part=part: part(w, rows).mean() for part in (self.objective, self.constraint))

        @jax.jit
        def looked(w: Array, rows: Rows) -> Look:
            (objective, along_f), (constraint, along_g) = (jax.value_and_grad(part)(w, rows) for part in (f, g))
            price = jnp.maximum(0, -(along_f @ along_g) / jnp.maximum(along_g @ along_g, 1e-30))
            norm = jnp.linalg.norm
            return Look(objective, constraint, norm(along_f), norm(along_f + price * along_g))

        return lambda w: Look(*map(float, looked(w, self.rows)))

    def best(self) -> float:
        """The smallest f with g <= 0 that an augmented Lagrangian with L-BFGS finds, on all rows in every step."""
        price, press, w = 0.0, 10.0, np.zeros(self.rows["x"].shape[1])

        @jax.jit
        def both(w: Array, rows: Rows) -> Any:
            parts = [(lambda v, part=part: part(v, rows).mean()) for part in (self.objective, self.constraint)]
            return tuple(jax.value_and_grad(part)(w) for part in parts)

        def of(w: np.ndarray) -> tuple[float, np.ndarray, float]:
            (f, along_f), (g, along_g) = jax.tree.map(lambda one: np.asarray(one, float), both(jnp.asarray(w), doubled))
            pressed = max(0.0, price + press * g)
            return f + (pressed**2 - price**2) / (2 * press), along_f + pressed * along_g, float(g)

        with jax.enable_x64(True):
            doubled = {name: jnp.asarray(np.asarray(column), jnp.float64) for name, column in self.rows.items()}
            for _ in range(12):
                w = optimize.minimize(lambda v: of(v)[:2], w, jac=True, method="L-BFGS-B").x
                price = max(0.0, price + press * of(w)[2])
            return float(both(jnp.asarray(w), doubled)[0][0])

    def as_client(self) -> tuple[ss.Problem, ss.ClientData]:
        """The same for ``solve``: one client; its constraint is to be at most the bound."""

        def mean(part: RowValues, above: float) -> Callable[[Array, Rows], Array]:
            return lambda w, batch: jnp.average(part(w, batch), weights=batch["weight"]) + above

        problem = ss.Problem(mean(self.objective, 0.0), mean(self.constraint, self.bound), self.start)
        return problem, ss.ClientData.from_arrays(dict(self.rows), client=np.zeros(self.count, int))


def of_adult(many: int | None = None) -> tuple[FiniteSum, FiniteSum]:
    """Both tasks.

    Args:
        many: so many of the rows, drawn once; None: all of UCI's training split.
    """
    table = adult.columns()
    own = np.flatnonzero(table["split"] == "train")
    if many is not None:
        own = np.random.default_rng(0).permutation(own)[:many]
    x, _ = adult.features(table, own)
    x = np.hstack([x[own], np.ones((len(own), 1), np.float32)])
    rich, men = (
        (table[name][own] == word).astype(np.float32) for name, word in ((adult.LABEL, adult.POSITIVE), ("sex", "Male"))
    )

    def scores(w: Array, rows: Rows) -> Array:
        return rows["x"] @ w

    def small(w: Array) -> Array:
        return RIDGE / 2 * (w @ w)

    def truncated(w: Array, rows: Rows) -> Array:
        """2 log(1 + ℓ/2) of the logistic loss ℓ: rows that are far wrong weigh less."""
        return 2 * jnp.log1p(ss.logistic_loss(scores(w, rows), rows["rich"]) / 2) + small(w)

    def men_above_women(w: Array, rows: Rows) -> Array:
        return jax.nn.sigmoid(scores(w, rows)) * rows["side"] - PARITY_BOUND

    def false_alarms(w: Array, rows: Rows) -> Array:
        return rows["poor"] * jax.nn.sigmoid(scores(w, rows)) + small(w)

    def misses(w: Array, rows: Rows) -> Array:
        return rows["rich"] * jax.nn.sigmoid(-scores(w, rows)) - MISS_BOUND

    side = men / men.mean() - (1 - men) / (1 - men.mean())
    parity = {"x": x, "rich": rich, "side": side.astype(np.float32)}
    pearson = {"x": x, "rich": rich / rich.mean(), "poor": (1 - rich) / (1 - rich.mean())}
    return (
        FiniteSum("parity", jax.tree.map(jnp.asarray, parity), truncated, men_above_women, PARITY_BOUND),
        FiniteSum("Neyman–Pearson", jax.tree.map(jnp.asarray, pearson), false_alarms, misses, MISS_BOUND),
    )
