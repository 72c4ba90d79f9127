"""The breast cancer task matches its description."""

import numpy as np
import pytest
from sklearn.datasets import load_breast_cancer

import softswitch as ss
from softswitch_experiments.tasks.neyman_pearson import breast_cancer


def test_data_description():
    task = breast_cancer(20, seed=0)
    x, y = (np.asarray(task.train.rows.columns[key]) for key in "xy")
    assert x.shape == (455, 31)
    assert len(task.test.rows.columns["y"]) == 114
    np.testing.assert_allclose(x[:, :30].mean(axis=0), 0, atol=1e-5)
    np.testing.assert_allclose(x[:, :30].std(axis=0), 1, atol=1e-5)
    assert (x[:, 30] == 1).all()
    malignant = (load_breast_cancer().target == 0).mean()
    assert y.mean() == pytest.approx(malignant, abs=0.005)
    assert set(task.train.sizes) == {22, 23}
    assert np.ptp(task.train.stratum_sizes, axis=0).max() <= 1


def test_losses():
    task = breast_cancer(20, seed=0)
    generator = np.random.default_rng(0)
    w = generator.normal(size=31).astype(np.float32) * 0.1
    f, g = ss.evaluate(task.problem, task.train, w)
    x, y = (np.asarray(task.train.rows.columns[key], float) for key in "xy")
    owner = np.repeat(np.arange(20), task.train.sizes)
    scores = x @ w
    loss = -y * scores + np.log1p(np.exp(scores))
    np.testing.assert_allclose(f, [loss[(owner == i) & (y == 0)].mean() for i in range(20)], rtol=1e-4)
    np.testing.assert_allclose(g[:, 0], [loss[(owner == i) & (y == 1)].mean() for i in range(20)], rtol=1e-4)


def test_dirichlet_split_has_clients_without_class():
    task = breast_cancer(20, seed=0, concentration=0.5)
    assert task.train.sizes.sum() + task.test.sizes.sum() == 569
    assert task.train.sizes.max() > 5 * task.train.sizes.min()
    assert (task.train.stratum_sizes == 0).any()
    objective, constraint = ss.evaluate(task.problem, task.train, np.zeros(31, np.float32))
    np.testing.assert_array_equal(np.isneginf(objective), task.train.stratum_sizes[:, 0] == 0)
    np.testing.assert_array_equal(np.isneginf(constraint[:, 0]), task.train.stratum_sizes[:, 1] == 0)


def test_held_out_rows_can_be_fixed():
    tests = [breast_cancer(20, seed=seed, split_seed=7).test for seed in (0, 1)]
    rows = [np.sort(np.asarray(test.rows.columns["x"])[:, 0]) for test in tests]
    np.testing.assert_array_equal(*rows)
    assert np.abs(rows[0] - np.sort(np.asarray(breast_cancer(20).test.rows.columns["x"])[:, 0])).max() > 0.1
