"""The leaderboard: tuning, storage, standings and tasks with known optima."""

import json
import math
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats
from typer.testing import CliRunner

from softswitch.cli import app
from softswitch.methods import FedAvg
from softswitch_experiments.leaderboard import cell as cells
from softswitch_experiments.leaderboard.board import Board, CellKey, CellStore
from softswitch_experiments.leaderboard.cell import Cell, Effort, Score, TaskUnits, run_cell
from softswitch_experiments.leaderboard.methods import DEFAULT, METHODS, BenchMethod
from softswitch_experiments.leaderboard.page import write_page
from softswitch_experiments.leaderboard.ranking import Ranking
from softswitch_experiments.leaderboard.tasks import (
    MAIN,
    TASKS,
    BenchTask,
    Scheme,
    find_quadratics_optimum,
    make_quadratics,
    make_rosen_suzuki,
    setup_rows,
)

TINY = Effort(trials=2, rungs=0, seeds=2, budget_share=0.02)


def test_methods_and_tasks_have_unique_names():
    for entries, minimum in ((METHODS, 15), (TASKS, 12)):
        names = [entry.name for entry in entries]
        assert len(set(names)) == len(names) >= minimum
    assert sum(task.several for task in TASKS) == 4


@pytest.mark.parametrize("method", METHODS, ids=lambda method: method.name)
def test_methods_create_rules(method):
    """All tuning points give a rule, are reproducible and are unique."""
    points = method.draw_settings(12)
    assert points == method.draw_settings(12)
    assert len({json.dumps(point) for point in points}) == len(points) == (12 if method.tuned else 1)
    for point in points:
        assert method.make(point, 0.1, 100).tolerance == 0.1


def test_rosen_suzuki_has_published_optimum():
    problem, clients = make_rosen_suzuki()
    w = jnp.array([0.0, 1.0, 2.0, -1.0])
    rows = {"i": jnp.arange(4), "weight": jnp.full(4, 0.25)}
    of_each = [float(problem.objective(w, {"i": jnp.array([i]), "weight": jnp.ones(1)})) for i in range(4)]
    assert max(of_each) == -44
    assert float(problem.constraint(w, rows).max()) == 0
    assert len(clients) == 4


def test_optimum_of_quadratics_matches_subgradient_loop():
    """Compare with a switching subgradient loop: no feasible iterate is better, and the best is close."""
    best, unconstrained = find_quadratics_optimum(), find_quadratics_optimum(tolerance=1e3)
    assert unconstrained < best, "the constraint must be active"
    _, clients = make_quadratics()
    x = np.asarray(clients.rows.columns["centre"], float).reshape(12, 40, 10)
    slopes = np.asarray(clients.rows.columns["slope"], float).reshape(12, 40, 10)[:, 0]
    w, best_feasible = np.zeros(10), math.inf
    for k in range(20_000):
        f = 0.5 * np.square(w - x).sum(-1).mean(1)
        g = slopes @ w + 0.5 - 1e-2
        if g.max() <= 0:
            best_feasible = min(best_feasible, f.max())
            w = w - 0.3 / (1 + k) ** 0.6 * (w - x[f.argmax()].mean(0))
        else:
            w = w - 0.3 / (1 + k) ** 0.6 * slopes[g.argmax()]
    assert best - 1e-6 <= best_feasible <= best * 1.01


def test_successive_halving_budgets(monkeypatch):
    requested = []

    class Fake(Cell):
        def rounds(self, share, by):
            return round(900 * share)

        def run(self, settings, seeds, rounds):
            requested.append((len(settings), rounds))
            assert seeds == [cells.TUNING_SEED]
            return [[Score(abs(candidate["step"] - 1.0), 0, 0, "last", 0, 0, rounds)] for candidate in settings]

    method = next(candidate for candidate in METHODS if candidate.name == "softmax SGM")
    best, tried = Fake(None, method, None, None).tune(Effort())
    assert requested == [(12, 100), (4, 300), (2, 900)]
    assert len(tried) == 18
    assert abs(best["step"] - 1.0) == min(abs(candidate["step"] - 1.0) for candidate in method.draw_settings(12))


def test_merit_penalizes_violation():
    task = BenchTask("t", 0.2, None, 1.0)
    units = TaskUnits(2.0, 0.2)
    assert units.merit(task, 1.0, 0.2) == 0.5
    assert units.merit(task, 1.0, 0.22) == pytest.approx(0.5 + 10 * 0.1)
    assert units.merit(task, math.nan, 0.0) == math.inf


def make_cells():
    merits = {"a": ([1.0, 1.1, 1.2], [3.0, 3.0, 3.0]), "b": ([1.5, 1.7, 1.6], [2.0, 2.5, 2.25])}
    return [
        {
            "task": task,
            "method": method,
            "scheme": MAIN.name,
            "settings": {},
            "units": {"objective": 1.0, "constraint": 0.5},
            "runs": {
                by: [{"merit": m, "constraint": 0.6 if m == 3.0 else 0.1} for m in task_merits]
                for by in ("passes", "bytes")
            },
        }
        for method, merits_by_task in merits.items()
        for task, task_merits in zip(("one", "two"), merits_by_task, strict=True)
    ]


def test_standings():
    ranking = Ranking.from_cells(make_cells(), "passes", {"one": 0.5, "two": 0.5})
    np.testing.assert_allclose(ranking.means, [[0.1, 1.0], [0.6, 0.25]])
    np.testing.assert_array_equal(ranking.best, [0, 1])
    np.testing.assert_allclose(ranking.ranks(), [1.5, 1.5])
    np.testing.assert_allclose(ranking.violations[0, 1], 0.2)
    gap = np.array([0.5, 0.6, 0.4])
    low, high = stats.ttest_1samp(gap, 0).confidence_interval(0.95)
    assert ranking.difference("b", 0, 0) == pytest.approx((low, high))
    assert ranking.leads("a") == [True, False]
    np.testing.assert_allclose(ranking.profile(np.array([0.2, 0.7])), [[0.5, 0.5], [0.0, 1.0]])
    # Nemenyi's critical value of two methods at 5% is 1.960.
    assert ranking.critical_difference() == pytest.approx(1.960 * math.sqrt(2 * 3 / 12), abs=1e-3)


def test_results_are_computed_once_and_stored(tmp_path):
    task = BenchTask("quadratics", 1e-2, setup_rows(make_quadratics), 600)
    method = BenchMethod("averaging", "a test", lambda settings, common: FedAvg(**common))
    reported = []
    board = Board([method], [task], ())
    for _ in range(2):
        board.run(CellStore(tmp_path, TINY), 1, lambda key, cell: reported.append(key))
    assert len(reported) == 1, "the second call must use the stored result"
    stored = CellStore(tmp_path, TINY).read(CellKey("quadratics", "averaging", MAIN))
    assert {len(runs) for runs in stored["runs"].values()} == {2}
    first = stored["runs"]["passes"][0]
    # m = 6 clients of 12: 32 rows of values and 2 × 32 of gradients each, of 480 rows in all.
    assert first["passes"] == pytest.approx(first["rounds"] * 6 * 32 * 3 / 480)
    assert first["passes"] == pytest.approx(600 * TINY.budget_share, rel=0.2)
    assert first["bytes"] == first["rounds"] * 6 * 4 * (2 * 10 + 2 + 1)
    assert CellStore(tmp_path, Effort()).read(CellKey("quadratics", "averaging", MAIN)) is None
    page = write_page(tmp_path, [stored], [method], [task]).read_text(encoding="utf-8")
    assert "averaging" in page
    assert (tmp_path / "profiles-passes.png").stat().st_size > 1000


def test_budgets_are_equal():
    """A second value reduces rounds at equal passes, but not at equal bytes."""
    task = BenchTask("quadratics", 1e-2, setup_rows(make_quadratics), 600)
    setup = task.setup(Scheme(1.0, 1))
    by_name = {method.name: Cell(task, method, setup, TaskUnits(1, 1)) for method in METHODS}
    softmax = by_name["softmax SGM"]
    hinge = by_name["hinge penalty, running estimate"]
    assert hinge.rounds(1.0, "passes") == round(softmax.rounds(1.0, "passes") * 2 / 3)
    assert hinge.rounds(1.0, "bytes") == softmax.rounds(1.0, "bytes")


def test_default_settings_are_not_tuned():
    task = BenchTask("quadratics", 1e-2, setup_rows(make_quadratics), 600)
    default = next(method for method in METHODS if method.name == DEFAULT)
    result = run_cell(task, default, MAIN, Effort(seeds=1, budget_share=0.02))
    assert result["settings"] == {}
    assert result["trials"] == []
    assert result["runs"]["passes"][0]["merit"] < result["start"]


def test_command_rejects_unknown_names():
    rejected = CliRunner().invoke(app, ["bench", "--method", "nothing like it"])
    assert rejected.exit_code != 0
    assert "nothing like it" in rejected.output


def test_page_lists_reference_of_every_method():
    page = Path(__file__).parents[2] / "docs" / "leaderboard.md"
    _, _, section = page.read_text(encoding="utf-8").partition("## Checked against")
    for method in METHODS:
        assert f"\n| {method.name} | " in section, method.name
