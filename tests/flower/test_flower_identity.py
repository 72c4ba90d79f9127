"""A client is who its key says; who comes first decides nothing; names cannot be taken for one another."""

import numpy as np
import pytest

import softswitch as ss
import softswitch.flower as fl
from flower_clients import FaultyGrid, W, quadratic, quadratics, simulated
from member_clients import Clock, grid_of, key, kinds, listed, start
from softswitch.flower import messages as wire
from softswitch.results.history import ClientOutcome

pytestmark = pytest.mark.usefixtures("quiet")


def two_constraints(i, name=None):
    """Client i with a constraint more than the others."""
    plain = quadratic(i)
    odd = lambda params, batch: (np.zeros(2), {"w": np.zeros((2, 3))})  # noqa: E731
    return fl.NumpyClient(plain._objective, odd, plain._data, {"w": W}, name=name or plain.name)


def test_only_those_in_the_list_take_part_whatever_they_call_themselves(tmp_path, caplog):
    nodes = {100: (0, 0), 101: (1, 1), 102: (2, 9), 103: (3, None)}  # site 2 with a strange key, site 3 without any
    result = start(grid_of(nodes), rounds=2, clients=listed(0, 1, 2, 3), events=tmp_path / "events.jsonl").result
    assert result.names == ("site 0", "site 1", "site 2", "site 3")
    assert result.history.per_client.clients.tolist() == [[0, 1], [0, 1]]
    assert np.isnan(result.client_constraint[:, 0]).tolist() == [False, False, True, True]
    assert caplog.text.count("its public key is not in the list") == 2
    assert kinds(tmp_path / "events.jsonl", "turned away") == [("turned away", None)] * 2


def test_an_imposter_with_the_right_name_and_the_wrong_key_is_turned_away_and_the_true_one_takes_part():
    nodes = {100: (1, 9), 101: (0, 0), 105: (1, 1)}  # node 100 calls itself site 1, and is there first
    result = start(grid_of(nodes), clients=listed(0, 1)).result
    assert result.names == ("site 0", "site 1")
    assert (result.history.per_client.outcomes == ClientOutcome.COUNTED).all()


def test_a_node_that_calls_itself_other_than_its_key_says_is_refused(caplog):
    nodes = {100: (0, 0), 101: (0, 1)}  # a member, under another member's name
    result = start(grid_of(nodes), clients=listed(0, 1)).result
    assert "its key is that of 'site 1', but it calls itself 'site 0'" in caplog.text
    assert result.history.per_client.clients.tolist() == [[0]]


@pytest.mark.parametrize("form", ["OpenSSH", "PEM", "path", "with a comment"])
def test_a_key_may_be_written_in_any_form(form, tmp_path):
    file = tmp_path / "node.pub"
    file.write_text(key(0)[0] + " somebody@somewhere\n")
    given = {"OpenSSH": key(0)[0], "PEM": key(0)[1], "path": file, "with a comment": file.read_text()}[form]
    assert start(grid_of({100: (0, 0)}), clients={"site 0": given}).result.names == ("site 0",)
    assert start(grid_of({100: (0, 0)}), clients={"site 0": fl.AllowedClient(given, rows=8)}).result.status.ok


def test_what_is_wrong_with_a_list_is_said_at_once(tmp_path):
    private = tmp_path / "node"
    private.write_text("-----BEGIN OPENSSH PRIVATE KEY-----\n")
    for clients, why in (
        ({"a": "no key"}, "text of a public key"),
        ({"a": private}, "private"),
        ({"a": "ssh-rsa garbage"}, "not a public key"),
        ({"a": key(0)[0], "b": key(0)[1]}, "'a' and 'b' have the same"),
        ({"a": key(0)[0], "A ": key(1)[0]}, "looks the same"),
        ({" ": key(0)[0]}, "empty"),
    ):
        with pytest.raises(ValueError, match=why):
            fl.StrategySettings(clients=clients)
    with pytest.raises(TypeError, match="names to public keys"):
        fl.StrategySettings(clients=["site 0"])
    with pytest.raises(ValueError, match="names must be empty"):
        fl.StrategySettings(clients=listed(0), names=["site 0"])
    for names in (["x", "x"], ["x", "X"], ["caf\u00e9", "cafe\u0301"], ["x", " x"], ["Straße", "STRASSE"]):
        with pytest.raises(ValueError, match="once"):
            fl.StrategySettings(names=names)


def test_names_are_written_in_one_way_and_look_alikes_are_turned_away(caplog):
    called = {0: " caf\u0065\u0301 ", 1: "CAF\u00c9", 2: "other"}
    app = simulated(lambda context: quadratic(0, name=called[context.node_config["i"]]))
    result = start(grid_of({100: (0, None), 101: (1, None), 102: (2, None)}, app)).result
    assert result.names == ("CAF\u00c9", "other")  # whichever comes first in the order of names
    assert "looks like that of" in caplog.text
    result = start(grid_of({100: (0, None), 102: (2, None)}, app), names=["caf\u00e9", "other"]).result
    assert (result.history.per_client.outcomes == ClientOutcome.COUNTED).all()


def test_all_nodes_of_one_name_are_told_at_once(monkeypatch):
    clock = Clock(monkeypatch)
    app = simulated(lambda context: quadratic(context.node_config["i"], name="hospital"))
    with pytest.raises(ValueError, match="all 3 nodes call themselves 'hospital'"):
        start(grid_of({100 + i: (i, None) for i in range(3)}, app), report_timeout=600.0, wait=600.0)
    assert clock.now < 1


class Late(FaultyGrid):
    """Some nodes are there from a certain look on."""

    def __init__(self, app, nodes, keys=None, late=(), looks=3):
        super().__init__(app, nodes, keys=keys)
        self._late, self._left = set(late), looks

    def get_node_ids(self):
        self._left -= 1
        return sorted(node for node in self.connected if node not in self._late or self._left <= 0)


@pytest.mark.parametrize("names", [True, False])
def test_one_node_that_comes_first_does_not_decide_what_the_others_have(names, caplog, monkeypatch, tmp_path):
    """It has two constraints and they have one: it is turned away, and not they."""
    Clock(monkeypatch)
    app = simulated(
        lambda context: two_constraints(9) if context.node_config["i"] == 9 else quadratic(context.node_config["i"])
    )
    nodes = {90: {"i": 9}} | {100 + i: {"i": i} for i in range(5)}
    grid = Late(app, nodes, late=range(100, 105))
    told = {"names": [f"site {i}" for i in range(5)]} if names else {"min_clients": 5}
    events = tmp_path / "events.jsonl"
    result = start(grid, rounds=2, wait=600.0, events=events, **told).result
    assert result.names == tuple(f"site {i}" for i in range(5))
    assert kinds(events, "met") == [("met", f"site {i}") for i in range(5)]  # once: it was not decided anew
    assert (result.history.per_client.outcomes == ClientOutcome.COUNTED).all()
    assert "'site 9' is turned away: it has 2 constraints, the others 1" in caplog.text


def test_strangers_do_not_vote_where_clients_are_named_and_all_named_are_waited_for(monkeypatch, caplog):
    """Three nodes that nobody named are there before the two that are."""
    Clock(monkeypatch)
    app = simulated(
        lambda context: (two_constraints if context.node_config["i"] > 5 else quadratic)(context.node_config["i"])
    )
    grid = Late(app, {90 + i: {"i": i} for i in (0, 1, 7, 8, 9)}, late=(90, 91))
    result = start(grid, rounds=2, names=["site 0", "site 1"], wait=600.0).result
    assert result.names == ("site 0", "site 1")
    assert (result.history.per_client.outcomes == ClientOutcome.COUNTED).all()
    assert caplog.text.count("it has 2 constraints, the others 1") == 3


def test_where_none_is_that_of_most_it_must_be_said():
    app = simulated(lambda context: (two_constraints, quadratic)[context.node_config["i"]](context.node_config["i"]))
    grid = grid_of({100: (0, None), 101: (1, None)}, app)
    with pytest.raises(ValueError, match="set constraints"):
        start(grid)
    assert start(grid, constraints=1).result.names == ("site 1",)


def test_a_client_that_reconnects_with_its_key_takes_the_place_of_its_ghost(tmp_path):
    """The old node is still in the SuperLink's list, and never answers again."""
    grid = grid_of({100: (0, 0), 101: (1, 1), 111: (1, 1)}, grid=FaultyGrid)
    grid.connected = {100, 101}

    def restart(chunk):
        grid.connected = {100, 101, 111}
        grid.faults = {(1, kind): "silent" for kind in (wire.REGISTER, wire.REPORT, wire.UPDATE, wire.EVALUATE)}

    events = tmp_path / "events.jsonl"
    result = start(grid, rounds=4, clients=listed(0, 1), callbacks=[restart], events=events).result
    assert result.names == ("site 0", "site 1")
    assert (result.history.per_client.outcomes == ClientOutcome.COUNTED).all()
    assert result.status.ok
    assert kinds(events, "replaced", "lost") == [("replaced", "site 1")]


@pytest.mark.parametrize("chosen", [False, True])
@pytest.mark.parametrize("participation", [1.0, 0.7])
def test_a_run_goes_on_without_an_excluded_client(tmp_path, chosen, participation):
    grid = FaultyGrid(quadratics(4), 4)
    settings = {"checkpoints": ss.Checkpoints(tmp_path / "kept", every=0), "participation": participation}
    method = ss.Automatic(tolerance=0.1) if chosen else ss.SoftmaxSGM(alpha=5.0, step_size=0.2, tolerance=0.1)
    stop = [lambda chunk: chunk.round == 5]
    first = start(grid, 12, method, callbacks=stop, **settings).result
    assert len(first.history) == 5
    assert first.names == tuple(f"site {i}" for i in range(4))
    events = tmp_path / "events.jsonl"
    result = start(grid, 12, method, exclude=["SITE 1"], events=events, **settings).result
    assert len(result.history) == 12
    assert result.names == ("site 0", "site 2", "site 3")
    assert result.client_constraint.shape == (3, 1)
    assert np.isfinite(result.client_constraint).all()
    assert result.status.ok
    assert result.history.per_client.clients.max() == 2
    assert result.history.worst_client.max() <= 2
    before = first.history.per_client.clients[:5]
    after = result.history.per_client.clients[:5]
    np.testing.assert_array_equal(after, np.array([0, -1, 1, 2, -1])[before])
    assert result.diagnostics[-1].code == "excluded-clients"
    assert "SITE 1" in result.explain()
    assert ("excluded", "site 1") in kinds(events)
    assert kinds(events, "resumed", "finished") == [("resumed", None), ("finished", None)]
    memory = result.state.parts.get("memory")
    assert memory is None or len(memory.reported_at) == 3


def test_a_name_to_leave_out_that_nobody_has_is_told(caplog):
    result = start(FaultyGrid(quadratics(3), 3), exclude=["site 1", "site 11"]).result
    assert result.names == ("site 0", "site 2")
    assert "no client is known by the name 'site 11'" in caplog.text
    assert result.diagnostics[-1].evidence.endswith("no client is known by the name 'site 11'")
    caplog.clear()
    start(FaultyGrid(quadratics(2), 2), exclude=["site 5"], names=["site 0", "site 1", "Site 5"])
    assert "no client is known" not in caplog.text


def test_a_client_that_has_withdrawn_stays_known_in_later_resumptions(tmp_path, caplog):
    grid = FaultyGrid(quadratics(3), 3)
    settings = {"checkpoints": ss.Checkpoints(tmp_path, every=0)}
    start(grid, 4, **settings)
    grid.connected.discard(101)
    for rounds in (6, 8):
        result = start(grid, rounds, exclude=["site 1"], **settings).result
        assert result.names == ("site 0", "site 2")
        assert result.diagnostics[-1].evidence == "'site 1' excluded (exclude); 'site 1' took part in earlier rounds"
    assert "no client is known" not in caplog.text


def test_what_is_remembered_of_an_excluded_client_is_forgotten(tmp_path):
    """It is far above the tolerance: as long as it is remembered no round is feasible."""

    def factory(context):
        client = quadratic(context.node_config["i"])
        if client.name == "site 1":
            client._constraint = lambda params, batch: (5.0, {"w": np.zeros(3, np.float32)})
        return client

    grid = grid_of({100 + i: (i, None) for i in range(4)}, simulated(factory))
    kept = ss.Checkpoints(tmp_path, every=0)
    settings = {"checkpoints": kept, "participation": 0.5, "memory": ss.Memory()}
    first = start(grid, 20, callbacks=[lambda chunk: chunk.round == 8], **settings).result
    assert not first.history.feasible[3:].any()
    result = start(grid, 20, exclude=["site 1"], **settings).result
    assert result.history.feasible[12:].any()
    assert result.status.ok


def test_an_excluded_client_is_not_waited_for(monkeypatch):
    clock = Clock(monkeypatch)
    nodes = {100: (0, 0), 101: (1, 1), 102: (2, 2)}
    strategy = start(grid_of(nodes), clients=listed(0, 1, 2), exclude=["site 2"], wait=600.0)
    assert strategy.result.names == ("site 0", "site 1")
    assert strategy.clients.rows(1) == 8
    del nodes[102]
    assert start(grid_of(nodes), clients=listed(0, 1, 2), exclude=["site 2"], wait=600.0).result.status.ok
    assert clock.now < 1
