"""Lying clients over Flower's grid: what they send is well-formed, and false."""

import logging

import numpy as np
import pytest

import softswitch as ss
import softswitch.flower as fl
from flower_clients import FEATURES, centre, constraint, objective, quadratic, simulated, zeros
from softswitch.results.history import ClientOutcome

CLIENTS, LIAR, ROUNDS = 7, 2, 60


def around(i):
    """Client i's optimum: all are as far from the start, so that nobody is worse off than the others by much."""
    return centre(i) / np.linalg.norm(centre(i))


def ring(i):
    """Client i, with its optimum on a ring around the start."""
    rows = {"x": around(i)[None].astype(np.float32)}
    return fl.NumpyClient(
        objective, constraint, rows, {"w": np.zeros(FEATURES, np.float32)}, name=f"site {i}", batch_size=None
    )


class Liar:
    """An honest client, but for what is changed of it."""

    def __init__(self, client, report=lambda told: told, update=lambda direction: direction):
        self._client, self._report, self._update = client, report, update

    def __getattr__(self, name):
        return getattr(self._client, name)

    def report(self, params, task):
        return self._report(self._client.report(params, task))

    def evaluate(self, params):
        return self._report(self._client.evaluate(params))

    def update(self, params, task, loss):
        return self._update(self._client.update(params, task, loss))

    def certify(self, *told, **more):
        return self._client.certify(*told, **more)


def _gone(direction):
    raise RuntimeError("gone")


LIES = {
    "claims the worst objective and points back": {
        "report": lambda told: told._replace(objective=told.objective + 1),
        "update": lambda direction: {name: -part for name, part in direction.items()},
    },
    "blocks": {"report": lambda told: told._replace(constraint=[1e6])},
    "far away": {"update": lambda direction: {name: 1e6 * part for name, part in direction.items()}},
    "claims, and is gone": {"report": lambda told: told._replace(objective=1e6), "update": _gone},
}


def run(lie, robust, **changes):
    def made(context):
        i = int(context.node_config["partition-id"])
        return Liar(ring(i), **lie) if i == LIAR and lie else ring(i)

    method = ss.SoftmaxSGM(alpha=20.0, step_size=0.2, tolerance=0.05, robust=robust)
    strategy = fl.SwitchingStrategy(method, **changes)
    strategy.start(fl.InProcessGrid(simulated(made), CLIENTS), zeros(), ROUNDS)
    w = strategy.result.params["w"]
    honest = [0.5 * np.square(w - around(i)).sum() for i in range(CLIENTS) if i != LIAR]
    return strategy.result, max(honest), float(w.sum() - 0.2)


@pytest.fixture(scope="module")
def without_a_lie():
    logging.getLogger("flwr").setLevel(logging.ERROR)
    return run(None, 1)[1]


@pytest.mark.parametrize("lie", LIES)
def test_a_liar_is_survived_and_told(quiet, without_a_lie, lie):
    result, honest, constraint = run(LIES[lie], 1)
    assert np.isfinite(result.params["w"]).all()
    assert honest <= without_a_lie + 0.1
    assert constraint <= 0.05 + 1e-6
    assert result.status.ok
    told = " ".join(finding.evidence for finding in result.diagnostics)
    assert f"'site {LIAR}'" in told


def test_the_trusting_are_ruined(quiet, without_a_lie):
    _, honest, _ = run(LIES["claims the worst objective and points back"], None)
    assert honest > without_a_lie + 50
    result, _, _ = run(LIES["blocks"], None)
    assert not result.status.ok


def test_too_few_reports_for_a_robust_round_make_it_void(quiet):
    """Three must report where one may lie; of three clients one refuses from the start."""

    def made(context):
        i = int(context.node_config["partition-id"])
        return Liar(quadratic(i), update=_gone) if i == 0 else quadratic(i)

    method = ss.SoftmaxSGM(alpha=20.0, step_size=0.2, tolerance=0.05, robust=1)
    strategy = fl.SwitchingStrategy(method, patience=3)
    strategy.start(fl.InProcessGrid(simulated(made), 3), zeros(), 10)
    assert len(strategy.result.history) == 3
    assert set(strategy.result.history.per_client.outcomes.ravel()) == {ClientOutcome.NO_UPDATE, ClientOutcome.VOID}
    np.testing.assert_array_equal(strategy.result.last["w"], np.zeros(FEATURES))


def test_fewer_names_than_a_robust_round_needs_are_refused(quiet):
    method = ss.Automatic(tolerance=0.05, robust=2)
    strategy = fl.SwitchingStrategy(method, names=["site 0", "site 1", "site 2", "site 3"])
    grid = fl.InProcessGrid(simulated(lambda context: quadratic(0)), 4)
    with pytest.raises(ValueError, match="robust=2 needs at least 5 clients in every round, but 4 may take part"):
        strategy.start(grid, zeros(), 5)
