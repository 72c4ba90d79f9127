"""Small problems for several tests, in JAX and in NumPy with hand-derived gradients."""

import jax.numpy as jnp
import numpy as np

import softswitch as ss
from benchmarks import flat
from softswitch.engine import compiled as engine

# A least-squares objective, a softplus constraint and a linear one. Data: a, b (objective); c (softplus); h (linear).
LEVEL, OFFSET = 0.75, 0.3


def mean(values, batch):
    return jnp.average(values, weights=batch["weight"])


def least_squares(w, batch):
    return mean(0.5 * (batch["a"] @ w - batch["b"]) ** 2, batch)


def softplus_level(w, batch):
    return mean(jnp.logaddexp(0, batch["c"] @ w), batch) - LEVEL


def two_constraints(w, batch):
    return jnp.stack([softplus_level(w, batch), mean(batch["h"] @ w, batch) - OFFSET])


class NumpyTwin:
    """The same functions on rows of the flat data, with gradients derived by hand."""

    def __init__(self, data, constraints):
        self.data, self.constraints = data, constraints

    def f(self, w, rows):
        return np.mean(0.5 * (self.data["a"][rows] @ w - self.data["b"][rows]) ** 2)

    def grad_f(self, w, rows):
        a, b = self.data["a"][rows], self.data["b"][rows]
        return ((a @ w - b)[:, None] * a).mean(axis=0)

    def g(self, w, rows):
        values = [
            np.mean(np.logaddexp(0, self.data["c"][rows] @ w)) - LEVEL,
            np.mean(self.data["h"][rows] @ w) - OFFSET,
        ]
        return np.array(values[: self.constraints])

    def grad_g(self, w, rows):
        c, h = self.data["c"][rows], self.data["h"][rows]
        sigmoid = 1 / (1 + np.exp(-(c @ w)))
        return np.array([(sigmoid[:, None] * c).mean(axis=0), h.mean(axis=0)][: self.constraints])


def regression(clients=6, features=4, sizes=(5, 30), seed=0):
    """Ragged clients whose least-squares optimum violates the constraints; rows already sorted by client."""
    generator = np.random.default_rng(seed)
    counts = generator.integers(*sizes, size=clients)
    owner = np.repeat(np.arange(clients), counts)
    rows = len(owner)
    target = generator.normal(size=(clients, features)) * 0.4 + 1.0
    a = generator.normal(size=(rows, features))
    return {
        "a": a,
        "b": (a * target[owner]).sum(axis=1) + 0.1 * generator.normal(size=rows),
        "c": generator.normal(size=(rows, features)) * 0.5 + 0.4,
        "h": generator.normal(size=(rows, features)) * 0.3 + 0.3,
    }, owner


def client_data(data, owner, **options):
    return ss.ClientData.from_arrays(data, client=owner, **options)


def record_iterates(monkeypatch, problem, clients, method, **options):
    """Return every iterate w_0, ..., w_K of a run and its result, from a callback after chunks of one round."""
    monkeypatch.setattr(engine, "CHUNK_ROUNDS", 1)
    iterates = [np.asarray(problem.start)]
    callbacks = [lambda chunk: iterates.append(np.asarray(chunk.state.params))]
    result = flat.solve(problem, clients, method, callbacks=callbacks, eval_every=0, **options)
    return np.array(iterates), result
