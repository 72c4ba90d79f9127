"""One suite for all engines: every engine gives the same history as the compiled one on the same cases."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import softswitch as ss
from benchmarks.over_flower import solve_over_flower
from problems import client_data, least_squares, mean, regression, softplus_level, two_constraints
from softswitch.methods import Compression, Optimistic, TopK
from softswitch.oracles.base import HostOracle
from softswitch.oracles.gradient import make_gradient_oracle

ROUNDS = 12
COMMON = {"step_size": 0.2, "tolerance": 0.05}
SOFTMAX = ss.SoftmaxSGM(alpha=20.0, **COMMON)
POOLED = ss.PooledConstraint(
    lambda w, batch: jnp.stack([mean(batch["h"] @ w, batch), mean(batch["a"] @ w, batch)]), lambda s: s[0] - 0.3 * s[1]
)

CASES = {
    "softmax": {},
    "several local steps of half the clients": {"local_steps": 3, "participation": 0.5},
    "two constraints": {"constraint": two_constraints},
    "pooled constraint": {"constraint": POOLED, "method": replace(SOFTMAX, criterion="pooled")},
    "domain": {"domain": ss.Ball(0.4)},
    "adaptive server optimizer": {"method": replace(SOFTMAX, optimizer=optax.adam)},
    "spread of the reports": {"method": replace(SOFTMAX, alpha=6.0, alpha_scale="spread")},
    "change of the reports": {"method": replace(SOFTMAX, alpha=0.3, alpha_scale="change")},
    "hard": {"method": ss.HardSGM(**COMMON)},
    "average": {"method": ss.AverageSGM(**COMMON), "participation": 0.5},
    "penalty": {"method": ss.Penalty(penalty=2.5, **COMMON)},
    "primal-dual": {"method": ss.PrimalDual(multiplier=0.5, dual_step_size=0.05, **COMMON)},
    "memory": {"participation": 0.5, "memory": ss.Memory(smoothing=0.3)},
    "memory of averages": {"participation": 0.5, "memory": ss.Memory(), "method": ss.AverageSGM(**COMMON)},
    "corrected memory": {"participation": 0.5, "memory": ss.Memory(corrected=True)},
    "memory of a pooled constraint": {
        "constraint": POOLED,
        "method": replace(SOFTMAX, criterion="pooled"),
        "participation": 0.5,
        "memory": ss.Memory(),
    },
    "robust": {"method": replace(SOFTMAX, robust=1)},
    "robust with memory": {"method": replace(SOFTMAX, robust=1), "participation": 0.5, "memory": ss.Memory()},
    "optimistic": {"method": replace(SOFTMAX, direction=Optimistic())},
    "compressed parameters": {"method": replace(SOFTMAX, at_clients=Compression(down=TopK(share=0.5)))},
    "compressed updates": {"method": replace(SOFTMAX, at_clients=Compression(up=TopK(share=0.5)))},
}
NO_STATE_AT_CLIENTS = ("stepwise", "out of core")
"""Engines whose clients keep nothing from round to round, as compression requires."""


class OnHost(HostOracle):
    """The clients of the compiled engine, called one round at a time with NumPy arrays."""

    can_repeat_reports = True

    def __init__(self, oracle):
        self._oracle, self.participants, self.constraints = oracle, oracle.participants, oracle.constraints
        self.local_steps, self.has_pooled_constraint = oracle.local_steps, oracle.has_pooled_constraint
        self._report, self._direction = jax.jit(oracle.report), jax.jit(oracle.direction, static_argnums=4)

    @property
    def client_count(self):
        return self._oracle.client_count

    @property
    def statistics(self):
        return 2 if self.has_pooled_constraint else None

    def pool(self, sums):
        return self._oracle.pool(sums)

    def _draws(self, draws):
        return self._oracle.draw_for(jnp.asarray(draws.clients), (jnp.zeros(0, jnp.uint32), None))

    def report(self, params, draws):
        return jax.tree.map(np.asarray, self._report(params, self._draws(draws))[0]), None

    def direction(self, params, draws, kept, decision, switches, step_size):
        assert all(isinstance(leaf, np.ndarray | float) for leaf in jax.tree.leaves(decision))
        found = self._direction(params, self._draws(draws), None, decision, switches, step_size)
        return jax.tree.map(np.asarray, found)

    def evaluate(self, params):
        return self._oracle.evaluate(params)

    def count_rows(self, draws):
        return np.asarray(self._oracle.rows.sizes)[np.asarray(draws.clients)].sum()

    def cost(self, row_count):
        return self._oracle.cost(row_count)

    def digest(self):
        return {}


def solve(engine, case):
    """Run a case with an engine, on all rows of the participants."""
    options = {"method": SOFTMAX, "constraint": softplus_level, "domain": None} | case
    data, owner = regression(clients=6, sizes=(14, 16))  # two sizes: Flower's clients compile a program for each
    problem = ss.Problem(least_squares, options["constraint"], jnp.zeros(4), domain=options["domain"])
    sampling = ss.Sampling(**{name: case[name] for name in ("participation", "local_steps", "memory") if name in case})
    logging = ss.Logging(eval_every=5, record_clients=True, progress=False)
    common = {"rounds": ROUNDS, "seed": 3, "logging": logging}
    if engine == "out of core":
        clients = ss.StreamedData.from_arrays(data, owner, buffer_bytes=60_000)
        return ss.solve(problem, clients, options["method"], sampling=sampling, **common)
    clients = client_data(data, owner)
    if engine == "stepwise":
        oracle = OnHost(make_gradient_oracle(problem, clients, sampling))
        federation = ss.Federation(oracle, problem.start, clients.names, problem.domain)
        return ss.solve(federation, None, options["method"], sampling=ss.Sampling(memory=sampling.memory), **common)
    if engine == "Flower":
        return solve_over_flower(problem, clients, options["method"], sampling=sampling, **common)
    compute = ss.Compute(devices=1 if engine == "sharded" else None)
    return ss.solve(problem, clients, options["method"], sampling=sampling, compute=compute, **common)


@pytest.fixture(scope="module")
def expected():
    """The results of the compiled engine, each computed once."""
    results = {}

    def solve_once(name):
        if name not in results:
            results[name] = solve("compiled", CASES[name])
        return results[name]

    return solve_once


QUICK = {
    "stepwise": ("several local steps of half the clients", "robust with memory", "compressed updates"),
    "out of core": ("several local steps of half the clients", "corrected memory", "compressed parameters"),
    "sharded": ("several local steps of half the clients",),
    "Flower": (
        "several local steps of half the clients",
        "two constraints",
        "domain",
        "adaptive server optimizer",
        "primal-dual",
        "corrected memory",
        "pooled constraint",
        "memory of a pooled constraint",
        "robust with memory",
        "optimistic",
        "compressed parameters",
        "compressed updates",
    ),
}
"""Cases of each engine that are not slow. Most are Flower's, which has its own clients and messages."""
PAIRS = [
    pytest.param(engine, name, marks=[] if name in quick else pytest.mark.slow)
    for engine, quick in QUICK.items()
    for name in CASES
]


@pytest.mark.parametrize(("engine", "name"), PAIRS)
def test_engine_matches_compiled_engine(x64, expected, engine, name):
    if engine in NO_STATE_AT_CLIENTS and name.startswith("compressed"):
        with pytest.raises(ValueError, match="at_clients"):
            solve(engine, CASES[name])
        return
    if engine == "Flower" and name == "memory of a pooled constraint":
        with pytest.raises(ValueError, match="memory must be None with pooled"):
            solve(engine, CASES[name])
        return
    reference, result = expected(name), solve(engine, CASES[name])
    assert reference.history.feasible.any(), "the case needs feasible rounds"
    for field in ("objective", "constraint", "criterion"):
        np.testing.assert_allclose(
            getattr(result.history, field), getattr(reference.history, field), rtol=1e-9, atol=1e-9
        )
    for field in ("feasible", "worst_client", "absent", "value_evaluations", "gradient_evaluations"):
        np.testing.assert_array_equal(getattr(result.history, field), getattr(reference.history, field), err_msg=field)
    np.testing.assert_array_equal(result.history.per_client.clients, reference.history.per_client.clients)
    np.testing.assert_allclose(result.history.per_client.constraint, reference.history.per_client.constraint, atol=1e-9)
    np.testing.assert_allclose(result.history.full.constraint, reference.history.full.constraint, atol=1e-6)
    for field in ("params", "last", "best", "client_constraint"):
        np.testing.assert_allclose(
            getattr(result, field), getattr(reference, field), rtol=1e-9, atol=1e-9, err_msg=field
        )
    assert result.status.code == reference.status.code
    assert result.names == reference.names
