"""Byzantine clients over Flower's grid that send well-formed false values."""

import logging

import numpy as np
import pytest

import softswitch as ss
import softswitch.flower as fl
from flower_clients import FEATURES, centre, constraint, objective, quadratic, simulated, zeros
from member_clients import key, member_list
from softswitch.results.history import ClientOutcome

CLIENTS, BYZANTINE, ROUNDS = 7, 2, 60


def centre_on_ring(i):
    """Return the optimum of client i. All are equally far from the start, so the objectives are similar."""
    return centre(i) / np.linalg.norm(centre(i))


def ring_client(i):
    """Return client i with its optimum on a ring around the start."""
    rows = {"x": centre_on_ring(i)[None].astype(np.float32)}
    return fl.NumpyClient(
        objective, constraint, rows, {"w": np.zeros(FEATURES, np.float32)}, name=f"site {i}", batch_size=None
    )


class ByzantineClient:
    """An honest client with modified reports or directions."""

    def __init__(self, client, report=lambda values: values, update=lambda direction: direction):
        self._client, self._report, self._update = client, report, update

    def __getattr__(self, name):
        return getattr(self._client, name)

    def report(self, params, task):
        return self._report(self._client.report(params, task))

    def evaluate(self, params):
        return self._report(self._client.evaluate(params))

    def update(self, params, task, loss):
        return self._update(self._client.update(params, task, loss))

    def certify(self, *reported, **more):
        return self._client.certify(*reported, **more)


def _gone(direction):
    raise RuntimeError("gone")


FOLLOWED = "inflated objective and reversed direction"
ATTACKS = {
    FOLLOWED: {
        "report": lambda values: values._replace(objective=values.objective + 1),
        "update": lambda direction: {name: -array for name, array in direction.items()},
    },
    "blocks": {"report": lambda values: values._replace(constraint=[1e6])},
    "far away": {"update": lambda direction: {name: 1e6 * array for name, array in direction.items()}},
    "claims, and is gone": {"report": lambda values: values._replace(objective=1e6), "update": _gone},
}


def run(attack, robust, **changes):
    def make_client(context):
        i = int(context.node_config["partition-id"])
        return ByzantineClient(ring_client(i), **attack) if i == BYZANTINE and attack else ring_client(i)

    method = ss.SoftmaxSGM(alpha=20.0, step_size=0.2, tolerance=0.05, robust=robust)
    strategy = fl.SwitchingStrategy(method, simulation=True, **changes)
    strategy.start(fl.InProcessGrid(simulated(make_client), CLIENTS), zeros(), ROUNDS)
    w = strategy.result.params["w"]
    honest_objectives = [0.5 * np.square(w - centre_on_ring(i)).sum() for i in range(CLIENTS) if i != BYZANTINE]
    return strategy.result, max(honest_objectives), float(w.sum() - 0.2)


@pytest.fixture(scope="module")
def without_attack():
    logging.getLogger("flwr").setLevel(logging.ERROR)
    return run(None, 1)[1]


@pytest.mark.parametrize("attack", ATTACKS)
def test_byzantine_client_is_tolerated_and_diagnosed(quiet, without_attack, attack):
    result, honest, constraint = run(ATTACKS[attack], 1)
    assert np.isfinite(result.params["w"]).all()
    assert honest <= without_attack + 0.1
    assert constraint <= 0.05 + 1e-6
    assert result.status.ok
    evidence = " ".join(diagnostic.evidence for diagnostic in result.diagnostics)
    assert f"'site {BYZANTINE}'" in evidence


def test_attack_succeeds_without_robust_method(quiet, without_attack):
    _, honest, _ = run(ATTACKS[FOLLOWED], None)
    assert honest > without_attack + 50
    result, _, _ = run(ATTACKS["blocks"], None)
    assert not result.status.ok


def test_robust_round_with_too_few_reports_is_void(quiet):
    """With one Byzantine client three reports are needed, but one of three clients refuses from the start."""

    def make_client(context):
        i = int(context.node_config["partition-id"])
        return ByzantineClient(quadratic(i), update=_gone) if i == 0 else quadratic(i)

    method = ss.SoftmaxSGM(alpha=20.0, step_size=0.2, tolerance=0.05, robust=1)
    strategy = fl.SwitchingStrategy(method, patience=3, simulation=True)
    strategy.start(fl.InProcessGrid(simulated(make_client), 3), zeros(), 10)
    assert len(strategy.result.history) == 3
    assert set(strategy.result.history.per_client.outcomes.ravel()) == {ClientOutcome.NO_UPDATE, ClientOutcome.VOID}
    np.testing.assert_array_equal(strategy.result.last["w"], np.zeros(FEATURES))


def test_too_few_clients_for_robust_method_are_rejected(quiet):
    method = ss.Automatic(tolerance=0.05, robust=2)
    strategy = fl.SwitchingStrategy(method, names=["site 0", "site 1", "site 2", "site 3"], simulation=True)
    grid = fl.InProcessGrid(simulated(lambda context: quadratic(0)), 4)
    with pytest.raises(ValueError, match="robust=2 needs at least 5 clients in every round, but 4 may take part"):
        strategy.start(grid, zeros(), 5)


STRANGERS = range(CLIENTS, CLIENTS + 3)


def run_with_strangers(**settings):
    """Return the names in a run that three nodes of one attacker join, and the worst honest objective."""

    def make_client(context):
        i = context.node_config["i"]
        client = ring_client(i)
        return ByzantineClient(client, **ATTACKS[FOLLOWED]) if i in STRANGERS else client

    nodes = {100 + i: {"i": i} for i in (*range(CLIENTS), *STRANGERS)}
    grid = fl.InProcessGrid(simulated(make_client), nodes, keys={node: key(node - 100)[1] for node in nodes})
    method = ss.SoftmaxSGM(alpha=20.0, step_size=0.2, tolerance=0.05, robust=1)
    strategy = fl.SwitchingStrategy(method, wait=0.0, **settings)
    strategy.start(grid, zeros(), ROUNDS)
    w = strategy.result.params["w"]
    return strategy.result.names, max(0.5 * np.square(w - centre_on_ring(i)).sum() for i in range(CLIENTS))


def test_strangers_cannot_outvote_robust_method(quiet, without_attack):
    """Names are no allow list: a run with ``robust`` or ``secure`` needs keys, or says that it is a simulation."""
    names = [f"site {i}" for i in range(CLIENTS)]
    everyone, ruined = run_with_strangers(names=names, simulation=True)  # what names alone would allow
    assert len(everyone) == CLIENTS + 3
    assert ruined > without_attack + 5
    for settings in ({"names": names}, {}):
        with pytest.raises(ValueError, match="robust=1 needs clients"):
            run_with_strangers(**settings)
    listed, protected = run_with_strangers(clients=member_list(*range(CLIENTS)))
    assert list(listed) == names
    assert protected <= without_attack + 0.1


def test_secure_aggregation_needs_keys(quiet):
    settings = {"secure": fl.SecureAggregation(min_clients=3), "clip_norm": 10.0, "wait": 0.0}
    strategy = fl.SwitchingStrategy(ss.SoftmaxSGM(alpha=0.2, step_size=0.2, tolerance=0.1), **settings)
    with pytest.raises(ValueError, match="secure needs clients"):
        strategy.start(fl.InProcessGrid(simulated(lambda context: quadratic(0)), 4), zeros(), 1)
    with pytest.raises(TypeError, match="simulation"):
        fl.StrategySettings(simulation="yes")
