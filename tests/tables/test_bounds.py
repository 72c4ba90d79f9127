"""Estimates of bounds: proposals from estimates, certification rows, and the estimates of a quick model."""

import math
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from scipy.stats import binom, norm

from softswitch.tables.bounds import (
    BoundEstimate,
    allowed_errors,
    certification_mask,
    complete_rows,
    estimate_bounds,
    propose_bound,
    sample_rows,
)
from softswitch.tables.preparation import prepare_table
from softswitch.tables.settings import Config, DataSection, TaskSection


def estimate(bound, certifiable, cost):
    return BoundEstimate(bound, tuple("abc"), tuple("abc"[:certifiable]), cost, cost)


@pytest.mark.parametrize(
    ("estimates", "proposed"),
    [
        ([(0.1, 3, 0.95), (0.2, 3, 0.6), (0.3, 3, 0.4)], 0.2),  # the smallest that is useful
        ([(0.1, 2, 0.5), (0.2, 3, 0.6), (0.3, 3, 0.4)], 0.2),  # all clients rather than two
        ([(0.1, 1, 0.5), (0.2, 2, 0.6), (0.3, 2, 0.4)], 0.2),  # the most clients
        ([(0.1, 2, 0.5), (0.2, 3, 0.95)], 0.1),  # useful at two clients rather than useless at all
        ([(0.1, 0, 0.1), (0.2, 2, 1), (0.3, 3, 0.95), (0.4, 3, math.nan)], 0.3),  # none is useful
        ([(0.1, 3, 0.95), (0.2, 3, 0.8), (0.3, 2, 0.79)], 0.2),  # the least costly for the most clients
        ([(0.05, 0, 0.1), (0.1, 0, math.nan)], None),
        ([(0.05, 0, 0.1), (0.5, 1, 0.3)], 0.5),  # never one that no client can certify
    ],
)
def test_propose_bound(estimates, proposed):
    chosen = propose_bound([estimate(*values) for values in estimates])
    assert (None if chosen is None else chosen.bound) == proposed


@pytest.mark.parametrize("bound", [0.05, 0.3, 0.5])
@pytest.mark.parametrize("rows", [0, 1, 4, 5, 58, 59, 300])
def test_allowed_errors(rows, bound):
    errors = allowed_errors(rows, bound, 0.05)
    assert errors == -1 or binom.cdf(errors, rows, bound) <= 0.05
    assert binom.cdf(errors + 1, rows, bound) > 0.05
    assert (allowed_errors(59, 0.05, 0.05), allowed_errors(58, 0.05, 0.05)) == (0, -1)


def test_sample_rows():
    client = np.repeat([0, 1, 2], [1000, 50, 3])
    rows = np.flatnonzero(np.arange(len(client)) % 10 != 0)
    sample = sample_rows(client, rows, 100)
    assert len(sample) == 100 == len(np.unique(sample))
    assert set(sample) <= set(rows)
    counts, available = np.bincount(client[sample]), np.bincount(client[rows])
    np.testing.assert_array_equal(counts[1:], available[1:])  # small clients keep all rows
    np.testing.assert_array_equal(sample_rows(client, rows, 5000), rows)


def cases(rows=3000, seed=0):
    """Return a table of three hospitals of 60%, 37% and 3% of the rows, with a marker that tells the classes apart."""
    draws = np.random.default_rng(seed)
    ill = draws.random(rows) < 0.4
    return pd.DataFrame(
        {
            "hospital": draws.choice([1.0, 2.0, 10.0], rows, p=[0.6, 0.37, 0.03]),
            "marker": draws.normal(2 * ill, 1),
            "noise": draws.normal(size=rows),
            "ward_type": draws.integers(1, 4, rows),
            "sex": draws.choice(["F", "M"], rows),
            "grade": draws.choice(["a", "b", "c"], rows),
            "cost": draws.normal(size=rows),
            "outcome": np.where(ill, "ill", "well"),
        }
    )


def settings(kind="miss-rate", label="outcome", positive="ill", **options):
    data = DataSection("cases.csv", label, "hospital", positive, **options)
    return Config(data, TaskSection(kind, 0.2, sensitive="sex", protected="F"))


@pytest.mark.parametrize(
    ("kind", "label", "positive"),
    [
        ("miss-rate", "outcome", "ill"),
        ("false-alarm-rate", "outcome", "well"),
        ("error-rate", "outcome", "ill"),
        ("class-miss-rate", "outcome", "ill"),
        ("class-miss-rate", "grade", None),
        ("decision-parity", "outcome", "ill"),
        ("coverage", "cost", None),
    ],
)
def test_certification_rows_are_those_of_training(tmp_path, kind, label, positive):
    table = cases(600)
    table["id"] = np.arange(600)
    table.loc[3:9, "hospital"] = None
    table.loc[7:12, label] = None
    table.loc[15:17, "sex"] = None
    table.to_csv(tmp_path / "cases.csv", index=False)
    config = settings(kind, label, positive)
    config = replace(config, run=replace(config.run, seed=4))
    prepared = prepare_table(config, tmp_path)
    rows = complete_rows(table, config)
    mask = certification_mask(rows, config)
    (encoding,) = [one for one in prepared.encoding.columns if one.name == "id"]
    standardised = prepared.held_out.rows.columns["x"][:, prepared.encoding.features.index("id")]
    ids = np.asarray(standardised, float) * encoding.scale + encoding.mean
    assert sorted(np.round(ids).astype(int)) == sorted(rows["id"][mask])


@pytest.mark.parametrize("kind", ["miss-rate", "false-alarm-rate"])
def test_estimates(kind):
    table, config = cases(), settings(kind, categories=("ward_type",))
    estimates = estimate_bounds(table, config)
    assert [one.bound for one in estimates] == [0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.4, 0.5]
    mask = certification_mask(table, config)
    is_bounded = (table["outcome"] == ("ill" if kind == "miss-rate" else "well")) & mask
    for one in estimates:
        counts = table["hospital"][is_bounded].value_counts()
        expected = {f"{name:.0f}" for name, count in counts.items() if (1 - one.bound) ** count <= 0.05}
        assert (one.names, set(one.certifiable)) == (("1", "10", "2"), expected)
        assert one.mean_cost <= one.cost <= 1
    assert set(estimates[0].certifiable) == {"1", "2"}
    costs = {one.bound: one.cost for one in estimates if len(one.certifiable) == 2}
    assert list(costs.values()) == sorted(costs.values(), reverse=True)
    draws, lowest = np.random.default_rng(1), []  # by the marker alone
    for count in map(int, counts):
        samples = np.sort(draws.normal(2, 1, (1000, count)), axis=1)
        lowest.append(samples[:, allowed_errors(count, 0.1, 0.05)])
    assert estimates[1].cost == pytest.approx(norm.sf(np.min(lowest, axis=0)).mean(), abs=0.08)
    assert propose_bound(estimates).is_useful


def test_estimates_do_not_read_labels_of_certification_rows():
    """Swapping labels among certification rows of a client with other features changes nothing but counts."""
    table, config = cases(), settings()
    mask = certification_mask(table, config)
    before = estimate_bounds(table, config)
    changed = table.copy()
    changed.loc[mask, ["marker", "noise"]] = 0.0
    assert estimate_bounds(changed, config) == before


def test_few_rows_of_a_class():
    table = cases(400)
    table["outcome"] = np.where(np.arange(400) < 8, "ill", "well")
    estimates = estimate_bounds(table, settings())
    assert all(math.isnan(one.cost) for one in estimates)
    assert propose_bound(estimates) is None


def test_no_jax():
    program = "import sys; import softswitch.tables.bounds; print('jax' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
