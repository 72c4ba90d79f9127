"""A row must not change the rounding of other rows: at parameters that a server chooses, that changes every value."""

import jax.numpy as jnp
import numpy as np
import pytest
import torch
from torch.utils.data import TensorDataset

import softswitch.flower as fl
from softswitch.certification.row_values import values_apart
from softswitch.data.client_data import ClientData
from softswitch.privacy import torch_rows
from softswitch.privacy.noise import quantize_rows, sensitivity
from softswitch.problem.problem import Problem

CLIP, FEATURES = 1.0, 30


def make_rows(count):
    """Return rows with two one-hot features each of two groups, and numbers."""
    generator = np.random.default_rng(0)
    groups = [np.eye(2)[generator.integers(2, size=count)] for _ in range(2)]
    return np.hstack([*groups, generator.normal(size=(count, FEATURES - 4))]).astype(np.float32)


ROWS = make_rows(1030)
# 10⁹ − 10⁹ + x is not x + 10⁹ − 10⁹ in float32.
WEIGHTS = np.array([1e9, 1e9, -1e9, -1e9, *np.random.default_rng(1).normal(0, 10, FEATURES - 4)], np.float32)


def make_jax_client():
    def losses(params, batch, sign):
        return jnp.mean(jnp.logaddexp(0, sign * ((batch["x"] * params["w"]).sum(axis=1) + params["b"])))

    start = {"b": jnp.zeros(()), "w": jnp.zeros(FEATURES)}
    problem = Problem(lambda p, b: losses(p, b, 1), lambda p, b: losses(p, b, -1), start)
    return fl.JaxClient(problem, {"x": ROWS}, name="a"), {"b": np.float32(0), "w": WEIGHTS}


def make_torch_client():
    module = torch.nn.Linear(FEATURES, 1)

    def loss(sign):
        return lambda module, batch: torch.nn.functional.softplus(sign * module(batch[0])[:, 0]).mean()

    client = fl.TorchClient(module, loss(1), loss(-1), TensorDataset(torch.tensor(ROWS)), name="a")
    return client, {"weight": WEIGHTS[None], "bias": np.zeros(1, np.float32)}


@pytest.mark.parametrize("make_client", [make_jax_client, make_torch_client])
def test_row_does_not_change_other_rows(make_client, monkeypatch):
    """The sums with and without the first or the last row differ by at most one row, for any number of rows.

    In PyTorch, a row's place in its slice is random; here it is the same with and without the row.
    """
    monkeypatch.setattr(torch_rows, "_draw_columns", lambda rows: 7 * rows % torch_rows.ROWS)
    client, params = make_client()

    def sums(rows):
        values = quantize_rows(np.asarray(client.row_values(params, rows), float), CLIP).sum(axis=0)
        slopes = client.clipped_gradient(params, rows, np.array([1.0, 2.0]), CLIP)
        return values, np.concatenate([np.ravel(slope) for slope in slopes.values()])

    for count in (2, 9, 64, 65, 129, 257, 1025):
        rows = np.arange(count)
        for fewer in (rows[1:], rows[:-1]):
            for full, part in zip(sums(rows), sums(fewer), strict=True):
                assert 0 < np.linalg.norm((full - part).astype(float)) <= sensitivity(len(full))


def test_row_does_not_change_the_certified_values_of_others():
    generator = np.random.default_rng(2)
    start = {"a": jnp.zeros((100, 64)), "c": jnp.zeros(64)}
    params = {name: 1e5 * generator.normal(size=value.shape).astype(np.float32) for name, value in start.items()}
    x = generator.normal(size=(257, 100)).astype(np.float32)

    def loss(params, batch):
        return (jnp.maximum(batch["x"] @ params["a"], 0) @ params["c"]).mean()

    def values(rows):
        data = ClientData.from_arrays({"x": x[rows]}, client=np.zeros(len(rows)))
        return values_apart(Problem(loss, loss, start), data, params)[0]

    for count in (2, 64, 128, 256, 257):
        rows = np.arange(count)
        np.testing.assert_array_equal(values(rows)[1:], values(rows[1:]))
        np.testing.assert_array_equal(values(rows)[:-1], values(rows[:-1]))


def test_scalar_parameters_have_gradients():
    client, params = make_jax_client()
    slopes = client.clipped_gradient(params, np.arange(40), np.array([1.0, 0.0]), CLIP)
    assert slopes["b"].shape == ()
    assert slopes["w"].any()


def test_places_in_slices_are_independent_of_other_rows():
    columns = torch_rows._draw_columns(np.arange(64_000))
    assert np.bincount(columns, minlength=torch_rows.ROWS).min() > 800
    assert columns.max() < torch_rows.ROWS
