"""Random smooth convex problems of a few shapes, in JAX and in NumPy, with optima by SLSQP."""

from dataclasses import dataclass

import jax.numpy as jnp
import numpy as np
from scipy import optimize

import softswitch as ss

SHAPES = ((2, 2), (3, 4), (4, 3), (5, 6), (6, 5))  # parameters, clients
ROWS, CONSTRAINTS = 8, 2


def losses(w, batch, index):
    """Mean over rows of a square, a logistic and a linear part, with coefficients for each row."""
    score = batch[f"x{index}"] @ w
    parts = batch[f"part{index}"]
    row = (
        parts[:, 0] * (score - batch[f"y{index}"]) ** 2 / 2
        + parts[:, 1] * jnp.logaddexp(0, score)
        + parts[:, 2] * score
    )
    return jnp.average(row, weights=batch["weight"])


def objective(w, batch):
    return losses(w, batch, 0)


def constraint(w, batch):
    return jnp.stack([losses(w, batch, 1), losses(w, batch, 2)])


@dataclass
class Drawn:
    """A problem, its rows and tolerance; and the same in NumPy: ``functions`` gives all values and gradients."""

    problem: ss.Problem
    clients: ss.ClientData
    tolerance: float
    data: dict
    radius: float | None
    box: tuple | None

    def functions(self, w):
        values, slopes = [], []
        for index in range(1 + CONSTRAINTS):
            x, y, parts = (self.data[f"{name}{index}"] for name in ("x", "y", "part"))
            score = x @ w
            values.append(
                (
                    parts[..., 0] * (score - y) ** 2 / 2
                    + parts[..., 1] * np.logaddexp(0, score)
                    + parts[..., 2] * score
                ).mean(1)
            )
            slope = parts[..., 0] * (score - y) + parts[..., 1] / (1 + np.exp(-score)) + parts[..., 2]
            slopes.append(np.einsum("cr,crd->cd", slope, x) / x.shape[1])
        return values, slopes

    def worst(self, w):
        """F and G − ε."""
        values, _ = self.functions(w)
        return values[0].max(), max(v.max() for v in values[1:]) - self.tolerance

    def optimum(self, start=None):
        """The best parameters, and F there."""
        d = self.data["x0"].shape[-1]
        start = np.zeros(d) if start is None else start

        def slack(z):
            (f, *g), _ = self.functions(z[:-1])
            room = [] if self.radius is None else [self.radius**2 - z[:-1] @ z[:-1]]
            return np.concatenate([z[-1] - f, *(self.tolerance - one for one in g), room])

        def slope(z):
            _, (f, *g) = self.functions(z[:-1])
            lines = [np.c_[-f, np.ones(len(f))], *(np.c_[-one, np.zeros(len(one))] for one in g)]
            return np.concatenate([*lines, *([] if self.radius is None else [np.r_[-2 * z[:-1], 0.0][None]])])

        solution = optimize.minimize(
            lambda z: z[-1],
            np.r_[start, self.worst(start)[0]],
            jac=lambda z: np.r_[np.zeros(d), 1.0],
            constraints={"type": "ineq", "fun": slack, "jac": slope},
            bounds=None if self.box is None else [self.box] * d + [(None, None)],
            method="SLSQP",
            options={"maxiter": 500, "ftol": 1e-14},
        )
        w = solution.x[:-1]
        return w, self.worst(w)


def draw(seed):
    """A random problem that some parameters within its domain meet, with a tolerance that mostly matters."""
    generator = np.random.default_rng(seed)
    d, n = SHAPES[seed % len(SHAPES)]
    data = {}
    kinds = generator.integers(3, size=1 + CONSTRAINTS)  # squares, logistic, all together
    for index in range(1 + CONSTRAINTS):
        data[f"x{index}"] = generator.normal(size=(n, ROWS, d)) + generator.normal(size=(n, 1, d)) * 0.5
        data[f"y{index}"] = generator.normal(size=(n, ROWS)) + 1
        parts = (
            generator.uniform(0.2, 2, size=(n, ROWS, 3)) * np.array([[1, 0, 0], [0, 1, 0], [0.3, 1, 0.1]])[kinds[index]]
        )
        data[f"part{index}"] = parts
    data = {name: column.astype(jnp.asarray(column).dtype).astype(float) for name, column in data.items()}  # as stored
    domain = (
        None,
        None,
        ss.Ball(generator.uniform(0.5, 3)),
        ss.Box(-generator.uniform(0.2, 2), generator.uniform(0.2, 2)),
    )
    domain = domain[generator.integers(4)]
    radius = domain.radius if isinstance(domain, ss.Ball) else None
    box = (domain.lower, domain.upper) if isinstance(domain, ss.Box) else None
    feasible = generator.normal(size=d) * 0.3
    feasible = np.asarray(feasible if domain is None else domain.project(jnp.asarray(feasible)))
    columns = {name: column.reshape(n * ROWS, *column.shape[2:]) for name, column in data.items()}
    clients = ss.ClientData.from_arrays(columns, client=np.repeat(np.arange(n), ROWS))
    problem = ss.Problem(objective, constraint, jnp.zeros(d), domain, convex=True)
    drawn = Drawn(problem, clients, 0.0, data, radius, box)
    drawn.tolerance = float(drawn.worst(feasible)[1] + generator.uniform(0.001, 0.1))
    return drawn
