"""Compression in the compiled engine against a plain NumPy loop; and nothing of it where all is sent."""

import jax.numpy as jnp
import numpy as np
import pytest
from test_methods import drawn

import softswitch as ss
from benchmarks import flat
from problems import NumpyTwin, client_data, least_squares, regression, softplus_level, watched
from reference_methods import Round, lean
from softswitch import methods as methods
from softswitch.methods import Compression, TopK

ETA, EPS, ALPHA, N, D, ROUNDS = 0.1, 0.05, 20.0, 6, 4, 60
LAM = EPS / (1 + 1 / 10)
HOW = {"batch_size": 8, "local_steps": 3, "participation": 0.5}
SETTINGS = {"alpha": ALPHA, "step_size": ETA, "tolerance": EPS}


def largest(vector, k):
    """The k largest by their size, and zeros."""
    kept = np.zeros_like(vector)
    places = sorted(range(len(vector)), key=lambda j: (-abs(vector[j]), j))[:k]
    kept[places] = vector[places]
    return kept


def loop(functions, draws, up, down, apart):
    """Softmax SGM with top-k both ways, as a plain loop; the iterates, and the bytes down."""
    w, owed = np.zeros(D), np.zeros(D)
    errors, since = np.zeros((2, N, D)), np.full(N, -1)
    iterates, bytes_down, bits = [w], [], []
    for k, draw in enumerate(draws):
        now = Round(functions, draw, ETA, ETA / 3, 3, N)
        f, g = now.f(w), now.g(w)
        p, q = lean(f, ALPHA), lean(g, ALPHA)
        feasible = (q * g).sum() <= LAM
        bits.append(feasible)
        own = errors[0 if feasible or not apart else 1]
        direction = np.zeros(D)
        for j, i in enumerate(draw.clients):
            u = now.u(j, w, 1.0, np.zeros(1)) if feasible else now.u(j, w, 0.0, np.ones(1))
            sent = largest(own[i] + u, up)
            own[i] += u - sent
            direction += (p[j] if feasible else q[j].sum()) * sent
        change = 2 * 8 + 1  # two float64, and four bits for their places
        bytes_down.append(sum(32 if s < 0 else min(32, (k - s) * change) for s in since[draw.clients]))
        since[draw.clients] = k
        step = largest(owed - ETA * direction, down)
        owed += -ETA * direction - step
        w = w + step
        iterates.append(w)
    return np.array(iterates), bytes_down, bits


@pytest.mark.parametrize("apart", [True, False])
def test_engine_follows_a_plain_loop(monkeypatch, x64, apart):
    data, owner = regression()
    clients = client_data(data, owner)
    problem = ss.Problem(least_squares, softplus_level, jnp.zeros(D, jnp.float64))
    way = Compression(up=TopK(0.25), down=TopK(0.5), apart=apart)
    method = ss.SoftmaxSGM(at_clients=way, **SETTINGS)
    draws = drawn(problem, clients, 3, ROUNDS, **HOW)
    expected, down, bits = loop(NumpyTwin(data, 1), draws, 1, 2, apart)
    iterates, result = watched(
        monkeypatch, problem, clients, method, rounds=ROUNDS, seed=3, replace=True, memory=None, answer="last", **HOW
    )
    np.testing.assert_allclose(iterates, expected, rtol=1e-8, atol=1e-11)
    assert 5 < sum(bits) < ROUNDS - 5, "both branches must occur"
    np.testing.assert_array_equal(result.history.bytes_down, down)
    np.testing.assert_array_equal(result.history.bytes_up, np.full(ROUNDS, 3 * (8 + 1)))


def test_a_history_counts_bytes_only_if_messages_are_compressed():
    clients = client_data(*regression())
    problem = ss.Problem(least_squares, softplus_level, jnp.zeros(D))
    how = {"rounds": 40, "seed": 2, "eval_every": 0, "answer": "last", **HOW}
    plain = flat.solve(problem, clients, ss.SoftmaxSGM(**SETTINGS), **how)
    same = flat.solve(problem, clients, ss.SoftmaxSGM(at_clients=Compression(up=TopK(0.5)), **SETTINGS), **how)
    assert plain.history.bytes_up is None
    assert "bytes_up" not in plain.history.to_arrays()
    assert "bytes_up" in same.history.to_arrays()


def test_counts_of_bytes_do_not_run_over():
    from softswitch.methods.compressors import join_byte_counts, split_byte_counts

    each = jnp.full(30_000, 2**30 + 5, jnp.int32)
    assert join_byte_counts(np.array([split_byte_counts(each)])).tolist() == [30_000 * (2**30 + 5)]


def test_what_does_not_go_with_it_is_refused():
    clients = client_data(*regression())
    both = Compression(up=TopK(0.5), down=TopK(0.5))
    inside = ss.Problem(least_squares, softplus_level, jnp.zeros(D), ss.Ball(1.0))
    with pytest.raises(ValueError, match="domain must be None"):
        flat.solve(inside, clients, ss.SoftmaxSGM(at_clients=both, **SETTINGS), rounds=2)
    method = ss.SoftmaxSGM(at_clients=Compression(up=methods.Quantised(4)), **SETTINGS)
    found = flat.solve(inside, clients, method, rounds=5, batch_size=None)
    assert np.linalg.norm(found.last) <= 1.0 + 1e-6
    plain = ss.Problem(least_squares, softplus_level, jnp.zeros(D))
    with pytest.raises(ValueError, match="robust=1"):
        flat.solve(plain, clients, ss.SoftmaxSGM(robust=1, at_clients=both, **SETTINGS), rounds=2)
