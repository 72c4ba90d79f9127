"""Whatever clients do, the run ends, the model stays finite and the history accounts for everyone."""

import logging

import numpy as np
import pytest

import softswitch as ss
import softswitch.flower as fl
from flower_clients import BAD_DIRECTIONS, BAD_REPORTS, FEATURES, LOST, FaultyGrid, quadratic, quadratics, zeros
from softswitch.flower import wire
from softswitch.history import Fate

RULE = ss.SoftmaxSGM(alpha=5.0, step_size=0.2, tolerance=0.1)
MANY = 4
IN_REPORT = {
    **dict.fromkeys(LOST, Fate.NO_REPORT),
    **dict.fromkeys(BAD_REPORTS, Fate.BAD_REPORT),
    "refuses": Fate.REFUSED,
}
IN_UPDATE = {
    **dict.fromkeys(LOST, Fate.NO_UPDATE),
    **dict.fromkeys(BAD_DIRECTIONS, Fate.BAD_UPDATE),
    "refuses": Fate.REFUSED,
    "restarted": Fate.REFUSED,
}


@pytest.fixture(autouse=True)
def quiet():
    """Without Flower's lines of every round."""
    logger = logging.getLogger("flwr")
    before = logger.level
    logger.setLevel(logging.ERROR)
    yield
    logger.setLevel(before)


def run(grid, rounds=1, **settings):
    strategy = fl.SwitchingStrategy(
        RULE, **{"report_timeout": 0.02, "update_timeout": 0.02, "wait": 0.0, "patience": 10**6, **settings}
    )
    strategy.start(grid, zeros(), rounds)
    return strategy.result


def step_by_hand(present, weighing=None):
    """w_1 where these clients report, and those of ``weighing`` (of them) return a direction. w_0 = 0 is feasible."""
    f = np.array([0.5 * np.square(client(i)).sum(axis=1).mean() for i in present])
    p = np.exp(5.0 * (f - f.max()))
    keep = np.isin(present, present if weighing is None else weighing)
    p = np.where(keep, p, 0) / p[keep].sum()
    return 0.2 * sum(weight * client(i).mean(axis=0) for weight, i in zip(p, present, strict=True))


def client(i):
    return quadratic(i)._data["x"].astype(float)


@pytest.mark.parametrize("fault", IN_REPORT)
def test_a_client_that_fails_in_its_report_is_not_in_the_round(fault, caplog):
    grid = FaultyGrid(quadratics(MANY), MANY)
    grid.faults[1, wire.REPORT] = fault
    with caplog.at_level(logging.WARNING):
        result = run(grid)
    assert result.history.per_client.fates.tolist() == [[1, IN_REPORT[fault], 1, 1]]
    assert "'site 1'" in caplog.text
    assert np.isnan(result.history.per_client.objective[0, 1])
    np.testing.assert_allclose(result.last["w"], step_by_hand([0, 2, 3]), atol=1e-6)


@pytest.mark.parametrize("fault", IN_UPDATE)
def test_a_client_that_fails_between_the_exchanges_is_dropped_and_weights_are_renormalised(fault, caplog):
    grid = FaultyGrid(quadratics(MANY), MANY)
    grid.faults[2, wire.UPDATE] = fault
    with caplog.at_level(logging.WARNING):
        result = run(grid)
    assert result.history.per_client.fates.tolist() == [[1, 1, IN_UPDATE[fault], 1]]
    assert "'site 2'" in caplog.text
    assert np.isfinite(result.history.per_client.objective).all()  # its report counted
    np.testing.assert_allclose(result.last["w"], step_by_hand([0, 1, 2, 3], weighing=[0, 1, 3]), atol=1e-6)


def test_a_restarted_client_goes_on_where_the_parameters_come_again():
    grid = FaultyGrid(quadratics(MANY), MANY)
    grid.faults[2, wire.UPDATE] = "restarted"
    result = run(grid, resend_params=True)
    assert (result.history.per_client.fates == Fate.COUNTED).all()
    np.testing.assert_allclose(result.last["w"], step_by_hand([0, 1, 2, 3]), atol=1e-6)


@pytest.mark.parametrize("kind", [wire.REPORT, wire.UPDATE])
def test_with_too_few_clients_a_round_is_void(kind):
    grid = FaultyGrid(quadratics(MANY), MANY)
    for i in (0, 1):
        grid.faults[i, kind] = "silent"
    result = run(grid, rounds=3, min_clients=3)
    assert result.history.void.all()
    lost = Fate.NO_REPORT if kind == wire.REPORT else Fate.NO_UPDATE
    assert result.history.per_client.fates.tolist() == [[lost, lost, Fate.VOID, Fate.VOID]] * 3
    assert not result.last["w"].any()
    assert result.status.code is ss.StatusCode.NO_FEASIBLE_ROUND
    assert "50% of those asked were lost" in result.status.message
    assert result.diagnosis[0].illness == "clients are lost"
    assert "site 0" in result.diagnosis[0].seen


def test_void_rounds_in_a_row_end_the_run_and_it_can_go_on(tmp_path):
    grid = FaultyGrid(quadratics(MANY), MANY)
    settings = {"patience": 3, "checkpoints": ss.Checkpoints(tmp_path, every=0)}

    def trouble(chunk):
        if chunk.round == 4:
            grid.connected.clear()

    result = run(grid, rounds=20, callbacks=[trouble], **settings)
    assert len(result.history) == 7
    assert result.history.void.tolist() == [False] * 4 + [True] * 3
    assert result.status.code is ss.StatusCode.STOPPED
    assert np.isnan(result.client_constraint).all()  # nobody was there to judge
    grid.connected = {100 + i for i in range(MANY)}
    result = run(grid, rounds=20, **settings)
    assert len(result.history) == 20
    assert result.history.void.sum() == 3
    assert result.names == tuple(f"site {i}" for i in range(MANY))


def test_nodes_join_and_leave_and_return_with_another_id():
    """A client is its name, not its node."""
    numbers = {100: 0, 101: 1, 102: 2, 103: 1, 104: 10}
    grid = fl.InProcessGrid(
        fl.client_app(lambda context: quadratic(context.node_config["i"])), {n: {"i": i} for n, i in numbers.items()}
    )
    grid.connected = {100, 101}

    def change(chunk):
        grid.connected = {1: {100, 101, 102, 104}, 2: {100, 102}, 3: {100, 102, 103}}[min(chunk.round, 3)]

    result = run(grid, rounds=5, callbacks=[change])
    assert result.names == ("site 0", "site 1", "site 2", "site 10")
    assert result.history.per_client.clients.tolist() == [
        [0, 1, -1, -1],
        [0, 1, 2, 3],
        [0, 2, -1, -1],
        [0, 1, 2, -1],
        [0, 1, 2, -1],
    ]
    assert (result.history.per_client.fates > 0).sum(axis=1).tolist() == [2, 4, 2, 3, 3]
    assert np.isnan(result.client_constraint[:, 0]).tolist() == [False, False, False, True]
    assert "nothing is known of 'site 10'" in result.status.message


def test_two_nodes_of_one_name_and_strangers_are_turned_away(caplog):
    def factory(context):
        i = context.node_config["i"]
        if i == 3:
            return quadratic(0)
        if i == 4:
            return quadratic(4, name="")
        return quadratic(i)

    grid = fl.InProcessGrid(fl.client_app(factory), {100 + i: {"i": i} for i in range(5)})
    with caplog.at_level(logging.WARNING):
        result = run(grid, rounds=3)
    assert result.names == ("site 0", "site 1", "site 2")
    assert caplog.text.count("is connected already") == 1
    assert caplog.text.count("its name must be a text") == 1


def test_whoever_fails_when_the_answer_is_judged_is_named():
    grid = FaultyGrid(quadratics(MANY), MANY)
    grid.faults[1, wire.JUDGE] = "raises"
    result = run(grid, rounds=2)
    assert np.isnan(result.client_objective).tolist() == [False, True, False, False]
    assert result.status.code is ss.StatusCode.VIOLATED
    assert "nothing is known of 'site 1'" in result.status.message
    assert result.violating == ("site 1",)


def test_a_thousand_rounds_of_every_fault_at_random():
    generator = np.random.default_rng(0)
    grid = FaultyGrid(quadratics(6), 6)
    everyone = set(grid.connected)
    injected = []

    def stir(chunk=None):
        grid.faults.clear()
        for i in range(6):
            for kind, faults in ((wire.REPORT, IN_REPORT), (wire.UPDATE, IN_UPDATE)):
                if generator.random() < 0.15:
                    grid.faults[i, kind] = str(generator.choice([*faults]))
        grid.connected = {node for node in everyone if generator.random() < 0.95}
        injected.append((dict(grid.faults), set(grid.connected)))

    stir()
    result = run(
        grid,
        rounds=1000,
        callbacks=[stir],
        participation=0.8,
        min_clients=2,
        report_timeout=0.004,
        update_timeout=0.004,
        names=[f"site {i}" for i in range(6)],
    )
    history = result.history
    assert len(history) == 1000
    assert np.isfinite(np.asarray(result.last["w"])).all()
    assert np.isfinite(np.asarray(result.params["w"])).all()
    told, fates = history.per_client.clients, history.per_client.fates
    np.testing.assert_array_equal(told >= 0, fates != Fate.NOBODY)
    for k, (faults, connected) in enumerate(injected[:1000]):
        asked = told[k][told[k] >= 0].tolist()
        assert len(asked) == max(1, round(0.8 * len(connected)))
        assert {100 + i for i in asked} <= connected
        reported = [i for i in asked if (i, wire.REPORT) not in faults]
        done = [i for i in reported if (i, wire.UPDATE) not in faults]
        void = len(reported) < 2 or len(done) < 2
        assert history.void[k] == void
        for place, i in enumerate(told[k].tolist()):
            if i < 0:
                continue
            if i not in reported:
                wanted = IN_REPORT[faults[i, wire.REPORT]]
            elif len(reported) >= 2 and i not in done:
                wanted = IN_UPDATE[faults[i, wire.UPDATE]]
            else:
                wanted = Fate.VOID if void else Fate.COUNTED
            assert fates[k, place] == wanted
    assert 0 < history.void.sum() < 300
    assert 0.1 < history.switch_share < 0.9
    assert result.worst_constraint <= RULE.switch_at + 1e-6  # a mean of feasible iterates, of a linear constraint


def test_what_is_injected_covers_both_exchanges():
    assert len(IN_REPORT) == len(LOST) + len(BAD_REPORTS) + 1
    assert len(IN_UPDATE) == len(LOST) + len(BAD_DIRECTIONS) + 2
    assert zeros()["w"].shape == (FEATURES,)
