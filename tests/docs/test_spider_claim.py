"""The loops of the SPIDER claim: steps and row counts by hand, and evaluation of goals."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from benchmarks.spider_claim.__main__ import table
from benchmarks.spider_claim.finite_sums import FiniteSum, Look
from benchmarks.spider_claim.loops import LOOPS, STEADY
from benchmarks.spider_claim.trial import GOALS, Aim, Course, Effort, Found, times, tried, with_one_batch

ROWS, BATCH, EVERY, STEP, PRICE, WIDTH, CHECKS = 50, 3, 4, 0.3, 2.0, 0.5, 2
SETTINGS = {"step": STEP, "batch": BATCH, "price": PRICE, "width": WIDTH, "every": EVERY, "checks": CHECKS}


@pytest.fixture(scope="module")
def task():
    """(w − 1)² with w <= 1/2, written as a mean of identical rows: every batch has the same mean."""
    rows = {"x": jnp.ones((ROWS, 1)), "one": jnp.ones(ROWS)}
    return FiniteSum(
        "alike", rows, lambda w, r: r["one"] * (w[0] - 1) ** 2, lambda w, r: r["one"] * (w[0] - 0.5), bound=0.5
    )


def expected_state(loop, rounds):
    """Return w after this many rounds, and the number of rows read."""
    w, previous, direction, rows = 0.0, 0.0, 0.0, 0
    for k in range(rounds):
        g, anchor = w - 0.5, k % EVERY == 0
        rows_read = CHECKS * BATCH if "checks" in loop.space else BATCH
        rows += {"all": ROWS, "batch": rows_read, "spider": ROWS if anchor else 2 * BATCH}[loop.sees]
        rows += (ROWS if anchor else 2 * BATCH) if loop.recursive else BATCH
        slope, weight = 2 * (w - 1), PRICE * min(1.0, max(0.0, g / WIDTH))
        if loop.switches:
            direction = 1.0 if g > 0 else slope
        elif loop.recursive and not anchor:  # a change of the price since the anchor has no effect
            direction += slope + weight - (2 * (previous - 1) + weight)
        else:
            direction = slope + weight
        previous, w = w, w - STEP / math.sqrt(1 + k / STEADY) * direction
    return w, rows


@pytest.mark.parametrize("loop", LOOPS, ids=lambda loop: loop.name)
def test_steps_and_row_counts(task, loop):
    settings = {name: SETTINGS[name] for name in loop.space}
    expected, rows = expected_state(loop, 11)
    advance, state = loop.go_on(task, settings), loop.begun(task)
    for target in (rows // 2, rows):  # in two parts, as evaluations interrupt it
        state = advance(state, jax.random.key(0), target)
    assert (int(state.rounds), int(state.rows)) == (11, rows)
    np.testing.assert_allclose(state.w, [expected], rtol=1e-5)


def test_goals_are_evaluated(task):
    aim = Aim(task, 0.25, 2.0, task.look())
    assert task.best() == pytest.approx(0.25, abs=1e-6)
    observation = aim.look(jnp.array([0.6]))
    np.testing.assert_allclose(observation, (0.16, 0.1, 0.8, 0.0), atol=1e-6)
    assert aim.error(observation) == pytest.approx(0.2)
    assert aim.error(Look(0.3, -0.1, 0, 0)) == pytest.approx(0.2)
    assert aim.residual(Look(0.36, -0.1, 1.2, 0.0), 0.1) == pytest.approx(0.6), "far below the bound the price is zero"
    assert aim.residual(Look(0.36, -0.04, 1.2, 0.0), 0.1) == 0
    assert aim.error(Look(math.nan, 0.0, 0, 0)) == math.inf
    course = Course([1.0, 2.0, 3.0], [Look(0.5, 0, 0, 0), Look(0.26, 0, 0, 0), Look(0.3, 0, 0, 0)], 3.0)
    assert [course.to(aim, goal) for goal in (0.1, 0.01)] == [2.0, math.inf]
    assert course.nearest(aim) == pytest.approx(0.04)


def test_ratios_state_missed_goals():
    spider = Found("SPIDER penalty", 60.0, {}, dict.fromkeys(GOALS, (2.0, 4.0, math.inf)))
    other = Found("other", 100.0, {}, dict.fromkeys(GOALS, (20.0, math.inf, 5.0)))
    assert times(other, spider, GOALS[0]) == (17.5, 10.0, 25.0, True)
    assert times(spider, Found("never", 9.0, {}, dict.fromkeys(GOALS, (math.inf,) * 3)), GOALS[0]) is None
    lines = list(table(FiniteSum("some", {"x": np.ones((7, 1))}, None, None, 1.0), [spider, other]))
    assert lines[0] == "**some, 7 rows**"
    assert "| 20 (5–20), 2 of 3 |" in lines[-2]
    assert "| > 18 (10–25) |" in lines[-2]


def test_settings_are_tuned_for_each_goal(task):
    """Full-batch switching on one variable reaches every goal with some step, on seeds not used for tuning."""
    tuned = tried(Aim.of(task), LOOPS[-1], Effort(points=3, seeds=2, rows=10_000, rounds=200))
    for goal in GOALS:
        assert len(tuned.passes[goal]) == 2
        assert all(passes <= 200 for passes in tuned.passes[goal])
    assert tuned.passes[0.1][0] <= tuned.passes[0.01][0]


def test_cost_of_rounds_with_one_batch(task):
    spider, switching, cost = with_one_batch(Aim.of(task), BATCH, Effort(seeds=1, rows=10_000, rounds=200))
    assert cost == pytest.approx((50 + 3) / (50 / 1000 + 0.999 * 6 + 3))
    assert 1 < spider[0] < switching[0] <= 200
