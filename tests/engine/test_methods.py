"""Methods beyond the paper compared with plain NumPy loops, and extensions that change nothing when disabled."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import reference
import reference_methods as loops
import softswitch as ss
from benchmarks import flat
from problems import NumpyTwin, client_data, least_squares, record_iterates, regression, two_constraints
from softswitch import methods as methods
from softswitch.oracles.gradient import make_gradient_oracle
from softswitch.oracles.options import Sampling

ROUNDS, ETA, EPS = 80, 0.1, 0.05
LAM = EPS / (1 + 1 / 10)
N, C, D = 6, 2, 4
COMMON = {"step_size": ETA, "tolerance": EPS}
SCHEMES = {
    "all, E = 1": {"batch_size": 8},
    "half, E = 3": {"batch_size": 8, "local_steps": 3, "participation": 0.5},
}
METHODS = {
    "FedSGM, soft": (ss.AverageSGM(soft=3.0, **COMMON), lambda: loops.SoftSwitch(3.0, LAM)),
    "FedAvg": (methods.FedAvg(**COMMON), loops.FedAvg),
    "TERM": (methods.TERM(tilt=3.0, **COMMON), lambda: loops.TERM(3.0)),
    "q-FedAvg": (methods.QFedAvg(power=1.5, **COMMON), lambda: loops.QFedAvg(1.5)),
    "νPI": (
        methods.NuPI(multiplier=0.3, integral=0.1, proportional=0.4, smoothing=0.3, **COMMON),
        lambda: loops.NuPI(N, C, 0.3, 0.1, 0.4, 0.3, EPS),
    ),
    "νPI, worst client": (
        methods.NuPI(integral=0.1, alpha=5.0, **COMMON),
        lambda: loops.NuPI(N, C, 0.0, 0.1, 0.0, 0.0, EPS, 5.0),
    ),
    "augmented Lagrangian": (
        methods.AugmentedLagrangian(penalty=0.5, dual_step_size=0.1, multiplier=0.1, **COMMON),
        lambda: loops.AugmentedLagrangian(N, C, 0.5, 0.1, EPS, 0.1),
    ),
    "hinge penalty": (
        methods.HingePenalty(penalty=2.0, share=0.2, **COMMON),
        lambda: loops.HingePenalty(N, C, 2.0, 0.2, EPS),
    ),
    "hinge penalty, worst client": (
        methods.HingePenalty(penalty=2.0, share=0.2, alpha=5.0, **COMMON),
        lambda: loops.HingePenalty(N, C, 2.0, 0.2, EPS, 5.0),
    ),
    "exact penalty": (
        methods.ExactPenalty(penalty=2.0, **COMMON),
        lambda: loops.Estimated(loops.optimistic(0.0), None, penalty=2.0, eps=EPS),
    ),
    "optimistic": (
        ss.SoftmaxSGM(alpha=20.0, direction=methods.Optimistic(carry=0.5), **COMMON),
        lambda: loops.Estimated(loops.optimistic(0.5), 20.0, LAM),
    ),
    "AFL": (methods.Agnostic(dual_step_size=0.05, **COMMON), lambda: loops.Agnostic(N, 0.05)),
    "control variates": (
        ss.SoftmaxSGM(alpha=20.0, at_clients=methods.ControlVariates(), **COMMON),
        lambda: loops.SwitchingScaffold(N, 20.0, LAM),
    ),
    "Scaff-PD": (methods.ScaffPD(dual_step_size=0.1, carry=0.5, **COMMON), lambda: loops.ScaffPD(N, 0.1, 0.5)),
    "proximal AL": (
        methods.ProxAL(penalty=0.4, inner=5, at_clients=methods.Consensus(pull=2.0), **COMMON),
        lambda: loops.ProxAL(N, C, 0.4, 5, 2.0, EPS, D),
    ),
}


def draw_rounds(problem, clients, seed, rounds, **options):
    """The engine's random draws, as input of the NumPy loops."""
    oracle = make_gradient_oracle(problem, clients, Sampling(replace=True, **options))
    key = jax.random.key(seed)
    draws = jax.jit(jax.vmap(lambda k: oracle.draw(jax.random.fold_in(key, k))))(jnp.arange(rounds))
    arrays = (np.asarray(part) for part in draws[:3])
    return [reference.Draws(*arrays_of_round) for arrays_of_round in zip(*arrays, strict=True)]


@pytest.fixture(scope="module")
def table():
    return regression()


@pytest.fixture
def case(x64, table):
    data, owner = table
    problem = ss.Problem(least_squares, two_constraints, jnp.zeros(D, dtype=jnp.float64))
    return data, client_data(data, owner), problem


BOTH_SCHEMES = ("νPI",)
"""Methods that run with both schemes in the quick tests. The others run with the first one only in the slow tests."""
VARIANTS = ("νPI, worst client", "hinge penalty, worst client")
"""Variants of methods that run only in the slow tests."""


def is_quick(name, scheme):
    return name not in VARIANTS and (scheme == "half, E = 3" or name in BOTH_SCHEMES)


CASES = [
    pytest.param(name, scheme, marks=() if is_quick(name, scheme) else pytest.mark.slow)
    for name in METHODS
    for scheme in SCHEMES
]


@pytest.mark.parametrize(("name", "scheme"), CASES)
def test_engine_matches_numpy_loop(monkeypatch, case, name, scheme):
    data, clients, problem = case
    (method, make), options = METHODS[name], SCHEMES[scheme]
    draws, steps = draw_rounds(problem, clients, 3, ROUNDS, **options), options.get("local_steps", 1)
    loop = make()
    expected = loops.run(NumpyTwin(data, C), loop, np.zeros(D), draws, ETA, ETA / steps, steps, N)
    iterates, _ = record_iterates(
        monkeypatch,
        problem,
        clients,
        method,
        rounds=ROUNDS,
        seed=3,
        replace=True,
        memory=None,
        answer="last",
        **options,
    )
    np.testing.assert_allclose(iterates, expected, rtol=1e-8, atol=1e-11)
    assert np.abs(expected[-1]).max() < 10, "a diverged run is no comparison"
    if isinstance(loop, loops.SoftSwitch):
        assert loop.mixed > 5, "the mixture must occur"


PLAIN = ss.SoftmaxSGM(alpha=20.0, **COMMON)
DISABLED = {
    "not optimistic": {"direction": methods.Optimistic(carry=0.0)},
}


@pytest.mark.parametrize("name", DISABLED)
def test_disabled_extension_changes_no_bit(name):
    clients = client_data(*regression())
    problem = ss.Problem(least_squares, two_constraints, jnp.zeros(D))
    options = {"rounds": 60, "batch_size": 8, "seed": 2, "eval_every": 0, "answer": "last"}
    plain = flat.solve(problem, clients, PLAIN, **options)
    extended = flat.solve(problem, clients, ss.SoftmaxSGM(alpha=20.0, **COMMON, **DISABLED[name]), **options)
    np.testing.assert_array_equal(extended.last, plain.last)
    np.testing.assert_array_equal(extended.history.criterion, plain.history.criterion)


def test_clients_are_drawn_by_weight(monkeypatch, x64):
    """f_i = w_i + i/10: each step shows which clients were drawn, and weights match a plain loop."""
    n, rounds, step, dual = 4, 60, 0.01, 0.02
    clients = ss.ClientData.from_arrays({"i": np.arange(n)}, client=np.arange(n))
    problem = ss.Problem(
        lambda w, b: jnp.average(w[b["i"]] + b["i"] / 10, weights=b["weight"]),
        lambda w, b: -1.0 + 0 * w[0],
        jnp.zeros(n, dtype=jnp.float64),
    )
    method = methods.Agnostic(dual_step_size=dual, draws=True, step_size=step, tolerance=0.1)
    iterates, result = record_iterates(monkeypatch, problem, clients, method, rounds=rounds, memory=None, batch_size=1)
    counts = -np.diff(iterates, axis=0) / step * n
    np.testing.assert_allclose(counts, np.round(counts), atol=1e-9)
    np.testing.assert_allclose(counts.sum(axis=1), n)
    weights, expected = np.full(n, 1 / n), np.zeros(n)
    for w in iterates[:-1]:
        expected += weights
        weights = loops.simplex(weights + dual * (w + np.arange(n) / 10))
    np.testing.assert_allclose(result.state.method, weights, atol=1e-9)
    assert np.abs(counts.sum(axis=0) / n - expected).max() < 3 * np.sqrt(rounds / n)


def test_incompatible_settings_are_rejected(monkeypatch):
    clients = client_data(*regression())
    problem = ss.Problem(least_squares, two_constraints, jnp.zeros(D))
    common = COMMON | {"alpha": 1.0}
    both = ss.SoftmaxSGM(robust=1, at_clients=methods.ControlVariates(), **common)
    with pytest.raises(ValueError, match="cannot be combined"):
        flat.solve(problem, clients, both, rounds=2)
    with pytest.raises(ValueError, match="memory must be None"):
        flat.solve(problem, clients, methods.HingePenalty(penalty=1.0, **COMMON), rounds=2, memory=ss.Memory())
    monkeypatch.setattr("softswitch.engine.request.MAX_COPIES_BYTES", 20)
    with pytest.raises(ValueError, match=r"at_clients=.* GiB .* each of 6 clients"):
        flat.solve(problem, clients, ss.SoftmaxSGM(at_clients=methods.ControlVariates(), **common), rounds=2)
    with pytest.raises(ValueError, match=r"robust=1 needs .* GiB"):
        flat.solve(problem, clients, ss.SoftmaxSGM(robust=1, **common), rounds=2)
    with pytest.raises(TypeError, match="direction"):
        ss.SoftmaxSGM(direction="optimistic", **common)


@pytest.mark.parametrize(
    "make",
    [
        lambda: methods.TERM(tilt=-1.0, **COMMON),
        lambda: methods.QFedAvg(power=-1.0, **COMMON),
        lambda: methods.NuPI(integral=0.0, **COMMON),
        lambda: methods.HingePenalty(penalty=1.0, share=0.0, **COMMON),
        lambda: methods.Optimistic(carry=-1.0),
        lambda: methods.Consensus(pull=0.0),
        lambda: ss.AverageSGM(soft=0.0, **COMMON),
    ],
)
def test_invalid_settings_are_rejected(make):
    with pytest.raises(ValueError, match="must be"):
        make()
