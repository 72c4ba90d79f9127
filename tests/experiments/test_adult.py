"""The Adult data included in the package."""

import lzma

import jax
import numpy as np
import pytest

import softswitch as ss
from softswitch.tables.metrics import group_metrics
from softswitch_experiments.tasks import adult as census
from softswitch_experiments.tasks.fair_classification import accuracy_and_gap, adult, predict_probability, scores


@pytest.fixture(scope="module")
def task():
    return adult(10, seed=0)


def split_rows(task, name):
    return np.concatenate([np.asarray(data.rows.columns[name]) for data in (task.train, task.test)])


def test_sizes_and_shares(task):
    assert len(split_rows(task, "y")) == 48_842
    assert split_rows(task, "x").shape == (48_842, 100)
    assert sum(leaf.size for leaf in jax.tree.leaves(task.problem.start)) == 6_529
    assert f"{split_rows(task, 'y').mean():.2%}" == "23.93%"
    assert f"{split_rows(task, 'group').mean():.2%}" == "33.15%"
    assert (task.train.sizes.sum(), task.test.sizes.sum()) == (32_561, 16_281)
    assert np.ptp(task.train.sizes) <= 1


def test_features_are_standardised_and_one_hot():
    table = census.columns()
    training = table["split"] == "train"
    x, names = census.features(table, training)
    assert len(names) == x.shape[1] == 100
    np.testing.assert_allclose(x[training, :6].mean(axis=0), 0, atol=1e-4)
    np.testing.assert_allclose(x[training, :6].std(axis=0), 1, atol=1e-4)
    assert set(np.unique(x[:, 6:])) == {0, 1}
    unknown = names.index("workclass=Federal-gov")
    np.testing.assert_array_equal(x[:, unknown] == 1, table["workclass"] == "Federal-gov")
    assert not any(name.endswith("=?") for name in names), "? comes first in every column that has it, and is dropped"
    assert (table["occupation"] == "?").sum() == 2_809, "but its rows are kept"


def test_damaged_data_are_rejected(monkeypatch, tmp_path):
    census.columns.cache_clear()
    monkeypatch.setattr(census.lzma, "decompress", lambda packed: b"age,income\n39,<=50K\n")
    with pytest.raises(ValueError, match="damaged: SHA-256"):
        census.columns()
    monkeypatch.undo()
    assert lzma.decompress is census.lzma.decompress
    assert len(census.columns()["age"]) == 48_842


def test_clients_by_column():
    task = adult(by="occupation", min_rows=500)
    table = census.columns()
    assert set(task.test.names) <= set(task.train.names)
    assert task.train.names[-1] == "other"
    sales = task.train.sizes[task.train.names.index("Sales")]
    assert sales == ((table["occupation"] == "Sales") & (table["split"] == "train")).sum()
    rare = ~np.isin(table["occupation"], task.train.names)
    assert task.train.sizes[-1] == (rare & (table["split"] == "train")).sum()
    assert task.test.sizes[task.test.names.index("other")] == (rare & (table["split"] == "test")).sum()
    with pytest.raises(ValueError, match="by must be one of"):
        adult(by="job")


def test_decisions_and_metrics_by_group(task):
    params = task.problem.start
    x, y, group = (np.asarray(task.test.rows.columns[name]) for name in ("x", "y", "group"))
    decided = np.asarray(scores(params, x)) >= 0
    positive = np.asarray(predict_probability(params, {"x": x}))
    metrics = accuracy_and_gap(params, task.test)
    assert metrics["accuracy"] == pytest.approx((decided == y).mean())
    assert metrics["decision_gap"] == pytest.approx(abs(decided[group == 1].mean() - decided[group == 0].mean()))
    gap = abs(positive[group == 1].mean() - positive[group == 0].mean())
    assert metrics["probability_gap"] == pytest.approx(gap, abs=1e-6)
    other_group, protected = group_metrics(params, task.test, method="start")
    assert (other_group["method"], other_group["group"], protected["group"]) == ("start", "others", "protected")
    for row, in_group in ((other_group, group == 0), (protected, group == 1)):
        assert row["rows"] == in_group.sum()
        assert row["selection_rate"] == pytest.approx(decided[in_group].mean())
        assert row["true_positive_rate"] == pytest.approx(decided[in_group & (y == 1)].mean())
        assert row["false_positive_rate"] == pytest.approx(decided[in_group & (y == 0)].mean())
        assert row["accuracy"] == pytest.approx((decided == y)[in_group].mean())


def test_network(task):
    """100 → 64 (ReLU) → 1, in NumPy."""
    first, last = [{key: np.asarray(value) for key, value in layer.items()} for layer in task.problem.start]
    x = np.asarray(task.test.rows.columns["x"])[:50]
    expected = np.maximum(x @ first["w"] + first["b"], 0) @ last["w"][:, 0] + last["b"][0]
    np.testing.assert_allclose(scores(task.problem.start, x), expected, rtol=1e-4, atol=1e-5)
    f, g = ss.evaluate(task.problem, task.test, task.problem.start)
    assert f.shape == (10,)
    assert g.shape == (10, 1)
    assert sum(leaf.size for leaf in jax.tree.leaves(adult(hidden=()).problem.start)) == 101
    assert first["w"].std() == pytest.approx(np.sqrt(2 / 100), rel=0.05)
    assert last["w"].std() == pytest.approx(np.sqrt(1 / 64), rel=0.3)
    with pytest.raises(TypeError, match=r"hidden must be a tuple of widths, such as \(64,\), but is 64"):
        adult(hidden=64)
